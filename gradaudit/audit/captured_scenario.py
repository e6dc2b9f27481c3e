"""A scenario of captured updates: observations from files, the truth only if given."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Victims
from gradaudit.audit.captured_files import Capture
from gradaudit.audit.captured_observation import observation_of
from gradaudit.audit.scenario import Group, Ids
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses.transforms import Defense, ToldDefense, init_states
from gradaudit.errors import InputError
from gradaudit.federation.recipe import ServerState
from gradaudit.models.model import Model, check_batch
from gradaudit.types import Leakage, Observation, PyTree, Victim

UNKNOWN = "captured"  # the name of data that nobody named


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
        noisy = bool(defense.mechanisms)
        seen = [observation_of(capture, model, noisy) for capture in captures]
        if defense_known:
            seen = [told_to(observation, defense) for observation in seen]
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
            _check_truth(capture, model, truth, examples)

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

    def groups(self) -> Iterator[Group]:
        """Yields the attacker's side, a group for each set of parameters."""
        return self.groups_of(1)

    def groups_of(self, starts: int) -> Iterator[Group]:
        """Yields the groups with every victim `starts` times, one after the other."""
        for ids in self._alike():
            rows = np.repeat(ids, starts)
            everybody = np.concatenate([i * starts + np.arange(starts) for i in ids])
            yield Group(everybody, Victims(len(rows), _Stack(self.observations, rows)))

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


@dataclasses.dataclass(frozen=True)
class _Stack:
    """Observations of one group by position, stacked on demand."""

    observations: Sequence[Observation]
    rows: NDArray[np.int64]

    def __call__(self, positions: Ids) -> Observation:
        chosen = [self.observations[int(self.rows[p])] for p in positions]
        parts = [(o.sent, o.sent_buffers, o.labels) for o in chosen]
        sent, buffers, labels = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *parts
        )
        return dataclasses.replace(
            chosen[0], sent=sent, sent_buffers=buffers, labels=labels
        )


def _shares(one: Observation, other: Observation) -> bool:
    static = [(o.leakage, o.training, o.told, o.labels is None) for o in (one, other)]
    if static[0] != static[1]:
        return False
    leaves = [jax.tree.leaves((o.params, o.buffers, o.memory)) for o in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def told_to(observation: Observation, defense: Defense) -> Observation:
    """Returns the observation with the defense handed over, up to where it was read."""
    leakage = observation.leakage
    server = defense.server if leakage is Leakage.SERVER else ()
    updates = () if leakage is Leakage.EXAMPLE else (*defense.update, *server)
    if not (defense.per_example or updates):
        return observation
    reads_updates = leakage is not Leakage.EXAMPLE
    memory = tuple(
        init_states(part, observation.params) for part in (defense.per_example, updates)
    )
    known = ToldDefense(defense.per_example, updates, reads_updates, 0)
    return dataclasses.replace(observation, told=known, memory=memory)


def _check_truth(capture: Capture, model: Model, truth: Dataset, examples: int) -> None:
    check_batch(model, truth.inputs, truth.labels)
    if len(truth) != examples:
        raise InputError(
            f"{capture.folder} is of {examples} examples (batch_size times "
            f"local_steps), and its truth has {len(truth)}"
        )


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
                f"{path} has no truth of {capture.folder.name}: looked for "
                f"{' and '.join(file.name for file in files)}"
            )
        found.append(private_data(str(there), model))
    return found
