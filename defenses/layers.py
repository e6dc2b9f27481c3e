"""Layers: which tensors belong together, and transforms on some of them only."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gradaudit.defenses.noise import (
    NOT_CLIPPED,
    UNTIED,
    add_noise,
    draw_like,
    unbounded,
)
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import (
    Applied,
    Bound,
    Release,
    Round,
    State,
    Stateless,
    Transform,
    explain,
    is_additive,
    is_independent,
    release_of,
)
from gradaudit.errors import InputError, positive
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

PARTIAL = (
    "Only {layers} get noise; the others are sent as they are, so there is no "
    "guarantee."
)


def layer_names(tree: PyTree) -> list[str]:
    """Returns for each tensor the layer it belongs to: its path without the last part.

    A tensor that is not inside a layer is a layer of its own.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    layers = [path[:-1] or path for path in paths]
    return [jax.tree_util.keystr(layer, simple=True, separator="/") for layer in layers]


@dataclasses.dataclass(frozen=True)
class DenseLayers:
    """The layers that hold a matrix (and no larger tensor): kernels and biases."""

    def of(self, tree: PyTree) -> list[bool]:
        """Returns for each tensor (units, ...) whether its layer is dense."""
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


Selection = DenseLayers | NamedLayers

_TREES = ("expected", "variance", "common")  # what Evidence says of every tensor


def _chosen(tree: PyTree, mask: list[bool]) -> list[jax.Array]:
    return [leaf for leaf, on in zip(jax.tree.leaves(tree), mask, strict=True) if on]


def _replaced(tree: PyTree, mask: list[bool], chosen: list[jax.Array]) -> PyTree:
    """Returns the tree with others in place of the chosen tensors."""
    leaves, structure = jax.tree.flatten(tree)
    others = iter(chosen)
    merged = [
        next(others) if on else leaf for leaf, on in zip(leaves, mask, strict=True)
    ]
    return jax.tree.unflatten(structure, merged)


@dataclasses.dataclass(frozen=True)
class OnLayers:
    """Runs a transform on the chosen tensors; the others pass unchanged."""

    transform: Transform
    selection: Selection

    @property
    def independent(self) -> bool:
        """What the transform says."""
        return is_independent(self.transform)

    @property
    def additive(self) -> bool:
        """What the transform says: the other tensors pass unchanged."""
        return is_additive(self.transform)

    def init(self, params: PyTree) -> State:
        """Returns the transform's state for the chosen tensors."""
        units = jax.tree.map(lambda leaf: leaf[None], params)
        return self.transform.init(_chosen(params, self.selection.of(units)))

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the tree with the chosen tensors transformed."""
        mask = self.selection.of(tree)
        if not any(mask):
            raise InputError(f"the model has no {self.selection} to put noise on")
        changed, state = self.transform.apply(key, _chosen(tree, mask), state, t)
        return _replaced(tree, mask, changed), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the evidence with what is known of the chosen tensors.

        Noise that goes to some tensors only leaves the others exact, which is what an
        adversary weighs them by.
        """
        mask = self.selection.of(evidence.expected)
        trees = {name: getattr(evidence, name) for name in _TREES}
        parts: dict[str, Any] = {n: _chosen(tree, mask) for n, tree in trees.items()}
        inner = dataclasses.replace(evidence, **parts)
        told = explain((self.transform,), inner, (state,), t)
        whole: dict[str, Any] = {
            name: _replaced(tree, mask, getattr(told, name))
            for name, tree in trees.items()
        }
        return dataclasses.replace(told, **whole)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the inner release, marked as partial and therefore unbounded."""
        released, _ = release_of(self.transform, point, bound)
        partial = tuple(
            dataclasses.replace(
                mechanism,
                clip=unbounded,
                coordinates=str(self.selection),
                caveats=(PARTIAL.format(layers=self.selection),),
            )
            for mechanism in released
        )
        return partial, None


Importance = tuple[tuple[str, float], ...]  # (layer, importance); () = even


@dataclasses.dataclass(frozen=True)
class LayerwiseLaplace(Stateless):
    """Adds Laplace(sensitivity / epsilon_i) to layer i (Zhu et al. 2021, equation 4).

    The budget is split in proportion to the importance, epsilon_i = epsilon * w_i /
    sum(w), so that important layers get less noise; without importance it is split
    evenly. Each unit's noise is independent.
    """

    independent: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    epsilon: float
    sensitivity: float
    importance: Importance = ()

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, sensitivity=self.sensitivity)
        for layer, weight in self.importance:
            if not (math.isfinite(weight) and weight > 0):
                raise InputError(
                    f"the importance of {layer!r} must be positive, got {weight}: "
                    "a layer without a share of the budget can't be sent"
                )

    def budgets(self, tree: PyTree) -> list[float]:
        """Returns epsilon_i for each tensor; those of the layers sum to epsilon."""
        names = layer_names(tree)
        weights = dict(self.importance) or dict.fromkeys(names, 1.0)
        missing = [name for name in names if name not in weights]
        if missing:
            raise InputError(
                f"no importance for layer {missing[0]!r} (given: {', '.join(weights)})"
            )
        total = sum(weights[name] for name in set(names))
        return [self.epsilon * weights[name] / total for name in names]

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the noisy tree."""
        leaves, structure = jax.tree.flatten(tree)
        scales = [jnp.float32(self.sensitivity / e) for e in self.budgets(tree)]
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        return jax.tree.unflatten(structure, add_noise(leaves, noise, scales)), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the evidence with each layer's own noise."""
        scales = [self.sensitivity / e for e in self.budgets(evidence.expected)]
        variances = [jnp.asarray(2 * scale**2, jnp.float32) for scale in scales]
        return evidence.noisier(variances, peaked=True)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the Laplace release with the whole budget."""
        caveats: tuple[str, ...] = ()
        if bound is None:
            caveats = (NOT_CLIPPED,)
        elif self.sensitivity < 2 * bound.limit(0):
            text = UNTIED.format(sensitivity=self.sensitivity, clip=2 * bound.limit(0))
            caveats = (text,)
        mechanism = Mechanism(
            point=point,
            kind=NoiseKind.LAPLACE,
            multiplier=Constant(self.epsilon),
            sensitivity=Constant(self.sensitivity),
            clip=bound.limit if bound else unbounded,
            norm=1,
            per_tensor=False,
            coordinates="all, epsilon split over the layers",
            caveats=caveats,
        )
        return (mechanism,), None


def pogz(model: Model, params: PyTree, inputs: jax.Array) -> Importance:
    """Returns each layer's share of positive pre-activations (Zhu et al. 2021, eq. 1).

    Reads the outputs of the flax submodules that hold parameters; inputs are
    (batch, *input_shape), from a validation set of the client.
    """
    layers = list(dict.fromkeys(layer_names(params)))
    try:
        network: Any = model.network
        _, captured = network.apply(
            {"params": params}, inputs, capture_intermediates=True
        )
        outputs = captured["intermediates"]
        return tuple((layer, _positive_share(outputs, layer)) for layer in layers)
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"can't read the layers' outputs of model {model.name!r} ({error}); "
            "give the importance as ((layer, share), ...)"
        ) from None


def _positive_share(outputs: Any, layer: str) -> float:
    for part in layer.split("/"):
        outputs = outputs[part]
    return float(jnp.mean(outputs["__call__"][0] > 0))
