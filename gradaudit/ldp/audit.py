"""The audit of LDP-SGD: adversaries x boxes x epsilons on a model and its data."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit.data import Dataset
from gradaudit.ldp import blackbox, whitebox
from gradaudit.ldp.adversaries import Adversary
from gradaudit.ldp.bounds import empirical_epsilon
from gradaudit.ldp.cells import Cell, Measured, make_cell
from gradaudit.ldp.config import Box, LdpConfig
from gradaudit.ldp.crafters import Crafted
from gradaudit.ldp.law import attainable_epsilon, cosine_rates, pair_law
from gradaudit.ldp.scenes import bystander_gradients, draw_scene
from gradaudit.ldp.trials import Trials
from gradaudit.types import Key, Model, PyTree

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
    return blackbox.play(
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
