"""The informed adversary: `ga.line_up`, and what stands beside an attack under noise.

A failed attack proves nothing. The line-up is the lower end of what somebody reaches,
the certificate the upper end of what anybody does.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gradaudit import machine
from gradaudit.audit.line_up_cells import (
    DOUBT,
    LOOK_AT,
    Cell,
    From,
    LineUps,
    line_ups_of,
)
from gradaudit.audit.threat import Threat, transforms_seen
from gradaudit.data import Dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation.recipe import ServerState
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import near
from gradaudit.report import figures
from gradaudit.report.result import RunResult
from gradaudit.report.verdict import beats
from gradaudit.spec import Spec
from gradaudit.types import Leakage

Tell = Callable[[int, int], None]  # line-ups done, line-ups in all


@dataclasses.dataclass(frozen=True)
class LineUpResult(RunResult):
    """Everything of one line-up command."""

    about: dict[str, Any]
    threat: dict[str, Any]
    cells: tuple[Cell, ...]
    timing: dict[str, float]

    @property
    def broken(self) -> tuple[Cell, ...]:
        """The cells in which the noise can't be what the defense says it is."""
        doubt = DOUBT / len(self.cells)
        return tuple(cell for cell in self.cells if cell.breaks(doubt))

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        return {
            "about": self.about,
            "threat": self.threat,
            "metrics": {
                "cells": [cell.to_dict() for cell in self.cells],
                "certificate_broken": len(self.broken),
            },
            "timing": self.timing,
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns line_ups.csv, a row for each cell."""
        found = []
        for cell in self.cells:
            rate = cell.measured
            found.append(
                {
                    "sigma": cell.sigma,
                    "candidates": cell.candidates,
                    "looks": cell.looks,
                    "line_ups": sum(cell.line_ups),
                    "picked": sum(cell.hits),
                    "measured": rate.value,
                    "low": rate.low,
                    "high": rate.high,
                    "certified": cell.certified.value,
                    "guessing": cell.guessing,
                }
            )
        return {"line_ups.csv": found}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns measured, certified and guessing over looks or sigma."""
        return {"figures/line_up.png": lambda: figures.line_up(self)}


def line_up(
    type: int = 2,  # noqa: A002 - the contract's word
    defense: str | Defense = "fed-cdp",
    dataset: str | Dataset = "lfw-patches",
    model: str | Model | None = None,
    candidates: int | Sequence[int] = 10,
    looks: int | Sequence[int] = 1,
    sigmas: Sequence[float] = (),
    victims: int = 400,
    draws: int = 4,
    batch_size: int | None = None,
    local_steps: int = 1,
    candidates_from: str = "label",
    fresh: bool = False,
    seed: int = 0,
    progress: Tell | None = None,
) -> LineUpResult:
    """Lets an informed adversary pick victims out of line-ups, and certifies it.

    Args:
      type: 2: which of n examples had this gradient; 1, 0: which of n clients'
        batches had this update, at the client or at the server.
      defense: a defense, or its name with parameters (`fed-cdp:clip=4,sigma=6`).
      dataset: a dataset, its name, or a path to your own file.
      model: a model or its name; by default `cpl` for images and `mlp` for tables.
      candidates: n, one number or several.
      looks: independent readings of the victim, one number or several.
      sigmas: noise multipliers to go through instead of the defense's own.
      victims: how many line-ups are played for each cell.
      draws: how many times the network is drawn, line-ups dealt over the draws.
      batch_size: examples of a client's step; 1 for type 2 and 3 for types 0, 1.
      local_steps: local steps of the client; more than one is approximated by the
        first gradient, so that the adversary is weaker than it could be.
      candidates_from: `label` (of the victim's labels), `any`, or `worst`: constructed
        gradients that are as far apart as the clip allows.
      fresh: every look has a new draw of the parameters; else all looks share one.
      seed: everything random follows from it.
      progress: is told (line-ups done, line-ups in all).
    """
    asked = {k: v for k, v in locals().items() if k != "progress"}
    machine.configure()
    began = time.perf_counter()
    guard = parse_defense(defense)
    shared = {k: v for k, v in asked.items() if k not in ("defense", "sigmas")}
    table = line_ups_of(**shared)
    defenses = [(sigma, with_sigma(guard, sigma)) for sigma in sigmas]
    cells, interrupted = play_cells(table, defenses or [(None, guard)], progress)
    words = {k: v for k, v in asked.items() if isinstance(v, str | int | float | bool)}
    about = words | {
        "defense": defense if isinstance(defense, str) else guard.name,
        "dataset": table.dataset.name,
        "model": table.model.name,
        "batch_size": table.batch,
        "tensors": table.tensors,
        "candidates": list(table.candidates),
        "looks": list(table.looks),
    }
    seconds = time.perf_counter() - began
    played = sum(sum(cell.line_ups) for cell in cells)
    return LineUpResult(
        spec=Spec.of("line-up", **asked),
        about=about,
        threat=_threat(table),
        environment=machine.describe(),
        cells=tuple(cells),
        timing={"total_s": seconds, "line_ups_per_s": played / seconds},
        limitations=tuple(_limitations(table, guard)),
        interrupted=interrupted,
    )


def play_cells(
    table: LineUps,
    defenses: Sequence[tuple[float | None, Defense]],
    progress: Tell | None,
) -> tuple[list[Cell], bool]:
    """Plays everything; Ctrl-C keeps the cells' line-ups that were played."""
    kinds = [(n, k) for n in table.candidates for k in table.looks]
    total = table.line_ups * len(kinds) * len(defenses)
    done, interrupted, cells = 0, False, []
    for sigma, guard in defenses:
        counts = {kind: np.zeros((table.draws, 2), int) for kind in kinds}
        try:
            for n, k, draw, won, played in table.play(
                jax.random.key(table.seed), guard
            ):
                counts[n, k][draw] += (won, played)
                done += played
                if progress is not None:
                    progress(done, total)
        except KeyboardInterrupt:
            interrupted = True
        for (n, k), each in counts.items():
            begun = each[each[:, 1] > 0]
            if len(begun):
                won, played = (tuple(map(int, row)) for row in begun.T)
                bound = table.certified(guard, n, k)
                cells.append(Cell(sigma, n, k, won, played, bound))
        if interrupted:
            break
    if not cells:
        raise KeyboardInterrupt("interrupted before the first line-up")
    return cells, interrupted


def with_sigma(defense: Defense, sigma: float) -> Defense:
    """Returns the same defense with another noise multiplier."""
    parameters = dict(defense.parameters)
    if "sigma" not in parameters or defense.made_by is None:
        raise InputError(
            f"defense {defense.name!r} has no parameter sigma that could be varied; "
            "choose one that does, as fed-cdp"
        )
    return defense.made_by(**(parameters | {"sigma": float(sigma)}))


def _threat(table: LineUps) -> dict[str, Any]:
    adversary = Threat.parse("informed", table.leakage)
    return {
        "name": adversary.name,
        "type": int(table.leakage),
        "looks": list(table.looks),
        "looks_at": "fresh parameters" if table.fresh else "the same parameters",
        **adversary.in_words(),
        "selection": "the candidate under which what was read is likeliest",
    }


def _limitations(table: LineUps, defense: Defense) -> list[str]:
    sentences = [
        "The adversary knows that one of the candidates is the victim, and nothing "
        "else about it; knowing more, it would pick more often, with or without "
        "reading.",
    ]
    if table.source is From.WORST:
        sentences.append(
            "The gradients are constructed: no data need have such; they test the "
            "noise, not the data."
        )
    if table.local_steps > 1:
        sentences.append(
            "Several local steps are approximated by the first: the adversary is "
            "weaker than it could be."
        )
    if not transforms_seen(defense, table.leakage):
        sentences.append(
            f"{defense.name} acts after the point that type {int(table.leakage)} reads."
        )
    return sentences


LINE_UPS = 100  # unless another number is asked for
_CANDIDATES = 10
_DRAWS = 4  # networks of the attack that are also used here, at most
_EXAMPLES = 64  # of a client's round: beyond, the first gradient says next to nothing
_HALF = DOUBT / 2  # a false alarm of the line-up, and one of the attack


def line_up_and_certificates(
    model: Model,
    dataset: Dataset,
    defense: Defense,
    leakage: Leakage,
    states: Sequence[ServerState],
    *,
    batch_size: int,
    local_steps: int,
    success_rmse: float,
    seed: int,
    line_ups: int = LINE_UPS,
    looks: int = 1,
) -> dict[str, Any] | None:
    """Returns a short line-up and both certificates, as result.json has them.

    The line-ups are of the attack's own networks (`states`, one for each draw), in the
    attack's round (of several looks the last: noise that changes gets less), with other
    clients of the same data. None without noise, where there
    is nothing to certify, and without `states`, where the round was not ours. Costs
    well under a second once its two programs are compiled; with `line_ups` = 0 nothing
    is compiled or played, and the line-up has its certificate only.
    """
    if not defense.mechanisms or not states:
        return None
    alone = leakage is Leakage.EXAMPLE
    batch, steps = (1, 1) if alone else (batch_size, local_steps)
    most = int(np.bincount(dataset.labels).max())
    count = max(2, min(_CANDIDATES, most)) if alone else _CANDIDATES
    used = tuple(states[: min(_DRAWS, max(line_ups, 1))])
    table = LineUps(
        model=model,
        dataset=dataset,
        leakage=leakage,
        batch=batch,
        local_steps=steps,
        candidates=(count,),
        looks=(looks,),
        line_ups=max(line_ups, 1),
        draws=len(used),
        source=From.LABEL,
        fresh=False,
        seed=seed,
        states=used,
    )
    enough = most >= (count if alone else batch * steps)
    if line_ups and enough and batch * steps <= _EXAMPLES:
        (cell,), _ = play_cells(table, [(None, defense)], None)
        played = cell.to_dict() | {"broken": cell.breaks(_HALF)}
    else:
        played = {
            "candidates": count,
            "looks": looks,
            "line_ups": 0,
            "measured": None,
            "certified": table.certified(defense, count, looks).to_dict(),
            "guessing": 1 / count,
            "broken": False,
        }
    prior = near(dataset.inputs, success_rmse, batch * steps)
    rebuilt = table.certified(defense, prior, looks)
    return {
        "line_up": played,
        "reconstruction": rebuilt.to_dict() | {"threshold": success_rmse},
    }


def broken_certificates(
    found: dict[str, Any] | None, successes: int, victims: int
) -> list[str]:
    """Returns what was measured above its certificate, in words; nothing if all holds.

    Certificates bound every victim on its own, whatever the network, so that all are
    counted together; a false alarm of either kind has 1.25 %.
    """
    if found is None:
        return []
    sentences, line_up = [], found["line_up"]
    if line_up["broken"]:
        sentences.append(
            f"one of {line_up['candidates']}: picked {line_up['measured']['value']:.3f}"
            f", certified {line_up['certified']['value']:.3f}. {LOOK_AT}"
        )
    bound = found["reconstruction"]["value"]
    if bound is not None and beats(successes, victims, bound, _HALF):
        sentences.append(
            f"{successes} of {victims} victims were rebuilt, certified "
            f"{bound:.3f}. {LOOK_AT}"
        )
    return sentences
