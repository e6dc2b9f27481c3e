"""The audit of LDP-SGD as one call, with a result that can be saved and run again."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from gradaudit import environment
from gradaudit.data import load_dataset
from gradaudit.errors import unknown_name
from gradaudit.ldp.adversaries import ADVERSARIES, Adversary
from gradaudit.ldp.audit import play_cells, total_trials
from gradaudit.ldp.bounds import SIGNIFICANCE
from gradaudit.ldp.cells import Cell, plain
from gradaudit.ldp.config import Box, LdpConfig
from gradaudit.ldp.figure import save_epsilon_figure, save_norm_figure
from gradaudit.ldp.results import (
    CAVEATS,
    SCHEMA,
    Counter,
    Progress,
    plain_setting,
    silent,
    write_result,
)
from gradaudit.ldp.server import Server
from gradaudit.ldp.sweep import NormPoint, norm_sweep
from gradaudit.ldp.whitebox import Cosine, LikelihoodRatio, WhiteRule
from gradaudit.models import build_model
from gradaudit.tree import size

WHITE_RULES: dict[str, WhiteRule] = {
    "cosine": Cosine(),
    "likelihood": LikelihoodRatio(),
}
_SERVER = Server()
LIMITATIONS = (
    *CAVEATS,
    "The black box depends on the server's learning rate, which the paper does not "
    "state.",
)


@dataclasses.dataclass(frozen=True)
class LdpReport:
    """An audit of LDP-SGD: cells, sweep if asked for, and how to run it again."""

    settings: dict[str, Any]
    cells: tuple[Cell, ...]
    sweep: tuple[NormPoint, ...]
    seconds: float
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of result.json."""
        return {
            "schema_version": SCHEMA,
            "config": self.settings,
            "environment": environment.describe(),
            "cells": [cell.as_json() for cell in self.cells],
            "sweep": [plain(dataclasses.asdict(point)) for point in self.sweep],
            "timing": {"total_s": round(self.seconds, 3)},
            "interrupted": self.interrupted,
            "limitations": list(LIMITATIONS),
        }

    def save(self, folder: Path) -> Path:
        """Writes result.json and the figures; returns the folder."""
        write_result(folder, self.to_dict())
        if self.cells:
            save_epsilon_figure(self.cells, folder / "figures" / "epsilon.png")
        if self.sweep:
            save_norm_figure(self.sweep, folder / "figures" / "norms.png")
        return folder


def ldp_audit(
    *,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    adversaries: Sequence[str] = tuple(ADVERSARIES),
    boxes: Sequence[Box] = (Box.WHITE, Box.BLACK),
    dataset: str = "digits",
    model: str = "ldp-cnn",
    trials: int = 10_000,
    measurements: int = 10,
    clip: float = 1.0,
    clients: int = 1,
    server: Server = _SERVER,
    white_rule: str = "cosine",
    significance: float = SIGNIFICANCE,
    norms: Sequence[float] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> LdpReport:
    """Measures the privacy that adversaries can refute in LDP-SGD (see `LdpConfig`).

    With `norms` there is also the sweep over the norm of a dummy gradient. An interrupt
    ends the audit early; the report then holds the cells that were finished.
    """
    settings = {key: plain_setting(value) for key, value in locals().items()}
    del settings["progress"]
    config = LdpConfig(
        epsilons=tuple(epsilons),
        adversaries=tuple(_adversary(name) for name in adversaries),
        boxes=tuple(boxes),
        trials=trials,
        measurements=measurements,
        clip=clip,
        clients=clients,
        server=server,
        white_rule=_white_rule(white_rule),
        significance=significance,
        seed=seed,
    )
    data = load_dataset(dataset)
    network = build_model(model, data.shape, data.classes)
    tell = Counter(total_trials(config), progress)
    cells: list[Cell] = []
    sweep: tuple[NormPoint, ...] = ()
    start, interrupted = time.perf_counter(), False
    try:
        for cell in play_cells(network, data, config, advance=tell):
            cells.append(cell)
        if norms:
            shapes = jax.eval_shape(network.init, jax.random.key(0))
            key = jax.random.key(seed)
            sweep = norm_sweep(
                key, size(shapes), config.epsilons, norms, trials, measurements
            )
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.perf_counter() - start
    return LdpReport(settings, tuple(cells), sweep, seconds, interrupted)


def _adversary(name: str) -> Adversary:
    if name not in ADVERSARIES:
        raise unknown_name("adversary", name, [*ADVERSARIES, "all"])
    return ADVERSARIES[name]


def _white_rule(name: str) -> WhiteRule:
    if name not in WHITE_RULES:
        raise unknown_name("white-box rule", name, WHITE_RULES)
    return WHITE_RULES[name]
