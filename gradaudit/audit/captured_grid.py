"""The grid of an audit of captured updates: a column for each run of your system.

A folder of recordings is a run; a folder of such folders is one run each, named like
them. `none` beside others is the control. An adversary reads what was recorded at its
place; an aware one also knows the defense, as the sidecars claim it.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from gradaudit import files
from gradaudit.attacks.base import Attack
from gradaudit.audit.audit_cells import Reads, cell_of, with_equals
from gradaudit.audit.audit_grid import (
    INFORMED,
    STRONGEST,
    budget_of,
    check_attacks,
    threat_name,
)
from gradaudit.audit.audit_plan import AuditPlan
from gradaudit.audit.captured_files import find, read_capture
from gradaudit.audit.captured_scenario import UNKNOWN
from gradaudit.audit.mechanism_check import Claim, claimed
from gradaudit.defenses.clipping import Clip, Scope
from gradaudit.defenses.noise import plain_gaussian, plain_laplace
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import Defense, defend
from gradaudit.errors import InputError
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.record import PLACES
from gradaudit.spec import Spec

Plain = dict[str, Any]
CONTROL = "none"
# What the recordings decide themselves.
_DECIDED = (
    "datasets", "defenses", "types", "draws", "batch_size", "local_steps", "round",
    "candidates", "looks", "line_ups", "mechanism_trials", "setting", "delta",
    "train_rounds",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """The recordings of one run of the system, under one claim."""

    text: str
    folder: pathlib.Path
    claim: Plain | None
    places: tuple[str, ...]  # that an adversary reads
    updates: int
    control: bool  # it is only there to show that the attacks work

    @property
    def name(self) -> str:
        """What the defense calls itself."""
        return str((self.claim or {}).get("mechanism") or self.text)

    def told(self, place: str) -> Defense | None:
        """Returns the defense as it was set up, to who knows it; None if unknown.

        What was typed as its sensitivity scales the noise, whatever that claims.
        """
        claim = self.claim or {}
        said = Claim.of(claim)
        clip = None if place == "aggregate" else said.clip
        noise = said.noise_std
        if claim.get("sensitivity") and claim.get("epsilon"):
            noise = Claim.of({**claim, "clip": claim["sensitivity"]}).noise_std
        parts: list[Any] = [Clip(Constant(clip), Scope.GLOBAL)] if clip else []
        if noise and said.law == "laplace":
            parts.append(plain_laplace(noise / math.sqrt(2)))
        elif noise:
            parts.append(plain_gaussian(noise))
        return defend(self.name, update=tuple(parts)) if parts else None


@dataclasses.dataclass(frozen=True)
class Updates:
    """What the updates are of, as far as the model tells."""

    text: str
    model: Model
    examples: int

    def plain(self) -> Plain:
        """Returns what audit.json says of it."""
        return {
            "text": self.text,
            "name": UNKNOWN,
            "public": False,
            "shape": list(self.model.input_shape),
            "classes": self.model.classes,
            "examples": self.examples,
        }


@dataclasses.dataclass(frozen=True)
class CapturedGrid:
    """A plan whose recordings were all read: what can be refused has been."""

    plan: AuditPlan
    data: tuple[Updates, ...]
    guards: tuple[Run, ...]

    @classmethod
    def of(cls, plan: AuditPlan) -> "CapturedGrid":
        """Reads every recording of a plan; raises in words for what can't work."""
        usual = {field.name: field.default for field in dataclasses.fields(plan)}
        for name in _DECIDED:
            if getattr(plan, name) != usual[name]:
                raise InputError(
                    f"an audit of captured updates can't choose {name}: what was "
                    "recorded decides it; leave it out"
                )
        folder = pathlib.Path(plan.captured or "")
        if plan.model is None:
            raise InputError(
                "captured updates need the client's model: --model "
                "path/to/file.py:build"
            )
        found = _runs(folder)
        runs = tuple(
            _run(name, inside, control=name == CONTROL and len(found) > 1)
            for name, inside in found
        )
        model = model_for(plan.model)
        updates = Updates(str(folder), model, sum(run.updates for run in runs))
        grid = cls(plan, (updates,), runs)
        if not grid.threats:
            raise InputError(
                "captured updates are read by curious and aware adversaries; line-ups "
                "of your candidates: gradaudit attack --captured ... --candidates"
            )
        check_attacks(plan, dict.fromkeys(grid.threats, grid.attacks))
        return grid

    @property
    def threats(self) -> tuple[str, ...]:
        """Those of the plan that need no candidates."""
        return tuple(
            threat for threat in self.plan.threats if threat_name(threat) != INFORMED
        )

    @property
    def attacks(self) -> tuple[str | Attack, ...]:
        """Those of the plan; the strongest by default."""
        return self.plan.attacks or (STRONGEST,)

    def cells(self) -> list[Plain]:
        """Returns every cell; one with a `same_as` is that other cell."""
        checks = [(self._check(run), None) for run in self.guards]
        attacks = [cell for run in self.guards for cell in self._attacks(run)]
        return with_equals([*checks, *attacks])

    def _check(self, run: Run) -> Plain:
        spec = _of_folders("captured-check", captured=str(run.folder))
        return cell_of("mechanism", spec, self.data[0].text, run.text)

    def _attacks(self, run: Run) -> Iterator[tuple[Plain, Reads]]:
        plan, name = self.plan, self.data[0].text
        for place, method, threat in itertools.product(
            run.places, self.attacks, self.threats
        ):
            told = run.told(place) if threat.startswith("aware") else None
            spec = _of_folders(
                "attack-captured",
                captured=str(run.folder),
                model=plan.model,
                truth=_truth(plan, run),
                method=method,
                defense="none" if told is None else told,
                threat=threat,
                place=place,
                victims=plan.victims,
                **budget_of(plan, method),
                success_rmse=plan.success_rmse,
                seed=plan.seed,
            )
            type_ = PLACES[place]
            cell = cell_of(
                "attack", spec, f"{name} ({place})", run.text, type_, threat, method
            )
            known = threat if told else threat.replace("aware", "curious")
            yield cell | {"dataset": name}, (run.text, place, known)

    def remarks(self, cells: Sequence[Plain]) -> list[str]:
        """Returns what holds of the audit as a whole."""
        del cells
        found = [
            "Only what was recorded was attacked: other rounds, clients and batches "
            "may leak less or more.",
            "An aware adversary takes the defense to be what was recorded as claimed.",
        ]
        if self.plan.truth is None:
            found.append(
                "No truth was given: 'determined' means that independent starts agree "
                "on an answer that explains what was sent."
            )
        return found


def _runs(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """Returns the runs in a folder by name: its folders of recordings, or itself."""
    recordings = find(folder)
    inside = sorted({path.relative_to(folder).parts[:1] for path in recordings})
    direct = [path for path in recordings if path.parent == folder or path == folder]
    if direct:
        if len(direct) != len(recordings):
            raise InputError(
                f"{folder} holds recordings ({direct[0].name}, ...) and folders of "
                "them: give each run a folder of its own"
            )
        return [(folder.resolve().name, folder)]
    return [(parts[0], folder / parts[0]) for parts in inside]


def _run(name: str, folder: pathlib.Path, control: bool) -> Run:
    captures = [read_capture(path) for path in find(folder)]
    places = {capture.facts.place for capture in captures}
    # Whoever reads what was sent does not see it before the defense.
    read = [place for place in PLACES if place in places - {"raw"}] or ["raw"]
    sent = [capture.facts for capture in captures if capture.facts.place != "raw"]
    counted = sent or [capture.facts for capture in captures]
    return Run(
        text=name,
        folder=folder,
        claim=claimed(captures),
        places=tuple(read),
        updates=sum((f.batch_size or 1) * (f.local_steps or 1) for f in counted),
        control=control,
    )


def _truth(plan: AuditPlan, run: Run) -> str | None:
    """Returns the truth of a run: of its own folder, or of all."""
    if plan.truth is None:
        return None
    own = pathlib.Path(plan.truth) / run.text
    return str(own if own.is_dir() else plan.truth)


def _of_folders(command: str, **arguments: Any) -> Spec:
    """Returns a spec that also keeps what is in the folders: they may be recorded anew.

    So that an audit never shows figures of updates that are no longer there.
    """
    spec = Spec.of(command, **arguments)
    found = {
        path: files.digest(pathlib.Path(path))
        for path in (arguments[n] for n in ("captured", "truth") if n in arguments)
        if path is not None
    }
    return dataclasses.replace(spec, sources={**spec.sources, **found})
