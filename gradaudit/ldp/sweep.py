"""The effect of the gradient's norm (Matsumoto et al. 2022, Figure 3)."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from gradaudit.errors import require
from gradaudit.ldp.bounds import check_epsilon, empirical_epsilon
from gradaudit.ldp.cells import mean, spread
from gradaudit.ldp.law import cosine_rates, pair_law
from gradaudit.ldp.trials import check_trials
from gradaudit.ldp.whitebox import Cosine, play
from gradaudit.types import Key


@dataclasses.dataclass(frozen=True)
class NormPoint:
    """White-box epsilon of a dummy gradient of one norm."""

    norm: float  # in units of the clip
    epsilon: float  # the theoretical one
    mean: float
    spread: float
    exact: float  # equation 3 of the exact rates


def norm_sweep(
    key: Key,
    size: int,
    epsilons: Sequence[float],
    norms: Sequence[float],
    trials: int = 10_000,
    measurements: int = 10,
) -> tuple[NormPoint, ...]:
    """Returns a point for every norm and epsilon, for gradients of `size` numbers."""
    check_trials(trials)
    points = []
    for row, norm in enumerate(norms):
        require(norm > 0, f"the norm of a dummy gradient must be positive, got {norm}")
        gradient = np.full(size, norm / size**0.5)
        for column, epsilon in enumerate(epsilons):
            check_epsilon(epsilon)
            law = pair_law(np.stack([gradient, -gradient]), epsilon, clip=1.0)
            values = []
            for index in range(measurements):
                game_key = jax.random.fold_in(
                    key, (row * len(epsilons) + column) * measurements + index
                )
                errors = play(game_key, law, Cosine(), trials).errors()
                values.append(empirical_epsilon(errors.fp, errors.fn))
            exact = empirical_epsilon(*cosine_rates(law))
            points.append(NormPoint(norm, epsilon, mean(values), spread(values), exact))
    return tuple(points)
