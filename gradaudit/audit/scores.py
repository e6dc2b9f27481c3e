"""The evaluator: follows an attack from outside, with the truth in its hand.

Nothing flows back: the attack hands over its iterates and never hears of this. The
iterates stay on the devices; what comes to the host is how far they are from the truth.
"""

import dataclasses
import functools
import math
from array import array
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.attacks.search import Snapshot
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.report import metrics
from gradaudit.types import PyTree, Reconstruction, Status, Victim


def _numbers() -> "array[float]":
    """Thousands of victims leave hundreds of numbers each: 8 bytes, no objects."""
    return array("d")


@dataclasses.dataclass
class Trace:
    """What was seen of one trial."""

    rmse: "array[float]" = dataclasses.field(default_factory=_numbers)  # as selected
    objective: "array[float]" = dataclasses.field(default_factory=_numbers)
    oracle: float = math.inf  # best of all iterates against the truth
    frames: dict[int, NDArray[np.float32]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Score:
    """One victim's row of trials.csv; every victim that was begun has one."""

    victim: int
    draw: int  # of the network
    labels: tuple[int, ...]
    recovered_labels: tuple[int, ...]
    rmse: float
    rmse_raw: float
    psnr: float
    ssim: float | None
    success: bool
    examples_rebuilt: int  # of its batch
    iterations_to_success: int | None
    iterations: int
    evaluations: int
    objective: float
    status: str
    label_accuracy: float
    oracle_rmse: float
    rmse_by_example: tuple[float, ...] = ()  # of a batch, in the order of `labels`
    # Of a batch: each example's own, before any defense. Small ones hide in it.
    gradient_norms: tuple[float, ...] = ()
    member: str = ""  # of a portfolio: whose answer was handed in
    misfit: float | None = None  # by its own objective: what it leaves unexplained


@dataclasses.dataclass(frozen=True)
class MemberScore:
    """What one attack of a portfolio found of one victim that it was asked about."""

    name: str
    rmse: float
    success: bool
    examples_rebuilt: int
    objective: float  # by the portfolio's criterion
    evaluations: int


class Evaluator:
    """Collects traces while an attack runs on a group of victims, and scores it."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        draw: int,
        truth: Victim,
        restarts: int,
        threshold: float,
        pictured: int,
        members: tuple[str, ...] = (),
    ) -> None:
        self._ids, self._draw, self._truth = ids, draw, truth
        self._restarts, self._threshold = restarts, threshold
        self._members = members
        self._pictured = pictured
        self._traces: dict[int, Trace] = {}

    def watch(self, snapshot: Snapshot) -> None:
        """Is a Watcher: takes note of how near every iterate is."""
        trials = np.maximum(snapshot.trials, 0)
        truth = jnp.asarray(np.asarray(self._truth.inputs)[trials // self._restarts])
        best, current = (
            metrics.assigned_rmse(np.asarray(_squares(truth, pictures)))
            for pictures in (snapshot.best, snapshot.current)
        )
        frames = self._frames(snapshot)
        for slot in np.flatnonzero(snapshot.trials >= 0):
            counts = snapshot.running[:, slot]
            trace = self._traces.setdefault(int(snapshot.trials[slot]), Trace())
            trace.rmse.extend(best[counts, slot].tolist())
            trace.objective.extend(snapshot.objective[counts, slot].tolist())
            nearest = np.minimum(best, current)[counts, slot].min(initial=math.inf)
            trace.oracle = min(trace.oracle, float(nearest))
            for step, iteration in frames.get(int(slot), ()):
                shown = np.asarray(_one_picture(snapshot.best, step, slot))
                trace.frames[iteration] = np.clip(shown, 0.0, 1.0)

    def _frames(self, snapshot: Snapshot) -> dict[int, list[tuple[int, int]]]:
        """Returns which (step, iteration) of which slots are shown to people."""
        shown = (snapshot.trials >= 0) & (
            snapshot.trials < self._pictured * self._restarts
        )
        return {
            int(slot): [
                (int(step), int(snapshot.iteration[step, slot]))
                for step in np.flatnonzero(snapshot.running[:, slot])
                if _is_shown(int(snapshot.iteration[step, slot]))
            ]
            for slot in np.flatnonzero(shown)
        }

    def score(
        self, result: Reconstruction, rows: NDArray[np.int64] | None = None
    ) -> list[Score]:
        """Returns a row for each victim that was begun.

        The result is stacked over these rows of the group, or over all of them.
        """
        begun = np.flatnonzero(np.asarray(result.status) != Status.MISSING)
        if not len(begun):
            return []
        whole_answer = dataclasses.replace(result, members=None)
        mine: Any = jax.tree.map(lambda leaf: np.asarray(leaf)[begun], whole_answer)
        chosen = self._chosen_members(result)[begun]
        begun = begun if rows is None else rows[begun]
        trials = np.zeros(len(begun), int) if mine.trial is None else mine.trial
        truth = np.asarray(self._truth.inputs)[begun]
        labels = np.asarray(self._truth.labels)[begun]
        raw = metrics.matched(truth, mine.inputs)
        guess = metrics.clipped(raw)
        flat, examples = (len(begun), -1), (*truth.shape[:2], -1)
        whole = metrics.rmse(truth.reshape(flat), guess.reshape(flat))
        each = metrics.rmse(truth.reshape(examples), guess.reshape(examples))
        unclipped = metrics.rmse(truth.reshape(flat), raw.reshape(flat))
        similar, decibels = metrics.ssim(truth, guess), metrics.psnr(whole)
        told = metrics.labels_recovered(labels, mine.labels)
        # An attacker whose objective was never finite has found nothing to hand in.
        found = np.isfinite(mine.objective)
        success = found & (whole <= self._threshold)
        rebuilt = found * np.sum(each <= self._threshold, axis=1)
        return [
            Score(
                victim=int(self._ids[victim]),
                draw=self._draw,
                labels=tuple(labels[row].tolist()),
                recovered_labels=tuple(mine.labels[row].tolist()),
                rmse=float(whole[row]),
                rmse_raw=float(unclipped[row]),
                psnr=float(decibels[row]),
                ssim=similar[row],
                success=bool(success[row]),
                examples_rebuilt=int(rebuilt[row]),
                iterations_to_success=self._hit(
                    (victim, int(trials[row])),
                    int(mine.iterations[row]),
                    bool(success[row]),
                )
                if found[row]
                else None,
                iterations=int(mine.iterations[row]),
                evaluations=int(mine.evaluations[row]),
                objective=float(mine.objective[row]),
                status=_NAMES[int(mine.status[row])],
                label_accuracy=float(told[row]),
                oracle_rmse=min(self._oracle(victim), float(whole[row])),
                rmse_by_example=tuple(each[row].tolist()) if each.shape[1] > 1 else (),
                member=chosen[row],
            )
            for row, victim in enumerate(begun.tolist())
        ]

    def _chosen_members(self, result: Reconstruction) -> Any:
        """Returns whose answer each victim's is; "" unless it is a portfolio's."""
        if result.members is None:
            return np.full(len(np.asarray(result.status)), "")
        own = np.asarray(result.members.trial) == np.asarray(result.trial)[:, None]
        asked = np.asarray(result.members.status) != Status.MISSING
        return np.asarray(self._members)[np.argmax(own & asked, axis=1)]

    def member_scores(
        self, result: Reconstruction, rows: NDArray[np.int64]
    ) -> list[tuple[MemberScore, ...]]:
        """Returns what each member found of each victim; it is stacked over rows."""
        found: Any = jax.tree.map(np.asarray, result.members)
        if found is None:
            return [() for _ in rows]
        truth = np.asarray(self._truth.inputs)[rows]
        scored: list[list[MemberScore]] = [[] for _ in rows]
        for index, name in enumerate(self._members):
            each = metrics.clipped(metrics.matched(truth, found.inputs[:, index]))
            flat, examples = (len(rows), -1), (*truth.shape[:2], -1)
            whole = metrics.rmse(truth.reshape(flat), each.reshape(flat))
            one = metrics.rmse(truth.reshape(examples), each.reshape(examples))
            valid = np.isfinite(found.objective[:, index])
            for row in np.flatnonzero(found.status[:, index] != Status.MISSING):
                near = valid[row] & (one[row] <= self._threshold)
                scored[row].append(
                    MemberScore(
                        name=name,
                        rmse=float(whole[row]),
                        success=bool(valid[row] & (whole[row] <= self._threshold)),
                        examples_rebuilt=int(near.sum()),
                        objective=float(found.objective[row, index]),
                        evaluations=int(found.evaluations[row, index]),
                    )
                )
        return [tuple(each) for each in scored]

    def private(self, victim: int) -> Victim:
        """Returns what belongs to one victim of the group."""
        truth: Victim = jax.tree.map(lambda leaf: leaf[victim], self._truth)
        return truth

    def trace_of(self, victim: int, trial: int = 0) -> Trace:
        """Returns the trace of the trial that the attacker hands in."""
        return self._traces.get(victim * self._restarts + trial, Trace())

    def _traces_of(self, victim: int) -> list[Trace]:
        """Returns a trace per restart; empty if nothing was looked at."""
        trials = range(victim * self._restarts, (victim + 1) * self._restarts)
        return [self._traces.get(trial, Trace()) for trial in trials]

    def _oracle(self, victim: int) -> float:
        return min(trace.oracle for trace in self._traces_of(victim))

    def _hit(
        self, trial: tuple[int, int], iterations: int, success: bool
    ) -> int | None:
        if iterations == 0:  # a closed form
            return 0 if success else None
        trace = self.trace_of(*trial).rmse
        return next((i for i, e in enumerate(trace, 1) if e <= self._threshold), None)


def gradient_norms(
    model: Model, params: PyTree, buffers: PyTree, private: Victim
) -> tuple[float, ...]:
    """Returns the norm of each example's own gradient; () unless there are several."""
    if len(private.labels) == 1 or model.coupled:
        return ()
    found = _norms(model, params, buffers, private.inputs, private.labels)
    return tuple(np.asarray(found, float).tolist())


@functools.partial(jax.jit, static_argnums=0)
def _norms(
    model: Model, params: PyTree, buffers: PyTree, inputs: Any, labels: Any
) -> jax.Array:
    targets = one_hot(jnp.asarray(labels), model.classes)
    each = per_example_gradients(model, params, buffers, jnp.asarray(inputs), targets)
    return jax.vmap(tree.global_norm)(each)


@jax.jit
def _one_picture(pictures: jax.Array, step: int, slot: int) -> jax.Array:
    """Returns what one slot had at one step; the others stay on the devices."""
    return pictures[step, slot]


_NAMES = {int(status): status.name.lower() for status in Status}


@jax.jit
def _squares(truth: jax.Array, pictures: jax.Array) -> jax.Array:
    """Returns mean squared distances, (iterations, slots, true, guessed).

    `truth` is (slots, batch, ...), `pictures` (iterations, slots, batch, ...).
    """
    count, slots, batch = pictures.shape[:3]
    guess = jnp.clip(pictures, 0.0, 1.0).reshape(count, slots, 1, batch, -1)
    flat = truth.reshape(1, slots, batch, 1, -1)
    return jnp.mean(jnp.square(flat - guess), axis=-1)


def _is_shown(iteration: int) -> bool:
    """Iterations 1, 2, 4, 8, ...: the picture of a search that slows down."""
    return iteration & (iteration - 1) == 0
