"""Transforms and defenses: pure functions at the three named places of a round."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from gradaudit.errors import InputError
from gradaudit.mechanism import Mechanism
from gradaudit.types import Key, PyTree

State = Any  # what a transform must remember from one call to the next; () if nothing


class Transform(Protocol):
    """One step of a defense; a frozen dataclass, so that it is hashable.

    The tree has the structure of the parameters with a leading axis of *units*: the
    examples of a batch at `per_example`, the clients at `update` and `server` (an
    axis of one where there is one client). Guarantee: structure, shapes and dtypes
    are kept, each unit's randomness is independent, and a tree that holds NaN or
    infinity gives one that does.

    A transform may state `independent = True` (absent: False): what it does to a unit
    depends on that unit, the key and the round alone, and it keeps no state. At the
    server an independent transform is run for each client alone, with a key that is
    addressed by round and client; any other sees the clients of the whole round at
    once, with one key. See `is_independent`. It may also state `additive = True`: it
    only adds noise that does not depend on the units, so that a Poisson batch can get
    the noise of its expected size. See `is_additive`.
    """

    def init(self, params: PyTree) -> State:
        """Returns the state before the first round."""

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the transformed tree and the next state; `t` is the round."""


def is_independent(transform: Transform) -> bool:
    """Returns whether the transform says that it treats each unit on its own."""
    return bool(getattr(transform, "independent", False))


def is_additive(transform: Transform) -> bool:
    """Returns whether the transform says that it adds noise and does no more."""
    return bool(getattr(transform, "additive", False))


@dataclasses.dataclass(frozen=True)
class Defense:
    """Three tuples of transforms and what they claim.

    `mechanisms` are derived from the transforms' own parameters (see
    `gradaudit.defenses.claims`); accounting reads them and nothing else. `parameters`
    are what a preset was called with, so that a result can be run again.
    """

    name: str
    per_example: tuple[Transform, ...] = ()
    update: tuple[Transform, ...] = ()
    server: tuple[Transform, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    paper: str = ""
    summary: str = ""
    parameters: tuple[tuple[str, Any], ...] = ()


def run(
    transforms: tuple[Transform, ...],
    key: Key,
    tree: PyTree,
    states: tuple[State, ...],
    t: jax.Array | int,
) -> tuple[PyTree, tuple[State, ...]]:
    """Runs transforms in order, each with its own key; none = the identity."""
    following = []
    for index, (transform, state) in enumerate(zip(transforms, states, strict=True)):
        tree, state = transform.apply(jax.random.fold_in(key, index), tree, state, t)
        following.append(state)
    return tree, tuple(following)


@dataclasses.dataclass(frozen=True)
class FromFunction:
    """Makes `function(key, tree, t) -> tree` a transform without state."""

    function: Callable[[Key, PyTree, jax.Array | int], PyTree]
    independent: bool = False  # whether it treats each unit on its own

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns what the function makes of the tree."""
        return self.function(key, tree, t), state


def init_states(transforms: tuple[Transform, ...], params: PyTree) -> tuple[State, ...]:
    """Returns the state of every transform before the first round."""
    return tuple(transform.init(params) for transform in transforms)


def check_finite(tree: PyTree, what: str) -> None:
    """Raises `InputError` that names the first tensor of `tree` that is not finite.

    For concrete arrays, outside jit: inside, transforms let NaN and infinity through
    so that whoever reads the result can report a status.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        values = np.asarray(leaf)
        if np.issubdtype(values.dtype, np.number) and not np.all(np.isfinite(values)):
            bad = int(np.size(values) - np.sum(np.isfinite(values)))
            name = jax.tree_util.keystr(path) or "the array"
            raise InputError(
                f"{what}: {name} holds {bad} of {values.size} values that are not "
                "finite; lower the learning rate or look at the data"
            )
