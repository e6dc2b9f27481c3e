"""`ga.attack`: draw victims, let them leak, attack, score."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gradaudit import machine
from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.analytic import Analytic
from gradaudit.attacks.base import Attack, Snapshot, check_observation
from gradaudit.attacks.labels import Joint, Known
from gradaudit.attacks.matching import Matching
from gradaudit.audit import threat
from gradaudit.audit.scenario import Leaks
from gradaudit.audit.scores import Evaluator
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError, require
from gradaudit.federation.setting import Setting
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.report import metrics
from gradaudit.report.result import AttackResult, Picture
from gradaudit.types import Leakage, Reconstruction, Status

DEFAULT_DATASET = "lfw-patches"


_PICTURED = 8


_LEARNING_RATE = 0.05


_WHERE = {
    Leakage.EXAMPLE: "one example's gradient, at the client, inside a local iteration",
    Leakage.CLIENT: "the client's update, at the client, after local training",
    Leakage.SERVER: "the client's update, at the server, before aggregation",
}


Progress = Callable[[int, int], None]  # trials finished, trials in all


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
    iterations: int | None = None,
    restarts: int | None = None,
    success_rmse: float = 0.1,
    seed: int = 0,
    slots: int | None = None,
    progress: Progress | None = None,
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
      iterations: the attack's budget per restart; the method's own by default.
      restarts: independent starts, chosen by the attacker's own objective.
      success_rmse: the RMSE at or below which a victim counts as rebuilt.
      seed: everything random follows from it.
      slots: victims that one device attacks at a time (speed only).
      progress: is told (finished, total) about once a second.
    """
    machine.configure()
    began = time.perf_counter()
    leakage = _leakage(type)
    _check_numbers(victims, local_steps, success_rmse, round)
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    net = _model(model, data)
    chosen = _attack(method, iterations, restarts)
    guard = parse_defense(defense) if isinstance(defense, str) else defense
    batch = batch_size or (1 if leakage is Leakage.EXAMPLE else 3)
    setting = Setting(
        clients=victims,
        clients_per_round=victims,
        local_steps=local_steps,
        batch_size=batch,
        rounds=round + 1,
        examples=batch * local_steps,
        learning_rate=_LEARNING_RATE,
    )
    mixed = 1 if leakage is Leakage.EXAMPLE else setting.examples
    notes = threat.check(threat.Setting(chosen, guard, leakage, mixed))
    data_key, attack_key = jax.random.split(jax.random.key(seed))
    leaks = Leaks(
        data_key, net, data, guard, leakage, setting, round, _knows_labels(chosen)
    )
    first = leaks.observe(np.zeros(1, np.int64))
    gradient, labels = jax.tree.map(
        lambda leaf: leaf[0], (first.gradient, first.labels)
    )
    check_observation(net, dataclasses.replace(first, gradient=gradient, labels=labels))
    evaluator = Evaluator(leaks, _restarts(chosen), success_rmse, _PICTURED)
    clock = _Clock(began)

    def watch(snapshot: Snapshot) -> None:
        clock.tick()
        evaluator.watch(snapshot)
        if progress is not None:
            progress(snapshot.finished, snapshot.total)

    rebuilt = chosen.reconstruct_many(attack_key, net, leaks.victims(), slots, watch)
    config = {
        "command": "attack",
        "type": int(leakage),
        "method": method if isinstance(method, str) else "custom",
        "attack": _describe(chosen),
        "defense": defense if isinstance(defense, str) else guard.name,
        "dataset": data.name if isinstance(dataset, Dataset) else dataset,
        "model": net.name,
        "victims": victims,
        "batch_size": batch,
        "local_steps": local_steps,
        "round": round,
        "iterations": chosen.stop.iterations if isinstance(chosen, Matching) else 0,
        "restarts": _restarts(chosen),
        "success_rmse": success_rmse,
        "seed": seed,
    }
    accounting = _accounting(guard, data.name, len(jax.tree.leaves(first.params)))
    return _result(
        config, chosen, leakage, leaks, evaluator, rebuilt, clock, notes, accounting
    )


def _result(
    config: dict[str, Any],
    chosen: Attack,
    leakage: Leakage,
    leaks: Leaks,
    evaluator: Evaluator,
    rebuilt: Reconstruction,
    clock: "_Clock",
    notes: list[str],
    accounting: dict[str, Any] | None,
) -> AttackResult:
    scores = evaluator.score(rebuilt)
    ids = np.asarray([score.victim for score in scores], np.int64)
    truth, labels = _truths(leaks, ids)
    guesses = metrics.guessing_rmse(
        truth, labels, leaks.public_inputs, leaks.public_labels
    )
    best_guess = max(
        (
            sum(e <= config["success_rmse"] for e in errors)
            for errors in guesses.values()
        ),
        default=0,
    )
    inputs = np.asarray(rebuilt.inputs)[ids]
    traces = [evaluator.trace_of(int(victim)) for victim in ids]
    pictures = [
        Picture(s.victim, truth[i], traces[i].frames, inputs[i], s.rmse)
        for i, s in enumerate(scores[:_PICTURED])
    ]
    interrupted = bool((np.asarray(rebuilt.status) == Status.INTERRUPTED).any())
    return AttackResult(
        config=config,
        threat=_threat(chosen, leakage, config),
        environment=machine.describe(),
        scores=scores,
        traces=traces,
        guess=metrics.rate(best_guess, len(scores)),
        timing=clock.timing(len(scores)),
        accounting=accounting,
        limitations=[*notes, *_limitations(chosen, config, interrupted)],
        inputs=inputs,
        truth=truth,
        pictures=pictures,
        interrupted=interrupted,
    )


def _accounting(defense: Defense, dataset: str, tensors: int) -> dict[str, Any] | None:
    """Returns what the defense is worth over a whole training as published."""
    if not defense.mechanisms:
        return None
    from gradaudit.federation.setting import PAPER_SETTINGS, setting_as_plain
    from gradaudit.privacy import epsilon
    from gradaudit.privacy.statement import privacy_as_plain

    setting = PAPER_SETTINGS.get(dataset, Setting())
    plain = privacy_as_plain(epsilon(defense, setting, tensors=tensors))
    settings = {
        name: value
        for name, value in setting_as_plain(setting).items()
        if isinstance(value, (int, float))
    }
    return {**plain, "setting": settings}


def _truths(leaks: Leaks, ids: Any) -> tuple[Any, Any]:
    if not len(ids):
        raise KeyboardInterrupt("interrupted before the first victim was attacked")
    private = leaks.truth(ids)
    return np.asarray(private.inputs), np.asarray(private.labels)


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
    victims: int, local_steps: int, success_rmse: float, round_index: int
) -> None:
    require(victims >= 1, f"victims must be at least 1, got {victims}")
    require(local_steps >= 1, f"local_steps must be at least 1, got {local_steps}")
    require(success_rmse > 0, f"success_rmse must be positive, got {success_rmse}")
    require(round_index >= 0, f"round must not be negative, got {round_index}")


def _model(model: str | Model | None, dataset: Dataset) -> Model:
    if isinstance(model, Model):
        return model
    name = model or ("cpl" if len(dataset.shape) == 3 else "mlp")
    return build_model(name, dataset.shape, dataset.classes)


def _attack(
    method: str | Attack, iterations: int | None, restarts: int | None
) -> Attack:
    chosen = attack_presets.parse(method) if isinstance(method, str) else method
    if isinstance(chosen, Matching):
        if iterations is not None:
            stop = dataclasses.replace(chosen.stop, iterations=iterations)
            chosen = dataclasses.replace(chosen, stop=stop)
        if restarts is not None:
            chosen = dataclasses.replace(chosen, restarts=restarts)
    return chosen


def _restarts(chosen: Attack) -> int:
    return chosen.restarts if isinstance(chosen, Matching) else 1


def _describe(value: Any) -> Any:
    """Returns a part as data, with its type beside the fields."""
    if dataclasses.is_dataclass(value):
        fields = {
            f.name: _describe(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {"part": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_describe(entry) for entry in value]
    return (
        value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
    )


def _knows_labels(chosen: Attack) -> bool:
    return isinstance(getattr(chosen, "labels", None), Known)


def _threat(chosen: Attack, leakage: Leakage, config: dict[str, Any]) -> dict[str, Any]:
    labels = getattr(chosen, "labels", None)
    knows = ["the model and its parameters", "the batch size"]
    if config["local_steps"] > 1:
        knows += ["the number of local steps", "the learning rate"]
    if _knows_labels(chosen):
        knows.append("the true labels")
    return {
        "type": int(leakage),
        "reads": _WHERE[leakage],
        "knows": knows,
        "labels": "optimised jointly"
        if isinstance(labels, Joint)
        else ("given" if _knows_labels(chosen) else "inferred from the gradient"),
        "selection": "the iterate with the attacker's lowest own objective",
    }


def _limitations(
    chosen: Attack, config: dict[str, Any], interrupted: bool
) -> list[str]:
    sentences = [
        "A failed attack is no proof of privacy: a stronger attack may exist.",
        f"Success means RMSE <= {config['success_rmse']:g} on {config['dataset']}; "
        "another threshold gives another rate.",
    ]
    if config["round"] == 0:
        sentences.append("The model is untrained: later rounds may leak less.")
    if config["local_steps"] > 1 and isinstance(chosen, Matching) and not chosen.unroll:
        sentences.append(
            "The attack treats the update of several local steps as one gradient: "
            "it approximates."
        )
    if isinstance(chosen, Analytic):
        sentences.append("The closed form exists for a dense first layer only.")
    if interrupted:
        sentences.append("The run was interrupted: the figures cover what was done.")
    return sentences
