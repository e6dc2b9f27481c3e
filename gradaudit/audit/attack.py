"""`ga.attack`: draw victims, let them leak, attack, score."""

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gradaudit import machine
from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.base import Attack, check_observation
from gradaudit.attacks.matching import Matching
from gradaudit.attacks.search import Snapshot, Stopped, is_cut_short
from gradaudit.audit.outcome import AttackResult, Picture
from gradaudit.audit.scenario import Group, Simulated
from gradaudit.audit.scores import Evaluator, Score, Trace
from gradaudit.audit.threat import Threat, remarks
from gradaudit.audit.training_plan import recorded_round
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError, require
from gradaudit.federation.setting import PAPER_SETTINGS, Setting
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.privacy.statement import epsilon, privacy_as_plain
from gradaudit.report import metrics
from gradaudit.spec import Spec
from gradaudit.types import Key, Knowledge, Leakage, Observation

DEFAULT_DATASET = "lfw-patches"
_DRAWS = 4  # networks that an untrained run draws, unless it is told otherwise
_PICTURED = 8
_LEARNING_RATE = 0.05

Tell = Callable[[int, int], None]  # trials finished, trials in all


@dataclasses.dataclass(frozen=True)
class _Run:
    """Everything that decides an attack's numbers, built and checked."""

    scenario: Simulated
    model: Model
    attack: Attack
    defense: Defense
    threat: Threat
    about: dict[str, Any]


def attack(
    type: int = 2,  # noqa: A002 - the contract's word
    method: str | Attack = "cpl",
    defense: str | Defense = "none",
    dataset: str | Dataset = DEFAULT_DATASET,
    model: str | Model | None = None,
    victims: int = 16,
    batch_size: int | None = None,
    local_steps: int = 1,
    round: int = 0,  # noqa: A002 - the contract's word
    run: str | pathlib.Path | None = None,
    draws: int | None = None,
    threat: str = "curious",
    iterations: int | None = None,
    restarts: int | None = None,
    success_rmse: float = 0.1,
    seed: int = 0,
    slots: int | None = None,
    progress: Tell | None = None,
) -> AttackResult:
    """Attacks victims drawn from a dataset and reports what was rebuilt.

    Args:
      type: 2 reads per-example gradients, 1 a client's update at the client, 0 at
        the server.
      method: an attack, or its name with parameters (`cpl:init=uniform`).
      defense: a defense, or its name with parameters (`fed-cdp:clip=4,sigma=6`).
      dataset: a dataset, its name, or a path to your own file.
      model: a model or its name; by default `cpl` for images and `mlp` for tables.
      victims: how many units are attacked: examples (type 2) or clients (0, 1).
      batch_size: examples per local step; 1 for type 2 and 3 for types 0, 1.
      local_steps: local steps of a client's round; types 0 and 1 read their sum,
        type 2 reads inside the first.
      round: rounds of training before the one that is read.
      run: the folder of a recorded `gradaudit train`: its model at `round`, the
        clients that really took part, its data and its defense.
      draws: how many times the network is drawn, victims dealt over the draws; by
        default 4 for an untrained network and 1 for a trained one.
      threat: what the adversary knows: `curious`, `aware`, `informed`, `malicious`,
        and what is granted beside (`curious+labels`).
      iterations: the attack's budget per restart; the method's own by default.
      restarts: independent starts, chosen by the attacker's own objective.
      success_rmse: the RMSE at or below which a victim counts as rebuilt.
      seed: everything random follows from it.
      slots: victims that one device attacks at a time (speed only).
      progress: is told (finished, total) about once a second.
    """
    asked = {k: v for k, v in locals().items() if k not in ("slots", "progress")}
    machine.configure()
    began = time.perf_counter()
    _check_numbers(victims, success_rmse, round, seed, slots)
    chosen = _attack(method, iterations, restarts)
    adversary = Threat.parse(threat, _leakage(type))
    adversary.check(chosen)
    data_key, attack_key = jax.random.split(jax.random.key(seed))
    if run is not None:
        require(draws in (None, 1), "a recorded training has one network: draws is 1")
        built = _recorded(pathlib.Path(run), round, victims, chosen, adversary)
    else:
        built = _simulated(
            data_key, dataset, model, defense, batch_size, local_steps, round, victims,
            draws, chosen, adversary,
        )  # fmt: skip
    built.about.update(
        type=type,
        method=method if isinstance(method, str) else "custom",
        model=built.model.name,
        round=round,
        victims=victims,
        iterations=getattr(getattr(chosen, "stop", None), "iterations", 0),
        restarts=chosen.restarts,
        success_rmse=success_rmse,
        seed=seed,
    )
    spec = Spec.of("attack", **asked)
    return _Attacking(built, spec, began, progress).run(attack_key, slots)


def _simulated(
    key: Key,
    dataset: str | Dataset,
    model: str | Model | None,
    defense: str | Defense,
    batch_size: int | None,
    local_steps: int,
    round_index: int,
    victims: int,
    draws: int | None,
    attack: Attack,
    threat: Threat,
) -> _Run:
    """Builds victims that are drawn from a data set."""
    require(local_steps >= 1, f"local_steps must be at least 1, got {local_steps}")
    require(
        batch_size is None or batch_size >= 1,
        f"batch_size must be at least 1, got {batch_size}",
    )
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    net = _model(model, data)
    guard = parse_defense(defense) if isinstance(defense, str) else defense
    batch = batch_size or (1 if threat.reads is Leakage.EXAMPLE else 3)
    setting = Setting(
        clients=victims,
        clients_per_round=victims,
        local_steps=local_steps,
        batch_size=batch,
        rounds=round_index + 1,
        examples=batch * local_steps,
        learning_rate=_LEARNING_RATE,
    )
    scenario = Simulated(
        key,
        net,
        data,
        guard,
        threat.reads,
        setting,
        round_index,
        _draws(draws, victims, round_index),
        Knowledge.LABELS in threat.knows,
        Knowledge.DEFENSE in threat.knows,
    )
    about = {
        "defense": defense if isinstance(defense, str) else guard.name,
        "dataset": dataset if isinstance(dataset, str) else data.name,
        "batch_size": batch,
        "local_steps": local_steps,
    }
    return _Run(scenario, net, attack, guard, threat, about)


def _recorded(
    folder: pathlib.Path, number: int, victims: int, attack: Attack, threat: Threat
) -> _Run:
    """Builds victims that took part in a round of a recorded training."""
    run = recorded_round(folder, number)
    plan, recipe = run.plan, run.training.recipe
    scenario = Simulated.recorded(
        run,
        threat.reads,
        victims,
        Knowledge.LABELS in threat.knows,
        Knowledge.DEFENSE in threat.knows,
    )
    about = {
        "defense": plan.guard.name,
        "dataset": plan.data[0].name,
        "batch_size": recipe.batch_size,
        "local_steps": recipe.local_steps,
        "run": str(folder),
    }
    return _Run(scenario, recipe.model, attack, plan.guard, threat, about)


class _Attacking:
    """Runs the attack draw by draw, and puts what came out into a result."""

    def __init__(
        self, run: _Run, spec: Spec, began: float, progress: Tell | None
    ) -> None:
        self._run, self._spec, self._progress = run, spec, progress
        self._clock = _Clock(began)
        self._finished = 0  # trials of the draws that are done
        self._rows: list[tuple[Score, Trace, Any, Any]] = []
        self._missing: list[int] = []

    def run(self, key: Key, slots: int | None) -> AttackResult:
        """Attacks all groups of victims; Ctrl-C keeps what there is."""
        scenario, notes = self._run.scenario, self._checked()
        interrupted = False
        for draw, group in enumerate(scenario.groups()):
            if interrupted:
                self._missing.extend(group.ids.tolist())
                continue
            try:
                interrupted = self._attack(key, draw, group, slots)
            except KeyboardInterrupt:
                interrupted = True
                self._missing.extend(group.ids.tolist())
        if not self._rows:
            raise KeyboardInterrupt("interrupted before the first victim was attacked")
        return self._result(notes, interrupted)

    def _checked(self) -> list[str]:
        """Raises for what can't work; returns what to keep in mind."""
        run = self._run
        notes = remarks(run.attack, run.defense, run.threat)
        first = next(iter(run.scenario.groups())).victims.observe(np.zeros(1, np.int64))
        check_observation(run.model, _unstacked(first))
        return notes

    def _attack(self, key: Key, draw: int, group: Group, slots: int | None) -> bool:
        """Attacks the victims of one draw; returns whether it was interrupted."""
        run = self._run
        truth = run.scenario.truth(group.ids)
        evaluator = Evaluator(
            group.ids,
            draw,
            truth,
            run.attack.restarts,
            run.about["success_rmse"],
            -(-_PICTURED // len(run.scenario.draws)),
        )

        def watch(snapshot: Snapshot) -> None:
            self._clock.tick()
            evaluator.watch(snapshot)
            if self._progress is not None:
                total = run.scenario.count * run.attack.restarts
                self._progress(self._finished + snapshot.finished, total)

        draw_key = key if draw == 0 else jax.random.fold_in(key, draw)
        interrupted = False
        try:
            rebuilt = run.attack.reconstruct_many(
                draw_key, run.model, group.victims, slots, watch
            )
        except Stopped as stop:
            rebuilt, interrupted = stop.args[0], True
        self._clock.tick()
        self._finished += len(group.ids) * run.attack.restarts
        begun = {int(i): row for row, i in enumerate(group.ids)}
        for score in evaluator.score(rebuilt):
            row = begun.pop(score.victim)
            inputs = np.asarray(rebuilt.inputs)[row]
            private = np.asarray(truth.inputs)[row]
            self._rows.append((score, evaluator.trace_of(row), private, inputs))
        self._missing.extend(begun)
        return interrupted or is_cut_short(rebuilt)

    def _result(self, notes: list[str], interrupted: bool) -> AttackResult:
        run, about = self._run, self._run.about
        scores, traces, private, inputs = zip(*self._rows, strict=True)
        truth = np.stack(private)
        pictured = [i for i, trace in enumerate(traces) if trace.frames or i == 0]
        return AttackResult(
            spec=self._spec,
            about=about,
            threat=run.threat.to_dict(run.attack),
            environment=machine.describe(),
            scores=list(scores),
            traces=list(traces),
            draws=len(run.scenario.draws),
            missing=sorted(self._missing),
            guess=_guess(run, truth, list(scores)),
            timing=self._clock.timing(len(scores)),
            accounting=_accounting(run),
            limitations=[*notes, *_limitations(run, interrupted)],
            inputs=np.stack(inputs),
            truth=truth,
            pictures=[
                Picture(
                    scores[i].victim, truth[i], traces[i].frames, inputs[i],
                    metrics.match(truth[i], np.nan_to_num(inputs[i])),
                )
                for i in pictured[:_PICTURED]
            ],
            interrupted=interrupted,
        )  # fmt: skip


def _unstacked(stacked: Observation) -> Observation:
    sent, labels = jax.tree.map(lambda leaf: leaf[0], (stacked.sent, stacked.labels))
    return dataclasses.replace(stacked, sent=sent, labels=labels)


def _guess(run: _Run, truth: Any, scores: list[Score]) -> metrics.Rate:
    """Returns the best rate of guesses that never saw a gradient."""
    labels = np.asarray([score.labels for score in scores])
    data = run.scenario.dataset
    errors = metrics.guessing_rmse(truth, labels, data.inputs, data.labels)
    threshold = run.about["success_rmse"]
    best = max(int(np.sum(each <= threshold)) for each in errors.values())
    return metrics.rate(best, len(scores))


def _accounting(run: _Run) -> dict[str, Any] | None:
    """Returns the defense's epsilon in the data set's published federation, if any."""
    setting = PAPER_SETTINGS.get(run.scenario.dataset.name)
    if not run.defense.mechanisms or setting is None:
        return None
    tensors = len(jax.tree.leaves(run.scenario.params))
    sizes = tuple(np.bincount(run.scenario.dataset.labels).tolist())
    return privacy_as_plain(
        epsilon(run.defense, setting, tensors=tensors, class_sizes=sizes)
    )


class _Clock:
    """Tells compilation (up to the first answer) from running."""

    def __init__(self, began: float) -> None:
        self._began, self._first, self._last = began, 0.0, 0.0

    def tick(self) -> None:
        now = time.perf_counter()
        self._first = self._first or now
        self._last = now

    def timing(self, victims: int) -> dict[str, float]:
        total = time.perf_counter() - self._began
        compiling = max(self._first - self._began, 0.0)
        running = max(total - compiling, 1e-9)
        return {
            "compile_s": compiling,
            "run_s": running,
            "total_s": total,
            "victims_per_s": victims / running,
        }


def _leakage(value: int) -> Leakage:
    if value not in tuple(Leakage):
        raise InputError(f"type must be 0, 1 or 2, got {value}")
    return Leakage(value)


def _check_numbers(
    victims: int, success_rmse: float, round_index: int, seed: int, slots: int | None
) -> None:
    require(victims >= 1, f"victims must be at least 1, got {victims}")
    require(
        0 < success_rmse < 1, f"success_rmse must lie in (0, 1), got {success_rmse}"
    )
    require(round_index >= 0, f"round must not be negative, got {round_index}")
    # jax reads 32 bits: larger seeds would repeat smaller ones.
    require(0 <= seed < 2**32, f"seed must lie in 0..2^32 - 1, got {seed}")
    require(slots is None or slots >= 1, f"slots must be at least 1, got {slots}")


def _draws(draws: int | None, victims: int, round_index: int) -> int:
    """Returns how many networks are drawn: several where they are untrained."""
    if draws is None:
        return 1 if round_index else min(_DRAWS, victims)
    require(
        1 <= draws <= victims,
        f"draws must lie in 1..{victims}, the number of victims, got {draws}",
    )
    return draws


def _model(model: str | Model | None, dataset: Dataset) -> Model:
    if isinstance(model, Model):
        return model
    name = model or ("cpl" if len(dataset.shape) == 3 else "mlp")
    return build_model(name, dataset.shape, dataset.classes)


def _attack(
    method: str | Attack, iterations: int | None, restarts: int | None
) -> Attack:
    if isinstance(method, str):
        return attack_presets.parse(method, iterations, restarts)
    if iterations is None and restarts is None:
        return method
    if not isinstance(method, Matching):
        raise InputError(
            f"{type(method).__name__} has no iterations and no restarts: leave the "
            "options out"
        )
    if iterations is not None:
        method = method.within(iterations)
    return dataclasses.replace(method, restarts=restarts or method.restarts)


def _limitations(run: _Run, interrupted: bool) -> list[str]:
    about = run.about
    sentences = [
        "A failed attack is no proof of privacy: a stronger attack may exist.",
        f"Success means RMSE <= {about['success_rmse']:g} on {about['dataset']}; "
        "another threshold gives another rate.",
    ]
    if about["round"] == 0:
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
    if run.attack.exact:
        sentences.append("The closed form exists for a dense first layer only.")
    if interrupted:
        sentences.append(
            "The run was interrupted: victims that were not begun count in the "
            "interval as unknown."
        )
    return sentences
