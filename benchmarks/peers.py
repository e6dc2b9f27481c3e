"""`peers`: head to head with what installs from the package index today.

The same network, weights, victims, starts and budget on both sides, in one run. Peers
live in an environment of their own (see `peer_room`).
"""

import dataclasses
import json
import pathlib
import statistics
import subprocess
import tempfile

import numpy as np

from gradaudit import machine
from gradaudit.attacks import presets
from gradaudit.attacks.matching import Matching
from gradaudit.benchmarks import peer_worker
from gradaudit.benchmarks.attack_race import Problem, run_ours
from gradaudit.benchmarks.peer_room import PACKAGES, peer_python
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Context,
    Entry,
    Measured,
    Missing,
    Plain,
    Row,
    Scale,
    Table,
    found,
    number,
)

_SUCCESS = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """One attack as both sides name it."""

    ours: str  # with its parameters
    theirs: str  # breaching's configuration
    dataset: str
    iterations: int


JOBS = {
    "DLG, MNIST": Job("dlg", "deepleakage", "mnist", 100),
    "DLG, photos": Job("dlg", "deepleakage", "photos", 100),
    "Inverting Gradients, photos": Job("gradinv", "invertinggradients", "photos", 600),
    "CPL, photos": Job("cpl", "wei", "photos", 100),
}


def measure_job(
    context: Context,
    *,
    ours: str,
    theirs: str,
    dataset: str,
    iterations: int,
    victims: int,
    draws: int,
    seed: int,
) -> Plain:
    """Attacks the same victims on several draws of the network with both."""
    machine.configure()
    python = peer_python(lambda text: context.tell(text, 0, 1))
    attack = presets.parse(ours, iterations=iterations)
    assert isinstance(attack, Matching)
    sides: dict[str, list[Plain]] = {"gradaudit": [], "breaching": []}
    for draw in range(draws):
        context.tell("attacking", draw, draws)
        problem = Problem.draw(attack, dataset, victims, seed + draw)
        sides["gradaudit"].append(run_ours(problem, repeats=1))
        sides["breaching"].append(_theirs(python, problem, theirs, iterations, victims))
    return {
        name: _together(parts, victims * draws) for name, parts in sides.items()
    } | {"versions": sides["breaching"][0]["versions"]}


def _theirs(
    python: pathlib.Path, problem: Problem, config: str, iterations: int, count: int
) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "problem.npz"
        np.savez(path, **problem.for_torch(count))  # type: ignore[arg-type]
        command = [
            str(python),
            peer_worker.__file__,
            str(path),
            config,
            str(iterations),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no words"]
        raise Missing(f"breaching does not run here: {lines[-1]}")
    answer: Plain = json.loads(done.stdout.splitlines()[-1])
    return answer


def _together(parts: list[Plain], victims: int) -> Plain:
    errors = [value for part in parts for value in part["rmse"]]

    def per_victim(key: str) -> float:
        total = sum(
            sum(part[key]) if isinstance(part[key], list) else part[key]
            for part in parts
        )
        return float(total / victims)

    compiling = sum(part.get("compile_seconds", 0.0) for part in parts)
    return {
        "victims": victims,
        "successes": sum(error <= _SUCCESS for error in errors),
        "rmse_median": statistics.median(errors),
        "timing": {
            "seconds_per_victim": per_victim("seconds"),
            "cpu_seconds_per_victim": per_victim("cpu_seconds"),
            "compile_seconds": compiling,
        },
    }


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the jobs; none at the smallest scale, which installs nothing."""
    if scale is Scale.SMOKE:
        return []
    own = {"victims": 2, "draws": 4} if scale is Scale.SMALL else {}
    own = own or {"victims": 8, "draws": 10}
    return [
        Cell(
            name,
            measure_job,
            dataclasses.asdict(job) | own | {"seed": seed},
            datasets=(job.dataset,),
        )
        for name, job in JOBS.items()
    ]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns success, error and seconds of both sides."""
    rows: list[Row] = []
    for name, job in JOBS.items():
        for side in ("gradaudit", "breaching"):
            own = found(measured, name, side)
            if own is None:
                continue
            timing = own["timing"]
            rows.append(
                [
                    name,
                    side,
                    Entry(f"{own['successes']} of {own['victims']}"),
                    Entry(number(own["rmse_median"])),
                    str(job.iterations),
                    Entry(number(timing["seconds_per_victim"])),
                    Entry(number(timing["cpu_seconds_per_victim"])),
                    Entry(number(timing["compile_seconds"], 1)),
                ]
            )
    heads = ["job", "tool", "rebuilt", "median RMSE", "iterations", "s per victim"]
    heads += ["CPU s per victim", "compiling, s"]
    return [Table("The same victims, starts and budget", heads, rows)]


def differences(scale: Scale) -> list[str]:
    """Returns how to read the figures."""
    return [
        f"peers: {' and '.join(PACKAGES)} from the package index; nothing else that "
        "attacks gradients installs from there today",
        "breaching runs its own configurations with our starts; its total variation "
        "needs three channels",
        "breaching attacks one victim after the other on one thread; gradaudit all of "
        "a draw at once on every core, compiled before (the last column)",
        "DLG's soft labels start at random on both sides, each from its own draw",
    ]


PEERS = Benchmark(
    "peers",
    "Head to head with other tools",
    "nothing published",
    cells,
    tables,
    differences,
)
