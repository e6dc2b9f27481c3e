"""torch modules as models, through torchax; torch is imported when one is made.

What a module calls `fc.weight` is `{"fc": {"kernel": weight.T}}` in the tree for a
dense layer, so that label recovery and closed forms read it like any other; every
other parameter keeps its name and its shape. Images are (height, width, channels) here
and (channels, height, width) there: both are turned at the border.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError
from gradaudit.models.adapters import with_layers
from gradaudit.models.model import Model, with_loss
from gradaudit.types import Key, PyTree

STATISTICS = "torch"  # the collection of its buffers
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where one tensor of the module is in the tree."""

    name: str  # torch's
    path: tuple[str, ...]
    dense: bool  # a dense layer's weight: transposed
    rows: tuple[int, ...] | None = None  # the kernel's rows in the order of our inputs

    def inward(self, array: Any) -> Any:
        """Returns torch's tensor as the tree has it."""
        if not self.dense:
            return array
        turned = array.T
        return turned if self.rows is None else turned[np.asarray(self.rows)]

    def outward(self, array: Any) -> Any:
        """Returns the tree's tensor as torch has it."""
        if not self.dense:
            return array
        if self.rows is not None:
            array = array[np.argsort(np.asarray(self.rows))]
        return array.T


@dataclasses.dataclass(frozen=True, eq=False)
class TorchNetwork:
    """A module as a pure function; equal only to itself."""

    module: Any  # a copy of torch's, in evaluation: what it is compared with
    call: Callable[..., Any]  # (states, inputs) -> logits, in evaluation
    train_call: Callable[..., Any] | None  # the same in training, if that differs
    entries: tuple[Entry, ...]
    buffers: tuple[str, ...]  # names of the statistics
    fixed: Mapping[str, Any]  # counters and masks: no data of the client
    aliases: tuple[str, ...]  # other names of tensors that are shared
    own: Mapping[str, NDArray[Any]]  # the module's tensors
    draw: Callable[[int], Mapping[str, NDArray[Any]]] | None  # seed -> fresh ones
    images: bool
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    eager: ClassVar[bool] = True  # its start is torch's, outside of any program

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the module's tensors, or fresh ones if it draws."""
        del inputs
        tensors = self.own
        if self.draw is not None and not isinstance(key, jax.core.Tracer):
            seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1])
            tensors = self.draw(seed)
        params, buffers = self._arranged(tensors)
        return {"params": params} | ({STATISTICS: buffers} if buffers else {})

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, outputs)."""
        return self.call(self._states(variables), self.given(inputs))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns the logits in training; the statistics stay as they were."""
        call = self.train_call or self.call
        logits = call(self._states(variables), self.given(inputs))
        return logits, {k: v for k, v in variables.items() if k != "params"}

    def arrange(
        self, tensors: Mapping[str, NDArray[Any]], what: str, whole: bool
    ) -> tuple[PyTree, PyTree]:
        """Returns a state_dict, by torch's names or numbered, as params and buffers."""
        order = [name for name in self.own if name not in self.fixed]
        if set(tensors) == {str(number) for number in range(len(tensors))}:
            names = order if len(tensors) == len(order) else list(self.own)
            if len(names) != len(tensors):
                raise InputError(
                    f"{what} has {len(tensors)} tensors without names, the module has "
                    f"{len(self.own)}"
                )
            tensors = {name: tensors[str(i)] for i, name in enumerate(names)}
        ignored = {*self.fixed, *self.aliases}
        given = {name: array for name, array in tensors.items() if name not in ignored}
        without = not whole and not set(self.buffers) & set(given)
        wanted = {entry.name for entry in self.entries}
        wanted |= set() if without else set(self.buffers)
        missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
        if missing or unknown:
            raise InputError(
                f"{what} does not hold the tensors of the module: missing "
                f"{', '.join(missing[:_SHOWN]) or 'none'}, unknown "
                f"{', '.join(unknown[:_SHOWN]) or 'none'}"
            )
        for name in sorted(wanted):
            known = self.own[name].shape
            if given[name].shape != known:
                raise InputError(
                    f"{what}: {name} must have shape {known}, got {given[name].shape}"
                )
        return self._arranged(given)

    def _arranged(self, tensors: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
        params: dict[str, Any] = {}
        for entry in self.entries:
            place = params
            for part in entry.path[:-1]:
                place = place.setdefault(part, {})
            place[entry.path[-1]] = entry.inward(tensors[entry.name])
        return params, {n: tensors[n] for n in self.buffers if n in tensors}

    def _states(self, variables: Any) -> dict[str, Any]:
        states: dict[str, Any] = dict(self.fixed)
        for entry in self.entries:
            leaf = variables["params"]
            for part in entry.path:
                leaf = leaf[part]
            states[entry.name] = entry.outward(leaf)
        statistics = variables.get(STATISTICS, {})
        return states | {name: statistics[name] for name in self.buffers}

    def given(self, inputs: jax.Array) -> jax.Array:
        """Returns inputs as the module reads them."""
        if self.mean:
            mean, deviation = (
                jnp.asarray(values, inputs.dtype)
                for values in (self.mean, self.deviation)
            )
            inputs = (inputs - mean) / deviation
        return jnp.moveaxis(inputs, -1, 1) if self.images else inputs

    def with_rows(self, layer: str | None, rows: tuple[int, ...]) -> "TorchNetwork":
        """Returns it with the rows of this dense layer in the order of our inputs."""
        entries = tuple(
            dataclasses.replace(entry, rows=rows)
            if entry.dense and entry.path[0] == layer
            else entry
            for entry in self.entries
        )
        return dataclasses.replace(self, entries=entries)


def from_torch(
    module: Any,
    input_shape: Sequence[int],
    classes: int,
    name: str | None = None,
    loss: str = "cross-entropy",
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    training: bool = False,
    redraw: bool = False,
    channels_first: bool = True,
    output_layer: str | None = None,
    input_layer: str | None = None,
    alone: bool | None = None,
) -> Model:
    """Makes a torch module a Model; logits and gradients are torch's.

    Args:
      module: a torch.nn.Module that maps a batch to logits; it is left as it is.
      input_shape: one input as the module reads it: (channels, height, width) of
        images, which are (height, width, channels) here, or anything else.
      classes: how many; with `loss="binary"` the module has one output, and 2.
      name: of the model, in results; the module's class by default.
      loss: `cross-entropy`, `binary` (one logit) or `squared` (against one-hot).
      mean: subtracted from inputs in [0, 1] before the module sees them, per channel.
      std: what they are divided by then.
      training: the client trains in training mode: batch norm reads the batch's own
        statistics. Dropout can't be replayed, and is refused there.
      redraw: every draw of the network is drawn anew by the modules'
        `reset_parameters`; else the model has the module's own weights.
      channels_first: whether inputs of three axes are images with channels first.
      output_layer: the dense layer that makes the logits; found by default.
      input_layer: a dense layer that reads the input itself; found by default.
      alone: compute one victim after the other on CPU (see `Model.alone`); by default
        if the module has convolutions. `gradaudit model check` measures both.
    """
    torch, torchax = _libraries()
    shape = tuple(int(side) for side in input_shape)
    images = channels_first and len(shape) == 3
    quiet = _in_evaluation(torch, module, shape, training)
    shift, scale = _scaling(mean, std, shape[0] if images else 1)
    coupled = training and _has(torch, quiet, "batchnorm._BatchNorm")
    network = TorchNetwork(
        module=quiet,
        call=_call(torchax, quiet),
        train_call=_call(torchax, copy.deepcopy(quiet).train()) if coupled else None,
        draw=_drawer(torch, quiet) if redraw else None,
        images=images,
        mean=shift,
        deviation=scale,
        **_parts(torch, quiet),
    )
    model = Model(
        name or type(module).__name__,
        network,
        (*shape[1:], shape[0]) if images else shape,
        classes,
        coupled=coupled,
        drawn=redraw,
        alone=_has(torch, quiet, "conv._ConvNd") if alone is None else alone,
    )
    channels = shape if images else None
    found, rows = with_layers(
        with_loss(model, loss), output_layer, input_layer, channels
    )
    if rows is not None:  # a dense layer over channels-first pixels
        network = network.with_rows(found.input_layer, rows)
        turned = with_loss(dataclasses.replace(model, network=network), loss)
        found = dataclasses.replace(found, network=turned.network)
    return dataclasses.replace(found, input_layer=None) if network.mean else found


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import torchax
    except ImportError as error:
        raise InputError(
            f"from_torch needs torch and torchax ({error}): pip install "
            "'gradaudit[torch]'"
        ) from None
    return torch, torchax


def _call(torchax: Any, module: Any) -> Callable[..., Any]:
    _, call = torchax.extract_jax(module)
    # It takes arrays of jax and nothing else.
    return lambda states, inputs: call(jax.tree.map(jnp.asarray, states), (inputs,))


def _parts(torch: Any, module: Any) -> dict[str, Any]:
    """Returns where every tensor of the module goes."""
    dense = {
        f"{path}.weight".lstrip(".")
        for path, part in module.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    params = {n: _numbers(p) for n, p in module.named_parameters()}
    # Sorted out here: statistics are data, counters and masks are not.
    buffers = {n: _numbers(b) for n, b in module.named_buffers()}
    state = module.state_dict()
    statistics = [n for n, b in buffers.items() if b.dtype.kind == "f" and n in state]
    fixed = {n: jnp.asarray(b) for n, b in buffers.items() if n not in statistics}
    entries = tuple(_entry(name, name in dense) for name in params)
    known = {n: (params | buffers)[n] for n in state if n in params or n in buffers}
    return {
        "entries": entries,
        "buffers": tuple(statistics),
        "fixed": fixed,
        "aliases": tuple(name for name in state if name not in known),
        "own": known | {n: buffers[n] for n in fixed if n not in known},
    }


def _entry(name: str, dense: bool) -> Entry:
    path, _, leaf = name.rpartition(".")
    if dense:
        return Entry(name, (path or "linear", "kernel"), True)
    return Entry(name, (path, leaf) if path else (leaf,), False)


def _numbers(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _in_evaluation(
    torch: Any, module: Any, shape: tuple[int, ...], training: bool
) -> Any:
    """Returns a copy of the module, or says in words why it can't be replayed."""
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        raise InputError(f"from_torch takes a torch.nn.Module, got {kind}")
    quiet = copy.deepcopy(module).eval()
    if training:
        _refuse_dropout(torch, quiet)
    _check_inputs(torch, quiet, shape)
    return quiet


def _refuse_dropout(torch: Any, module: Any) -> None:
    dropping = [
        path
        for path, part in module.named_modules()
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0
    ]
    if dropping:
        raise InputError(
            f"dropout in training mode ({', '.join(dropping[:_SHOWN])}) is random, and "
            "an attack can't replay it: leave training=True out, or set p to 0"
        )


def _check_inputs(torch: Any, module: Any, shape: tuple[int, ...]) -> None:
    """Raises in words if the module does not take numbers of this shape."""
    try:
        with torch.no_grad():
            module(torch.rand(2, *shape))
    except Exception as error:  # whatever the user's module raises
        if _has(torch, module, "sparse.Embedding"):
            raise InputError(
                "the module reads whole numbers (an embedding): an attack moves its "
                "guess in small steps, and between tokens there are none. Give the "
                "part after the embedding, whose inputs are vectors"
            ) from None
        said = next(iter(str(error).strip().splitlines()), "")
        raise InputError(
            f"the module does not take a batch of inputs of shape {shape}: "
            f"{type(error).__name__}: {said}; check input_shape, as torch reads it"
        ) from None


def _has(torch: Any, module: Any, kind: str) -> bool:
    """Whether a part of the module is of this kind of torch.nn.modules."""
    file, _, name = kind.partition(".")
    wanted = getattr(getattr(torch.nn.modules, file), name)
    return any(isinstance(part, wanted) for part in module.modules())


def _drawer(torch: Any, module: Any) -> Callable[[int], Mapping[str, NDArray[Any]]]:
    def draw(seed: int) -> Mapping[str, NDArray[Any]]:
        fresh = copy.deepcopy(module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for part in fresh.modules():
                if hasattr(part, "reset_parameters"):
                    part.reset_parameters()
        tensors = {n: _numbers(p) for n, p in fresh.named_parameters()}
        return tensors | {n: _numbers(b) for n, b in fresh.named_buffers()}

    return draw


def _scaling(mean: Any, std: Any, channels: int) -> tuple[tuple[float, ...], ...]:
    """Returns what is subtracted and divided by; nothing twice if neither is given."""
    if mean is None and std is None:
        return (), ()
    values = []
    for given, default in ((mean, 0.0), (std, 1.0)):
        flat = np.atleast_1d(np.asarray(default if given is None else given, float))
        if len(flat) not in (1, channels) or not np.isfinite(flat).all():
            raise InputError(
                f"mean and std are one number or {channels}, one per channel"
            )
        values.append(tuple(np.broadcast_to(flat, (channels,)).tolist()))
    if not min(values[1]) > 0:
        raise InputError("std must be positive")
    return values[0], values[1]
