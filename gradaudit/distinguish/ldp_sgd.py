"""`ga.ldp_audit`: LDP-SGD against six adversaries, cell by cell."""

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.data import Dataset, load_dataset
from gradaudit.distinguish import blackbox, whitebox
from gradaudit.distinguish.adversaries import ADVERSARIES, Adversary, LdpConfig
from gradaudit.distinguish.blackbox import Server
from gradaudit.distinguish.bounds import SIGNIFICANCE, check_epsilon, empirical_epsilon
from gradaudit.distinguish.cells import (
    CAVEATS,
    SCHEMA,
    Cell,
    Counter,
    Measured,
    Progress,
    make_cell,
    mean,
    plain,
    plain_setting,
    silent,
    spread,
    write_result,
)
from gradaudit.distinguish.crafters import (
    Crafted,
    bystander_gradients,
    draw_scene,
)
from gradaudit.distinguish.game import Box, Trials, check_trials
from gradaudit.distinguish.law import attainable_epsilon, cosine_rates, pair_law
from gradaudit.distinguish.whitebox import Cosine, LikelihoodRatio, WhiteRule, play
from gradaudit.errors import require, unknown_name
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.report.figures import save_epsilon_figure, save_norm_figure
from gradaudit.tree import size
from gradaudit.types import Key, PyTree

Advance = Callable[[str, int], None]  # what is running, and the trials just played


def _silent(label: str, trials: int) -> None:
    """Ignores progress."""


@dataclasses.dataclass(frozen=True)
class LdpResult:
    """The cells of a finished audit, in the order adversary, box, epsilon."""

    config: LdpConfig
    cells: tuple[Cell, ...]

    def cell(self, adversary: str, box: Box, epsilon: float) -> Cell:
        """Returns one cell."""
        for cell in self.cells:
            if (cell.adversary, cell.box, cell.epsilon) == (adversary, box, epsilon):
                return cell
        raise KeyError((adversary, box, epsilon))

    def as_json(self) -> list[dict[str, Any]]:
        """Returns the cells as plain values."""
        return [cell.as_json() for cell in self.cells]


def total_trials(config: LdpConfig) -> int:
    """Returns how many trials `play_cells` will report to `advance`."""
    return (
        len(config.adversaries)
        * len(config.boxes)
        * config.measurements
        * config.trials
        * len(config.epsilons)
    )


def audit(
    model: Model,
    dataset: Dataset,
    config: LdpConfig,
    params: PyTree | None = None,
    advance: Advance = _silent,
) -> LdpResult:
    """Returns every cell of the configuration (see `play_cells`)."""
    return LdpResult(config, tuple(play_cells(model, dataset, config, params, advance)))


def play_cells(
    model: Model,
    dataset: Dataset,
    config: LdpConfig,
    params: PyTree | None = None,
    advance: Advance = _silent,
) -> Iterator[Cell]:
    """Yields the cells as they are finished, so that an interrupt loses one game.

    Args:
      model: the global model.
      dataset: where the pairs of inputs are drawn from; every measurement has its own.
      config: adversaries, boxes, epsilons, trials.
      params: the global parameters; fresh ones when absent.
      advance: told about progress.
    """
    key = jax.random.key(config.seed)
    if params is None:
        params = _fresh_parameters(model, jax.random.fold_in(key, 0))
    scenes = [
        draw_scene(
            jax.random.fold_in(key, 1 + index), model, params, dataset, config.clip
        )
        for index in range(config.measurements)
    ]
    for adversary in config.adversaries:
        # By name: a cell does not depend on which other adversaries were asked for.
        name = zlib.crc32(adversary.name.encode())
        game_key = jax.random.fold_in(jax.random.fold_in(key, 2**31), name)
        crafted = [adversary.crafter.craft(scene) for scene in scenes]
        for box in config.boxes:
            rows = [
                _measure(
                    jax.random.fold_in(game_key, number),
                    _Setting(model, dataset, config, adversary, box, advance),
                    entry,
                )
                for number, entry in enumerate(crafted)
            ]
            for epsilon, column in zip(
                config.epsilons, zip(*rows, strict=True), strict=True
            ):
                yield make_cell(
                    adversary.name, box, epsilon, list(column), config.significance
                )


@functools.partial(jax.jit, static_argnums=0)
def _fresh_parameters(model: Model, key: Key) -> PyTree:
    return model.init(key)


@dataclasses.dataclass(frozen=True)
class _Setting:
    model: Model
    dataset: Dataset
    config: LdpConfig
    adversary: Adversary
    box: Box
    advance: Advance


def _measure(key: Key, setting: _Setting, crafted: Crafted) -> list[Measured]:
    """Returns one measurement for every epsilon."""
    config = setting.config
    norm = float(jnp.linalg.norm(crafted.gradients[0]))
    play = _play_white if setting.box is Box.WHITE else _play_black
    laws = [pair_law(crafted.gradients, e, config.clip) for e in config.epsilons]
    exact_known = setting.box is Box.WHITE and config.white_rule == whitebox.Cosine()
    return [
        Measured(
            trials=trials,
            gradient_norm=norm,
            exact=empirical_epsilon(*cosine_rates(law)) if exact_known else None,
            attainable=attainable_epsilon(law),
        )
        for trials, law in zip(play(key, setting, crafted), laws, strict=True)
    ]


def _play_white(key: Key, setting: _Setting, crafted: Crafted) -> tuple[Trials, ...]:
    config, played = setting.config, []
    for index, epsilon in enumerate(config.epsilons):
        law = pair_law(crafted.gradients, epsilon, config.clip)
        game_key = jax.random.fold_in(key, index)
        played.append(whitebox.play(game_key, law, config.white_rule, config.trials))
        setting.advance(f"{setting.adversary.name}, white box", config.trials)
    return tuple(played)


def _play_black(key: Key, setting: _Setting, crafted: Crafted) -> tuple[Trials, ...]:
    config = setting.config
    bystander_key, game_key = jax.random.split(jax.random.fold_in(key, 2**20))
    return blackbox.play_black(
        game_key,
        blackbox.BlackGame(
            setting.model, config.server, setting.adversary.black_rule, config.clip
        ),
        crafted,
        bystander_gradients(
            bystander_key, setting.model, crafted, setting.dataset, config.clients - 1
        ),
        config.epsilons,
        config.trials,
        lambda trials: setting.advance(
            f"{setting.adversary.name}, black box", trials * len(config.epsilons)
        ),
    )


@dataclasses.dataclass(frozen=True)
class NormPoint:
    """White-box epsilon of a dummy gradient of one norm."""

    norm: float  # in units of the clip
    epsilon: float  # the theoretical one
    mean: float
    spread: float
    exact: float  # equation 3 of the exact rates


def norm_sweep(
    key: Key,
    size: int,
    epsilons: Sequence[float],
    norms: Sequence[float],
    trials: int = 10_000,
    measurements: int = 10,
) -> tuple[NormPoint, ...]:
    """Returns a point for every norm and epsilon, for gradients of `size` numbers."""
    check_trials(trials)
    points = []
    for row, norm in enumerate(norms):
        require(norm > 0, f"the norm of a dummy gradient must be positive, got {norm}")
        gradient = np.full(size, norm / size**0.5)
        for column, epsilon in enumerate(epsilons):
            check_epsilon(epsilon)
            law = pair_law(np.stack([gradient, -gradient]), epsilon, clip=1.0)
            values = []
            for index in range(measurements):
                game_key = jax.random.fold_in(
                    key, (row * len(epsilons) + column) * measurements + index
                )
                errors = play(game_key, law, Cosine(), trials).errors()
                values.append(empirical_epsilon(errors.fp, errors.fn))
            exact = empirical_epsilon(*cosine_rates(law))
            points.append(NormPoint(norm, epsilon, mean(values), spread(values), exact))
    return tuple(points)


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
            "environment": machine.describe(),
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
