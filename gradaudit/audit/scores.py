"""The evaluator: follows an attack from outside, with the truth in its hand.

Nothing flows back: the attack hands over its iterates and never hears of this.
"""

import math

import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Snapshot
from gradaudit.audit.scenario import Leaks
from gradaudit.report import metrics
from gradaudit.report.result import Score, Trace
from gradaudit.types import Reconstruction, Status


class Evaluator:
    """Collects traces while an attack runs and scores it afterwards."""

    def __init__(
        self, leaks: Leaks, restarts: int, threshold: float, pictured: int = 8
    ) -> None:
        self._leaks, self._restarts, self._threshold = leaks, restarts, threshold
        self._pictured = pictured
        self.traces: dict[int, Trace] = {}

    def watch(self, snapshot: Snapshot) -> None:
        """Is a Watcher: takes note of every iterate."""
        for slot in np.flatnonzero(snapshot.trials >= 0):
            trial = int(snapshot.trials[slot])
            trace = self.traces.setdefault(trial, Trace())
            truth = self._truth(trial // self._restarts)
            for step in np.flatnonzero(snapshot.running[:, slot]):
                best = metrics.clipped(snapshot.best[step, slot])
                current = metrics.clipped(snapshot.current[step, slot])
                error = metrics.rmse(truth, best)
                trace.rmse.append(error)
                trace.objective.append(float(snapshot.objective[step, slot]))
                trace.oracle = min(trace.oracle, error, metrics.rmse(truth, current))
                iteration = int(snapshot.iteration[step, slot])
                if trial < self._pictured * self._restarts and _is_shown(iteration):
                    trace.frames[iteration] = best

    def score(self, result: Reconstruction) -> list[Score]:
        """Returns a row for each victim that the attack began on."""
        begun = np.flatnonzero(np.isfinite(np.asarray(result.objective)))
        return [self._score(int(victim), result.take(victim)) for victim in begun]

    def trace_of(self, victim: int) -> Trace:
        """Returns the trace of the restart that the attacker hands in."""
        return min(
            self._traces_of(victim),
            key=lambda trace: min(trace.objective, default=math.inf),
        )

    def _traces_of(self, victim: int) -> list[Trace]:
        """Returns a trace per restart; empty if Ctrl-C came before the first look."""
        trials = range(victim * self._restarts, (victim + 1) * self._restarts)
        return [self.traces.get(trial, Trace()) for trial in trials]

    def _truth(self, victim: int) -> NDArray[np.float32]:
        return np.asarray(self._leaks.truth(np.asarray([victim])).inputs[0])

    def _score(self, victim: int, mine: Reconstruction) -> Score:
        private = self._leaks.truth(np.asarray([victim]))
        truth, labels = np.asarray(private.inputs[0]), np.asarray(private.labels[0])
        guess, inferred = np.asarray(mine.inputs), np.asarray(mine.labels)
        error = metrics.rmse(truth, metrics.clipped(guess))
        oracle = min(trace.oracle for trace in self._traces_of(victim))
        trace = self.trace_of(victim).rmse
        hit = next((i for i, e in enumerate(trace, 1) if e <= self._threshold), None)
        if int(mine.iterations) == 0 and hit is not None:
            hit = 0  # closed form
        return Score(
            victim=victim,
            labels=tuple(int(x) for x in labels),
            recovered_labels=tuple(int(x) for x in inferred),
            rmse=error,
            rmse_raw=metrics.rmse(truth, guess),
            psnr=metrics.psnr(error),
            ssim=metrics.ssim(truth, metrics.clipped(guess)),
            success=error <= self._threshold,
            iterations_to_success=hit,
            iterations=int(mine.iterations),
            evaluations=int(mine.evaluations),
            objective=float(mine.objective),
            status=Status(int(mine.status)).name.lower(),
            label_accuracy=metrics.labels_recovered(labels, inferred),
            oracle_rmse=min(oracle, error),
        )


def _is_shown(iteration: int) -> bool:
    """Iterations 1, 2, 4, 8, ...: the picture of a search that slows down."""
    return iteration & (iteration - 1) == 0
