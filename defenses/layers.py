"""Layers: which tensors belong together, and transforms on some of them only."""

import dataclasses
from typing import Protocol

import jax

from gradaudit.defenses.base import State, Transform
from gradaudit.defenses.caveats import unbounded
from gradaudit.defenses.claims import Releases
from gradaudit.defenses.clipping import Clip
from gradaudit.errors import InputError
from gradaudit.mechanism import Mechanism, Point
from gradaudit.types import Key, PyTree

PARTIAL = (
    "Only {layers} get noise; the others are sent as they are, so there is no "
    "guarantee."
)


def layer_names(tree: PyTree) -> list[str]:
    """Returns for each tensor the layer it belongs to: its path without the last part.

    A tensor that is not inside a layer is a layer of its own.
    """
    names = []
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        parts = [str(_plain(part)) for part in path]
        names.append("/".join(parts[:-1] or parts))
    return names


def _plain(part: object) -> object:
    for field in ("key", "name", "idx"):
        if hasattr(part, field):
            return getattr(part, field)
    return part


class Selection(Protocol):
    """Chooses tensors."""

    def of(self, tree: PyTree) -> list[bool]:
        """Returns for each tensor (units, ...) whether it is chosen."""


@dataclasses.dataclass(frozen=True)
class DenseLayers:
    """The layers that hold a matrix (and no larger tensor): kernels and biases."""

    def of(self, tree: PyTree) -> list[bool]:
        """Returns for each tensor whether its layer is dense."""
        names, leaves = layer_names(tree), jax.tree.leaves(tree)
        ranks: dict[str, int] = {}
        for name, leaf in zip(names, leaves, strict=True):
            ranks[name] = max(ranks.get(name, 0), leaf.ndim - 1)
        return [ranks[name] == 2 for name in names]

    def __str__(self) -> str:
        return "dense layers"


@dataclasses.dataclass(frozen=True)
class NamedLayers:
    """The layers with these names."""

    names: tuple[str, ...]

    def of(self, tree: PyTree) -> list[bool]:
        """Returns for each tensor whether its layer is named."""
        present = layer_names(tree)
        missing = sorted(set(self.names) - set(present))
        if missing:
            raise InputError(
                f"the model has no layer {missing[0]!r} "
                f"(it has: {', '.join(dict.fromkeys(present))})"
            )
        return [name in self.names for name in present]

    def __str__(self) -> str:
        return " and ".join(self.names)


@dataclasses.dataclass(frozen=True)
class OnLayers:
    """Runs a transform on the chosen tensors; the others pass unchanged."""

    transform: Transform
    selection: Selection

    def init(self, params: PyTree) -> State:
        """Returns the transform's state for the chosen tensors."""
        units = jax.tree.map(lambda leaf: leaf[None], params)
        chosen, _ = self._chosen(units)
        return self.transform.init([leaf[0] for leaf in chosen])

    def _chosen(self, tree: PyTree) -> tuple[list[jax.Array], list[bool]]:
        mask = self.selection.of(tree)
        leaves = jax.tree.leaves(tree)
        return [leaf for leaf, on in zip(leaves, mask, strict=True) if on], mask

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the tree with the chosen tensors transformed."""
        leaves, structure = jax.tree.flatten(tree)
        chosen, mask = self._chosen(tree)
        if not chosen:
            raise InputError(f"the model has no {self.selection} to put noise on")
        changed, state = self.transform.apply(key, chosen, state, t)
        parts = iter(changed)
        merged = [
            next(parts) if on else leaf for leaf, on in zip(leaves, mask, strict=True)
        ]
        return jax.tree.unflatten(structure, merged), state

    def releases(self, point: Point, clip: Clip | None) -> tuple[Mechanism, ...]:
        """Returns the inner release, marked as partial and therefore unbounded."""
        if not isinstance(self.transform, Releases):
            return ()
        return tuple(
            dataclasses.replace(
                mechanism,
                clip=unbounded,
                coordinates=str(self.selection),
                caveats=(PARTIAL.format(layers=self.selection),),
            )
            for mechanism in self.transform.releases(point, clip)
        )
