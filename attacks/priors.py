"""What an attacker believes about inputs before seeing the gradient."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import require
from gradaudit.models.model import Model
from gradaudit.types import HostOrDevice, Observation

_TINY = 1e-20
_COUNTS = 1 / 7  # of a neighbour, see Smooth
_FLAT = 1e-3  # a difference of neighbours that counts as none


class Prior(Protocol):
    """A penalty on dummy inputs (examples, *input_shape).

    One that has a field `weight` multiplies by it: see `apart`. One whose penalty is in
    `nats` (a log likelihood) is converted to the objective's own units. One that is no
    sum of squares may say of which residuals it is one near a point: see `residuals`.
    One that looks at the network too says what it is there: see `told`.
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns a non-negative scalar."""


def residuals(prior: Prior, inputs: jax.Array) -> jax.Array:
    """Returns a vector whose squared norm is about the penalty."""
    own = getattr(prior, "residuals", None)
    if own is not None:
        parts: jax.Array = own(inputs)
        return parts
    return jnp.sqrt(prior(inputs) + _TINY)[None]


def told(prior: Prior, model: Model, observation: Observation) -> Prior:
    """Returns the prior for what this network has learned, if that is what it is of."""
    own = getattr(prior, "told", None)
    belief: Prior = prior if own is None else own(model, observation)
    return belief


def in_nats(prior: Prior) -> bool:
    """Returns whether a prior says that its penalty is a log likelihood."""
    return bool(getattr(prior, "nats", False))


def apart(prior: Prior, public: HostOrDevice | None = None) -> tuple[Prior, float]:
    """Returns the prior with weight 1, and its weight, chosen on public data if any.

    Attacks that differ in weights only then share a compiled program.
    """
    part: Any = prior
    weight = getattr(prior, "weight", None)
    if weight is None:
        return prior, 1.0
    chosen = getattr(prior, "chosen", None)
    if chosen is not None and public is not None:
        weight = chosen(public)
    return dataclasses.replace(part, weight=1.0), float(weight)


@dataclasses.dataclass(frozen=True)
class TotalVariation:
    """Weight x mean absolute difference of neighbouring pixels (anisotropic)."""

    weight: float = 1e-2

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 for anything but images."""
        if inputs.ndim != 4:
            return jnp.zeros(())
        down = jnp.mean(jnp.abs(jnp.diff(inputs, axis=1)))
        right = jnp.mean(jnp.abs(jnp.diff(inputs, axis=2)))
        return self.weight * (down + right)

    def residuals(self, inputs: jax.Array) -> jax.Array:
        """Returns the differences over the root of their size, which counts as given.

        So Gauss-Newton sees the lagged diffusivity of Vogel and Oman 1996.
        """
        if inputs.ndim != 4:
            return jnp.zeros((1,))
        rows = [jnp.diff(inputs, axis=axis).reshape(-1) for axis in (1, 2)]
        sizes = [jax.lax.stop_gradient(jnp.abs(row)) + _FLAT for row in rows]
        weights = [
            jnp.sqrt(self.weight / (row.size * s))
            for row, s in zip(rows, sizes, strict=True)
        ]
        return jnp.concatenate([w * row for w, row in zip(weights, rows, strict=True)])


@dataclasses.dataclass(frozen=True)
class SmallPixels:
    """Weight x mean square of the pixels (an L2 prior)."""

    weight: float = 1e-4

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the penalty."""
        return self.weight * jnp.mean(jnp.square(inputs))


@dataclasses.dataclass(frozen=True)
class OutsideBox:
    """Weight x mean square of how far pixels leave [0, 1]: a soft box."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 inside the box."""
        excess = inputs - jnp.clip(inputs, 0.0, 1.0)
        return self.weight * jnp.mean(jnp.square(excess))


@dataclasses.dataclass(frozen=True)
class Smooth:
    """-log p of an image whose neighbours differ by a Laplace law: a MAP prior.

    In nats, so that its share of an objective follows the noise: little of it where
    what leaked is exact, much where it says little. The law's scale is the mean
    difference of neighbours: public data of the same kind tell it, else it is that of
    faces and photographs. Neighbours are far from independent, so that they count a
    seventh: on faces under Gaussian noise weights of 2 to 4 were best, where
    independent ones would have 21.
    """

    nats: ClassVar[bool] = True
    weight: float = 3.0

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def chosen(self, public: HostOrDevice) -> float:
        """Returns the weight that fits public examples (n, *input_shape) best."""
        images = np.asarray(public)
        if images.ndim != 4:
            return 0.0
        steps = [np.abs(np.diff(images, axis=axis)).mean() for axis in (1, 2)]
        return float(_COUNTS / max(np.mean(steps), 1e-3))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 for anything but images."""
        return _images_size(inputs) * TotalVariation(self.weight)(inputs)

    def residuals(self, inputs: jax.Array) -> jax.Array:
        """Returns those of the total variation."""
        rows = TotalVariation(self.weight).residuals(inputs)
        return jnp.sqrt(_images_size(inputs)) * rows


def _images_size(inputs: jax.Array) -> float:
    """Returns half the number of pairs of neighbours, over the two directions."""
    return 0.5 * inputs.size


@dataclasses.dataclass(frozen=True)
class RunningStatistics:
    """Weight x how far a batch is from what batch norm saw in training.

    The mean over the layers' channels of squared differences of means and of
    variances, in units of the running ones (Yin et al. 2021, who take plain norms).
    Nothing where the network keeps no statistics.
    """

    weight: float = 1e-2

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0: inputs alone don't tell."""
        return jnp.zeros((), inputs.dtype)

    def told(
        self, model: Model, observation: Observation
    ) -> Callable[[jax.Array], jax.Array]:
        """Returns the penalty on inputs of this network with these statistics."""
        measure = getattr(model.network, "statistics", None)
        if measure is None or not observation.buffers:
            return self
        variables = {"params": observation.params, **observation.buffers}

        def penalty(inputs: jax.Array) -> jax.Array:
            seen, kept = measure(variables, inputs), observation.buffers
            layers = [
                _apart(seen[group][name], layer)
                for group, layers in kept.items()
                for name, layer in layers.items()
            ]
            return self.weight * jnp.mean(jnp.stack(layers))

        return penalty


def _apart(seen: Any, kept: Any) -> jax.Array:
    """Returns how far one layer's statistics are from those that it keeps."""
    unit = kept["var"] + _FLAT
    means = jnp.mean(jnp.square(seen["mean"] - kept["mean"]) / unit)
    return means + jnp.mean(jnp.square((seen["var"] - kept["var"]) / unit))
