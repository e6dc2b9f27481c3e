"""Cells that attack: what is kept of an attack, and its sizes at every scale."""

import dataclasses
from typing import Any

from gradaudit.audit.attack import attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.benchmarks.suite import Cell, Context, Entry, Plain, Scale, number

# A stalled victim stops early: its objective fell by less than 1 % in 5 iterations.
STALL = "patience=5"
# Where Wei & Liu 2022 call a reconstruction a success.
_GENEROUS_MSE = 0.70
BATCHES = {"mnist": 5, "lfw-patches": 3, "cifar10": 4, "fashion-mnist": 5, "digits": 2}


@dataclasses.dataclass(frozen=True)
class Victims:
    """How many are attacked, on how many draws of the network."""

    examples: int  # type 2
    clients: int  # types 0 and 1
    draws: int


VICTIMS = {
    Scale.SMOKE: Victims(2, 2, 1),
    Scale.SMALL: Victims(20, 10, 10),
    Scale.PAPER: Victims(100, 60, 10),
}


def attacking(name: str, scale: Scale, seed: int, **arguments: Any) -> Cell:
    """Returns the cell that attacks as many victims as the scale has."""
    own, kind = VICTIMS[scale], arguments.get("type", 2)
    dataset = arguments["dataset"]
    victims = arguments.get("victims", own.examples if kind == 2 else own.clients)
    given = {
        "type": kind,
        "defense": "none",
        "threat": "curious",
        "victims": victims,
        "draws": own.draws,
        "seed": seed,
        **arguments,
    }
    if kind != 2:
        given.setdefault("batch_size", BATCHES[dataset])
    if scale is Scale.SMOKE:
        # One compiled program serves all: what differs is on the victims' side.
        given |= {"iterations": 2, "dataset": "digits", "model": "dpfl-2conv"}
        given |= {"batch_size": 1} if kind != 2 else {}
        given["line_ups"] = 0  # no table shows them
        given["method"] = f"cpl:{STALL}"
    method = str(given["method"]).partition(":")[0]
    return Cell(
        name,
        measure_attack,
        given,
        datasets=(given["dataset"],),
        kind=f"{method} on {dataset}, type {kind}",
        units=victims,
        sample={"victims": 4, "draws": 1},
    )


def measure_attack(context: Context, **arguments: Any) -> Plain:
    """Attacks; returns rates, errors, iterations and what a victim takes."""

    def progress(done: int, total: int) -> None:
        context.tell("attacking", done, total)

    result = attack(**arguments, keep=context.folder, progress=progress)
    if result.interrupted:
        raise KeyboardInterrupt
    return summary(result)


def summary(result: AttackResult) -> Plain:
    """Returns what the tables show of an attack."""
    whole = result.to_dict()
    metrics, scores = whole["metrics"], result.scores
    generous = sum(score.rmse_raw**2 < _GENEROUS_MSE for score in scores)
    return {
        "victims": whole["victims"]["asked"],
        "draws": [draw["asr"] for draw in whole["draws"]],
        "asr": metrics["asr"],
        "examples_rebuilt": metrics["examples_rebuilt"],
        "rmse": metrics["rmse"],
        "below_mse_0.70": generous / whole["victims"]["asked"],
        "iterations": metrics["iterations"],
        "evaluations": metrics["evaluations"]["median"],
        "labels": metrics["label_accuracy"],
        "members": metrics["members"],
        "unsolved": metrics["unsolved"],
        "ended": whole["ended"],
        "timing": {
            **whole["timing"],
            "seconds_per_unit": whole["timing"]["run_s"] / whole["victims"]["asked"],
        },
    }


def rate(cell: Plain | None, published: float | None = None) -> Entry:
    """Returns the success rate with its interval."""
    printed = "" if published is None else number(published)
    if cell is None:
        return Entry("–", printed)
    asr = cell["asr"]
    return Entry(f"{asr['value']:.2f} [{asr['low']:.2f}, {asr['high']:.2f}]", printed)


def error(cell: Plain | None, published: float | None = None) -> Entry:
    """Returns the median RMSE."""
    value = None if cell is None else cell["rmse"]["median"]
    return Entry(number(value), "" if published is None else number(published))


def iterations(cell: Plain | None, published: float | None = None) -> Entry:
    """Returns the median iterations of the successes; the cap where there is none."""
    value = None
    if cell is not None:
        value = cell["iterations"]["median"] or cell["iterations"]["cap"]
    printed = "" if published is None else f"{published:g}"
    return Entry("–" if value is None else f"{value:g}", printed)


def resilient(cell: Plain | None, published: bool | None = None) -> Entry:
    """Returns whether fewer than half are rebuilt, whatever the interval allows."""
    value = None if cell is None else cell["asr"]["high"] < 0.5
    return Entry(number(value), "" if published is None else number(published))
