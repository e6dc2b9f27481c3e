"""`ga.attack`: draw victims, let them leak, attack, score."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.base import Attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.attack_run import Attacking, Run, Tell
from gradaudit.audit.captured_files import read_tensor_file
from gradaudit.audit.captured_scenario import arranged
from gradaudit.audit.informed import LINE_UPS
from gradaudit.audit.processes import Processes
from gradaudit.audit.resume import Kept
from gradaudit.audit.scenario import MOST_LOOKS, Simulated, one_round
from gradaudit.audit.threat import Threat
from gradaudit.audit.training_plan import recorded_round
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, at_least, check_seed, within_unit
from gradaudit.federation.setting import PAPER_SETTINGS
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.privacy.plan import PrivacyPlan, copies_in
from gradaudit.spec import Spec
from gradaudit.types import Knowledge, Leakage, PyTree

# The victims, their defense, the run in plain words, and the federation that an epsilon
# can be said for, of so many tensors (None if there is none).
_Source = tuple[Simulated, Defense, dict[str, Any], Callable[[int], PrivacyPlan | None]]

DEFAULT_DATASET = "lfw-patches"
_DRAWS = 4  # networks that an untrained run draws, unless it is told otherwise
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
    processes = Processes(*machine.joined())
    kept = Kept(keep, processes)
    with processes.together(kept.take):
        at_least(1, slots=slots)
        built, spec = _Asked(**asked).built(), Spec.of("attack", **asked)
        with kept.open(spec, built.scenario, slots, overwrite):
            return Attacking(built, spec, kept, slots, progress, began).result()


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
        at_least(
            1,
            victims=self.victims,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
        )
        within_unit(success_rmse=self.success_rmse)
        if not self.round >= 0:
            raise InputError(f"round must not be negative, got {self.round}")
        check_seed(self.seed)
        if not 1 <= self.looks <= MOST_LOOKS:
            raise InputError(f"looks must lie in 1..{MOST_LOOKS}, got {self.looks}")
        if not 0 <= self.line_ups <= 10**6:
            raise InputError(f"line_ups must lie in 0..10^6, got {self.line_ups}")

    def built(self) -> Run:
        """Returns the victims, the adversary and the attack, checked together."""
        chosen = chosen_attack(self.method, self.iterations, self.restarts)
        threat = Threat.parse(self.threat, Leakage(self.type), self.looks)
        threat.check(chosen)
        source = self._drawn if self.run is None else self._recorded
        scenario, guard, about, plan_of = source(threat)
        if Knowledge.PARAMETERS in threat.knows:
            scenario = scenario.handing_out(chosen.altered)
        # Everybody knows what the columns of a table are.
        model = dataclasses.replace(scenario.model, columns=scenario.dataset.columns)
        noise_told = Knowledge.DEFENSE in threat.knows and bool(guard.mechanisms)
        about |= {
            "type": self.type,
            "method": self.method if isinstance(self.method, str) else "custom",
            "model": model.name,
            "round": self.round,
            "victims": self.victims,
            "iterations": chosen.iterations,
            "restarts": chosen.restarts,
            "members": [member.name for member in chosen.members],
            "noise_told": noise_told,
            "success_rmse": self.success_rmse,
            "seed": self.seed,
        }
        plan = plan_of(len(jax.tree.leaves(scenario.params)))
        return Run(scenario, model, chosen, guard, threat, about, plan, self.line_ups)

    def _drawn(self, threat: Threat) -> _Source:
        """Returns victims that are drawn from a data set."""
        data, guard = load_dataset(self.dataset), parse_defense(self.defense)
        model = model_for(self.model, data.shape, data.classes)
        batch = self.batch_size or (1 if threat.reads is Leakage.EXAMPLE else 3)
        scenario = Simulated.drawn(
            jax.random.split(jax.random.key(self.seed))[0],
            model,
            data,
            guard,
            threat,
            one_round(self.victims, batch, self.local_steps, self.round + threat.looks),
            self.round,
            self._networks(model),
            None if self.params is None else _given(model, pathlib.Path(self.params)),
        )
        about: dict[str, Any] = {
            "defense": self.defense if isinstance(self.defense, str) else guard.name,
            "dataset": self.dataset if isinstance(self.dataset, str) else data.name,
            "batch_size": batch,
            "local_steps": self.local_steps,
        }
        if self.params is not None:
            about["params"] = str(self.params)

        def plan_of(tensors: int) -> PrivacyPlan | None:
            published = PAPER_SETTINGS.get(data.name)
            if published is None:
                return None
            copies = copies_in(published, np.bincount(data.labels).tolist())
            return PrivacyPlan(guard, published, copies=copies, tensors=tensors)

        return scenario, guard, about, plan_of

    def _networks(self, model: Model) -> int:
        """Returns how many networks are drawn: several where they are untrained."""
        draws, given = self.draws, self.params is not None
        if given and draws not in (None, 1):
            raise InputError("the parameters of a file are one network: draws is 1")
        if not (model.drawn or draws in (None, 1)):
            raise InputError(
                f"model {model.name!r} has weights of its own, and every draw would be "
                "the same network: draws is 1 (or redraw=True where it is made)"
            )
        if draws is not None:
            return draws
        once = self.round or given or not model.drawn
        return 1 if once else min(_DRAWS, self.victims)

    def _recorded(self, threat: Threat) -> _Source:
        """Returns victims that took part in a round of a recorded training."""
        if self.draws not in (None, 1):
            raise InputError("a recorded training has one network: draws is 1")
        if self.params is not None:
            raise InputError("a recorded training has its own parameters")
        if self.looks != 1:
            raise InputError(
                "a client of a recorded training draws other examples in every round: "
                "looks is 1"
            )
        folder = pathlib.Path(str(self.run))
        run = recorded_round(folder, self.round)
        plan, recipe = run.plan, run.training.recipe
        scenario = Simulated.recorded(run, threat, self.victims)
        if self.model is not None:
            data = plan.data[0]
            scenario = scenario.under(model_for(self.model, data.shape, data.classes))
        about = {
            "defense": plan.guard.name,
            "dataset": plan.data[0].name,
            "batch_size": recipe.batch_size,
            "local_steps": recipe.local_steps,
            "run": str(folder),
        }
        spent = functools.partial(plan.privacy, plan.setting.rounds)
        return scenario, plan.guard, about, spent


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
