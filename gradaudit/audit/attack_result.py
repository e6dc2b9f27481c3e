"""The result of an attack: what was asked, what came out, and what it is worth."""

import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from gradaudit.audit.informed import broken_certificates
from gradaudit.audit.scores import MemberScore, Score, Trace
from gradaudit.report import figures, metrics
from gradaudit.report.result import RunResult
from gradaudit.report.tables import attack_table

# A relative misfit above it: the search did not converge. docs/threats.md has how it
# was set, on examples that no figure of this project is about.
_EXPLAINED = 1e-3
_FRAMES = 6  # of a victim that is shown, between private and rebuilt


@dataclasses.dataclass(frozen=True)
class AttackResult(RunResult):
    """Everything of one attack."""

    about: dict[str, Any]  # the run in plain words: type, method, defense, dataset ...
    threat: dict[str, Any]
    scores: list[Score]  # of the victims that were begun
    traces: list[Trace]
    draws: int  # of the network
    missing: list[int]  # victims that were never begun
    guess: metrics.Rate
    timing: dict[str, float]
    accounting: dict[str, Any] | None
    inputs: NDArray[np.float32]  # (victims, batch, *shape) as handed in
    truth: NDArray[np.float32]  # (victims, batch, *shape)
    pictured: list[int]  # rows of `scores` whose victims are shown to people
    certificate: dict[str, Any] | None = None  # None: there is no noise
    # Of a portfolio: for every row of `scores`, what those found who were asked.
    members: list[tuple[MemberScore, ...]] = dataclasses.field(default_factory=list)
    withheld: bool = False  # pictures and arrays of private data are not written
    beside: dict[str, Any] = dataclasses.field(default_factory=dict)  # more entries

    @property
    def asked(self) -> int:
        """How many victims were asked for: the denominator of every rate."""
        return len(self.scores) + len(self.missing)

    @property
    def asr(self) -> metrics.Rate:
        """Successes / victims asked for, attacker-selected, with its interval.

        The interval counts the draws of the network; of victims that were never begun
        it takes the worst and the best.
        """
        return self._rate([score.success for score in self.scores])

    @property
    def rmse(self) -> dict[str, float | None]:
        """Mean, median and worst RMSE (clipped), attacker-selected."""
        return _summary([s.rmse for s in self.scores])

    def by_draw(self) -> list[dict[str, Any]]:
        """Returns the successes of each draw of the network."""
        hits = {score.victim for score in self.scores if score.success}
        return [
            {
                "victims": len(dealt),
                "successes": len(dealt & hits),
                "asr": len(dealt & hits) / len(dealt),
            }
            for dealt in self._dealt()
        ]

    def _dealt(self) -> list[set[int]]:
        """Returns the victims of each draw, the missing included."""
        dealt = np.array_split(np.arange(self.asked), self.draws)
        return [set(victims.tolist()) for victims in dealt]

    def _rate(self, hits: list[bool]) -> metrics.Rate:
        scored = zip(self.scores, hits, strict=True)
        good = {score.victim for score, hit in scored if hit}
        dealt = self._dealt()
        sizes = [len(victims) for victims in dealt]
        worst = metrics.rate_over_draws([len(v & good) for v in dealt], sizes)
        if not self.missing:
            return worst
        lucky = good | set(self.missing)
        best = metrics.rate_over_draws([len(v & lucky) for v in dealt], sizes)
        return metrics.Rate(worst.value, worst.low, best.high, "missing victims")

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json; infinities become null."""
        return dict(self._document)

    @functools.cached_property
    def _document(self) -> dict[str, Any]:
        return super().to_dict()

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        return {
            "about": self.about,
            "threat": self.threat,
            "victims": {"asked": self.asked, "missing": self.missing},
            "draws": self.by_draw(),
            "metrics": self._metrics(),
            "oracle": self._oracle(),
            "ended": {
                name: sum(s.status == name for s in self.scores)
                for name in sorted({s.status for s in self.scores})
            },
            "timing": self.timing,
            "accounting": self.accounting,
            "certificate": self._certificate(),
            **self.beside,
        }

    def _metrics(self) -> dict[str, Any]:
        scores = self.scores
        reached = [
            s.iterations_to_success
            for s in scores
            if s.iterations_to_success is not None
        ]
        batch = self.truth.shape[1]
        return {
            "asr": {
                **dataclasses.asdict(self.asr),
                "threshold": self.about["success_rmse"],
                "guess": self.guess.value,
            },
            "examples_rebuilt": sum(s.examples_rebuilt for s in scores)
            / (self.asked * batch),
            "rmse": self.rmse,
            "rmse_raw": _summary([s.rmse_raw for s in scores]),
            "psnr": _summary([s.psnr for s in scores]),
            "ssim": _summary([s.ssim for s in scores if s.ssim is not None]),
            "iterations": {
                "median": statistics.median(reached) if reached else None,
                "mean": statistics.fmean(reached) if reached else None,
                "cap": self.about["iterations"],
                "run_median": _summary([s.iterations for s in scores])["median"],
            },
            "evaluations": _summary([s.evaluations for s in scores]),
            "label_accuracy": statistics.fmean(s.label_accuracy for s in scores),
            "members": self.by_member(),
            "unsolved": self._unsolved(),
        }

    def _unsolved(self) -> dict[str, Any] | None:
        """Returns how many searches failed by their own account; None: can't say.

        Where noise keeps every answer, the truth included, from explaining what was
        read, a large misfit says nothing of the search.
        """
        known = [s.misfit for s in self.scores if s.misfit is not None]
        if not known or self.about.get("noise_told", False):
            return None
        lost = sum(not misfit <= _EXPLAINED for misfit in known)
        return {"victims": lost, "level": _EXPLAINED}

    def by_member(self) -> list[dict[str, Any]] | None:
        """Returns how each attack of a portfolio did on the victims it was asked about.

        `asr` is its own: rebuilt / asked. None if the attack is no portfolio.
        """
        asked = [each for members in self.members for each in members]
        if not asked:
            return None
        rows = []
        for name in dict.fromkeys(self.about.get("members", [a.name for a in asked])):
            mine = [each for each in asked if each.name == name]
            hits = sum(each.success for each in mine)
            rows.append(
                {
                    "name": name,
                    "asked": len(mine),
                    "rebuilt": hits,
                    "asr": hits / len(mine) if mine else None,
                    "examples_rebuilt": sum(each.examples_rebuilt for each in mine),
                    "handed_in": sum(s.member == name for s in self.scores),
                    "rmse": _summary([each.rmse for each in mine])["median"],
                    "evaluations": _summary([each.evaluations for each in mine])[
                        "median"
                    ],
                }
            )
        return rows

    def _oracle(self) -> dict[str, Any]:
        threshold = self.about["success_rmse"]
        rate = self._rate([s.oracle_rmse <= threshold for s in self.scores])
        errors = _summary([s.oracle_rmse for s in self.scores])
        return {"asr": dataclasses.asdict(rate), "rmse": errors}

    def _certificate(self) -> dict[str, Any] | None:
        """Returns the certificate, and in words what was measured above it."""
        if self.certificate is None:
            return None
        successes = sum(score.success for score in self.scores)
        broken = broken_certificates(self.certificate, successes, self.asked)
        return self.certificate | {"broken": broken}

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns trials.csv, a row per victim that was begun; cells.csv of a table."""
        tables = {"trials.csv": [dataclasses.asdict(score) for score in self.scores]}
        if "cells" in self.beside:
            tables["cells.csv"] = self.beside["cells"]["columns"]
        return tables

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns reconstructions.npz, unless it is withheld.

        `frames` are what the attacker had of the `pictured` at `iterations`.
        """
        if self.withheld:
            return {}
        kept = [self.traces[row].frames for row in self.pictured]
        shown = _iterations_shown(kept)
        shape = (len(kept), len(shown), *self.truth.shape[1:])
        frames = np.full(shape, np.nan, np.float32)
        for row, of_victim in enumerate(kept):
            for column, iteration in enumerate(shown):
                earlier = [i for i in of_victim if i <= iteration]
                if earlier:
                    frames[row, column] = of_victim[max(earlier)]
        return {
            "reconstructions.npz": {
                "truth": self.truth,
                "reconstruction": self.inputs,
                "victim": np.asarray([s.victim for s in self.scores]),
                "pictured": np.asarray(
                    [self.scores[row].victim for row in self.pictured], np.int64
                ),
                "iterations": np.asarray(shown, np.int64),
                "frames": frames,
            }
        }

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns the pictures that make sense for this result."""
        drawn: dict[str, Callable[[], Any]] = {}
        shown = self.pictured and not self.withheld
        if shown and self.truth.ndim == 5 and self.truth.shape[-1] in (1, 3):
            drawn["figures/victims.png"] = lambda: figures.reconstructions(self)
        if any(len(trace.rmse) > 1 for trace in self.traces):
            drawn["figures/convergence.png"] = lambda: figures.convergence(self)
        return drawn

    def show(self) -> None:
        """Prints the table that the command line prints."""
        Console(highlight=False).print(attack_table(self.to_dict()))


def _iterations_shown(kept: list[dict[int, Any]]) -> list[int]:
    """Returns at most so many of the iterations that were kept, first and last."""
    every = sorted({iteration for frames in kept for iteration in frames})
    if len(every) <= _FRAMES:
        return every
    chosen = np.linspace(0, len(every) - 1, _FRAMES).round().astype(int)
    return [every[i] for i in chosen]


def _summary(values: list[Any]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "median": None, "worst": None, "best": None}
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "worst": max(values),
        "best": min(values),
    }
