"""Captured updates as an attack's scenario: observations, the truth only if given.

Each update is put into the shapes of the client's model, and checked against it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import tree
from gradaudit.attacks.base import Victims, check_observation
from gradaudit.audit.captured_files import Arrays, Capture, content_digest, listed
from gradaudit.audit.scenario import Group, Ids, Simulated
from gradaudit.audit.threat import transforms_seen
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.line_up import told
from gradaudit.errors import InputError
from gradaudit.federation.recipe import ServerState
from gradaudit.models.model import Model, check_batch, cross_entropy
from gradaudit.record import ABOUT, PLACES, Facts
from gradaudit.types import Leakage, LocalTraining, Observation, PyTree, Victim

UNKNOWN = "captured"  # the name of data that nobody named
# What an attack has to know, and what says it on the command line.
ASKED = {
    "learning_rate": "--learning-rate",
    "local_steps": "--local-steps",
    "batch_size": "--batch-size",
}
_ROUNDING = 1.001  # of a bound that holds exactly in real numbers


def observation_of(capture: Capture, model: Model, noisy: bool = False) -> Observation:
    """Returns what an attacker reads, in the shapes of the model; refuses in words.

    `noisy`: noise is known to have been added, whatever the sidecar claims.
    """
    training = _training(capture)
    given, buffers = arranged(model, capture.received, f"{capture.folder}: received")
    moved, shifts = arranged(model, capture.moved(), f"{capture.folder}: sent", False)
    after = jax.tree.map(np.add, buffers, shifts) if shifts else {}
    leakage = Leakage(PLACES[capture.facts.place])
    if capture.facts.sent == "gradient" and leakage is not Leakage.EXAMPLE:
        moved = jax.tree.map(lambda leaf: -training.learning_rate * leaf, moved)
    labels = capture.facts.labels
    observation = Observation(
        params=jax.tree.map(jnp.asarray, given),
        sent=jax.tree.map(jnp.asarray, moved),
        buffers=jax.tree.map(jnp.asarray, buffers),
        sent_buffers=jax.tree.map(jnp.asarray, after),
        labels=None if labels is None else jnp.asarray(labels, jnp.int32),
        leakage=leakage,
        training=training,
    )
    check_observation(model, observation)
    if not (noisy or _claims_noise(capture.facts)):
        _check_output_bias(capture, model, observation)
    return observation


def _claims_noise(facts: Facts) -> bool:
    """Whether anything but a clip is claimed: who can't say how much, names it."""
    return any(value for name, value in (facts.claim or {}).items() if name != "clip")


def _training(capture: Capture) -> LocalTraining:
    """Returns how the client trained; asks in words for what nobody said."""
    facts = capture.facts
    if facts.sent == "gradient":  # has its own scale
        facts = dataclasses.replace(
            facts,
            learning_rate=facts.learning_rate or 1.0,
            local_steps=facts.local_steps or 1,
            optimizer="sgd",
        )
    for name, option in ASKED.items():
        if getattr(facts, name) is None:
            raise InputError(
                f"{capture.folder / ABOUT} does not say {name}, and no attack works "
                f"without it: write it there, or say {option}"
            )
    if facts.optimizer not in (None, "sgd"):
        raise InputError(
            f"{capture.folder / ABOUT}: an update of optimizer {facts.optimizer!r} "
            "can't be replayed yet; sgd can"
        )
    assert facts.batch_size and facts.local_steps and facts.learning_rate
    many = facts.clients or 1
    if many != 1 and facts.local_steps != 1:
        raise InputError(
            f"{capture.folder}: the mean of {many} clients' updates of "
            f"{facts.local_steps} local steps each can't be replayed; of one step it "
            "can"
        )
    return LocalTraining(
        batch_size=facts.batch_size * many,
        local_steps=facts.local_steps,
        learning_rate=float(facts.learning_rate),
    )


def arranged(
    model: Model, tensors: Arrays, what: str, whole: bool = True
) -> tuple[PyTree, PyTree]:
    """Returns named tensors as the model's parameters and buffers.

    A network that comes from another framework knows that framework's names
    (`arrange`); else names are those of the tree, `dense1/kernel` or `dense1.kernel`.
    Tensors that are only numbered are taken in the tree's own order. Unless it is to
    be `whole`, buffers may be left out, and are then the empty dict.
    """
    own = getattr(model.network, "arrange", None)
    if own is not None:
        params, buffers = own(tensors, what, whole)
        return params, buffers
    trees = model.shapes()
    names = [tree.names(shapes) for shapes in trees]
    if set(tensors) == {str(number) for number in range(len(names[0]))}:
        tensors = {name: tensors[str(i)] for i, name in enumerate(names[0])}
    spelled = {name.replace(".", "/"): array for name, array in tensors.items()}
    without = not whole and not set(names[1]) & set(spelled)
    wanted = {*names[0], *(() if without else names[1])}
    missing, unknown = wanted - set(spelled), set(spelled) - wanted
    if missing or unknown:
        raise InputError(
            f"{what} does not hold the parameters of model {model.name!r}: missing "
            f"{listed(missing)}, unknown {listed(unknown)}"
        )
    params = _filled(trees[0], names[0], spelled, what)
    return params, {} if without else _filled(trees[1], names[1], spelled, what)


def _filled(
    shapes: PyTree, names: tuple[str, ...], tensors: Arrays, what: str
) -> PyTree:
    """Returns the tree with its tensors, if they are what it takes."""
    leaves, structure = jax.tree.flatten(shapes)
    for name, shape in zip(names, leaves, strict=True):
        found = tensors[name]
        if found.shape != shape.shape or found.dtype.kind != shape.dtype.kind:
            raise InputError(
                f"{what}: {name} must be {shape.dtype} of shape {shape.shape}, got "
                f"{found.dtype} {found.shape}"
            )
    return jax.tree.unflatten(structure, [tensors[name] for name in names])


def _check_output_bias(
    capture: Capture, model: Model, observation: Observation
) -> None:
    """Raises if the last bias moved as no cross-entropy and learning rate can move it.

    Its gradient is a mean of softmax - one-hot: no entry leaves [-1, 1] in a step, and
    no more entries are negative than there are examples. Noise may break both.
    """
    layer = model.output_layer
    if layer is None or model.example_loss is not cross_entropy:
        return
    bias = observation.gradient[layer].get("bias")
    if bias is None or bias.shape != (model.classes,):
        return
    training = observation.training
    reached, steps = float(jnp.max(jnp.abs(bias))), training.local_steps
    doubt = (
        ' Or noise was added: then the sidecar must say so, "claim": {"mechanism": '
        '"name"}.'
    )
    if not reached <= steps * _ROUNDING + 1e-6:
        raise InputError(
            f"{capture.folder}: the learning rate {training.learning_rate:g} "
            f"contradicts the update: in {steps} step(s) the output bias can move by "
            f"{training.learning_rate * steps:g} at most, and it moved by "
            f"{reached * training.learning_rate:.3g}.{doubt}"
        )
    negative = int(jnp.sum(bias < -1e-3 * reached))
    if not negative <= training.examples:
        raise InputError(
            f"{capture.folder}: the output bias grew for {negative} classes, and only "
            f"{training.examples} example(s) were used: received and sent are swapped, "
            f"or batch_size is wrong.{doubt}"
        )


class Captured:
    """Victims whose updates are in files; those with equal parameters share a group.

    `truths` has an entry for every victim, or is empty: then only the attacker's side
    is there.
    """

    def __init__(
        self,
        captures: Sequence[Capture],
        model: Model,
        defense: Defense,
        truths: Sequence[Dataset] = (),
        defense_known: bool = False,
    ) -> None:
        self.captures, self.count = list(captures), len(captures)
        self.draws: list[Ids] = [np.arange(self.count)]
        self._model = model
        noisy = bool(defense.mechanisms)
        seen = [observation_of(capture, model, noisy) for capture in captures]
        if defense_known:
            seen = [
                told(each, defense) if transforms_seen(defense, each.leakage) else each
                for each in seen
            ]
        self.observations = seen
        self.truths = list(truths)
        sizes = {observation.training.examples for observation in seen}
        if len(sizes) != 1:
            raise InputError(
                f"the captured updates are of {sorted(sizes)} examples: attack those "
                "of each size on their own (put them into folders of their own)"
            )
        (examples,) = sizes
        for capture, truth in zip(captures if truths else (), truths, strict=True):
            check_batch(model, truth.inputs, truth.labels)
            if len(truth) != examples:
                raise InputError(
                    f"{capture.folder} is of {examples} examples (batch_size times "
                    f"local_steps), and its truth has {len(truth)}"
                )

    @property
    def content(self) -> dict[str, Any]:
        """What decides the attack's numbers beside its arguments."""
        return {
            "captured": content_digest(self.captures),
            "truth": self.dataset.digest,
            "model": self._model.name,
        }

    @property
    def params(self) -> PyTree:
        """The parameters of the first victim: their shapes are those of all."""
        return self.observations[0].params

    @property
    def states(self) -> tuple[ServerState, ...]:
        """Nothing: the round was somebody else's."""
        return ()

    @property
    def dataset(self) -> Dataset:
        """All that is known of the private data, as one set."""
        inputs = np.concatenate([truth.inputs for truth in self.truths])
        labels = np.concatenate([truth.labels for truth in self.truths])
        classes = max(truth.classes for truth in self.truths)
        return Dataset(UNKNOWN, inputs, labels, classes, "all", "private")

    def groups(self, starts: int = 1) -> Iterator[Group]:
        """Yields the attacker's side, a group for each set of parameters.

        Every victim is there `starts` times, one after the other.
        """
        for ids in self._alike():
            rows = np.repeat(ids, starts)
            everybody = np.concatenate([i * starts + np.arange(starts) for i in ids])
            observe = functools.partial(self._observe, rows)
            yield Group(everybody, Victims(len(rows), observe))

    def _observe(self, rows: Ids, positions: Ids) -> Observation:
        """Returns what is read of some rows of a group, stacked."""
        chosen = [self.observations[int(row)] for row in rows[positions]]
        parts = [(o.sent, o.sent_buffers, o.labels) for o in chosen]
        sent, buffers, labels = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *parts
        )
        return dataclasses.replace(
            chosen[0], sent=sent, sent_buffers=buffers, labels=labels
        )

    def truth(self, ids: Ids) -> Victim:
        """Returns the private data, stacked: for evaluators only."""
        if not self.truths:
            raise InputError("no truth was given with the captured updates")
        chosen = [self.truths[int(i)] for i in ids]
        return Victim(
            np.stack([truth.inputs for truth in chosen]),  # type: ignore[arg-type]
            np.stack([truth.labels for truth in chosen]),  # type: ignore[arg-type]
        )

    def _alike(self) -> list[Ids]:
        """Returns the victims that share parameters and everything static."""
        groups: list[list[int]] = []
        for victim, observation in enumerate(self.observations):
            for group in groups:
                if _shares(self.observations[group[0]], observation):
                    group.append(victim)
                    break
            else:
                groups.append([victim])
        return [np.asarray(group) for group in groups]


# Where victims come from. Attacks get what `groups` yields, evaluators `truth`.
Scenario = Simulated | Captured


def _shares(one: Observation, other: Observation) -> bool:
    static = [(o.leakage, o.training, o.told, o.labels is None) for o in (one, other)]
    if static[0] != static[1]:
        return False
    leaves = [jax.tree.leaves((o.params, o.buffers, o.memory)) for o in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def private_data(path: pathlib.Path | str, model: Model) -> Dataset:
    """Returns a file's examples in the layout that the model reads.

    Images with their channels first are turned round.
    """
    data, classes = load_dataset(str(path)), model.classes
    shape = model.input_shape
    if data.shape != shape and len(shape) == 3 and len(data.shape) == 3:
        turned = np.moveaxis(data.inputs, 1, -1)
        if turned.shape[1:] == shape:
            data = dataclasses.replace(data, inputs=turned)
    if data.shape != shape:
        raise InputError(
            f"{path} holds inputs of shape {data.shape}, and model {model.name!r} "
            f"reads {shape}"
        )
    if data.classes > classes:
        raise InputError(
            f"{path} has labels up to {data.classes - 1}, and model {model.name!r} "
            f"has {classes} classes"
        )
    return dataclasses.replace(data, classes=classes)


def truths_of(
    captures: Sequence[Capture], path: pathlib.Path, model: Model
) -> list[Dataset]:
    """Returns each victim's private data: of one file, or of a folder of files.

    In a folder they are named like the captured folder (its place may be left out), or
    `client-NAME.npz`.
    """
    if path.is_file():
        one = private_data(path, model)
        return [one] * len(captures)
    if not path.is_dir():
        raise InputError(f"there is no file or folder {path} with the truth")
    found = []
    for capture in captures:
        whole, place = capture.folder.name, capture.facts.place
        names = [whole, whole.removesuffix(f"-{place}")]
        names = list(dict.fromkeys([*names, f"client-{capture.facts.client}"]))
        files = [path / f"{name}.npz" for name in names]
        there = next((file for file in files if file.is_file()), None)
        if there is None:
            raise InputError(
                f"{path} has no truth of {whole}: looked for "
                f"{' and '.join(file.name for file in files)}"
            )
        found.append(private_data(there, model))
    return found
