"""How much noise is enough: the least sigma whose certificate allows no more."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from gradaudit import machine
from gradaudit.audit.informed import line_up, with_sigma
from gradaudit.audit.line_up_cells import DOUBT, Cell, line_ups_of
from gradaudit.audit.train import train as run_training
from gradaudit.audit.training_plan import default_setting
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation.training import Progress, Stopped
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import Certificate, certificate, least_sigma
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report import figures_of_privacy, metrics
from gradaudit.report.result import RunResult
from gradaudit.spec import Spec

Tell = Callable[[str, int, int], None]  # what is running, how much is done, of what
# Arguments that decide no number: a spec does not hold them.
_NO_NUMBERS = ("keep", "overwrite", "progress")
# Arguments that line-ups do not have.
_OWN = ("max_success", "defense", "whole_training", "train", "rounds", "around")
# Times the least sigma, for the figure: fewer where each of them is trained under.
_AROUND, _TRAINED = (0.25, 0.5, 1.0, 2.0, 4.0), (0.25, 1.0, 4.0)


@dataclasses.dataclass(frozen=True)
class Point:
    """What one noise multiplier costs and buys."""

    sigma: float
    certified: Certificate
    line_up: Cell
    accuracy: float | None = None

    @property
    def measured(self) -> metrics.Rate:
        """How often the victim was picked."""
        return self.line_up.measured


@dataclasses.dataclass(frozen=True)
class EnoughResult(RunResult):
    """The least noise, and points around it."""

    about: dict[str, Any]
    sigma: float
    limit: float
    points: tuple[Point, ...]

    @property
    def chosen(self) -> Point:
        """The point at the least sigma."""
        return next(point for point in self.points if point.sigma == self.sigma)

    @property
    def broken(self) -> tuple[Cell, ...]:
        """The line-ups in which the noise can't be what the defense says it is."""
        cells = [point.line_up for point in self.points]
        return tuple(cell for cell in cells if cell.breaks(DOUBT / len(cells)))

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        return {
            "about": self.about,
            "metrics": {
                "sigma": self.sigma,
                "max_success": self.limit,
                "certified": self.chosen.certified.to_dict(),
                "measured": dataclasses.asdict(self.chosen.measured),
                "accuracy": self.chosen.accuracy,
                "certificate_broken": len(self.broken),
            },
            "points": self.rows()["points.csv"],
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns points.csv."""
        return {
            "points.csv": [
                {
                    "sigma": point.sigma,
                    "certified": point.certified.value,
                    "measured": point.measured.value,
                    "low": point.measured.low,
                    "high": point.measured.high,
                    "accuracy": point.accuracy,
                }
                for point in self.points
            ]
        }

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns sigma against measured, certified and, if trained, accuracy."""
        return {"figures/enough.png": lambda: figures_of_privacy.enough_figure(self)}


def enough_noise(
    max_success: float,
    defense: str | Defense = "fed-cdp",
    type: int = 2,  # noqa: A002 - the contract's word
    candidates: int = 10,
    looks: int = 1,
    whole_training: bool = False,
    dataset: str | Dataset = "lfw-patches",
    model: str | Model | None = None,
    victims: int = 400,
    draws: int = 4,
    batch_size: int | None = None,
    candidates_from: str = "label",
    train: bool = False,
    rounds: int | None = None,
    around: Sequence[float] | None = None,
    seed: int = 0,
    keep: pathlib.Path | str | None = None,
    overwrite: bool = False,
    progress: Tell = lambda text, done, total: None,
) -> EnoughResult:
    """Returns the least sigma under which nobody picks more often than allowed.

    Args:
      max_success: how often the victim may be picked out of the candidates.
      defense: a defense with a parameter sigma, or its name.
      type: where the adversary reads.
      candidates: n of the line-up.
      looks: how often it reads the victim.
      whole_training: certify one example over the whole training of the data set's
        setting instead, batches secret; the line-ups still have `looks`.
      dataset: a dataset, its name, or a path to your own file.
      model: a model or its name; with `train` by default the one that is trained.
      victims: line-ups that are played for each sigma.
      draws: of the network.
      batch_size: examples of a client's step, for types 0 and 1.
      candidates_from: as for `line_up`.
      train: also train under each sigma, for the accuracy that is left.
      rounds: of these trainings; the data set's setting by default.
      around: times the least sigma, which other ones are shown beside it; by default
        five from a quarter to four times, three with `train`.
      seed: everything random follows from it.
      keep: a folder in which the trainings are kept as they go, so that the same
        calibration goes on with them.
      overwrite: train anew, whatever is in `keep`.
      progress: is told what is running, how much of it is done, and of how much.
    """
    asked = {k: v for k, v in locals().items() if k not in _NO_NUMBERS}
    machine.configure()
    guard = parse_defense(defense)
    if train and not isinstance(dataset, str):
        raise InputError(
            "training needs the name of a data set with a train and a test split"
        )
    if train and model is None:
        images = len(load_dataset(str(dataset)).shape) == 3
        model = "cnn" if images else "mlp"
    shared = {k: v for k, v in asked.items() if k not in _OWN} | {"model": model}
    table = line_ups_of(**shared, local_steps=1, fresh=False)

    def certified_by(sigma: float) -> Certificate:
        noisy = with_sigma(guard, sigma)
        if not whole_training:
            return table.certified(noisy, candidates, looks)
        plan = PrivacyPlan(
            noisy, default_setting(table.dataset.name), tensors=table.tensors
        )
        return certificate(plan, type=type, candidates=candidates)

    sigma = least_sigma(max_success, certified_by)
    if around is None:
        around = _TRAINED if train else _AROUND
    # The least first: whoever interrupts has an answer.
    swept = [sigma, *sorted({sigma * factor for factor in around} - {sigma})]
    played = line_up(
        defense=guard,
        sigmas=swept,
        progress=lambda done, total: progress("picking", done, total),
        **shared,
    )
    points = [
        Point(each, certified_by(each), cell)
        for each, cell in zip(swept, played.cells, strict=False)
    ]
    interrupted = played.interrupted
    if train and not interrupted:
        points, interrupted = _with_accuracies(
            points, asked, guard, model, keep, overwrite, progress
        )
    return EnoughResult(
        spec=Spec.of("calibrate", **asked),
        about=played.about | {"whole_training": whole_training},
        environment=machine.describe(),
        sigma=sigma,
        limit=max_success,
        points=tuple(sorted(points, key=lambda point: point.sigma)),
        limitations=played.limitations,
        interrupted=interrupted,
    )


def _with_accuracies(
    points: list[Point],
    asked: dict[str, Any],
    defense: Defense,
    model: str | Model | None,
    keep: pathlib.Path | str | None,
    overwrite: bool,
    progress: Tell,
) -> tuple[list[Point], bool]:
    """Trains under each sigma, for the accuracy that is left; whether Ctrl-C came."""
    setting = default_setting(asked["dataset"])
    if asked["rounds"] is not None:
        setting = dataclasses.replace(setting, rounds=asked["rounds"])
    total, found = setting.rounds * len(points), list(points)
    for index, point in enumerate(points):

        def tell(made: Progress, before: int = index * setting.rounds) -> None:
            done = made.last.round if made.last is not None else 0
            progress("training", before + done, total)

        try:
            trained = run_training(
                asked["dataset"],
                with_sigma(defense, point.sigma),
                model,
                setting=setting,
                seed=asked["seed"],
                evaluate_every=setting.rounds,
                out=keep and pathlib.Path(keep, "runs", f"{point.sigma:.6g}"),
                overwrite=overwrite,
                on_round=tell,
            )
        except KeyboardInterrupt:  # before the first round
            return found, True
        if trained.stopped is Stopped.INTERRUPTED:
            return found, True
        found[index] = dataclasses.replace(point, accuracy=trained.accuracy)
    return found, False
