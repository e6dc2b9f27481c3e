"""Noise that is split over the layers (Zhu et al. 2021, DPFL)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit.defenses.base import State
from gradaudit.defenses.caveats import NO_CLIP, UNTIED, unbounded
from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.draws import draw_like
from gradaudit.defenses.layers import layer_names
from gradaudit.defenses.noise import add_noise
from gradaudit.defenses.schedules import Constant
from gradaudit.errors import InputError, require
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, Model, PyTree

Importance = tuple[tuple[str, float], ...]  # (layer, importance); () = even


@dataclasses.dataclass(frozen=True)
class LayerwiseLaplace:
    """Adds Laplace(sensitivity / epsilon_i) to layer i (Zhu et al. 2021, equation 4).

    The budget is split in proportion to the importance, epsilon_i = epsilon * w_i /
    sum(w), so that important layers get less noise; without importance it is split
    evenly. Each unit's noise is independent.
    """

    epsilon: float
    sensitivity: float
    importance: Importance = ()

    def __post_init__(self) -> None:
        for name in ("epsilon", "sensitivity"):
            value = getattr(self, name)
            require(
                math.isfinite(value) and value > 0,
                f"{name} must be positive and finite, got {value}",
            )
        for layer, weight in self.importance:
            require(
                math.isfinite(weight) and weight > 0,
                f"the importance of {layer!r} must be positive, got {weight}: "
                "a layer without a share of the budget can't be sent",
            )

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

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

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the noisy tree."""
        del t
        leaves, structure = jax.tree.flatten(tree)
        scales = [jnp.float32(self.sensitivity / e) for e in self.budgets(tree)]
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        return jax.tree.unflatten(structure, add_noise(leaves, noise, scales)), state

    def releases(self, point: Point, clip: Clip | None) -> tuple[Mechanism, ...]:
        """Returns the Laplace release with the whole budget."""
        caveats: tuple[str, ...] = ()
        if clip is None:
            caveats = (NO_CLIP,)
        elif self.sensitivity < 2 * clip.bound(0):
            text = UNTIED.format(sensitivity=self.sensitivity, clip=2 * clip.bound(0))
            caveats = (text,)
        return (
            Mechanism(
                point=point,
                kind=NoiseKind.LAPLACE,
                multiplier=Constant(self.epsilon),
                sensitivity=Constant(self.sensitivity),
                clip=clip.bound if clip else unbounded,
                norm=1,
                per_tensor=False,
                coordinates="all, epsilon split over the layers",
                caveats=caveats,
            ),
        )


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
