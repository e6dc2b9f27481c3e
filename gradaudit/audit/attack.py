"""`ga.attack`: draw victims, let them leak, attack, score."""

import contextlib
import dataclasses
import hashlib
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import files, machine
from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.base import Attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.attack_run import Attacking, Run, Tell
from gradaudit.audit.captured_files import read_tensor_file
from gradaudit.audit.captured_scenario import arranged
from gradaudit.audit.informed import LINE_UPS
from gradaudit.audit.processes import Processes
from gradaudit.audit.resume import Kept, fingerprint
from gradaudit.audit.scenario import MOST_LOOKS, Simulated
from gradaudit.audit.threat import Threat
from gradaudit.audit.training_plan import recorded_round
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, at_least
from gradaudit.federation.setting import PAPER_SETTINGS, Setting
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.privacy.plan import PrivacyPlan, copies_in
from gradaudit.spec import Spec
from gradaudit.types import Knowledge, Leakage, PyTree

DEFAULT_DATASET = "lfw-patches"
_DRAWS = 4  # networks that an untrained run draws, unless it is told otherwise
LEARNING_RATE = 0.05
# Arguments that decide no number: a spec does not hold them.
_NO_NUMBERS = ("slots", "progress", "keep", "overwrite")


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
    params: str | pathlib.Path | None = None,
    draws: int | None = None,
    threat: str = "curious",
    looks: int = 1,
    iterations: int | None = None,
    restarts: int | None = None,
    success_rmse: float = 0.1,
    seed: int = 0,
    line_ups: int = LINE_UPS,
    slots: int | None = None,
    progress: Tell | None = None,
    keep: str | pathlib.Path | None = None,
    overwrite: bool = False,
) -> AttackResult:
    """Attacks victims drawn from a dataset and reports what was rebuilt.

    In several processes (`gradaudit.machine.join`, or jax.distributed) that call this
    alike, each attacks a part: process 0 returns the whole, the others their own part.

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
      run: the folder of a recorded `gradaudit train`: its model at `round` (or what it
        learned under another `model` of the same tensors), the clients that really
        took part, its data and its defense.
      params: a file (.safetensors, .npz or .pt) of the model's trained parameters, by
        their names: the network that is attacked, in place of one that is drawn.
      draws: how many times the network is drawn, victims dealt over the draws; by
        default 4 for an untrained network and 1 for a trained one.
      threat: what the adversary knows: `curious`, `aware`, `informed`, `malicious`,
        and what is granted beside (`curious+labels`).
      looks: how many rounds in succession the adversary reads the same examples, with
        the parameters of each and fresh noise; it explains them together.
      iterations: the attack's budget per restart; the method's own by default.
      restarts: independent starts, chosen by the attacker's own objective.
      success_rmse: the RMSE at or below which a victim counts as rebuilt.
      seed: everything random follows from it.
      line_ups: where there is noise, how many line-ups an informed adversary plays
        beside the attack; 0: the certificates alone.
      slots: victims that one device attacks at a time (speed only).
      progress: is told (finished, total) about once a second.
      keep: a folder in which victims are kept as they finish. The same attack goes on
        from them there, to the numbers of one that was never disturbed; if all are
        finished, nothing is run. A folder of another attack is refused.
      overwrite: begin anew, whatever is in `keep`.
    """
    asked = {k: v for k, v in locals().items() if k not in _NO_NUMBERS}
    machine.configure()
    began = time.perf_counter()
    processes = Processes.joined()
    kept = Kept(*((keep, None) if processes.leads else (None, processes.send)))
    with processes.together(kept.take), contextlib.ExitStack() as held:
        at_least(1, slots=slots)
        built = _Asked(**asked).built()
        spec = Spec.of("attack", **asked)
        if keep is not None and processes.leads:
            held.enter_context(files.one_run_in(pathlib.Path(keep)))
            kept.open(spec, _content(built, slots), overwrite)
        mine = _part(processes, kept, built, spec, slots)
        attacking = Attacking(built, spec, began, kept, progress, processes, mine)
        return attacking.run(jax.random.split(jax.random.key(seed))[1], slots)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What decides an attack's numbers, checked: the arguments of `attack`."""

    type: int
    method: str | Attack
    defense: str | Defense
    dataset: str | Dataset
    model: str | Model | None
    victims: int
    batch_size: int | None
    local_steps: int
    round: int
    run: str | pathlib.Path | None
    params: str | pathlib.Path | None
    draws: int | None
    threat: str
    looks: int
    iterations: int | None
    restarts: int | None
    success_rmse: float
    seed: int
    line_ups: int

    def __post_init__(self) -> None:
        at_least(1, victims=self.victims)
        if not 0 < self.success_rmse < 1:
            raise InputError(
                f"success_rmse must lie in (0, 1), got {self.success_rmse}"
            )
        if not self.round >= 0:
            raise InputError(f"round must not be negative, got {self.round}")
        # jax reads 32 bits: larger seeds would repeat smaller ones.
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must lie in 0..2^32 - 1, got {self.seed}")
        if not 1 <= self.looks <= MOST_LOOKS:
            raise InputError(f"looks must lie in 1..{MOST_LOOKS}, got {self.looks}")
        if not 0 <= self.line_ups <= 10**6:
            raise InputError(f"line_ups must lie in 0..10^6, got {self.line_ups}")

    def built(self) -> Run:
        """Returns the victims, the adversary and the attack, checked together."""
        chosen = chosen_attack(self.method, self.iterations, self.restarts)
        if self.type not in tuple(Leakage):
            raise InputError(f"type must be 0, 1 or 2, got {self.type}")
        adversary = Threat.parse(self.threat, Leakage(self.type), self.looks)
        adversary.check(chosen)
        made = _simulated if self.run is None else _recorded
        run = made(self, chosen, adversary)
        run.about.update(
            type=self.type,
            method=self.method if isinstance(self.method, str) else "custom",
            model=run.model.name,
            round=self.round,
            victims=self.victims,
            iterations=chosen.iterations,
            restarts=chosen.restarts,
            members=[member.name for member in chosen.members],
            noise_told=Knowledge.DEFENSE in adversary.knows
            and bool(run.defense.mechanisms),
            success_rmse=self.success_rmse,
            seed=self.seed,
        )
        return dataclasses.replace(run, line_ups=self.line_ups)


def _part(
    processes: Processes, kept: Kept, run: Run, spec: Spec, slots: int | None
) -> NDArray[np.int64]:
    """Returns whom this process attacks: its part of those that are not finished."""
    several = processes.count > 1
    name = fingerprint(spec, _content(run, slots)) if several else ""
    done = processes.agree(name, kept.finished)
    waiting = [i for i in range(run.scenario.count) if i not in done]
    return processes.part(np.asarray(waiting, np.int64))


def _content(run: Run, slots: int | None) -> dict[str, Any]:
    """Returns what decides the numbers beside the spec: data, weights, versions."""
    scenario, about = run.scenario, machine.describe()
    arrays = [*jax.tree.leaves(scenario.params), *scenario.draws]
    weights = hashlib.sha256()
    for array in arrays:
        weights.update(np.asarray(array).tobytes())
    content: dict[str, Any] = {
        "dataset": scenario.dataset.digest,
        "weights": weights.hexdigest(),
        "versions": [about["gradaudit"], about["packages"]],
        "backend": about["backend"],
    }
    # Elsewhere the slots are the width of the program, and decide its rounding.
    return content if about["backend"] == "cpu" else content | {"slots": slots}


def _simulated(asked: _Asked, attack: Attack, threat: Threat) -> Run:
    """Builds victims that are drawn from a data set."""
    at_least(1, local_steps=asked.local_steps, batch_size=asked.batch_size)
    given = asked.dataset
    data, guard = load_dataset(given), parse_defense(asked.defense)
    net = model_for(asked.model, data.shape, data.classes)
    batch = asked.batch_size or (1 if threat.reads is Leakage.EXAMPLE else 3)
    setting = Setting(
        clients=asked.victims,
        clients_per_round=asked.victims,
        local_steps=asked.local_steps,
        batch_size=batch,
        rounds=asked.round + threat.looks,
        examples=batch * asked.local_steps,
        learning_rate=LEARNING_RATE,
    )
    scenario = Simulated(
        jax.random.split(jax.random.key(asked.seed))[0],
        net,
        data,
        guard,
        threat.reads,
        setting,
        asked.round,
        _draws(asked, net),
        Knowledge.LABELS in threat.knows,
        Knowledge.DEFENSE in threat.knows,
        Knowledge.PUBLIC_DATA in threat.knows,
        threat.looks,
        None if asked.params is None else _given(net, pathlib.Path(asked.params)),
    )
    scenario = _handed_out(scenario, attack, threat)
    about: dict[str, Any] = {
        "defense": asked.defense if isinstance(asked.defense, str) else guard.name,
        "dataset": given if isinstance(given, str) else data.name,
        "batch_size": batch,
        "local_steps": asked.local_steps,
    }
    if asked.params is not None:
        about["params"] = str(asked.params)
    plan = None
    if published := PAPER_SETTINGS.get(data.name):
        tensors, sizes = len(jax.tree.leaves(scenario.params)), np.bincount(data.labels)
        copies = copies_in(published, sizes.tolist())
        plan = PrivacyPlan(guard, published, copies=copies, tensors=tensors)
    model = _with_columns(scenario)
    return Run(scenario, model, attack, guard, threat, about, plan)


def _with_columns(scenario: Simulated) -> Model:
    """Returns the model with the columns of its data: everybody knows what it reads."""
    columns = scenario.dataset.columns
    return dataclasses.replace(scenario.model, columns=columns)


def _handed_out(scenario: Simulated, attack: Attack, threat: Threat) -> Simulated:
    """Returns the round as it is under this threat: its server may be malicious."""
    if Knowledge.PARAMETERS not in threat.knows:
        return scenario
    return scenario.handing_out(attack.altered)


def _recorded(asked: _Asked, attack: Attack, threat: Threat) -> Run:
    """Builds victims that took part in a round of a recorded training."""
    if asked.draws not in (None, 1):
        raise InputError("a recorded training has one network: draws is 1")
    if asked.params is not None:
        raise InputError("a recorded training has its own parameters")
    if asked.looks != 1:
        raise InputError(
            "a client of a recorded training draws other examples in every round: "
            "looks is 1"
        )
    folder = pathlib.Path(str(asked.run))
    run = recorded_round(folder, asked.round)
    plan, recipe = run.plan, run.training.recipe
    scenario = Simulated.recorded(
        run,
        threat.reads,
        asked.victims,
        Knowledge.LABELS in threat.knows,
        Knowledge.DEFENSE in threat.knows,
        Knowledge.PUBLIC_DATA in threat.knows,
    )
    if asked.model is not None:
        data = plan.data[0]
        scenario = scenario.under(model_for(asked.model, data.shape, data.classes))
    scenario = _handed_out(scenario, attack, threat)
    about = {
        "defense": plan.guard.name,
        "dataset": plan.data[0].name,
        "batch_size": recipe.batch_size,
        "local_steps": recipe.local_steps,
        "run": str(folder),
    }
    tensors = len(jax.tree.leaves(scenario.params))
    spent = plan.privacy(plan.setting.rounds, tensors)
    known = _with_columns(scenario)
    return Run(scenario, known, attack, plan.guard, threat, about, spent)


def _given(model: Model, path: pathlib.Path) -> tuple[PyTree, PyTree]:
    """Returns the parameters and buffers of a file, in the shapes of the model."""
    tensors = read_tensor_file(path)
    params, buffers = arranged(model, tensors, str(path), whole=False)
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {name} holds NaN or infinity")
    own = model.initial_buffers(jax.random.key(0))
    held = jax.tree.map(jnp.asarray, (params, buffers or own))
    return held[0], held[1]


def _draws(asked: _Asked, model: Model) -> int:
    """Returns how many networks are drawn: several where they are untrained."""
    draws, given = asked.draws, asked.params is not None
    if given and draws not in (None, 1):
        raise InputError("the parameters of a file are one network: draws is 1")
    if not (model.drawn or draws in (None, 1)):
        raise InputError(
            f"model {model.name!r} has weights of its own, and every draw would be the "
            "same network: draws is 1 (or redraw=True where it is made)"
        )
    if draws is None:
        once = asked.round or given or not model.drawn
        return 1 if once else min(_DRAWS, asked.victims)
    if not 1 <= draws <= asked.victims:
        raise InputError(
            f"draws must lie in 1..{asked.victims}, the number of victims, got {draws}"
        )
    return draws


def chosen_attack(
    method: str | Attack, iterations: int | None, restarts: int | None
) -> Attack:
    """Returns the attack of a text, or the attack itself, with this budget."""
    if isinstance(method, str):
        return attack_presets.parse(method, iterations, restarts)
    if getattr(type(method), "reconstruct_many", None) is not Attack.reconstruct_many:
        raise InputError(
            f"{type(method).__name__} must be an Attack that defines problem or "
            "reconstruct: the loop over the victims is not its own"
        )
    if iterations is None and restarts is None:
        return method
    return method.budgeted(iterations, restarts)
