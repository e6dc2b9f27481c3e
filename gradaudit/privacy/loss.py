"""The privacy loss distribution: tight up to its grid, by dp-accounting.

Ours is what its PLDAccountant lacks: a grid that fits the question, thousands of noise
scales in seconds, the first step over a budget, and draws of a fixed size (its bound
for these counts twice the change, so its epsilon is about double). Everything that is
rounded here is rounded towards more privacy loss, so the answer stays an upper bound.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradaudit.privacy.events import Events, FloatArray
from gradaudit.privacy.renyi import amplified

_MOST_POINTS = 500_000  # of one step's loss distribution
# Of all steps together: with next to no noise the losses spread over gigabytes, to say
# an epsilon of a million more exactly.
_MOST_TOGETHER = 1_000_000
_ONE_STAGE = 10_000  # steps that are composed at once
_PURE_CELLS = 512  # between a loss of 0 and the largest loss of a pure step


@dataclasses.dataclass(frozen=True)
class LossDistribution:
    """Composes the loss distributions of all steps and reads epsilon off the result.

    `resolution` is the grid's width as a share of a step's typical loss. More than
    `scales` different noise scales are rounded down to that many.
    """

    resolution: float = 0.07
    scales: int = 256

    def epsilon(self, events: Events, delta: float) -> float:
        """Returns epsilon after all steps."""
        rounded, grid = self._on_a_grid(events)
        if not math.isfinite(grid):
            return math.inf
        return _epsilon(_loss(rounded, grid), delta)

    def curve(self, events: Events, delta: float, points: int = 24) -> FloatArray:
        """Returns epsilon after each step, interpolated between `points` of them."""
        rounded, grid = self._on_a_grid(events)
        if not math.isfinite(grid):
            return np.full(events.steps, np.inf)
        ends = np.unique(np.geomspace(1, events.steps, points).astype(int)).tolist()
        values, loss = [], None
        for start, end in zip([0, *ends], ends, strict=False):
            part = _loss(rounded.between(start, end), grid)
            loss = part if loss is None else loss.compose(part)
            values.append(_epsilon(loss, delta))
        return np.interp(np.arange(1, events.steps + 1), ends, values)

    def first_over(self, target: float, events: Events, delta: float) -> int | None:
        """Returns the first step whose epsilon exceeds the target, or None.

        A bisection that composes each half onto what came before it.
        """
        rounded, grid = self._on_a_grid(events)
        if not math.isfinite(grid):
            return 1
        within, over, loss = 0, events.steps + 1, None
        while over - within > 1:
            middle = (within + over) // 2
            part = _loss(rounded.between(within, middle), grid)
            longer = part if loss is None else loss.compose(part)
            if _epsilon(longer, delta) > target:
                over = middle
            else:
                within, loss = middle, longer
        return over if over <= events.steps else None

    def profile(self, events: Events) -> Callable[[float], float]:
        """Returns delta as a function of epsilon, of any sign, in one direction.

        The hockey-stick divergence of the releases with the unit from those without
        it, never too small. Where a draw has a fixed size, the releases without it are
        drawn from the others alone: a batch that holds the unit differs from one that
        does not by one unit that is replaced, which `Events.noise` is relative to.
        """
        rounded, grid = self._on_a_grid(events)
        if not math.isfinite(grid):
            return lambda epsilon: 1.0
        loss = _loss(rounded, grid, _step_with_the_unit)

        def delta(epsilon: float) -> float:
            with np.errstate(all="ignore"):
                return float(loss.get_delta_for_epsilon(epsilon))

        return delta

    def holds_for(self, events: Events) -> bool:
        """Returns True: draws of either kind have a loss distribution."""
        return True

    def spent_delta(self, events: Events, delta: float) -> float:
        """Returns delta: nothing else is spent."""
        return delta

    def _on_a_grid(self, events: Events) -> tuple[Events, float]:
        """Returns the events with few noise scales, and the width of a grid for them.

        The width is infinite if no grid is fine enough.
        """
        rounded = self._rounded(events)
        return rounded, self._grid(rounded)

    def _rounded(self, events: Events) -> Events:
        """Returns the events with few different noise scales, none of them larger."""
        scales = np.unique(events.noise[~events.pure])
        if len(scales) <= self.scales:
            return events
        # epsilon grows with the sum of 1 / sigma^2, so the grid is even in that.
        precision = 1 / np.square(events.noise)
        low, high = 1 / scales[-1] ** 2, 1 / scales[0] ** 2
        grid = np.linspace(low, high, self.scales)
        above = np.minimum(np.searchsorted(grid, precision), self.scales - 1)
        lowered = np.minimum(1 / np.sqrt(grid[above]), events.noise)
        lowered = np.where(above == self.scales - 1, scales[0], lowered)
        noise = np.where(events.pure, events.noise, lowered)
        return dataclasses.replace(events, noise=noise)

    def _grid(self, events: Events) -> float:
        """Returns the width of the grid of losses; infinite if none is fine enough.

        Or if noise is so small that what is spent has hundreds of thousands of nats.
        """
        runs = events.merged()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            precision = 1 / np.square(runs.noise)
            rare = np.square(runs.rate) * np.expm1(precision)
            variance = np.minimum(
                rare,
                runs.rate * ((1 - runs.rate) * np.square(precision / 2) + precision),
            )
            mean = np.minimum(rare, runs.rate * precision) / 2
            tail = np.where(
                runs.pure, runs.noise, precision / 2 + 10 * np.sqrt(precision)
            )
        largest = amplified(tail, runs.rate).max()
        if runs.pure.any():
            # Two losses only, +e and -e: a grid that e is a multiple of is exact.
            epsilon = amplified(runs.noise[runs.pure], runs.rate[runs.pure]).max()
            width = epsilon / _PURE_CELLS * (1 + 1e-9)
        else:
            typical = math.sqrt(np.average(variance, weights=runs.count))
            width = min(self.resolution * typical, 1.0)
        fine = largest < _MOST_POINTS * width and width <= 1.0
        spread = np.sum(runs.count * mean)
        spread += 10 * math.sqrt(np.sum(runs.count * variance))
        few = runs.pure.any() or spread < _MOST_TOGETHER * width
        return float(width) if fine and few else math.inf


@functools.lru_cache(maxsize=512)
def _step_loss(noise: float, rate: float, pure: bool, fixed: bool, grid: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    if pure:
        epsilon = float(amplified(np.asarray(noise), np.asarray(rate)))
        return pld.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0),
            value_discretization_interval=grid,
        )
    if fixed:
        # Replacing one unit, the hockey-stick divergence is at most that of *removing*
        # one from a Poisson draw at orders >= 1, in both directions, so at most that of
        # *adding* one below (Balle et al. 2018, Theorem 9; Zhu et al. 2022, Proposition
        # 30); `noise` is relative to the change that replacing makes.
        return _largest_loss(noise, rate, grid, ("REMOVE", "ADD"))
    return pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=grid
    )


@functools.lru_cache(maxsize=512)
def _step_with_the_unit(
    noise: float, rate: float, pure: bool, fixed: bool, grid: float
) -> Any:
    """Returns the loss of a step with the unit against one without it."""
    if pure:
        return _step_loss(noise, rate, pure, fixed, grid)
    return _largest_loss(noise, rate, grid, ("REMOVE",))


def _largest_loss(
    noise: float, rate: float, grid: float, directions: tuple[str, ...]
) -> Any:
    """Returns the loss that at each order is the largest of these directions."""
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
    from dp_accounting.pld import privacy_loss_distribution as pld

    kinds = privacy_loss_mechanism.AdjacencyType
    losses = [
        privacy_loss_mechanism.GaussianPrivacyLoss(
            noise, sampling_prob=rate, adjacency_type=kinds[direction]
        )
        for direction in directions
    ]
    bounds = [loss.connect_dots_bounds() for loss in losses]
    low = math.floor(min(bound.epsilon_lower for bound in bounds) / grid)
    high = math.ceil(max(bound.epsilon_upper for bound in bounds) / grid)
    orders = np.arange(low, high + 1) * grid
    deltas = np.max([loss.get_delta_for_epsilon(orders) for loss in losses], axis=0)
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)
    )


def _loss(
    events: Events, grid: float, step_loss: Callable[..., Any] = _step_loss
) -> Any:
    runs = events.merged()
    columns = (runs.noise, runs.rate, runs.pure, runs.fixed, runs.count)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    with np.errstate(all="ignore"):
        parts = [
            _repeat(step_loss(noise, rate, pure, fixed, grid), count)
            for noise, rate, pure, fixed, count in rows
        ]
        # In pairs, so that long convolutions are few.
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            rest = parts[-1:] if len(parts) % 2 else []
            parts = [left.compose(right) for left, right in pairs] + rest
        return parts[0]


def _epsilon(loss: Any, delta: float) -> float:
    with np.errstate(all="ignore"):
        epsilon = float(loss.get_epsilon_for_delta(delta))
    return epsilon if math.isfinite(epsilon) else math.inf


def _repeat(loss: Any, count: int) -> Any:
    """Composes with itself; in two stages if often, so that the tails are cut early."""
    if count <= _ONE_STAGE:
        return loss.self_compose(count)
    stage = math.isqrt(count)
    whole = loss.self_compose(stage).self_compose(count // stage)
    rest = count % stage
    return whole.compose(loss.self_compose(rest)) if rest else whole
