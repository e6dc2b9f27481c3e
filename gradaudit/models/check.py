"""Is a model what its owner's framework computes, and what will not work with it?

What can be compared is compared with numbers: logits, per-example gradients and their
derivative in the input, which is what attacks follow. What can't work is said before
an attack fails for it.
"""

import dataclasses
import enum
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import tree
from gradaudit.models.adapters_torch import TorchNetwork
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.model import Model, OneLogit, squared_error
from gradaudit.types import PyTree

EQUAL = 1e-4  # relative, of logits and gradients
_SECOND = 1e-2  # of the derivative of gradients: float32 loses more there
_EXAMPLES, _SIDE_BY_SIDE, _TIMES = 3, 2, 7


class Said(enum.Enum):
    """What a line of the check says."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclasses.dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    what: str
    said: Said
    words: str
    figure: float | None = None  # the relative difference, where there is one


def check_model(model: Model, timed: bool = True) -> list[Line]:
    """Returns what was found of a model, line by line.

    Args:
      model: of `from_torch`, `from_flax`, `from_function`, or one of ours.
      timed: also measure whether victims are faster side by side.
    """
    case = _Case(model)
    lines = [_shape(case), *_layers(model)]
    if case.torch is None:
        words = "it is written in jax: there is no other framework to compare it with"
        lines.append(Line("compared", Said.GOOD, f"{model.name}: {words}"))
        lines.append(_second(case, None))
    else:
        theirs = _theirs(case, case.torch)
        lines += _compared(case, case.torch, theirs)
        lines.append(_second(case, theirs.second))
    lines += _training(case)
    return lines + ([_side_by_side(case)] if timed else [])


class _Case:
    """A model at its start, and a few examples."""

    def __init__(self, model: Model) -> None:
        key = jax.random.key(0)
        self.model = model
        self.params, self.buffers = model.init(key), model.initial_buffers(key)
        shape = (_EXAMPLES, *model.input_shape)
        self.inputs = jax.random.uniform(jax.random.fold_in(key, 1), shape)
        self.labels = np.arange(_EXAMPLES) % model.classes
        self.one_logit = isinstance(model.network, OneLogit)
        network: Any = model.network
        network = network.network if self.one_logit else network
        self.torch = network if isinstance(network, TorchNetwork) else None

    def gradient(self, inputs: jax.Array, label: jax.Array) -> PyTree:
        target = one_hot(label[None], self.model.classes)
        return batch_gradient(
            self.model, self.params, self.buffers, inputs[None], target
        )

    def steepness(self, inputs: jax.Array, label: jax.Array) -> jax.Array:
        """Returns |gradient|^2: attacks follow derivatives of this kind."""
        gradient = self.gradient(inputs, label)
        return tree.dot(gradient, gradient)

    def of_each(self, function: Callable[..., Any]) -> list[Any]:
        """Returns what a function of one example gives for every one."""
        compiled, labels = jax.jit(function), jnp.asarray(self.labels)
        found = [compiled(x, y) for x, y in zip(self.inputs, labels, strict=True)]
        return [jax.tree.map(np.asarray, each) for each in found]


def _shape(case: _Case) -> Line:
    model, leaves = case.model, jax.tree.leaves(case.params)
    count = sum(leaf.size for leaf in leaves)
    own = "draws its weights" if model.drawn else "has weights of its own"
    words = (
        f"{model.name}: inputs {model.input_shape}, {model.classes} classes, "
        f"{len(leaves)} tensors, {count:,} parameters; it {own}"
    )
    return Line("model", Said.GOOD, words)


def _layers(model: Model) -> Iterator[Line]:
    if model.output_layer is None:
        words = (
            "no dense layer was found that makes the logits: labels are not read off "
            "its gradient; name it as output_layer"
        )
        yield Line("output layer", Said.NOTE, words)
    else:
        yield Line("output layer", Said.GOOD, f"{model.output_layer} makes the logits")
    if model.input_layer is not None:
        words = f"{model.input_layer} reads the input: one example has a closed form"
        yield Line("input layer", Said.GOOD, words)


@dataclasses.dataclass(frozen=True)
class _Theirs:
    """What torch computes for the same weights and examples."""

    logits: np.ndarray[Any, Any]
    gradients: list[dict[str, np.ndarray[Any, Any]]]  # by its names, per example
    second: list[np.ndarray[Any, Any]] | None  # in our layout, if there is one


def _theirs(case: _Case, network: TorchNetwork) -> _Theirs:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def losses(logits: Any, labels: Any) -> Any:
        if case.model.example_loss is squared_error:
            hot = torch.nn.functional.one_hot(labels, case.model.classes)
            return (logits - hot).square().mean(1)
        if case.one_logit:
            flat, wanted = logits.reshape(-1), labels.float()
            return torch.nn.functional.binary_cross_entropy_with_logits(
                flat, wanted, reduction="none"
            )
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    named = dict(network.module.named_parameters())
    given = torch.from_numpy(np.array(network.given(case.inputs)))
    labels = torch.from_numpy(case.labels)
    gradients, second = [], []
    with sdpa_kernel(SDPBackend.MATH):  # the only one with a second derivative
        logits = network.module(given).detach().numpy()
        for row in range(len(labels)):
            one = given[row : row + 1].clone().requires_grad_()
            loss = losses(network.module(one), labels[row : row + 1]).sum()
            found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
            pairs = zip(named, found, strict=True)
            gradients.append({n: g.detach().numpy().copy() for n, g in pairs})
            try:
                steep = sum(gradient.square().sum() for gradient in found)
                (back,) = torch.autograd.grad(steep, one)
            except RuntimeError:
                continue  # it has none
            turned = back[0].numpy()
            turned = np.moveaxis(turned, 0, -1) if network.images else turned
            second.append(
                turned / np.asarray(network.deviation) if network.deviation else turned
            )
    return _Theirs(logits, gradients, second if len(second) == len(labels) else None)


def _compared(case: _Case, network: TorchNetwork, theirs: _Theirs) -> Iterator[Line]:
    logits = case.model.apply(case.params, case.buffers, case.inputs)
    if case.one_logit:
        logits = logits[:, 1:]
    yield _difference("logits", _apart([np.asarray(logits)], [theirs.logits]))
    if case.model.coupled:
        words = "not compared: in training mode no example has a gradient of its own"
        yield Line("gradients", Said.NOTE, words)
        return
    worst = 0.0
    for own, named in zip(case.of_each(case.gradient), theirs.gradients, strict=True):
        tensors = {**network.own, **named}
        params, _ = network.arrange(tensors, "torch's gradients", False)
        worst = max(worst, _apart(jax.tree.leaves(own), jax.tree.leaves(params)))
    yield _difference("per-example gradients", worst)


def _apart(ours: list[Any], theirs: list[Any]) -> float:
    """Returns the norm of the difference, of the norm of theirs."""
    gap = sum(
        float(np.sum(np.square(a - b))) for a, b in zip(ours, theirs, strict=True)
    )
    size = sum(float(np.sum(np.square(b))) for b in theirs)
    return float(np.sqrt(gap / size)) if size > 0 else float(np.sqrt(gap))


def _difference(what: str, apart: float, limit: float = EQUAL) -> Line:
    equal = apart <= limit
    words = f"{'equal to' if equal else 'not equal to'} torch's"
    said = Said.GOOD if equal else Said.BAD
    return Line(what, said, f"{words}, {apart:.1e} relative", apart)


def _second(case: _Case, theirs: list[np.ndarray[Any, Any]] | None) -> Line:
    """Says whether a gradient can be followed into the input."""
    what = "second derivative"
    if case.model.coupled:
        return Line(what, Said.NOTE, "not looked at: in training mode")
    try:
        found = case.of_each(jax.grad(case.steepness))
    except Exception as error:  # whatever a foreign network does there
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        words = f"there is none ({first}): only closed forms and line-ups work"
        return Line(what, Said.BAD, words)
    if not all(np.isfinite(each).all() for each in found):
        return Line(what, Said.BAD, "it is not finite: searches will diverge")
    if not any(each.any() for each in found):
        words = "it is zero: the gradient does not depend on the input smoothly, and "
        return Line(what, Said.BAD, f"{words}no search can follow it")
    if theirs is None:
        return Line(what, Said.GOOD, "it is there, and attacks can follow it")
    return _difference(what, _apart(found, theirs), _SECOND)


def _training(case: _Case) -> Iterator[Line]:
    """Says what of the client's training mode an attack does not see."""
    parts = [] if case.torch is None else case.torch.module.named_modules()
    kinds = {path: type(part).__name__ for path, part in parts}
    dropping = [path for path, kind in kinds.items() if "Dropout" in kind]
    if dropping:
        words = (
            f"{', '.join(dropping[:3])}: attacks rebuild by the network without it. "
            "Updates of a client that trains with it are of a random network, which "
            "nobody can replay"
        )
        yield Line("dropout", Said.NOTE, words)
    normed = [path for path, kind in kinds.items() if "BatchNorm" in kind]
    if case.model.coupled:
        words = (
            "training reads the batch's own statistics: no example has a gradient of "
            "its own, and type 2 is refused"
        )
        yield Line("batch norm", Said.NOTE, words)
    elif normed:
        words = (
            "by its running statistics, as in module.eval(); if clients train with the "
            "batch's own, say from_torch(..., training=True)"
        )
        yield Line("batch norm", Said.NOTE, words)


def _side_by_side(case: _Case) -> Line:
    """Measures victims side by side against one after the other; says what is used."""
    if case.model.coupled:
        return Line("victims", Said.NOTE, "not timed: in training mode")
    label = jnp.asarray(case.labels[0])
    one = jax.value_and_grad(lambda inputs: case.steepness(inputs, label))
    inputs = case.inputs[:_SIDE_BY_SIDE]
    programs: tuple[Callable[[jax.Array], Any], ...] = (
        jax.jit(lambda inputs: jax.lax.map(one, inputs)),
        jax.jit(jax.vmap(one)),
    )
    times: tuple[list[float], ...] = ([], [])
    for turn in range(_TIMES + 1):
        for program, seconds in zip(programs, times, strict=True):
            began = time.perf_counter()
            jax.tree.map(np.asarray, program(inputs))  # waits for it
            seconds += [time.perf_counter() - began] * (turn > 0)
    after, beside = (1e3 * statistics.median(each) for each in times)
    used = after if case.model.alone else beside
    chosen = "one after the other" if case.model.alone else "side by side"
    words = (
        f"{_SIDE_BY_SIDE} take {after:.3g} ms one after the other, {beside:.3g} ms "
        f"side by side; {chosen} is used"
    )
    wrong = used > 1.5 * min(after, beside) and jax.default_backend() == "cpu"
    more = f": say alone={not case.model.alone}" if wrong else ""
    return Line("victims", Said.NOTE if wrong else Said.GOOD, words + more)
