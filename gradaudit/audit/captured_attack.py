"""`ga.attack_captured`: attack captured updates, with or without the truth."""

import dataclasses
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.attacks.base import Attack
from gradaudit.attacks.base import run as run_attack
from gradaudit.attacks.search import Snapshot, Stopped, is_cut_short
from gradaudit.audit.attack import chosen_attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.attack_run import Attacking, Run, Tell
from gradaudit.audit.captured_files import Capture, find, read_capture
from gradaudit.audit.captured_line_up import Picked, line_up_of, pick
from gradaudit.audit.captured_result import NO_TRUTH, Answer, UnseenResult, weigh
from gradaudit.audit.captured_scenario import UNKNOWN, Captured, private_data, truths_of
from gradaudit.audit.mechanism_check import mechanism_check
from gradaudit.audit.resume import Kept
from gradaudit.audit.threat import Threat, remarks
from gradaudit.data import load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, at_least, check_seed, within_unit
from gradaudit.models.adapters import is_file, model_for
from gradaudit.models.model import Model
from gradaudit.record import PLACES
from gradaudit.report.result import claim
from gradaudit.spec import Spec
from gradaudit.types import Key, Knowledge, Leakage

STARTS = 4  # of each victim, unless it is said
_NO_NUMBERS = ("slots", "progress", "keep", "overwrite", "pictures")


def attack_captured(
    captured: str | pathlib.Path,
    model: str | Model,
    truth: str | pathlib.Path | None = None,
    candidates: str | pathlib.Path | None = None,
    method: str | Attack = "cpl",
    defense: str | Defense = "none",
    threat: str = "curious",
    place: str | None = None,
    victims: int | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    batch_size: int | None = None,
    iterations: int | None = None,
    restarts: int | None = None,
    success_rmse: float = 0.1,
    seed: int = 0,
    pictures: bool = False,
    slots: int | None = None,
    progress: Tell | None = None,
    keep: str | pathlib.Path | None = None,
    overwrite: bool = False,
) -> AttackResult | UnseenResult:
    """Attacks captured updates; with the truth, scores what was rebuilt.

    Args:
      captured: a folder of one update, or of many (see docs/own-system.md).
      model: the client's model, its name, or `path/to/file.py:build`.
      truth: the clients' examples as .npz (x, y), or a folder of them; without it the
        result says what can be said: see `gradaudit.audit.captured_result`.
      candidates: examples as .npz, among which the client's may be: who was it?
      method: an attack, or its name with parameters (`cpl:init=uniform`).
      defense: what the client or the server did to the update, for an aware threat.
      threat: what the adversary knows: `curious`, `aware`.
      place: attack what was recorded there (raw, wire, server, aggregate); by default
        whatever is nearest to the adversary.
      victims: attack so many updates at most.
      learning_rate: of the client, where the sidecar does not say it.
      local_steps: of the client, where the sidecar does not say it.
      batch_size: of the client, where the sidecar does not say it.
      iterations: the attack's budget per start; the method's own by default.
      restarts: independent starts per update; by default 4 without the truth.
      success_rmse: the RMSE at or below which answers count as the same.
      seed: everything random follows from it.
      pictures: what was rebuilt goes into the result; else it is withheld.
      slots: updates that one device attacks at a time (speed only).
      progress: is told (finished, total) about once a second.
      keep: a folder in which victims with a truth are kept as they finish.
      overwrite: begin anew, whatever is in `keep`.
    """
    asked = {k: v for k, v in locals().items() if k not in _NO_NUMBERS}
    machine.configure()
    began = time.perf_counter()
    run, scenario = _built(**asked)
    spec = Spec.of("attack-captured", **asked)
    people = None if candidates is None else private_data(candidates, run.model)

    def picked(victims: Iterable[int]) -> tuple[Picked, ...]:
        if people is None:
            return ()
        seen = [scenario.observations[victim] for victim in victims]
        return tuple(pick(run.model, each, people, run.defense) for each in seen)

    if truth is not None:
        kept = Kept(keep)
        with kept.open(spec, run.scenario, slots, overwrite):
            scored = Attacking(run, spec, kept, slots, progress, began).result()
        beside = scored.beside | {"mechanism": _mechanism(str(captured))}
        if people is not None:
            beside["line_up"] = line_up_of(picked(range(scenario.count)))
        return dataclasses.replace(scored, withheld=not pictures, beside=beside)
    if keep is not None:
        claim(pathlib.Path(keep), spec, overwrite)
    starts = STARTS if restarts is None else restarts
    at_least(1, restarts=starts)
    notes = remarks(run.attack, run.defense, run.threat)
    key = jax.random.split(jax.random.key(seed))[1]
    answers, interrupted = _answers(run, scenario, key, starts, slots, progress)
    seconds = time.perf_counter() - began
    return UnseenResult(
        spec=spec,
        about=run.about | {"restarts": starts},
        threat=run.threat.to_dict(run.attack),
        environment=machine.describe(),
        answers=answers,
        picked=picked(answer.weighed.victim for answer in answers),
        asked=scenario.count,
        mechanism=_mechanism(str(captured)),
        timing={"total_s": seconds},
        limitations=(*notes, NO_TRUTH),
        pictures=pictures,
        interrupted=interrupted,
    )


def _built(
    captured: str | pathlib.Path,
    model: str | Model,
    truth: str | pathlib.Path | None,
    candidates: str | pathlib.Path | None,
    method: str | Attack,
    defense: str | Defense,
    threat: str,
    place: str | None,
    victims: int | None,
    iterations: int | None,
    restarts: int | None,
    success_rmse: float,
    seed: int,
    **given: Any,
) -> tuple[Run, Captured]:
    """Reads and checks what is attacked; `given` fills the gaps of the sidecars."""
    within_unit(success_rmse=success_rmse)
    check_seed(seed)
    captures = _captures(pathlib.Path(captured), place, victims, given)
    leakage = Leakage(PLACES[captures[0].facts.place])
    net = _model(model, captures, truth, candidates)
    guard = parse_defense(defense)
    adversary = Threat.parse(threat, leakage)
    truths = [] if truth is None else truths_of(captures, pathlib.Path(truth), net)
    known = Knowledge.DEFENSE in adversary.knows
    scenario = Captured(captures, net, guard, truths, known)
    chosen = chosen_attack(method, iterations, restarts if truths else None)
    adversary.check(chosen)
    training = scenario.observations[0].training
    about: dict[str, Any] = {
        "type": int(leakage),
        "method": method if isinstance(method, str) else "custom",
        "defense": defense if isinstance(defense, str) else guard.name,
        "dataset": UNKNOWN if truth is None else str(truth),
        "model": net.name,
        "captured": str(captured),
        "place": captures[0].facts.place,
        "batch_size": training.batch_size,
        "local_steps": training.local_steps,
        "round": None,
        "victims": len(captures),
        "iterations": chosen.iterations,
        "restarts": chosen.restarts,
        "members": [member.name for member in chosen.members],
        "success_rmse": success_rmse,
        "seed": seed,
    }
    return Run(scenario, net, chosen, guard, adversary, about), scenario


def _model(
    name: str | Model,
    captures: Sequence[Capture],
    truth: str | pathlib.Path | None,
    candidates: str | pathlib.Path | None,
) -> Model:
    """Returns the model of a text; one of ours is built for the data that is given."""
    given = [pathlib.Path(path) for path in (truth, candidates) if path is not None]
    found = [file for path in given for file in (path, *sorted(path.glob("*.npz")))]
    data = next((file for file in found if file.is_file()), None)
    if isinstance(name, Model) or is_file(name) or data is None:
        return model_for(name)
    # Our networks end in a layer of this name; the data may lack the last classes.
    output = captures[0].received.get("output/bias")
    loaded = load_dataset(str(data))
    classes = loaded.classes if output is None else len(output)
    return model_for(name, loaded.shape, classes)


def _captures(
    folder: pathlib.Path,
    place: str | None,
    victims: int | None,
    given: Mapping[str, Any],
) -> list[Capture]:
    """Reads the updates of one place; what is known beside fills their gaps."""
    at_least(1, victims=victims)
    found = [read_capture(path) for path in find(folder)]
    places = {capture.facts.place for capture in found}
    # The nearest to an adversary: whoever reads the wire does not see the raw update.
    order = ("wire", "server", "aggregate", "example", "raw")
    chosen = place or next(each for each in order if each in places)
    if chosen not in places:
        raise InputError(
            f"{folder} holds no update of the place {chosen!r}, only "
            f"{', '.join(sorted(places))}"
        )
    there = [capture for capture in found if capture.facts.place == chosen]
    return [capture.knowing(**given) for capture in there[:victims]]


def _answers(
    run: Run,
    scenario: Captured,
    key: Key,
    starts: int,
    slots: int | None,
    progress: Tell | None,
) -> tuple[tuple[Answer, ...], bool]:
    """Attacks without a truth: every start is handed in, and they are compared.

    Returns the answers of the updates that were begun, and whether Ctrl-C came.
    """
    answers: dict[int, Answer] = {}
    interrupted, done, total = False, 0, scenario.count * starts
    for number, group in enumerate(scenario.groups(starts)):
        begun = _Begun(run.attack.trials, total, done, progress)
        own = key if number == 0 else jax.random.fold_in(key, number)
        try:
            found = run_attack(
                run.attack, own, run.model, group.victims, slots, begun.watch
            )
        except Stopped as stop:
            found, interrupted = stop.args[0], True
        except KeyboardInterrupt:
            interrupted = True
            break
        interrupted |= is_cut_short(found)
        done += len(group.ids)
        for first in range(0, len(group.ids), starts):
            victim, rows = int(group.ids[first]) // starts, np.arange(starts) + first
            answer = weigh(
                victim,
                scenario.captures[victim],
                run.model,
                scenario.observations[victim],
                begun.of(rows, found.inputs.shape[1:]),
                found.take(rows),
                run.about["success_rmse"],
            )
            if answer is not None:
                answers[victim] = answer
        if interrupted:
            break
    if not answers:
        raise KeyboardInterrupt("interrupted before the first update was attacked")
    return tuple(answers[victim] for victim in sorted(answers)), interrupted


@dataclasses.dataclass
class _Begun:
    """Is a Watcher: takes note of where every start began, and tells progress."""

    restarts: int
    total: int
    done: int
    progress: Tell | None
    first: dict[int, NDArray[np.float32]] = dataclasses.field(default_factory=dict)

    def watch(self, snapshot: Snapshot) -> None:
        """Keeps the first iterate of each victim that is new."""
        for slot in np.flatnonzero(snapshot.trials >= 0):
            victim = int(snapshot.trials[slot]) // self.restarts
            if victim not in self.first:
                self.first[victim] = np.asarray(snapshot.current[0, slot])
        if self.progress is not None:
            ended = snapshot.finished // self.restarts
            self.progress(self.done + ended, self.total)

    def of(self, rows: NDArray[np.int64], shape: Sequence[int]) -> NDArray[np.float32]:
        """Returns where these began, NaN where nobody looked."""
        blank = np.full(tuple(shape), np.nan, np.float32)
        return np.stack([self.first.get(int(row), blank) for row in rows])


def _mechanism(folder: str) -> dict[str, Any] | None:
    """Returns what the captured updates say of the noise, if anything is claimed."""
    try:
        found: dict[str, Any] = mechanism_check(folder).to_dict()["metrics"]
    except InputError:  # several claims, say: `captured check` gives the words
        return None
    return found if found["pairs"] or found["findings"] else None
