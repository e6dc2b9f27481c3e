"""Line-ups to be played: of which clients, how often, and what is certified."""

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.candidates import draw_groups, picks
from gradaudit.distinguish.line_up import Game, Group, worst_case
from gradaudit.errors import require
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, ServerState
from gradaudit.federation.setting import Setting
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import Certificate, certificate
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report import metrics
from gradaudit.types import Key, Leakage

_GROUPS = 10  # pools of candidates per network: what they share is computed once
DOUBT = 0.025  # of a false alarm, over all cells together
LOOK_AT = (
    "The noise is not what the defense says: look at its scale against the clip, at a "
    "key that is used twice, at a clip that does not bound every example, and at "
    "tensors that get no noise."
)
_LEARNING_RATE = 0.05
# Nobody waits for more: looks are read one by one, a simplex of n has n coordinates.
_MOST_LINE_UPS, _MOST_LOOKS, _MOST_STEPS = 1_000_000, 10_000, 10_000
_MOST_CANDIDATES, _MOST_CORNERS = 100_000, 2_000


class From(enum.Enum):
    """Where candidates come from."""

    LABEL = "label"  # of the same set, with the labels of the victim: the hard one
    ANY = "any"  # of the same set
    WORST = "worst"  # constructed gradients, as far apart as the clip allows


@dataclasses.dataclass(frozen=True)
class Cell:
    """Line-ups of one kind: how many were won in each draw, and what is certified."""

    sigma: float | None  # where it was varied
    candidates: int
    looks: int
    hits: tuple[int, ...]  # of each draw of the network
    line_ups: tuple[int, ...]
    certified: Certificate

    @property
    def measured(self) -> metrics.Rate:
        """The share that was picked, with an interval that counts the draws."""
        return metrics.rate_over_draws(self.hits, self.line_ups)

    @property
    def guessing(self) -> float:
        """What is reached without reading."""
        return 1 / self.candidates

    def proven(self, doubt: float = DOUBT) -> float:
        """Returns a success that the line-ups prove but for this doubt.

        The certificate bounds every line-up on its own, whatever the network and the
        candidates, so that they are counted together (Clopper-Pearson).
        """
        won, played = sum(self.hits), sum(self.line_ups)
        return float(special.betaincinv(won, played - won + 1, doubt)) if won else 0.0

    def breaks(self, doubt: float = DOUBT) -> bool:
        """Returns whether more was picked than the certificate allows."""
        value = self.certified.value
        return value is not None and self.proven(doubt) > value

    def to_dict(self) -> dict[str, Any]:
        """Returns the cell as result.json has it."""
        return {
            "sigma": self.sigma,
            "candidates": self.candidates,
            "looks": self.looks,
            "line_ups": sum(self.line_ups),
            "measured": dataclasses.asdict(self.measured),
            "certified": self.certified.to_dict(),
            "guessing": self.guessing,
        }


@dataclasses.dataclass(frozen=True)
class LineUps:
    """What all line-ups of a command share."""

    model: Model
    dataset: Dataset
    leakage: Leakage
    batch: int
    local_steps: int
    candidates: tuple[int, ...]
    looks: tuple[int, ...]
    line_ups: int
    draws: int
    source: From
    fresh: bool
    seed: int
    tensors: int
    states: tuple[ServerState, ...] = ()  # of each draw; else the networks are drawn

    @property
    def setting(self) -> Setting:
        """A round of clients that are all read, their batches known."""
        return Setting(
            clients=1,
            clients_per_round=1,
            local_steps=self.local_steps,
            batch_size=self.batch,
            rounds=self.round + 1,
            examples=self.batch * self.local_steps,
            learning_rate=_LEARNING_RATE,
        )

    @property
    def round(self) -> int:
        """The round that is read: 0, unless the states are of a later one."""
        return int(self.states[0].round) if self.states else 0

    def certified(self, defense: Defense, candidates: int, looks: int) -> Certificate:
        """Returns the bound for a cell."""
        plan = PrivacyPlan(defense, self.setting, tensors=self.tensors)
        return certificate(
            plan,
            type=int(self.leakage),
            candidates=candidates,
            looks=looks,
            round=self.round,
        )

    def play(self, key: Key, defense: Defense) -> Iterator[Any]:
        """Yields (candidates, looks, draw, won, played) chunk by chunk."""
        sizes = [self.candidates]
        if self.source is From.WORST:  # each n has a simplex of its own
            sizes = [(n,) for n in self.candidates]
        for candidates in sizes:
            for draw in range(self.draws):
                yield from self._draw(key, defense, candidates, draw)

    def _draw(
        self, key: Key, defense: Defense, candidates: tuple[int, ...], draw: int
    ) -> Iterator[Any]:
        model, data = self.model, self.dataset
        rng = np.random.default_rng([self.seed, draw, max(candidates)])
        share = len(np.array_split(np.arange(self.line_ups), self.draws)[draw])
        if self.source is From.WORST:
            model, data = worst_case(max(candidates), self.tensors)
            each = np.arange(max(candidates))
            pools = [np.repeat(each[:, None], self.setting.examples, axis=1)]
            victims = [rng.integers(0, max(candidates), share)]
        else:
            pools, victims = draw_groups(
                rng,
                data.labels,
                self.setting.examples,
                max(candidates),
                share,
                _GROUPS,
                self.source is From.LABEL,
            )
        rows, groups = _clients(pools, victims)
        recipe = Recipe.of(model, defense, self.setting)
        population = Population.of(data, rows)
        draw_key = jax.random.fold_in(key, draw)
        state = self.states[draw] if self.states else None
        game = Game(recipe, population, self.leakage, draw_key, self.fresh, state)
        for group in groups:
            for chosen, scores in game.play(group, self.looks):
                for count in candidates:
                    for looks, rated in scores.items():
                        won = int(picks(rng, rated, chosen, count).sum())
                        yield count, looks, draw, won, len(chosen)


def _clients(
    pools: Sequence[NDArray[np.int64]], victims: Sequence[NDArray[np.int64]]
) -> tuple[list[NDArray[np.int64]], list[Group]]:
    """Returns all clients' examples, and the groups as numbers of clients."""
    rows: list[NDArray[np.int64]] = []
    groups = []
    for pool, chosen in zip(pools, victims, strict=True):
        first = len(rows)
        rows.extend(pool)
        second = len(rows)
        rows.extend(pool[chosen])
        groups.append(
            Group(np.arange(first, second), chosen, np.arange(second, len(rows)))
        )
    return rows, groups


def line_ups_of(
    type_: int,
    dataset: str | Dataset,
    model: str | Model | None,
    candidates: int | Sequence[int],
    looks: int | Sequence[int],
    victims: int,
    draws: int,
    batch_size: int | None,
    local_steps: int,
    source: str,
    fresh: bool,
    seed: int,
) -> LineUps:
    """Checks the numbers and builds what all line-ups share."""
    require(type_ in tuple(Leakage), f"type must be 0, 1 or 2, got {type_}")
    counts, reads = (
        tuple(dict.fromkeys([x] if isinstance(x, int) else x))
        for x in (candidates, looks)
    )
    known = {member.value: member for member in From}
    require(source in known, f"candidates come from {', '.join(known)}, not {source!r}")
    corners = _MOST_CORNERS if known[source] is From.WORST else _MOST_CANDIDATES
    _check("candidates", counts, 2, corners)
    _check("looks", reads, 1, _MOST_LOOKS)
    _check("victims", [victims], 1, _MOST_LINE_UPS)
    require(1 <= draws <= victims, f"draws must lie in 1..{victims}, got {draws}")
    _check("local_steps", [local_steps], 1, _MOST_STEPS)
    _check("batch_size", [1 if batch_size is None else batch_size], 1, _MOST_STEPS)
    require(0 <= seed < 2**32, f"seed must lie in 0..2^32 - 1, got {seed}")
    leakage = Leakage(type_)
    alone = leakage is Leakage.EXAMPLE
    require(
        not alone or batch_size in (None, 1) and local_steps == 1,
        "type 2 reads one example's gradient in the first local step: leave "
        "batch_size and local_steps out",
    )
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    net = model if isinstance(model, Model) else model_for(
        model or ("cpl" if len(data.shape) == 3 else "mlp"), data.shape, data.classes
    )  # fmt: skip
    tensors = len(jax.tree.leaves(jax.eval_shape(net.init, jax.random.key(0))))
    each = 1 if alone else (batch_size or 3) * local_steps
    needed = max(counts) if each == 1 else each
    require(
        source == From.WORST.value or needed <= len(data),
        f"{max(counts):,} candidates of {each:,} examples need at least {needed:,}; "
        f"dataset {data.name!r} has {len(data):,}: ask for less",
    )
    # Weights of its own, or a network that is left out: nothing to draw.
    if source == From.WORST.value or not net.drawn:
        draws = 1
    return LineUps(
        net, data, leakage, 1 if alone else batch_size or 3, local_steps, counts,
        reads, victims, draws, known[source], fresh, seed, tensors,
    )  # fmt: skip


def _check(name: str, values: Sequence[int], least: int, most: int) -> None:
    require(
        bool(values) and min(values) >= least,
        f"{name} must be at least {least}, got {list(values)}",
    )
    require(
        max(values) <= most, f"{name} must be at most {most:,}, got {max(values):,}"
    )
