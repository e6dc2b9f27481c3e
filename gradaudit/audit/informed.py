"""`ga.line_up`: how often the informed adversary picks the victim, and the bound."""

import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit import files, machine
from gradaudit.audit.threat import Threat, transforms_seen
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.base import Defense
from gradaudit.distinguish.candidates import draw_groups, picks
from gradaudit.distinguish.line_up import Game, Group, worst_case
from gradaudit.errors import InputError, require
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe
from gradaudit.federation.setting import Setting
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.privacy.certificate import Certificate, certificate, near
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report import certified, metrics
from gradaudit.report.result import SCHEMA_VERSION, Result
from gradaudit.spec import Spec
from gradaudit.types import Key, Leakage

_GROUPS = 10  # pools of candidates per network: what they share is computed once
_DOUBT = 0.025  # of a false alarm, over all cells together
_LEARNING_RATE = 0.05

Tell = Callable[[int, int], None]  # line-ups done, line-ups in all


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

    def proven(self, doubt: float = _DOUBT) -> float:
        """Returns a success that the line-ups prove but for this doubt.

        The certificate bounds every line-up on its own, whatever the network and the
        candidates, so that they are counted together (Clopper-Pearson).
        """
        won, played = sum(self.hits), sum(self.line_ups)
        return float(stats.beta.ppf(doubt, won, played - won + 1)) if won else 0.0

    def breaks(self, doubt: float = _DOUBT) -> bool:
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
class LineUpResult(Result):
    """Everything of one line-up command; `spec` runs it again."""

    spec: Spec
    about: dict[str, Any]
    threat: dict[str, Any]
    environment: dict[str, Any]
    cells: tuple[Cell, ...]
    timing: dict[str, float]
    limitations: tuple[str, ...]
    interrupted: bool = False

    @property
    def broken(self) -> tuple[Cell, ...]:
        """The cells in which the noise can't be what the defense says it is."""
        doubt = _DOUBT / len(self.cells)
        return tuple(cell for cell in self.cells if cell.breaks(doubt))

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json."""
        plain: dict[str, Any] = files.finite(
            {
                "schema_version": SCHEMA_VERSION,
                "spec": self.spec.plain(),
                "about": self.about,
                "threat": self.threat,
                "environment": self.environment,
                "status": "interrupted" if self.interrupted else "done",
                "metrics": {
                    "cells": [cell.to_dict() for cell in self.cells],
                    "certificate_broken": len(self.broken),
                },
                "timing": self.timing,
                "limitations": list(self.limitations),
            }
        )
        return plain

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns line_ups.csv, a row for each cell."""
        found = []
        for cell in self.cells:
            rate = cell.measured
            found.append(
                {
                    "sigma": cell.sigma,
                    "candidates": cell.candidates,
                    "looks": cell.looks,
                    "line_ups": sum(cell.line_ups),
                    "picked": sum(cell.hits),
                    "measured": rate.value,
                    "low": rate.low,
                    "high": rate.high,
                    "certified": cell.certified.value,
                    "guessing": cell.guessing,
                }
            )
        return {"line_ups.csv": found}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns measured, certified and guessing over looks or sigma."""
        return {"figures/line_up.png": lambda: certified.line_up_figure(self)}


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

    @property
    def setting(self) -> Setting:
        """A round of clients that are all read, their batches known."""
        return Setting(
            clients=1,
            clients_per_round=1,
            local_steps=self.local_steps,
            batch_size=self.batch,
            rounds=1,
            examples=self.batch * self.local_steps,
            learning_rate=_LEARNING_RATE,
        )

    def certified(self, defense: Defense, candidates: int, looks: int) -> Certificate:
        """Returns the bound for a cell."""
        plan = PrivacyPlan(defense, self.setting, tensors=self.tensors)
        return certificate(
            plan, type=int(self.leakage), candidates=candidates, looks=looks, round=0
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
        game = Game(recipe, population, self.leakage, draw_key, self.fresh)
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


def line_up(
    type: int = 2,  # noqa: A002 - the contract's word
    defense: str | Defense = "fed-cdp",
    dataset: str | Dataset = "lfw-patches",
    model: str | Model | None = None,
    candidates: int | Sequence[int] = 10,
    looks: int | Sequence[int] = 1,
    sigmas: Sequence[float] = (),
    victims: int = 400,
    draws: int = 4,
    batch_size: int | None = None,
    local_steps: int = 1,
    candidates_from: str = "label",
    fresh: bool = False,
    seed: int = 0,
    progress: Tell | None = None,
) -> LineUpResult:
    """Lets an informed adversary pick victims out of line-ups, and certifies it.

    Args:
      type: 2: which of n examples had this gradient; 1, 0: which of n clients'
        batches had this update, at the client or at the server.
      defense: a defense, or its name with parameters (`fed-cdp:clip=4,sigma=6`).
      dataset: a dataset, its name, or a path to your own file.
      model: a model or its name; by default `cpl` for images and `mlp` for tables.
      candidates: n, one number or several.
      looks: independent readings of the victim, one number or several.
      sigmas: noise multipliers to go through instead of the defense's own.
      victims: how many line-ups are played for each cell.
      draws: how many times the network is drawn, line-ups dealt over the draws.
      batch_size: examples of a client's step; 1 for type 2 and 3 for types 0, 1.
      local_steps: local steps of the client; more than one is approximated by the
        first gradient, so that the adversary is weaker than it could be.
      candidates_from: `label` (of the victim's labels), `any`, or `worst`: constructed
        gradients that are as far apart as the clip allows.
      fresh: every look has a new draw of the parameters; else all looks share one.
      seed: everything random follows from it.
      progress: is told (line-ups done, line-ups in all).
    """
    asked = {k: v for k, v in locals().items() if k != "progress"}
    machine.configure()
    began = time.perf_counter()
    guard = parse_defense(defense) if isinstance(defense, str) else defense
    table = line_ups_of(
        type, dataset, model, candidates, looks, victims, draws, batch_size,
        local_steps, candidates_from, fresh, seed,
    )  # fmt: skip
    defenses = [(sigma, with_sigma(guard, sigma)) for sigma in sigmas]
    cells, interrupted = _cells(table, defenses or [(None, guard)], progress)
    words = {k: v for k, v in asked.items() if isinstance(v, str | int | float | bool)}
    about = words | {
        "defense": defense if isinstance(defense, str) else guard.name,
        "dataset": table.dataset.name,
        "model": table.model.name,
        "batch_size": table.batch,
        "tensors": table.tensors,
        "candidates": list(table.candidates),
        "looks": list(table.looks),
    }
    seconds = time.perf_counter() - began
    played = sum(sum(cell.line_ups) for cell in cells)
    return LineUpResult(
        spec=Spec.of("line-up", **asked),
        about=about,
        threat=_threat(table),
        environment=machine.describe(),
        cells=tuple(cells),
        timing={"total_s": seconds, "line_ups_per_s": played / seconds},
        limitations=tuple(_limitations(table, guard)),
        interrupted=interrupted,
    )


def _cells(
    table: LineUps,
    defenses: Sequence[tuple[float | None, Defense]],
    progress: Tell | None,
) -> tuple[list[Cell], bool]:
    """Plays everything; Ctrl-C keeps the cells' line-ups that were played."""
    kinds = [(n, k) for n in table.candidates for k in table.looks]
    total = table.line_ups * len(kinds) * len(defenses)
    done, interrupted, cells = 0, False, []
    for sigma, guard in defenses:
        counts = {kind: np.zeros((table.draws, 2), int) for kind in kinds}
        try:
            for n, k, draw, won, played in table.play(
                jax.random.key(table.seed), guard
            ):
                counts[n, k][draw] += (won, played)
                done += played
                if progress is not None:
                    progress(done, total)
        except KeyboardInterrupt:
            interrupted = True
        for (n, k), each in counts.items():
            begun = each[each[:, 1] > 0]
            if len(begun):
                won, played = (tuple(map(int, row)) for row in begun.T)
                bound = table.certified(guard, n, k)
                cells.append(Cell(sigma, n, k, won, played, bound))
        if interrupted:
            break
    if not cells:
        raise KeyboardInterrupt("interrupted before the first line-up")
    return cells, interrupted


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
    for name, values, least in (("candidates", counts, 2), ("looks", reads, 1)):
        require(
            bool(values) and min(values) >= least,
            f"{name} must be at least {least}, got {list(values)}",
        )
    require(victims >= 1, f"victims must be at least 1, got {victims}")
    require(1 <= draws <= victims, f"draws must lie in 1..{victims}, got {draws}")
    require(local_steps >= 1, f"local_steps must be at least 1, got {local_steps}")
    require(
        batch_size is None or batch_size >= 1,
        f"batch_size must be at least 1, got {batch_size}",
    )
    require(seed >= 0, f"seed must not be negative, got {seed}")
    leakage = Leakage(type_)
    alone = leakage is Leakage.EXAMPLE
    require(
        not alone or batch_size in (None, 1) and local_steps == 1,
        "type 2 reads one example's gradient in the first local step: leave "
        "batch_size and local_steps out",
    )
    known = {member.value: member for member in From}
    require(source in known, f"candidates come from {', '.join(known)}, not {source!r}")
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    net = model if isinstance(model, Model) else build_model(
        model or ("cpl" if len(data.shape) == 3 else "mlp"), data.shape, data.classes
    )  # fmt: skip
    tensors = len(jax.tree.leaves(jax.eval_shape(net.init, jax.random.key(0))))
    if source == From.WORST.value:  # the network is left out: nothing to draw
        draws = 1
    return LineUps(
        net, data, leakage, 1 if alone else batch_size or 3, local_steps, counts,
        reads, victims, draws, known[source], fresh, seed, tensors,
    )  # fmt: skip


def with_sigma(defense: Defense, sigma: float) -> Defense:
    """Returns the same defense with another noise multiplier."""
    parameters = dict(defense.parameters)
    if "sigma" not in parameters or defense.made_by is None:
        raise InputError(
            f"defense {defense.name!r} has no parameter sigma that could be varied; "
            "choose one that does, as fed-cdp"
        )
    return defense.made_by(**(parameters | {"sigma": float(sigma)}))


def _threat(table: LineUps) -> dict[str, Any]:
    adversary = Threat.parse("informed", table.leakage)
    return {
        "name": adversary.name,
        "type": int(table.leakage),
        "looks": list(table.looks),
        "looks_at": "fresh parameters" if table.fresh else "the same parameters",
        "knows": sorted(need.value for need in adversary.knows),
        "alters": "nothing",
        "selection": "the candidate under which what was read is likeliest",
    }


def _limitations(table: LineUps, defense: Defense) -> list[str]:
    sentences = [
        "The adversary knows that one of the candidates is the victim, and nothing "
        "else about it; knowing more, it would pick more often, with or without "
        "reading.",
    ]
    if table.source is From.WORST:
        sentences.append(
            "The gradients are constructed: no data need have such; they test the "
            "noise, not the data."
        )
    if table.local_steps > 1:
        sentences.append(
            "Several local steps are approximated by the first: the adversary is "
            "weaker than it could be."
        )
    if not transforms_seen(defense, table.leakage):
        sentences.append(
            f"{defense.name} acts after the point that type {int(table.leakage)} reads."
        )
    return sentences


def lineup_and_certificate(
    model: Model,
    dataset: Dataset,
    defense: Defense,
    leakage: Leakage,
    *,
    batch_size: int,
    local_steps: int,
    success_rmse: float,
    seed: int,
    candidates: int = 10,
    line_ups: int = 100,
) -> dict[str, Any] | None:
    """Returns a short line-up and both certificates beside an attack's own figures.

    None where no noise stands before the adversary: there is nothing to certify. The
    networks are drawn anew, untrained. Costs well under a second once compiled.
    """
    seen = {transform for transform in transforms_seen(defense, leakage)}
    if not defense.mechanisms or not seen:
        return None
    available = int(np.bincount(dataset.labels).max())
    table = line_ups_of(
        int(leakage), dataset, model, min(candidates, available), 1, line_ups, 2,
        None if leakage is Leakage.EXAMPLE else batch_size,
        1 if leakage is Leakage.EXAMPLE else local_steps, "label", False, abs(seed),
    )  # fmt: skip
    (cell,), _ = _cells(table, [(None, defense)], None)
    examples = table.setting.examples
    rebuilt = certificate(
        PrivacyPlan(defense, table.setting, tensors=table.tensors),
        type=int(leakage),
        prior=near(dataset.inputs, success_rmse, examples),
        looks=1,
        round=0,
    )
    return {
        "line_up": cell.to_dict(),
        "reconstruction": rebuilt.to_dict() | {"threshold": success_rmse},
    }
