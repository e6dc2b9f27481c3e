"""Distributed selective SGD: sharing a random few of the large coordinates.

Shokri & Shmatikov 2015, as Wei et al. 2023, section 4.1 compare with it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.defenses.base import State
from gradaudit.defenses.caveats import unbounded
from gradaudit.defenses.draws import draw_like
from gradaudit.defenses.schedules import Constant
from gradaudit.errors import require
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, PyTree

PER_COORDINATE = (
    "The epsilon counts one coordinate at a time; which coordinates are sent is not "
    "hidden, so there is no guarantee for an example or a client."
)


@dataclasses.dataclass(frozen=True)
class RandomSelection:
    """Sends a random `share` of each unit's coordinates, of those above a threshold.

    Guarantee: at most share * coordinates are sent, each with magnitude above
    `threshold`; everything else is zero. Coordinates that are not finite are sent.
    With `noise`, what is sent is bounded and noisy, see `SharedNoise`.
    """

    share: float
    threshold: float = 0.0
    noise: "SharedNoise | None" = None

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"share must lie in (0, 1], got {self.share}")
        require(
            self.threshold >= 0,
            f"threshold must not be negative, got {self.threshold}",
        )

    @property
    def keeps_norms(self) -> bool:
        """Returns whether an earlier clip still holds."""
        return self.noise is None

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the tree with all but the chosen coordinates set to zero."""
        del t
        choice_key, noise_key = jax.random.split(key)
        leaves, structure = jax.tree.flatten(tree)
        masks = self._choose(choice_key, leaves)
        if self.noise is not None:
            leaves = self.noise.add(noise_key, leaves)
        sent = [
            jnp.where(mask, leaf, jnp.zeros((), leaf.dtype))
            for mask, leaf in zip(masks, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, sent), state

    def _choose(self, key: Key, leaves: list[jax.Array]) -> list[jax.Array]:
        units = leaves[0].shape[0]
        lots = draw_like(key, leaves, jax.random.uniform, units)
        lots = [
            jnp.where(jnp.abs(leaf) > self.threshold, lot, -1.0)
            for leaf, lot in zip(leaves, lots, strict=True)
        ]
        flat = jnp.concatenate([lot.reshape(units, -1) for lot in lots], axis=1)
        count = max(1, int(self.share * flat.shape[1]))
        # By index: equal lots would let more than `count` through a threshold.
        best, index = jax.lax.top_k(flat, count)
        rows = jnp.arange(units)[:, None]
        mask = jnp.zeros(flat.shape, bool).at[rows, index].set(best >= 0)
        ends = np.cumsum([lot[0].size for lot in lots])[:-1]
        return [
            part.reshape(leaf.shape) | ~jnp.isfinite(leaf)
            for part, leaf in zip(jnp.split(mask, ends, 1), leaves, strict=True)
        ]

    def releases(self, point: Point, clip: object) -> tuple[Mechanism, ...]:
        """Returns the noise's per-coordinate claim, if there is noise."""
        del clip
        return () if self.noise is None else self.noise.releases(point)


@dataclasses.dataclass(frozen=True)
class SharedNoise:
    """Bounds each coordinate to [-bound, bound] and adds Laplace(2 bound / epsilon)."""

    epsilon: float
    bound: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "bound"):
            value = getattr(self, name)
            require(
                math.isfinite(value) and value > 0,
                f"{name} must be positive and finite, got {value}",
            )

    def add(self, key: Key, leaves: list[jax.Array]) -> list[jax.Array]:
        """Returns the bounded and noisy coordinates of every unit."""
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        scale = 2 * self.bound / self.epsilon
        noisy = []
        for leaf, draw in zip(leaves, noise, strict=True):
            clipped = jnp.clip(leaf, -self.bound, self.bound)
            value = (clipped + scale * draw).astype(leaf.dtype)
            noisy.append(jnp.where(jnp.isfinite(leaf), value, leaf))
        return noisy

    def releases(self, point: Point) -> tuple[Mechanism, ...]:
        """Returns the Laplace release of one coordinate; nothing bounds a unit."""
        return (
            Mechanism(
                point=point,
                kind=NoiseKind.LAPLACE,
                multiplier=Constant(self.epsilon),
                sensitivity=Constant(2 * self.bound),
                clip=unbounded,
                norm=1,
                coordinates="the coordinates that are sent",
                caveats=(PER_COORDINATE,),
            ),
        )
