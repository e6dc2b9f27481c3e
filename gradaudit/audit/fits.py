"""Which attack fits which network, and why not: every attack is asked itself."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from gradaudit.attacks import PRESETS
from gradaudit.models.model import Model
from gradaudit.models.networks import MODELS, build_model
from gradaudit.types import LocalTraining, Observation

_IMAGES, _CLASSES = (32, 32, 3), 10  # like CIFAR-10
_PUBLIC = 8  # examples that a malicious server has


@dataclasses.dataclass(frozen=True)
class Fit:
    """Whether one attack fits one network; `why` says in words why not."""

    model: str
    attack: str
    examples: int  # whose gradients are mixed in what is read
    why: str = ""


def all_fits(examples: tuple[int, ...] = (1, 8)) -> Iterator[Fit]:
    """Yields every network with every attack, for each of these batches."""
    for name in MODELS:
        model = build_model(name, _IMAGES, _CLASSES)
        for count in examples:
            for attack in PRESETS:
                yield Fit(name, attack, count, _why(model, attack, count))


def _why(model: Model, name: str, examples: int) -> str:
    if model.coupled and examples == 1:
        return (
            "batch norm in training mode: no example has a gradient of its own; "
            "attack the batch"
        )
    attack = PRESETS[name].make()
    public = np.random.default_rng(0).random((_PUBLIC, *model.input_shape))
    altered = attack.altered(model, public)
    key = jax.random.key(0)
    params, buffers = (
        jax.eval_shape(make, key) for make in (altered.init, altered.initial_buffers)
    )
    training = LocalTraining(batch_size=examples)
    seen = Observation(params, params, buffers, training=training)
    whys = [member.attack.unfit(altered, seen) for member in attack.members]
    if whys:
        return "; ".join(whys) if all(whys) else ""
    return attack.unfit(altered, seen)
