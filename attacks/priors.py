"""What an attacker believes about inputs before seeing the gradient."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from gradaudit.errors import InputError
from gradaudit.models.model import Model
from gradaudit.types import HostOrDevice, Observation

_TINY = 1e-20
_FLAT = 1e-3  # a difference of neighbours that counts as none
# Of `best_weight`: how many images, which error, powers of 2 of the weight, noises.
_FITTED, _TOLD, _POWERS, _NOISES = 32, 0.1, (-3.0, 6.0), (0.05, 2.0)
_HALVINGS, _PROJECTIONS = 5, 40


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
class _Weighted:
    weight: float

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise InputError(f"weight must not be negative, got {self.weight}")


@dataclasses.dataclass(frozen=True)
class TotalVariation(_Weighted):
    """Weight x mean absolute difference of neighbouring pixels (anisotropic)."""

    weight: float = 1e-2

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
class SmallPixels(_Weighted):
    """Weight x mean square of the pixels (an L2 prior)."""

    weight: float = 1e-4

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the penalty."""
        return self.weight * jnp.mean(jnp.square(inputs))


@dataclasses.dataclass(frozen=True)
class OutsideBox(_Weighted):
    """Weight x mean square of how far pixels leave [0, 1]: a soft box."""

    weight: float = 1.0

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 inside the box."""
        excess = inputs - jnp.clip(inputs, 0.0, 1.0)
        return self.weight * jnp.mean(jnp.square(excess))


@dataclasses.dataclass(frozen=True)
class Smooth(_Weighted):
    """-log p of an image whose neighbours differ by a Laplace law: a MAP prior.

    In nats, so that its share of an objective follows the noise: little of it where
    what leaked is exact, much where it says little. Neighbours are far from
    independent, so that the law of one pair does not tell what a picture's is worth:
    see `best_weight`. Without public data it is what the embedded photographs give.
    """

    nats: ClassVar[bool] = True
    weight: float = 3.2

    def chosen(self, public: HostOrDevice) -> float:
        """Returns the weight that fits public examples (n, *input_shape) best."""
        images = np.ascontiguousarray(public, np.float32)[:_FITTED]
        if images.ndim != 4:
            return 0.0
        return _best_weight(images.shape, images.tobytes())

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 for anything but images."""
        # Half the number of pairs of neighbours, over the two directions.
        return 0.5 * inputs.size * TotalVariation(self.weight)(inputs)

    def residuals(self, inputs: jax.Array) -> jax.Array:
        """Returns those of the total variation."""
        rows = TotalVariation(self.weight).residuals(inputs)
        return jnp.sqrt(0.5 * inputs.size) * rows


@dataclasses.dataclass(frozen=True)
class RunningStatistics(_Weighted):
    """Weight x how far a batch is from what batch norm saw in training.

    The mean over the layers' channels of squared differences of means and of
    variances, in units of the running ones (Yin et al. 2021, who take plain norms).
    Nothing where the network keeps no statistics.
    """

    weight: float = 1e-2

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


@functools.lru_cache(maxsize=8)
def _best_weight(shape: tuple[int, ...], pixels: bytes) -> float:
    return best_weight(np.frombuffer(pixels, np.float32).reshape(shape))


def best_weight(images: NDArray[np.float32]) -> float:
    """Returns the weight of `Smooth` that cleans images (n, h, w, c) of noise best.

    The noise is white, and as strong as it can be without costing more than an RMSE of
    0.1 after cleaning: where a picture can just be told. Below, the gradient says
    enough without a prior; above, no prior helps. The images have to be public: this
    is how an attacker chooses without having seen a victim.
    """
    noise = np.random.default_rng(0).standard_normal(images.shape, np.float32)

    def cleaned(deviation: float) -> tuple[float, float]:
        """Returns the least error, and the weight that has it (golden section)."""

        def error(power: float) -> float:
            strength = 0.5 * 2.0**power * deviation**2
            found = _denoised(images + deviation * noise, strength)
            return float(np.sqrt(np.mean(np.square(np.clip(found, 0, 1) - images))))

        found = optimize.minimize_scalar(
            error, bounds=_POWERS, method="bounded", options={"xatol": 0.1}
        )
        power = float(found.x)
        return error(power), power

    low, high = _NOISES
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if cleaned(middle)[0] <= _TOLD else (low, middle)
    return float(2.0 ** cleaned(low)[1])


def _denoised(noisy: NDArray[np.float32], strength: float) -> NDArray[np.float32]:
    """Returns argmin of |x - noisy|^2 / 2 + strength x the sum of |differences|.

    By accelerated projection of the dual (Beck and Teboulle 2009).
    """
    pairs = [np.zeros_like(np.diff(noisy, axis=axis)) for axis in (1, 2)]
    ahead, speed = pairs, 1.0
    for _ in range(_PROJECTIONS):
        image = noisy - strength * _spread(ahead, noisy)
        before = pairs
        pairs = [
            np.clip(pair + np.diff(image, axis=axis) / (8 * strength), -1, 1)
            for axis, pair in zip((1, 2), ahead, strict=True)
        ]
        faster = (1 + np.sqrt(1 + 4 * speed**2)) / 2
        push, speed = np.float32((speed - 1) / faster), faster
        ahead = [
            pair + push * (pair - old) for pair, old in zip(pairs, before, strict=True)
        ]
    cleaned: NDArray[np.float32] = noisy - strength * _spread(pairs, noisy)
    return cleaned


def _spread(pairs: list[NDArray[np.float32]], like: NDArray[np.float32]) -> Any:
    """Returns the transpose of taking differences down and to the right."""
    down, right = pairs
    out = np.zeros_like(like)
    out[:, :-1] -= down
    out[:, 1:] += down
    out[:, :, :-1] -= right
    out[:, :, 1:] += right
    return out
