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


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Collects traces while an attack runs on a group of victims, and scores it."""

    ids: NDArray[np.int64]
    draw: int
    truth: Victim
    restarts: int
    threshold: float
    pictured: int  # the first so many are shown to people
    members: tuple[str, ...] = ()
    traces: dict[int, Trace] = dataclasses.field(default_factory=dict)  # of each trial

    def watch(self, snapshot: Snapshot) -> None:
        """Is a Watcher: takes note of how near every iterate is."""
        trials = np.maximum(snapshot.trials, 0)
        truth = jnp.asarray(np.asarray(self.truth.inputs)[trials // self.restarts])
        best, current = (
            metrics.assigned_rmse(np.asarray(_squares(truth, pictures)))
            for pictures in (snapshot.best, snapshot.current)
        )
        for slot in np.flatnonzero(snapshot.trials >= 0):
            counts, trial = snapshot.running[:, slot], int(snapshot.trials[slot])
            trace = self.traces.setdefault(trial, Trace())
            trace.rmse.extend(best[counts, slot].tolist())
            trace.objective.extend(snapshot.objective[counts, slot].tolist())
            nearest = np.minimum(best, current)[counts, slot].min(initial=math.inf)
            trace.oracle = min(trace.oracle, float(nearest))
            if trial >= self.pictured * self.restarts:
                continue
            for step in np.flatnonzero(counts).tolist():
                iteration = int(snapshot.iteration[step, slot])
                # 1, 2, 4, 8, ...: the picture of a search that slows down.
                if iteration & (iteration - 1) == 0:
                    shown = np.asarray(_one_picture(snapshot.best, step, slot))
                    trace.frames[iteration] = np.clip(shown, 0.0, 1.0)

    def score(self, result: Reconstruction, rows: NDArray[np.int64]) -> list[Score]:
        """Returns a row for each victim that was begun; the result is of these rows."""
        begun = np.flatnonzero(np.asarray(result.status) != Status.MISSING)
        if not len(begun):
            return []
        whole_answer = dataclasses.replace(result, members=None)
        mine: Any = jax.tree.map(lambda leaf: np.asarray(leaf)[begun], whole_answer)
        chosen, victims = self._chosen_members(result)[begun], rows[begun]
        truth = np.asarray(self.truth.inputs)[victims]
        labels = np.asarray(self.truth.labels)[victims]
        raw = metrics.matched(truth, mine.inputs)
        guess = np.clip(raw, 0, 1)
        whole, each = whole_and_each(truth, guess)
        unclipped, _ = whole_and_each(truth, raw)
        similar, decibels = metrics.ssim(truth, guess), metrics.psnr(whole)
        told = metrics.labels_recovered(labels, mine.labels)
        # An attacker whose objective was never finite has found nothing to hand in.
        found = np.isfinite(mine.objective)
        success = found & (whole <= self.threshold)
        rebuilt = found * np.sum(each <= self.threshold, axis=1)
        return [
            Score(
                victim=int(self.ids[victim]),
                draw=self.draw,
                labels=tuple(labels[row].tolist()),
                recovered_labels=tuple(mine.labels[row].tolist()),
                rmse=float(whole[row]),
                rmse_raw=float(unclipped[row]),
                psnr=float(decibels[row]),
                ssim=similar[row],
                success=bool(success[row]),
                examples_rebuilt=int(rebuilt[row]),
                iterations_to_success=self._first_hit(
                    self.trace_of(victim, int(mine.trial[row])),
                    int(mine.iterations[row]),
                    bool(success[row]),
                )
                if found[row]
                else None,
                iterations=int(mine.iterations[row]),
                evaluations=int(mine.evaluations[row]),
                objective=float(mine.objective[row]),
                status=Status(int(mine.status[row])).name.lower(),
                label_accuracy=float(told[row]),
                oracle_rmse=min(self._oracle(victim), float(whole[row])),
                rmse_by_example=tuple(each[row].tolist()) if each.shape[1] > 1 else (),
                member=chosen[row],
            )
            for row, victim in enumerate(victims.tolist())
        ]

    def _chosen_members(self, result: Reconstruction) -> Any:
        """Returns whose answer each victim's is; "" unless it is a portfolio's."""
        if result.members is None:
            return np.full(len(np.asarray(result.status)), "")
        own = np.asarray(result.members.trial) == np.asarray(result.trial)[:, None]
        asked = np.asarray(result.members.status) != Status.MISSING
        return np.asarray(self.members)[np.argmax(own & asked, axis=1)]

    def member_scores(
        self, result: Reconstruction, rows: NDArray[np.int64]
    ) -> list[tuple[MemberScore, ...]]:
        """Returns what each member found of each victim; it is stacked over rows."""
        found: Any = jax.tree.map(np.asarray, result.members)
        if found is None:
            return [() for _ in rows]
        truth = np.asarray(self.truth.inputs)[rows]
        scored: list[list[MemberScore]] = [[] for _ in rows]
        for index, name in enumerate(self.members):
            guess = np.clip(metrics.matched(truth, found.inputs[:, index]), 0, 1)
            whole, each = whole_and_each(truth, guess)
            valid = np.isfinite(found.objective[:, index])
            for row in np.flatnonzero(found.status[:, index] != Status.MISSING):
                near = valid[row] & (each[row] <= self.threshold)
                scored[row].append(
                    MemberScore(
                        name=name,
                        rmse=float(whole[row]),
                        success=bool(valid[row] & (whole[row] <= self.threshold)),
                        examples_rebuilt=int(near.sum()),
                        objective=float(found.objective[row, index]),
                        evaluations=int(found.evaluations[row, index]),
                    )
                )
        return [tuple(each) for each in scored]

    def private(self, victim: int) -> Victim:
        """Returns what belongs to one victim of the group."""
        truth: Victim = jax.tree.map(lambda leaf: leaf[victim], self.truth)
        return truth

    def trace_of(self, victim: int, trial: int) -> Trace:
        """Returns the trace of one trial; empty if nothing was looked at."""
        return self.traces.get(victim * self.restarts + trial, Trace())

    def _oracle(self, victim: int) -> float:
        return min(self.trace_of(victim, i).oracle for i in range(self.restarts))

    def _first_hit(self, trace: Trace, iterations: int, success: bool) -> int | None:
        if iterations == 0:  # a closed form
            return 0 if success else None
        near = (i for i, e in enumerate(trace.rmse, 1) if e <= self.threshold)
        return next(near, None)


def whole_and_each(truth: Any, guess: Any) -> tuple[Any, Any]:
    """Returns the RMSE of each victim's batch, and of each example in it.

    Both are (victims, batch, ...), the guesses in the order of their truths.
    """
    flat, examples = (len(truth), -1), (*truth.shape[:2], -1)
    whole = metrics.rmse(truth.reshape(flat), guess.reshape(flat))
    return whole, metrics.rmse(truth.reshape(examples), guess.reshape(examples))


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


@jax.jit
def _squares(truth: jax.Array, pictures: jax.Array) -> jax.Array:
    """Returns mean squared distances, (iterations, slots, true, guessed).

    `truth` is (slots, batch, ...), `pictures` (iterations, slots, batch, ...).
    """
    count, slots, batch = pictures.shape[:3]
    guess = jnp.clip(pictures, 0.0, 1.0).reshape(count, slots, 1, batch, -1)
    flat = truth.reshape(1, slots, batch, 1, -1)
    return jnp.mean(jnp.square(flat - guess), axis=-1)
