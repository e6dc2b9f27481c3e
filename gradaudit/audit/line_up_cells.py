"""Line-ups to be played: of which clients, how often, and what is certified."""

import dataclasses
import enum
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.audit.scenario import one_round
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.line_up import Game, Group, Ids, Scores, worst_case
from gradaudit.errors import InputError, at_least, check_seed
from gradaudit.federation.recipe import Population, Recipe, ServerState
from gradaudit.federation.setting import Setting
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import Certificate, Prior, certificate
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report import metrics
from gradaudit.report.verdict import beats
from gradaudit.types import Key, Leakage

_GROUPS = 10  # pools of candidates per network: what they share is computed once
DOUBT = 0.025  # of a false alarm, over all cells together
LOOK_AT = (
    "The noise is not what the defense says: look at its scale against the clip, at a "
    "key that is used twice, at a clip that does not bound every example, and at "
    "tensors that get no noise."
)
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

    def breaks(self, doubt: float = DOUBT) -> bool:
        """Returns whether more was picked than the certificate allows.

        It bounds every line-up on its own, whatever the network and the candidates, so
        that they are counted together.
        """
        bound = self.certified.value
        won, played = sum(self.hits), sum(self.line_ups)
        return bound is not None and beats(won, played, bound, doubt)

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
    states: tuple[ServerState, ...] = ()  # of each draw; else the networks are drawn

    @functools.cached_property
    def tensors(self) -> int:
        """How many tensors the network has."""
        return len(jax.tree.leaves(self.model.shapes()[0]))

    @functools.cached_property
    def setting(self) -> Setting:
        """A round of clients that are all read, their batches known."""
        return one_round(1, self.batch, self.local_steps, self.round + 1)

    @property
    def round(self) -> int:
        """The round that is read: 0, unless the states are of a later one."""
        return int(self.states[0].round) if self.states else 0

    def certified(
        self, defense: Defense, among: int | Prior, looks: int
    ) -> Certificate:
        """Returns the bound on a pick out of so many, or on what this prior is of."""
        return certificate(
            PrivacyPlan(defense, self.setting, tensors=self.tensors),
            type=int(self.leakage),
            candidates=among if isinstance(among, int) else None,
            prior=None if isinstance(among, int) else among,
            looks=looks,
            round=self.round,
        )

    def play(self, key: Key, defense: Defense) -> Iterator[Any]:
        """Yields (candidates, looks, draw, won, played), some line-ups at a time."""
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
        share = _even(self.line_ups, self.draws)[draw]
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
        for played in game.play(groups, self.looks):
            won: Counter[tuple[int, int]] = Counter()
            for chosen, scores in played:
                for kind in itertools.product(candidates, scores):
                    count, looks = kind
                    won[kind] += int(picks(rng, scores[looks], chosen, count).sum())
            done = sum(len(chosen) for chosen, _ in played)
            yield from ((*kind, draw, hits, done) for kind, hits in won.items())


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
    *,
    type: int,  # noqa: A002 - the contract's word
    dataset: str | Dataset,
    model: str | Model | None,
    candidates: int | Sequence[int],
    looks: int | Sequence[int],
    victims: int,
    draws: int,
    batch_size: int | None,
    local_steps: int,
    candidates_from: str,
    fresh: bool,
    seed: int,
) -> LineUps:
    """Checks what `line_up` was asked for, and builds what all line-ups share."""
    leakage = Leakage(type)
    counts, reads = (
        tuple(dict.fromkeys([x] if isinstance(x, int) else x))
        for x in (candidates, looks)
    )
    known = {member.value: member for member in From}
    if candidates_from not in known:
        raise InputError(
            f"candidates come from {', '.join(known)}, not {candidates_from!r}"
        )
    source = known[candidates_from]
    for count in counts or (0,):
        corners = _MOST_CORNERS if source is From.WORST else _MOST_CANDIDATES
        at_least(2, corners, candidates=count)
    for number in reads or (0,):
        at_least(1, _MOST_LOOKS, looks=number)
    at_least(1, _MOST_LINE_UPS, victims=victims)
    if not 1 <= draws <= victims:
        raise InputError(f"draws must lie in 1..{victims}, got {draws}")
    at_least(1, _MOST_STEPS, local_steps=local_steps, batch_size=batch_size)
    check_seed(seed)
    alone = leakage is Leakage.EXAMPLE
    if alone and (batch_size not in (None, 1) or local_steps != 1):
        raise InputError(
            "type 2 reads one example's gradient in the first local step: leave "
            "batch_size and local_steps out"
        )
    data = load_dataset(dataset)
    net = model_for(model, data.shape, data.classes)
    batch = batch_size or (1 if alone else 3)
    each = batch * local_steps
    needed = max(counts) if each == 1 else each
    if source is not From.WORST and needed > len(data):
        raise InputError(
            f"{max(counts):,} candidates of {each:,} examples need at least "
            f"{needed:,}; dataset {data.name!r} has {len(data):,}: ask for less"
        )
    # Weights of its own, or a network that is left out: nothing to draw.
    drawn = source is not From.WORST and net.drawn
    return LineUps(
        model=net,
        dataset=data,
        leakage=leakage,
        batch=batch,
        local_steps=local_steps,
        candidates=counts,
        looks=reads,
        line_ups=victims,
        draws=draws if drawn else 1,
        source=source,
        fresh=fresh,
        seed=seed,
    )


def draw_groups(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    batch: int,
    candidates: int,
    line_ups: int,
    groups: int,
    same_label: bool,
) -> tuple[list[NDArray[np.int64]], list[Ids]]:
    """Draws pools of batches (pool, batch) and who in each pool is a victim.

    With `same_label` all batches of a pool have the same labels, those of a batch
    drawn at random. A pool has at least so many candidates, and a batch for every
    victim if the data suffices; candidates of a pool share no example if it does.
    """
    counts = np.bincount(labels)
    pools, victims = [], []
    for size in _even(line_ups, groups):
        wanted = max(candidates, size)
        pattern = None
        if same_label:
            pattern = _pattern(rng, labels, counts, batch, candidates)
        pool = _pool(rng, labels, batch, wanted, pattern)
        pools.append(pool)
        rounds = -(-size // len(pool))
        order = [rng.permutation(len(pool)) for _ in range(rounds)]
        victims.append(np.concatenate(order)[:size])
    return pools, victims


def _even(total: int, parts: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(total), min(parts, total))]


def _pattern(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    counts: NDArray[np.integer],
    batch: int,
    candidates: int,
) -> NDArray[np.integer]:
    """Returns the labels of a random batch that enough others can share."""
    needed = candidates if batch == 1 else batch
    enough = np.flatnonzero(counts[labels] >= needed)
    if not len(enough):
        raise InputError(
            f"no label has {needed:,} examples (the most is {counts.max():,}), so that "
            f"{candidates:,} candidates can't share the victim's: ask for fewer, or "
            "for candidates of any label"
        )
    return np.sort(labels[rng.choice(enough, size=batch)])


def _pool(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    batch: int,
    wanted: int,
    pattern: NDArray[np.integer] | None,
) -> NDArray[np.int64]:
    """Returns batches of these labels, disjoint where the data suffices."""
    kinds = np.zeros_like(labels) if pattern is None else labels
    asked = np.zeros(batch, labels.dtype) if pattern is None else pattern
    columns = []
    for label, copies in zip(*np.unique(asked, return_counts=True), strict=True):
        own = rng.permutation(np.flatnonzero(kinds == label))
        rows = min(wanted, len(own)) if batch == 1 else wanted
        if rows * copies <= len(own):
            columns.append(own[: rows * copies].reshape(rows, copies))
        else:
            drawn = [rng.choice(own, copies, replace=False) for _ in range(rows)]
            columns.append(np.stack(drawn))
    return np.concatenate(columns, axis=1)


def picks(
    rng: np.random.Generator, scores: Scores, victims: Ids, candidates: int
) -> NDArray[np.bool_]:
    """Returns whether each victim is picked out of so many candidates, (victims,).

    The others are drawn at random from the pool, without a look at the scores; the
    victim stands at a random place among them, and ties are broken at random.
    """
    rows = np.arange(len(victims))
    order = rng.random(scores.shape)
    order[rows, victims] = -1.0  # the victim is always among them
    chosen = np.argpartition(order, candidates - 1, axis=1)[:, :candidates]
    chosen = rng.permuted(chosen, axis=1)
    told = np.nan_to_num(
        np.take_along_axis(scores, chosen, axis=1), nan=-np.inf, posinf=np.inf
    )
    best = told == told.max(axis=1, keepdims=True)
    picked = np.argmax(np.where(best, rng.random(best.shape), -1.0), axis=1)
    hits: NDArray[np.bool_] = chosen[rows, picked] == victims
    return hits
