"""`ga.ldp_audit`: LDP-SGD against six adversaries, cell by cell."""

import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.data import Dataset, load_dataset
from gradaudit.distinguish import bounds, whitebox
from gradaudit.distinguish.blackbox import BlackGame, Server, play_black
from gradaudit.distinguish.bounds import Cell, Family, Measured, Verdict
from gradaudit.distinguish.crafters import (
    ADVERSARIES,
    Adversary,
    bystander_gradients,
    draw_scene,
)
from gradaudit.distinguish.game import (
    Box,
    Crafted,
    Report,
    Tell,
    Trials,
    check_trials,
    reporting,
)
from gradaudit.distinguish.whitebox import NormPoint, WhiteRule, by_cosine
from gradaudit.errors import InputError, at_least, check_seed, named, positive
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.report import figures_of_privacy as figures
from gradaudit.report.result import SCHEMA_VERSION, Result
from gradaudit.spec import Spec
from gradaudit.tree import size
from gradaudit.types import Key, PyTree

PAPER_TRIALS = 10_000  # Matsumoto et al. 2022, section 4.1
BLACK_TRIALS = 2_000  # by default: a black-box trial costs 1,000 white-box ones

_SERVER = Server()
# What keys are folded with, so that no two purposes share one: 1 + i is the i-th scene.
_PARAMETERS, _SCENES, _GAMES, _SWEEP = 0, 1, 2**31, 2**31 + 1


@dataclasses.dataclass(frozen=True)
class LdpConfig:
    """Six adversaries, two boxes, four epsilons, 10 measurements of 10,000 trials.

    The defaults are Matsumoto et al. 2022, section 4.1, but for `black_trials` (None:
    as many as in the white box, but at most 2,000). `clients` is the number of clients
    whose answers one update averages (Table 3); only the black box sees it.
    `significance` is of the whole table: see `Family`.
    """

    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    adversaries: tuple[Adversary, ...] = tuple(ADVERSARIES.values())
    boxes: tuple[Box, ...] = (Box.WHITE, Box.BLACK)
    trials: int = PAPER_TRIALS
    black_trials: int | None = None
    measurements: int = 10
    clip: float = 1.0
    clients: int = 1
    server: Server = _SERVER
    white_rule: WhiteRule = by_cosine
    significance: float = bounds.SIGNIFICANCE
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", tuple(map(float, self.epsilons)))
        names = [adversary.name for adversary in self.adversaries]
        for what, chosen in (
            ("epsilon", self.epsilons),
            ("adversary", names),
            ("box", self.boxes),
        ):
            if not len(chosen):
                raise InputError(f"name at least one {what}")
            if len(set(chosen)) != len(chosen):
                raise InputError(f"an {what} is named twice")
        for epsilon in self.epsilons:
            bounds.check_epsilon(epsilon)
        for box in self.boxes:
            check_trials(self.trials_of(box))
        at_least(1, 10_000, measurements=self.measurements)
        positive(clip=self.clip)
        at_least(1, clients=self.clients)
        bounds.check_significance(self.significance)
        check_seed(self.seed)

    @property
    def family(self) -> Family:
        """All cells of the table, whose bounds hold together."""
        cells = len(self.adversaries) * len(self.boxes) * len(self.epsilons)
        return Family(cells, self.significance)

    def trials_of(self, box: Box) -> int:
        """Returns the trials of one measurement in this box."""
        if box is Box.WHITE:
            return self.trials
        if self.black_trials is None:
            return min(self.trials, BLACK_TRIALS)
        return self.black_trials

    @property
    def total_trials(self) -> int:
        """How many trials `play_cells` will report."""
        games = len(self.adversaries) * self.measurements * len(self.epsilons)
        return games * sum(self.trials_of(box) for box in self.boxes)


def play_cells(
    model: Model,
    dataset: Dataset,
    config: LdpConfig,
    params: PyTree | None = None,
    report: Report = lambda label, trials: None,
) -> Iterator[Cell]:
    """Yields the cells as they are finished, so that an interrupt loses one game.

    Args:
      model: the global model.
      dataset: where the pairs of inputs are drawn from; every measurement has its own.
      config: adversaries, boxes, epsilons, trials.
      params: the global parameters; fresh ones when absent.
      report: told about progress.
    """
    key = jax.random.key(config.seed)
    if jax.tree.leaves(jax.eval_shape(model.initial_buffers, key)):
        raise InputError(
            f"model {model.name!r} keeps running statistics (batch norm), and the "
            "games compare gradients of single inputs: choose a model without them"
        )
    if params is None:
        params = model.init(jax.random.fold_in(key, _PARAMETERS))
    scenes = []
    for index in range(config.measurements):
        scene_key = jax.random.fold_in(key, _SCENES + index)
        scenes.append(draw_scene(scene_key, model, params, dataset, config.clip))
    for adversary in config.adversaries:
        # By name: a cell does not depend on which other adversaries were asked for.
        name = zlib.crc32(adversary.name.encode())
        game_key = jax.random.fold_in(jax.random.fold_in(key, _GAMES), name)
        crafted = []
        for scene in scenes:
            made = adversary.craft(scene)
            made.gradients.block_until_ready()  # nothing runs on behind an interrupt
            crafted.append(_CraftedPair.of(made, config))
            report(f"{adversary.name}, crafting", 0)
        for box in config.boxes:
            row = _Row(model, dataset, config, adversary, box, report)
            yield from row.cells(game_key, crafted)


@dataclasses.dataclass(frozen=True)
class _CraftedPair:
    """What a crafter made, and what is exactly known of it for every epsilon."""

    crafted: Crafted
    norm: float  # of g1
    laws: list[whitebox.PairLaw]
    attainable: list[float]

    @classmethod
    def of(cls, crafted: Crafted, config: LdpConfig) -> "_CraftedPair":
        """Returns it with its laws, for both boxes."""
        gradients = np.asarray(crafted.gradients)
        laws = [whitebox.pair_law(gradients, e, config.clip) for e in config.epsilons]
        norm = float(jnp.linalg.norm(crafted.gradients[0]))
        return cls(crafted, norm, laws, list(map(whitebox.attainable_epsilon, laws)))


@dataclasses.dataclass(frozen=True)
class _Row:
    """The cells of one adversary in one box, for every epsilon."""

    model: Model
    dataset: Dataset
    config: LdpConfig
    adversary: Adversary
    box: Box
    report: Report

    def cells(self, key: Key, crafted: list[_CraftedPair]) -> Iterator[Cell]:
        """Yields a cell per epsilon; measurement i has the key fold_in(key, i)."""
        config, name = self.config, self.adversary.name
        rows = [
            self._measure(jax.random.fold_in(key, number), entry)
            for number, entry in enumerate(crafted)
        ]
        columns = zip(*rows, strict=True)
        for epsilon, column in zip(config.epsilons, columns, strict=True):
            yield bounds.make_cell(name, self.box, epsilon, column, config.family)

    def _measure(self, key: Key, made: _CraftedPair) -> list[Measured]:
        """Returns one measurement for every epsilon."""
        exact: list[float | None] = [None] * len(made.laws)
        if self.box is Box.BLACK:
            played: Sequence[Trials] = self._black(key, made.crafted)
        else:
            played = self._white(key, made.laws)
            if self.config.white_rule is by_cosine:
                exact = list(map(whitebox.exact_epsilon, made.laws))
        return [
            Measured(trials, made.norm, known, attainable)
            for trials, known, attainable in zip(
                played, exact, made.attainable, strict=True
            )
        ]

    def _white(self, key: Key, laws: list[whitebox.PairLaw]) -> list[Trials]:
        rule, trials = self.config.white_rule, self.config.trials
        played = []
        for index, law in enumerate(laws):
            game_key = jax.random.fold_in(key, index)
            played.append(whitebox.play_white(game_key, law, rule, trials))
            self.report(f"{self.adversary.name}, white box", trials)
        return played

    def _black(self, key: Key, crafted: Crafted) -> tuple[Trials, ...]:
        config, name = self.config, self.adversary.name
        bystander_key, game_key = jax.random.split(jax.random.fold_in(key, 2**20))
        others = bystander_gradients(
            bystander_key, self.model, crafted, self.dataset, config.clients - 1
        )

        def advance(trials: int) -> None:
            self.report(f"{name}, black box", trials * len(config.epsilons))

        rule = self.adversary.black_rule
        game = BlackGame(self.model, config.server, rule, config.clip)
        trials = config.trials_of(Box.BLACK)
        return play_black(
            game_key, game, crafted, others, config.epsilons, trials, advance
        )


@dataclasses.dataclass(frozen=True)
class LdpReport(Result):
    """An audit of LDP-SGD: cells, sweep if asked for, and how to run it again."""

    spec: Spec
    config: LdpConfig
    cells: tuple[Cell, ...]
    sweep: tuple[NormPoint, ...]
    seconds: float
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of result.json."""
        family, verdicts = self.config.family, [cell.verdict for cell in self.cells]
        return {
            "schema_version": SCHEMA_VERSION,
            "spec": self.spec.plain(),
            "environment": machine.describe(),
            "status": "interrupted" if self.interrupted else "done",
            "metrics": {
                "cells": len(verdicts),
                **{kind.value: verdicts.count(kind) for kind in Verdict},
            },
            "family": {
                "cells": family.cells,
                "significance": family.significance,
                "per_cell": family.per_cell,
                "correction": "Bonferroni",
            },
            "cells": [cell.plain() for cell in self.cells],
            "sweep": [dataclasses.asdict(point) for point in self.sweep],
            "timing": {"total_s": round(self.seconds, 3)},
            "limitations": [
                *bounds.CAVEATS,
                "The black box depends on the server's learning rate, which the paper "
                "does not state.",
            ],
        }

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns epsilon.png, and norms.png if there was a sweep."""
        drawn: dict[str, Callable[[], Any]] = {}
        if self.cells:
            drawn["figures/epsilon.png"] = lambda: figures.epsilon(self)
        if self.sweep:
            drawn["figures/norms.png"] = lambda: figures.norm_figure(self.sweep)
        return drawn


def ldp_audit(
    *,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    adversaries: Sequence[str] = tuple(ADVERSARIES),
    boxes: Sequence[Box] = (Box.WHITE, Box.BLACK),
    dataset: str = "digits",
    model: str = "ldp-cnn",
    trials: int = PAPER_TRIALS,
    black_trials: int | None = None,
    measurements: int = 10,
    clip: float = 1.0,
    clients: int = 1,
    server: Server = _SERVER,
    white_rule: str = "cosine",
    significance: float = bounds.SIGNIFICANCE,
    norms: Sequence[float] = (),
    seed: int = 0,
    progress: Tell | None = None,
) -> LdpReport:
    """Measures the privacy that adversaries can refute in LDP-SGD (see `LdpConfig`).

    With `norms` there is also the sweep over the norm of a dummy gradient. SIGINT and
    SIGTERM end the audit early; the report then holds the cells that were finished.
    `progress(label, done, total)` is told about the trials.
    """
    arguments = dict(locals())
    del arguments["progress"]
    config = LdpConfig(
        epsilons=tuple(epsilons),
        adversaries=tuple(named("adversary", n, ADVERSARIES) for n in adversaries),
        boxes=tuple(boxes),
        trials=trials,
        black_trials=black_trials,
        measurements=measurements,
        clip=clip,
        clients=clients,
        server=server,
        white_rule=named("white-box rule", white_rule, whitebox.WHITE_RULES),
        significance=significance,
        seed=seed,
    )
    whitebox.check_norms(norms)
    spec = Spec.of("ldp", **arguments)
    machine.configure()
    data = load_dataset(dataset)
    network = build_model(model, data.shape, data.classes)
    start = time.perf_counter()
    cells, sweep, interrupted = _play(network, data, config, tuple(norms), progress)
    seconds = time.perf_counter() - start
    return LdpReport(spec, config, cells, sweep, seconds, interrupted)


def _play(
    model: Model,
    dataset: Dataset,
    config: LdpConfig,
    norms: tuple[float, ...],
    tell: Tell | None,
) -> tuple[tuple[Cell, ...], tuple[NormPoint, ...], bool]:
    """Returns the cells, the sweep, and whether a signal ended them early."""
    cells: list[Cell] = []
    sweep: tuple[NormPoint, ...] = ()
    with reporting(config.total_trials, tell) as report:
        try:
            for cell in play_cells(model, dataset, config, report=report):
                cells.append(cell)
            if norms:
                root = jax.random.key(config.seed)
                sweep = whitebox.norm_sweep(
                    jax.random.fold_in(root, _SWEEP),
                    size(jax.eval_shape(model.init, root)),
                    config.epsilons,
                    norms,
                    config.trials,
                    config.measurements,
                    lambda trials: report("norm sweep", 0),
                )
        except KeyboardInterrupt:
            return tuple(cells), (), True
    return tuple(cells), sweep, False
