"""The grid of an audit: what was asked, and its cells as plain data.

A cell is a spec (a command and its described arguments) with a name: it can be sent to
another process, and its folder's name follows from what it does. Equal cells of two
audits are one.
"""

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.base import Attack
from gradaudit.audit.attack import chosen_attack
from gradaudit.audit.audit_plan import AuditPlan
from gradaudit.audit.threat import Threat, transforms_seen
from gradaudit.audit.training_plan import default_setting
from gradaudit.data import CATALOGUE, Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation.setting import PAPER_SETTINGS, Setting
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.spec import Spec
from gradaudit.types import Knowledge, Leakage

Plain = dict[str, Any]

STRONGEST = "strongest"  # the preset: whatever is known to be, for any threat
_OWN = {"malicious": "imprint"}  # whose attack nobody else can run
INFORMED = "informed"  # its adversary picks out of candidates: a line-up
_LONGEST = 48  # letters of a name inside a cell's id
_UNTRAINED = "The networks are untrained: later rounds may leak less or more."
_LINE_UPS_UNTRAINED = "Line-ups are played on untrained networks."


def budget_of(plan: AuditPlan, method: str | Attack) -> dict[str, int | None]:
    """Returns the plan's iterations and restarts, each None if the attack has none.

    A budget is of the whole grid, where closed forms may stand beside searches.
    """

    def has(name: str) -> bool:
        if isinstance(method, str):
            known = attack_presets.PRESETS.get(method.partition(":")[0])
            return known is None or name in inspect.signature(known.make).parameters
        try:
            method.budgeted(**{"iterations": None, "restarts": None} | {name: 1})
        except InputError:
            return False
        return True

    asked = {"iterations": plan.iterations, "restarts": plan.restarts}
    return {n: v if v is not None and has(n) else None for n, v in asked.items()}


def check_budget(plan: AuditPlan, methods: Sequence[str | Attack]) -> None:
    """Raises if a budget was given that none of the attacks has."""
    budgets = [budget_of(plan, method) for method in methods]
    for name in ("iterations", "restarts"):
        if not (getattr(plan, name) is None or any(each[name] for each in budgets)):
            raise InputError(
                f"none of the attacks of this audit has {name}: leave the option out"
            )


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set of the grid, loaded and named."""

    given: str | Dataset
    dataset: Dataset
    model: Model
    tensors: int

    @property
    def text(self) -> str:
        """How it was given."""
        return self.given if isinstance(self.given, str) else self.given.name

    def plain(self) -> Plain:
        """Returns what audit.json says of it."""
        return {
            "text": self.text,
            "name": self.dataset.name,
            "public": isinstance(self.given, str) and self.given in CATALOGUE,
            "shape": list(self.dataset.shape),
            "classes": self.dataset.classes,
            "examples": len(self.dataset),
        }


@dataclasses.dataclass(frozen=True)
class Guard:
    """A defense of the grid, read and named."""

    given: str | Defense
    defense: Defense

    @property
    def text(self) -> str:
        """How it was given."""
        return self.given if isinstance(self.given, str) else self.given.name

    @property
    def name(self) -> str:
        """What the defense calls itself."""
        return self.defense.name

    @property
    def idle(self) -> bool:
        """Whether it does nothing at all."""
        return not transforms_seen(self.defense, Leakage.SERVER)


@dataclasses.dataclass(frozen=True)
class Grid:
    """A plan whose parts were all found: what can be refused has been."""

    plan: AuditPlan
    data: tuple[Data, ...]
    guards: tuple[Guard, ...]

    @classmethod
    def of(cls, plan: AuditPlan) -> "Grid":
        """Reads every part of a plan; raises in words for what can't work."""
        data = tuple(_data(plan, given) for given in plan.datasets)
        guards = tuple(Guard(each, parse_defense(each)) for each in plan.defenses)
        grid = cls(plan, data, guards)
        asked = {each: grid.attacks_of(each) for each in plan.threats}
        check_budget(plan, [method for each in asked.values() for method in each])
        for threat, methods in asked.items():
            adversary = Threat.parse(threat, Leakage.EXAMPLE)
            for method in methods:
                adversary.check(chosen_attack(method, **budget_of(plan, method)))
        return grid

    def attacks_of(self, threat: str) -> tuple[str | Attack, ...]:
        """Returns the attacks of a threat; none for one that plays line-ups."""
        name = threat.partition("+")[0].strip()
        if name == INFORMED:
            return ()
        return self.plan.attacks or (_OWN.get(name, STRONGEST),)

    def is_control(self, guard: Guard) -> bool:
        """Returns whether it is only there to show that the attacks work."""
        return guard.idle and not all(each.idle for each in self.guards)

    def _reads(self, guard: Guard, leakage: int, threat: str) -> Any:
        """Returns what decides what an adversary reads and is told.

        Where it is equal, observations are equal to the bit and so is whatever comes of
        them: an adversary at the server reads what one at the client does if nothing
        stands between them, and a defense that acts later is none.
        """
        place, defense = Leakage(leakage), guard.defense
        # Point by point: the same noise on examples and on updates is not the same.
        seen = (
            defense.per_example,
            defense.update if place is not Leakage.EXAMPLE else (),
            defense.server if place is Leakage.SERVER else (),
        )
        known = Threat.parse(threat, place).knows
        about_defense = {Knowledge.DEFENSE, Knowledge.PUBLIC_DATA}
        told = any(seen) and Knowledge.DEFENSE in known
        return place is Leakage.EXAMPLE, seen, told, known - about_defense

    def cells(self) -> list[Plain]:
        """Returns every cell, the quick ones and the telling ones first.

        One that has a `same_as` needs not be run: it is that other cell, to the digit.
        """
        found = [
            *self._accounting(),
            *self._mechanisms(),
            *self._norms(),
            *self._attacks(),
            *self._line_ups(),
            *self._trainings(),
        ]
        first: dict[Any, str] = {}
        cells = []
        for cell, reads in found:
            key = cell["kind"], cell["dataset"], cell["method"], reads
            same = None if reads is None else first.setdefault(key, cell["id"])
            cells.append(cell | {"same_as": None if same == cell["id"] else same})
        return cells

    def _attacks(self) -> Iterator[tuple[Plain, Any]]:
        # Places last: they share no program, and may be compiled side by side.
        for data in self.data:
            for guard in self.guards:
                for threat in self.plan.threats:
                    for method in self.attacks_of(threat):
                        for leakage in self.plan.types:
                            cell = self._attack(data, leakage, guard, threat, method)
                            yield cell, self._reads(guard, leakage, threat)

    def _attack(
        self,
        data: Data,
        leakage: int,
        guard: Guard,
        threat: str,
        method: str | Attack,
    ) -> Plain:
        plan = self.plan
        spec = Spec.of(
            "attack", type=leakage, method=method, defense=guard.given,
            dataset=data.given, model=plan.model, victims=plan.victims,
            draws=plan.draws, batch_size=_batch(plan, leakage),
            local_steps=plan.local_steps, round=plan.round, threat=threat,
            **budget_of(plan, method), success_rmse=plan.success_rmse, seed=plan.seed,
        )  # fmt: skip
        label = method if isinstance(method, str) else type(method).__name__
        return self._cell("attack", spec, data, guard, leakage, threat, label)

    def _line_ups(self) -> Iterator[tuple[Plain, Any]]:
        plan = self.plan
        if INFORMED not in plan.threats:
            return
        for data in self.data:
            for guard in self.guards:
                for leakage in plan.types:
                    alone = leakage == Leakage.EXAMPLE
                    spec = Spec.of(
                        "line-up", type=leakage, defense=guard.given,
                        dataset=data.given, model=plan.model,
                        candidates=plan.candidates, looks=self._looks(guard, leakage),
                        victims=plan.line_ups, draws=min(4, plan.line_ups),
                        batch_size=_batch(plan, leakage),
                        local_steps=1 if alone else plan.local_steps, seed=plan.seed,
                    )  # fmt: skip
                    cell = self._cell(
                        "line-up", spec, data, guard, leakage, INFORMED, "line-up"
                    )
                    yield cell, self._reads(guard, leakage, INFORMED)

    def _looks(self, guard: Guard, leakage: int) -> tuple[int, ...]:
        """Returns how often a victim is read: once, where no noise averages away."""
        noisy = guard.defense.mechanisms and transforms_seen(
            guard.defense, Leakage(leakage)
        )
        return self.plan.looks if noisy else self.plan.looks[:1]

    def _accounting(self) -> Iterator[tuple[Plain, Any]]:
        plan = self.plan
        for data in self.data:
            setting = plan.setting or PAPER_SETTINGS.get(data.dataset.name, Setting())
            for guard in self.guards:
                if guard.defense.mechanisms:
                    spec = Spec.of(
                        "accounting", defense=guard.given, setting=setting,
                        delta=plan.delta, tensors=data.tensors,
                        dataset=data.dataset.name,
                    )  # fmt: skip
                    yield self._cell("accounting", spec, data, guard), None

    def _mechanisms(self) -> Iterator[tuple[Plain, Any]]:
        plan = self.plan
        for data in self.data:
            for guard in self.guards:
                noises = [m.multiplier(0) for m in guard.defense.mechanisms]
                if plan.mechanism_trials and noises and min(noises) > 0:
                    spec = Spec.of(
                        "ldp-mechanism", mechanism=guard.given, dataset=data.given,
                        model=data.model, trials=plan.mechanism_trials,
                        delta=plan.delta, seed=plan.seed,
                    )  # fmt: skip
                    yield self._cell("mechanism", spec, data, guard), None

    def _changed(self, guard: Guard) -> tuple[int, ...]:
        """Returns the places at which a defense has changed what is read, each once."""
        reads = {self._reads(guard, t, "curious"): t for t in self.plan.types[::-1]}
        return tuple(t for (_, seen, *_), t in reads.items() if any(seen))[::-1]

    def _norms(self) -> Iterator[tuple[Plain, Any]]:
        plan = self.plan
        for data in self.data:
            for guard in self.guards:
                if self._changed(guard):
                    spec = Spec.of(
                        "norms", types=self._changed(guard), defense=guard.given,
                        dataset=data.given, model=plan.model, victims=plan.victims,
                        draws=min(4, plan.victims), batch_size=plan.batch_size,
                        local_steps=plan.local_steps, seed=plan.seed,
                    )  # fmt: skip
                    yield self._cell("norms", spec, data, guard), None

    def _trainings(self) -> Iterator[tuple[Plain, Any]]:
        plan = self.plan
        if not plan.train_rounds:
            return
        for data in self.data:
            usual = plan.setting or default_setting(data.dataset.name)
            setting = dataclasses.replace(usual, rounds=plan.train_rounds)
            for guard in self.guards:
                spec = Spec.of(
                    "train", dataset=data.given, defense=guard.given, setting=setting,
                    seed=plan.seed, delta=plan.delta,
                    evaluate_every=max(1, plan.train_rounds // 10),
                )  # fmt: skip
                yield self._cell("training", spec, data, guard), None

    def _cell(
        self,
        kind: str,
        spec: Spec,
        data: Data,
        guard: Guard,
        leakage: int | None = None,
        threat: str = "",
        method: str = "",
    ) -> Plain:
        return cell_of(kind, spec, data.text, guard.text, leakage, threat, method)

    def remarks(self, cells: Sequence[Plain]) -> list[str]:
        """Returns what holds of the audit as a whole."""
        found = []
        if self.plan.round == 0:
            found.append(_UNTRAINED)
        elif any(cell["kind"] == "line-up" for cell in cells):
            found.append(_LINE_UPS_UNTRAINED)
        if self.plan.setting is None and any(g.defense.mechanisms for g in self.guards):
            found.append(
                "No federation was described: epsilon is that of the data set's "
                "published one, or of the papers' MNIST."
            )
        return found


def cell_of(
    kind: str,
    spec: Spec,
    data: str,
    guard: str,
    leakage: int | None = None,
    threat: str = "",
    method: str = "",
) -> Plain:
    """Returns a cell as plain data: its id follows from what it does."""
    for argument, value in spec.arguments.items():
        said = next(_undescribed(value), None)
        if said is not None:
            raise InputError(
                f"the cells of an audit are plain data, and {argument} is not: {said}"
            )
    where = [] if leakage is None else [f"type {leakage}", threat]
    name = " · ".join([*(where or [kind]), guard, data])
    labels = {
        "kind": kind,
        "name": name if method in ("", "line-up") else f"{name} · {method}",
        "dataset": data,
        "defense": guard,
        "type": leakage,
        "threat": threat,
        "method": method,
    }
    whole = labels | {"spec": spec.plain()}
    text = json.dumps(whole, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    words = [kind, *(str(leakage), threat) * (leakage is not None), guard]
    return {"id": f"{_slug('-'.join(map(str, words)))}-{digest}", **whole}


def _undescribed(value: Any) -> Iterator[str]:
    """Yields why parts of a described value can't be rebuilt."""
    if isinstance(value, dict):
        if "undescribed" in value:
            yield str(value["undescribed"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _undescribed(each)


def _slug(text: str) -> str:
    """Returns letters, digits and dashes: a name that any folder can have."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower().encode("ascii", "ignore").decode())
    return plain.strip("-")[:_LONGEST].strip("-") or "cell"


def _data(plan: AuditPlan, given: str | Dataset) -> Data:
    dataset = load_dataset(given)
    model = model_for(plan.model, dataset.shape, dataset.classes)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return Data(given, dataset, model, len(jax.tree.leaves(shapes)))


def _batch(plan: AuditPlan, leakage: int) -> int | None:
    return None if leakage == Leakage.EXAMPLE else plan.batch_size
