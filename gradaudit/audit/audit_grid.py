"""The grid of an audit: what was asked, its parts found, and its cells."""

import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from gradaudit.attacks import presets as attack_presets
from gradaudit.attacks.base import Attack
from gradaudit.audit.attack import chosen_attack
from gradaudit.audit.audit_cells import Reads, cell_of, with_equals
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


def check_attacks(plan: AuditPlan, asked: Mapping[str, Sequence[str | Attack]]) -> None:
    """Raises if no attack has a budget that was given, or one asks for too much.

    `asked` are the attacks of each threat.
    """
    budgets = [budget_of(plan, each) for methods in asked.values() for each in methods]
    for name in ("iterations", "restarts"):
        if not (getattr(plan, name) is None or any(each[name] for each in budgets)):
            raise InputError(
                f"none of the attacks of this audit has {name}: leave the option out"
            )
    for threat, methods in asked.items():
        # Where it reads decides nothing here.
        adversary = Threat.parse(threat, Leakage.EXAMPLE)
        for method in methods:
            adversary.check(chosen_attack(method, **budget_of(plan, method)))


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set of the grid, loaded and named."""

    given: str | Dataset
    dataset: Dataset
    model: Model

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
    control: bool  # it is only there to show that the attacks work

    @property
    def text(self) -> str:
        """How it was given."""
        return self.given if isinstance(self.given, str) else self.given.name

    @property
    def name(self) -> str:
        """What the defense calls itself."""
        return self.defense.name

    def acts_before(self, leakage: int) -> bool:
        """Whether any of it acts before what is read there."""
        return bool(transforms_seen(self.defense, Leakage(leakage)))


@dataclasses.dataclass(frozen=True)
class Grid:
    """A plan whose parts were all found: what can be refused has been."""

    plan: AuditPlan
    data: tuple[Data, ...]
    guards: tuple[Guard, ...]

    @classmethod
    def of(cls, plan: AuditPlan) -> "Grid":
        """Reads every part of a plan; raises in words for what can't work."""
        loaded = [(given, load_dataset(given)) for given in plan.datasets]
        data = tuple(
            Data(given, dataset, model_for(plan.model, dataset.shape, dataset.classes))
            for given, dataset in loaded
        )
        defenses = [parse_defense(given) for given in plan.defenses]
        idle = [not transforms_seen(each, Leakage.SERVER) for each in defenses]
        guards = tuple(
            Guard(given, defense, does_nothing and not all(idle))
            for given, defense, does_nothing in zip(
                plan.defenses, defenses, idle, strict=True
            )
        )
        grid = cls(plan, data, guards)
        check_attacks(plan, {each: grid.attacks_of(each) for each in plan.threats})
        return grid

    def attacks_of(self, threat: str) -> tuple[str | Attack, ...]:
        """Returns the attacks of a threat; none for one that plays line-ups."""
        name = threat_name(threat)
        if name == INFORMED:
            return ()
        return self.plan.attacks or (_OWN.get(name, STRONGEST),)

    def _reads(self, guard: Guard, leakage: int, threat: str) -> Reads:
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
        kinds = (
            self._accounting,
            self._mechanism,
            self._norms,
            self._attacks,
            self._line_ups,
            self._training,
        )
        return with_equals(
            cell
            for kind in kinds
            for data in self.data
            for guard in self.guards
            for cell in kind(data, guard)
        )

    def _attacks(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        plan = self.plan
        # Places last: they share no program, and may be compiled side by side.
        for threat in plan.threats:
            for method, leakage in itertools.product(
                self.attacks_of(threat), plan.types
            ):
                spec = Spec.of(
                    "attack",
                    **self._victims(data, guard, leakage),
                    **budget_of(plan, method),
                    method=method,
                    victims=plan.victims,
                    draws=plan.draws,
                    local_steps=plan.local_steps,
                    round=plan.round,
                    threat=threat,
                    success_rmse=plan.success_rmse,
                )
                cell = cell_of(
                    "attack", spec, data.text, guard.text, leakage, threat, method
                )
                yield cell, self._reads(guard, leakage, threat)

    def _line_ups(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        plan = self.plan
        for leakage in plan.types if INFORMED in plan.threats else ():
            # Read once, where no noise averages away.
            noisy = guard.defense.mechanisms and guard.acts_before(leakage)
            spec = Spec.of(
                "line-up",
                **self._victims(data, guard, leakage),
                candidates=plan.candidates,
                looks=plan.looks if noisy else plan.looks[:1],
                victims=plan.line_ups,
                draws=min(4, plan.line_ups),
                local_steps=1 if leakage == Leakage.EXAMPLE else plan.local_steps,
            )
            cell = cell_of(
                "line-up", spec, data.text, guard.text, leakage, INFORMED, "line-up"
            )
            yield cell, self._reads(guard, leakage, INFORMED)

    def _victims(self, data: Data, guard: Guard, leakage: int) -> Plain:
        """Returns the arguments of what reads victims at one place."""
        plan = self.plan
        return {
            "type": leakage,
            "defense": guard.given,
            "dataset": data.given,
            "model": plan.model,
            "batch_size": None if leakage == Leakage.EXAMPLE else plan.batch_size,
            "seed": plan.seed,
        }

    def _accounting(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        name = data.dataset.name
        if guard.defense.mechanisms:
            spec = Spec.of(
                "accounting",
                defense=guard.given,
                setting=self.plan.setting or PAPER_SETTINGS.get(name, Setting()),
                delta=self.plan.delta,
                tensors=len(jax.tree.leaves(data.model.shapes()[0])),
                dataset=name,
            )
            yield cell_of("accounting", spec, data.text, guard.text), None

    def _mechanism(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        plan = self.plan
        noises = [m.multiplier(0) for m in guard.defense.mechanisms]
        if plan.mechanism_trials and noises and min(noises) > 0:
            spec = Spec.of(
                "ldp-mechanism",
                mechanism=guard.given,
                dataset=data.given,
                model=data.model,
                trials=plan.mechanism_trials,
                delta=plan.delta,
                seed=plan.seed,
            )
            yield cell_of("mechanism", spec, data.text, guard.text), None

    def _norms(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        plan = self.plan
        # The places at which a defense has changed what is read, each once.
        reads = {self._reads(guard, t, "curious"): t for t in plan.types[::-1]}
        changed = [t for (_, seen, *_), t in reads.items() if any(seen)][::-1]
        if changed:
            spec = Spec.of(
                "norms",
                types=tuple(changed),
                defense=guard.given,
                dataset=data.given,
                model=plan.model,
                victims=plan.victims,
                draws=min(4, plan.victims),
                batch_size=plan.batch_size,
                local_steps=plan.local_steps,
                seed=plan.seed,
            )
            yield cell_of("norms", spec, data.text, guard.text), None

    def _training(self, data: Data, guard: Guard) -> Iterator[tuple[Plain, Reads]]:
        plan = self.plan
        if plan.train_rounds:
            usual = plan.setting or default_setting(data.dataset.name)
            spec = Spec.of(
                "train",
                dataset=data.given,
                defense=guard.given,
                setting=dataclasses.replace(usual, rounds=plan.train_rounds),
                seed=plan.seed,
                delta=plan.delta,
                evaluate_every=max(1, plan.train_rounds // 10),
            )
            yield cell_of("training", spec, data.text, guard.text), None

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


def threat_name(threat: str) -> str:
    """Returns a threat's name, without what is granted beside."""
    return threat.partition("+")[0].strip()
