"""An attack as it runs: draw by draw, scored from outside, kept as victims finish."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.attacks.base import Attack, check_observation
from gradaudit.attacks.base import run as run_attack
from gradaudit.attacks.search import Snapshot, Stopped, is_cut_short
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.captured_scenario import Scenario
from gradaudit.audit.further_scores import further_scores, seen_by_clients
from gradaudit.audit.informed import line_up_and_certificates
from gradaudit.audit.resume import Finished, Kept, fingerprint
from gradaudit.audit.scenario import Group
from gradaudit.audit.scores import Evaluator, Score, gradient_norms
from gradaudit.audit.threat import Threat, remarks
from gradaudit.defenses.transforms import Defense
from gradaudit.models.model import Model
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.privacy.statement import privacy_as_plain, privacy_of
from gradaudit.report import metrics
from gradaudit.spec import Spec
from gradaudit.types import Key, Knowledge, Reconstruction, Status

PICTURED = 8

Tell = Callable[[int, int], None]  # trials finished, trials in all


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides an attack's numbers, built and checked."""

    scenario: Scenario
    model: Model
    attack: Attack
    defense: Defense
    threat: Threat
    about: dict[str, Any]
    # The federation that an epsilon can be said for: the recorded training's own, or
    # the published one of the data set; None where there is neither.
    plan: PrivacyPlan | None = None
    line_ups: int = 0  # that an informed adversary plays beside, where there is noise


@dataclasses.dataclass
class Attacking:
    """Runs the attack draw by draw, and puts what came out into a result."""

    run: Run
    spec: Spec
    kept: Kept
    slots: int | None
    progress: Tell | None
    began: float
    answered: float = 0.0  # when the first answer was there
    # Who was begun, and ended from outside.
    cut: dict[int, Finished] = dataclasses.field(default_factory=dict)

    def result(self) -> AttackResult:
        """Attacks whoever is not finished; Ctrl-C keeps what there is."""
        run, kept, processes = self.run, self.kept, self.kept.processes
        scenario, several = run.scenario, processes.count > 1
        name = fingerprint(self.spec, scenario.content, self.slots) if several else ""
        mine = processes.part(name, kept.finished, scenario.count)
        notes = remarks(run.attack, run.defense, run.threat)
        if len(kept.finished) < scenario.count:
            first = next(iter(scenario.groups())).victims.observe(np.zeros(1, np.int64))
            check_observation(run.model, first.first())
        key = jax.random.split(jax.random.key(run.about["seed"]))[1]
        interrupted = False
        for draw, group in enumerate(scenario.groups()):
            remaining = np.flatnonzero(np.isin(group.ids, mine))
            if interrupted or not len(remaining):
                continue
            # The first draw is what a run of one draw has.
            own = key if draw == 0 else jax.random.fold_in(key, draw)
            try:
                interrupted = self._attack(own, draw, group, remaining)
            except KeyboardInterrupt:
                interrupted = True
        interrupted = self._gather(interrupted)
        if interrupted and not kept.finished and not self.cut:
            raise KeyboardInterrupt("interrupted before the first victim was attacked")
        return self._scored(notes, interrupted)

    def _attack(
        self, key: Key, draw: int, group: Group, remaining: NDArray[np.int64]
    ) -> bool:
        """Attacks these victims of one draw; returns whether it was interrupted."""
        run, processes = self.run, self.kept.processes
        evaluator = Evaluator(
            group.ids,
            draw,
            run.scenario.truth(group.ids),
            run.attack.trials,
            run.about["success_rmse"],
            -(-PICTURED // len(run.scenario.draws)),
            tuple(member.name for member in run.attack.members),
        )
        running = {int(victim) for victim in group.ids[remaining]}

        def watch(snapshot: Snapshot) -> None:
            self.answered = self.answered or time.perf_counter()
            evaluator.watch(snapshot)
            processes.listen()
            self._tell(running, snapshot.finished)

        def keep(rows: NDArray[np.int64], handed_in: Reconstruction) -> None:
            self.answered = self.answered or time.perf_counter()
            whole = self._finished(evaluator, group, handed_in, rows)
            self.kept.add(whole, time.perf_counter() - self.began)

        interrupted = False
        try:
            rebuilt = run_attack(
                run.attack,
                key,
                run.model,
                group.victims,
                self.slots,
                watcher=watch,
                only=remaining,
                ended=keep,
            )
        except Stopped as stop:
            rebuilt, interrupted = stop.args[0], True
        # What ended together with Ctrl-C was not looked at to the end: it is in the
        # result, and runs again.
        done = list(self.kept.finished)
        left = np.flatnonzero(~np.isin(group.ids[remaining], done))
        if len(left):
            cut = self._finished(evaluator, group, rebuilt.take(left), remaining[left])
            self.cut |= {each.score.victim: each for each in cut}
        return interrupted or is_cut_short(rebuilt)

    def _gather(self, interrupted: bool) -> bool:
        """Waits for the other processes; returns whether the run was interrupted."""
        if not interrupted:
            try:
                self.kept.processes.wait(lambda: self._tell(set(), 0))
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            self.kept.processes.stop()
        return interrupted

    def _tell(self, running: set[int], ended: int) -> None:
        """Tells how many trials are done: of victims that run, and of the finished."""
        if self.progress is not None:
            restarts = self.run.attack.trials
            others = sum(victim not in running for victim in self.kept.finished)
            total = self.run.scenario.count * restarts
            self.progress(others * restarts + ended, total)

    def _finished(
        self,
        evaluator: Evaluator,
        group: Group,
        handed_in: Reconstruction,
        rows: NDArray[np.int64],
    ) -> list[Finished]:
        """Returns those of these victims that were begun, scored."""
        run = self.run
        begun = np.flatnonzero(np.asarray(handed_in.status) != Status.MISSING).tolist()
        inputs, trials = np.asarray(handed_in.inputs), np.asarray(handed_in.trial)
        members = evaluator.member_scores(handed_in, rows)
        scores = evaluator.score(handed_in, rows)
        finished = []
        for score, index in zip(scores, begun, strict=True):
            row = int(rows[index])
            seen = group.victims.observe(rows[index : index + 1])
            rated = dataclasses.replace(
                score,
                misfit=run.attack.misfit(handed_in.take(index), seen.first().gradient),
                gradient_norms=gradient_norms(
                    run.model, seen.params, seen.buffers, evaluator.private(row)
                ),
            )
            trace = evaluator.trace_of(row, int(trials[index]))
            finished.append(
                Finished(rated, trace, inputs[index].copy(), members[index])
            )
        return finished

    def _scored(self, notes: list[str], interrupted: bool) -> AttackResult:
        run, processes = self.run, self.kept.processes
        everybody = self.cut | self.kept.finished
        victims = sorted(everybody)
        rows = [everybody[victim] for victim in victims]
        scores, traces = [row.score for row in rows], [row.trace for row in rows]
        truth = run.scenario.truth(np.asarray(victims, np.int64))
        private = np.asarray(truth.inputs)
        inputs = np.stack([row.inputs for row in rows]) if rows else private
        searched = [row for row, trace in enumerate(traces) if trace.frames]
        shown = searched or list(range(len(rows)))  # a closed form has no frames
        told = np.asarray([score.recovered_labels for score in scores])
        beside = further_scores(
            run.attack,
            run.model,
            run.scenario.params,
            run.scenario.dataset,
            (private, np.asarray(truth.labels)),
            (inputs, told),
            run.about["success_rmse"],
        )
        spent = None
        if run.defense.mechanisms and run.plan is not None:
            spent = privacy_as_plain(privacy_of(run.plan))
        return AttackResult(
            spec=self.spec,
            about=run.about,
            threat=run.threat.to_dict(run.attack),
            environment=machine.describe(),
            scores=scores,
            traces=traces,
            draws=len(run.scenario.draws),
            missing=sorted(set(range(run.scenario.count)) - set(everybody)),
            guess=_guess(run, private, scores),
            timing=self._timing(len(scores)),
            accounting=spent,
            certificate=_certificate(run, not interrupted and processes.leads),
            limitations=[
                *notes,
                *_limitations(run, interrupted),
                *seen_by_clients(beside.get("imprint")),
                *processes.limitations,
            ],
            members=[row.members for row in rows],
            inputs=inputs,
            truth=private,
            pictured=shown[:PICTURED],
            interrupted=interrupted,
            beside=beside,
        )

    def _timing(self, victims: int) -> dict[str, float]:
        """Tells compilation (up to the first answer) from running."""
        total = self.kept.earlier + time.perf_counter() - self.began
        compiling = max(self.answered - self.began, 0.0)
        running = max(total - compiling, 1e-9)
        return {
            "compile_s": compiling,
            "run_s": running,
            "total_s": total,
            "victims_per_s": victims / running,
        }


def _guess(run: Run, truth: Any, scores: list[Score]) -> metrics.Rate:
    """Returns the best rate of guesses that never saw a gradient."""
    if not scores:
        return metrics.rate(0, 0)
    labels = np.asarray([score.labels for score in scores])
    data = run.scenario.dataset
    errors = metrics.guessing_rmse(truth, labels, data.inputs, data.labels)
    threshold = run.about["success_rmse"]
    best = max(int(np.sum(each <= threshold)) for each in errors.values())
    return metrics.rate(best, len(scores))


def _certificate(run: Run, play: bool) -> dict[str, Any] | None:
    """Returns what an informed adversary reaches, and what nobody does, if noisy."""
    scenario, about = run.scenario, run.about
    return line_up_and_certificates(
        run.model,
        scenario.dataset,
        run.defense,
        run.threat.reads,
        scenario.states,
        batch_size=about["batch_size"],
        local_steps=about["local_steps"],
        success_rmse=about["success_rmse"],
        seed=about["seed"],
        line_ups=run.line_ups if play else 0,
        looks=run.threat.looks,
    )


def _limitations(run: Run, interrupted: bool) -> list[str]:
    about = run.about
    sentences = [
        "A failed attack is no proof of privacy: a stronger attack may exist.",
        f"Success means RMSE <= {about['success_rmse']:g} on {about['dataset']}; "
        "another threshold gives another rate.",
    ]
    if about["round"] == 0 and "params" not in about:
        sentences.append("The model is untrained: later rounds may leak less or more.")
        if len(run.scenario.draws) == 1 and about["victims"] > 1:
            sentences.append(
                "All victims share one draw of the network, and the interval speaks "
                "of this draw only: --draws takes several."
            )
    if about["local_steps"] > 1 and not getattr(run.attack, "unroll", True):
        sentences.append(
            "The attack treats the update of several local steps as one gradient: "
            "it approximates."
        )
    if Knowledge.PARAMETERS in run.attack.needs:
        sentences.append(
            "The server alters what clients receive: who compares it with what was "
            "agreed on notices."
        )
    elif run.attack.exact:
        sentences.append(
            "The closed form exists for a dense first layer, and for patches with "
            "learned positions."
        )
    if interrupted:
        sentences.append(
            "The run was interrupted: victims that were not begun count in the "
            "interval as unknown."
        )
    return sentences
