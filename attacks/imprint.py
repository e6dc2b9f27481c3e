"""A server that cheats: an imprint layer in front of the model (Fowl et al. 2022).

The malicious server hands out the network with z_i = relu(h x - c_i) in front, for one
direction h and rising thresholds c_i, and adds the same multiple of every z_i to the
input. Then dL/dz_i is the same for every row i that an example passes, and what two
neighbouring rows differ by comes from the examples between their thresholds. Where that
is one example, kernel over bias is it, exactly, whatever the size of the batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import ClosedForm, handed_in
from gradaudit.attacks.labels import LabelStrategy, LastLayer
from gradaudit.errors import InputError, unknown_name
from gradaudit.models.model import Model
from gradaudit.types import (
    HostOrDevice,
    Key,
    Knowledge,
    Observation,
    PyTree,
    Reconstruction,
    Status,
)

Vector = NDArray[np.float64]

LAYER, BACK = "imprint", "imprint_back"  # of the parameters that clients receive
_GRID = 4096  # points of the measurement's distribution
_ROUNDING = 1e-6  # of the largest row: what rounding leaves in an empty bin
_MARGIN = 1e-3  # beyond what any input measures


class Measurement(Protocol):
    """A linear measurement of inputs, whose distribution the server knows."""

    def __call__(self, shape: tuple[int, ...]) -> Vector:
        """Returns the direction h, flat."""


@dataclasses.dataclass(frozen=True)
class Brightness:
    """The mean of all pixels."""

    def __call__(self, shape: tuple[int, ...]) -> Vector:
        """Returns equal weights."""
        size = int(np.prod(shape))
        return np.full(size, 1.0 / size)


@dataclasses.dataclass(frozen=True)
class RandomDirection:
    """A Gaussian direction: also for tables, whose mean says little."""

    seed: int = 0

    def __call__(self, shape: tuple[int, ...]) -> Vector:
        """Returns independent normal weights, of norm about 1."""
        size = int(np.prod(shape))
        drawn = np.random.default_rng(self.seed).standard_normal(size)
        return np.asarray(drawn / np.sqrt(size))


@dataclasses.dataclass(frozen=True)
class Imprinted:
    """A network behind an imprint layer; edges are those of the bins, rising.

    `sparse` clips z_i at the bin's upper edge: a row then sees the examples of its own
    bin only, so that local steps disturb the others less. The layer is made `gain`
    times smaller and the way back as much larger: nothing changes but the gradient,
    which grows over the rounding of an update, and over noise that is not calibrated.
    """

    network: Any
    measurement: Measurement
    edges: tuple[float, ...]  # (bins + 1,)
    sparse: bool = False
    gain: float = 1.0

    @property
    def eager(self) -> bool:
        """As the network behind it."""
        return bool(getattr(self.network, "eager", False))

    def bins_of(self, inputs: HostOrDevice) -> NDArray[np.intp]:
        """Returns the bin that each of the inputs (n, *input_shape) falls into."""
        flat = np.asarray(inputs, np.float64).reshape(len(inputs), -1)
        measured = flat @ self.measurement(inputs.shape[1:])
        return np.searchsorted(np.asarray(self.edges), measured) - 1

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the network's variables, with the layer among its parameters."""
        variables = dict(self.network.init(key, inputs))
        params = variables["params"]
        if not isinstance(params, Mapping):
            raise InputError(
                "an imprint layer is put beside the layers of a network whose "
                f"parameters have names, and these are a {type(params).__name__}"
            )
        direction, edges = self.measurement(inputs.shape[1:]), np.asarray(self.edges)
        bins = len(edges) - 1
        scale = 1.0 / np.diff(edges) if self.sparse else np.ones(bins)
        scale = scale / self.gain
        imprint = {
            "kernel": jnp.asarray(np.outer(direction, scale), jnp.float32),
            "bias": jnp.asarray(-edges[:-1] * scale, jnp.float32),
        }
        back = {"kernel": jnp.full((bins, len(direction)), self.gain / bins)}
        return {**variables, "params": {**params, LAYER: imprint, BACK: back}}

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""
        return self.network.apply(*self._behind(variables, inputs))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns the logits in training and the buffers, of a coupled network."""
        logits, buffers = self.network.train(*self._behind(variables, inputs))
        return logits, buffers

    def _behind(self, variables: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Returns what the network behind the layer is given."""
        params = dict(variables["params"])
        imprint, back = params.pop(LAYER), params.pop(BACK)
        flat = inputs.reshape(len(inputs), -1)
        passed = jax.nn.relu(flat @ imprint["kernel"] + imprint["bias"])
        if self.sparse:
            passed = jnp.minimum(passed, 1.0 / self.gain)
        changed = flat + passed @ back["kernel"]
        return {**variables, "params": params}, changed.reshape(inputs.shape)


@dataclasses.dataclass(frozen=True)
class Imprint(ClosedForm):
    """The malicious server's attack: it hands out a layer, and reads it in closed form.

    Guarantee: without a defense, and after one local step, an example that is alone in
    its bin is rebuilt up to rounding.
    """

    needs: ClassVar[frozenset[Knowledge]] = frozenset(
        {Knowledge.PARAMETERS, Knowledge.PUBLIC_DATA}
    )
    bins: int = 128
    measurement: Measurement = Brightness()
    sparse: bool = False
    gain: float = 100.0
    labels: LabelStrategy = LastLayer()

    def __post_init__(self) -> None:
        if not 2 <= self.bins <= 10**5:
            raise InputError(f"bins must lie in 2..10^5, got {self.bins}")
        if not 0 < self.gain <= 1e6:
            raise InputError(f"gain must lie in (0, 10^6], got {self.gain}")

    def expected(self, examples: int) -> float:
        """Returns the probability that an example of so many is alone in its bin.

        Of equally likely bins, as the thresholds aim at.
        """
        return float((1.0 - 1.0 / self.bins) ** (examples - 1))

    def altered(self, model: Model, public: HostOrDevice) -> Model:
        """Returns the model behind an imprint layer, its bins as public data say."""
        direction = self.measurement(model.input_shape)
        values = np.asarray(public, np.float64).reshape(len(public), -1) @ direction
        edges = _edges(values, self.bins, direction)
        network = Imprinted(
            model.network, self.measurement, edges, self.sparse, self.gain
        )
        return dataclasses.replace(
            model,
            name=f"{model.name}, imprinted",
            network=network,
            input_layer=LAYER,
            patches=None,
            origin=None,
        )

    def unfit(self, model: Model, observation: Observation) -> str:
        """Returns in words why there is no imprint to read, if so."""
        if isinstance(model.network, Imprinted):
            return ""
        return (
            f"model {model.name!r} has no imprint layer: the attack reads what a "
            "malicious server put there itself: choose --threat malicious"
        )

    def solve(self, key: Key, model: Model, observation: Observation) -> Reconstruction:
        """Returns what the bins hold, those with the largest gradients first."""
        network, examples = model.network, observation.training.examples
        assert isinstance(network, Imprinted)
        found = _read(network, model, observation.gradient[LAYER], examples)
        inputs = np.full((examples, *model.input_shape), 0.5, np.float32)
        inputs[: len(found)] = found.reshape(len(found), *model.input_shape)
        labels = np.full(examples, -1, np.int32)
        if model.output_layer is not None:
            told = self.labels(key, model, observation)
            labels = labels if told is None else np.asarray(told, np.int32)
        if len(found):
            return handed_in(inputs, labels, 0.0, Status.CONVERGED)
        return handed_in(inputs, labels, np.inf, Status.DIVERGED)


def imprint(
    bins: int = 128,
    measure: str = "brightness",
    sparse: bool = False,
    gain: float = Imprint.gain,
) -> Imprint:
    """Imprint: the server puts a layer in front that sorts examples into bins."""
    known: dict[str, Measurement] = {
        "brightness": Brightness(),
        "random": RandomDirection(),
    }
    if measure not in known:
        raise unknown_name("measure", measure, known)
    return Imprint(bins, known[measure], sparse, gain)


def _edges(values: Vector, bins: int, direction: Vector) -> tuple[float, ...]:
    """Returns the edges of bins that are equally likely, as far as is known.

    By a smooth density of the public measurements: with fewer of them than bins, their
    own quantiles would make some bins far too wide.
    """
    from scipy import stats

    if len(values) < 2 or not float(np.ptp(values)) > 0:
        raise InputError(
            f"the measurements of {len(values)} public examples must differ, or bins "
            "can't tell examples apart"
        )
    density = stats.gaussian_kde(values)
    reach = 3.0 * float(np.sqrt(density.covariance[0, 0]))
    grid = np.linspace(values.min() - reach, values.max() + reach, _GRID)
    share = np.cumsum(density(grid))
    edges = np.interp(np.linspace(0, share[-1], bins + 1), share, grid)
    # Every valid input passes the first threshold, and none the last.
    lowest = float(np.minimum(direction, 0.0).sum()) - _MARGIN
    highest = float(np.maximum(direction, 0.0).sum()) + _MARGIN
    inner = np.clip(edges[1:-1], lowest, highest)
    return (lowest, *inner.tolist(), highest)


def _read(
    network: Imprinted, model: Model, layer: PyTree, examples: int
) -> NDArray[np.float64]:
    """Returns what the fullest bins hold, at most `examples` of them, flat."""
    kernel, bias = (np.asarray(layer[part], np.float64) for part in ("kernel", "bias"))
    largest = np.abs(bias).max()
    if not network.sparse:  # what passes a threshold and not the next one
        kernel = kernel - np.append(kernel[:, 1:], np.zeros((len(kernel), 1)), axis=1)
        bias = bias - np.append(bias[1:], 0.0)
    order = np.argsort(-np.abs(bias), kind="stable")[:examples]
    full = order[np.abs(bias[order]) > _ROUNDING * largest]
    inputs = (kernel[:, full] / bias[full]).T
    return _within_bins(network, model, inputs, full)


def _within_bins(
    network: Imprinted, model: Model, inputs: Vector, bins: NDArray[np.intp]
) -> Vector:
    """Returns inputs on the scale that their bins say.

    Clipping shrinks the gradients of kernel and bias by different factors: what comes
    out is a multiple of the example, and its measurement tells which.
    """
    edges = np.asarray(network.edges)
    measured = inputs @ network.measurement(model.input_shape)
    wanted = np.clip(measured, edges[bins], edges[bins + 1])
    ratio = np.divide(wanted, measured, out=np.ones_like(wanted), where=measured != 0)
    scaled: Vector = inputs * np.where(ratio > 0, ratio, 1.0)[:, None]
    return scaled
