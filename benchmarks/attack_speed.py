"""How fast are 100 MNIST victims attacked, ours beside the papers' torch code?

    python benchmarks/attack_speed.py              needs the `reference` extra
    python benchmarks/attack_speed.py --ours       our side only
    python benchmarks/attack_speed.py --profile    where our time goes

Both sides get the same weights, victims, starts and budget: 15 attack iterations of 20
evaluations. torch attacks victims one after the other, so that a few of them tell its
rate; it runs with one thread, with one per core, and as one process per core. The bar's
ratio is against the best single process. Writes results/attack_speed.json.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
import torch_reference

from gradaudit import machine
from gradaudit.attacks import lanes
from gradaudit.attacks.base import Best, Victims
from gradaudit.attacks.lbfgs import LBFGS, Clock
from gradaudit.attacks.matching import Matching, Stop
from gradaudit.attacks.objective import (
    Layout,
    Start,
    first_position,
    objective,
)
from gradaudit.data import load_dataset
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model, for_shared_weights
from gradaudit.types import Observation, PyTree

RESULTS = pathlib.Path(__file__).parent / "results" / "attack_speed.json"
VICTIMS, OUTER, UPDATES = 100, 15, 20
REFERENCE_VICTIMS, REFERENCE_LIMIT = 10, 120  # seconds before a setting is given up
# The budget alone ends the attack, on both sides.
ATTACK = Matching(stop=Stop(iterations=OUTER, patience=OUTER))
ATTACK_KEY = 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """The victims, and what leaked from them."""

    model: Model
    params: PyTree
    images: Any
    labels: Any
    gradients: PyTree

    @classmethod
    def draw(cls, count: int) -> "Problem":
        """Returns the first MNIST images under fresh weights."""
        dataset = load_dataset("mnist")
        model = build_model("cpl", dataset.shape, dataset.classes)
        params = model.init(jax.random.key(0))
        images, labels = dataset.inputs[:count], dataset.labels[:count]
        targets = one_hot(labels, dataset.classes)
        gradients = per_example_gradients(model, params, {}, images, targets)
        return cls(model, params, images, labels, jax.tree.map(np.asarray, gradients))

    @property
    def layout(self) -> Layout:
        """Returns how one victim's unknowns lie in the engine."""
        shape = (1, *self.model.input_shape)
        return Layout(shape, self.model.classes, searches_labels=False)

    def observe(self, ids: Any) -> Observation:
        """Returns the observations of these victims, stacked."""
        return Observation(
            self.params, jax.tree.map(lambda leaf: leaf[ids], self.gradients)
        )

    def start(self, victim: int) -> Any:
        """Returns the picture that the engine starts this victim from."""
        key = jax.random.fold_in(jax.random.key(ATTACK_KEY), victim)
        one = jax.tree.map(lambda leaf: leaf[victim], self.gradients)
        position, _ = first_position(
            Start(ATTACK.init, ATTACK.labels, ordered=False),
            self.layout,
            jax.random.fold_in(key, 0),
            self.model,
            Observation(self.params, one),
        )
        return np.asarray(position).reshape(self.model.input_shape)

    def for_torch(self, count: int) -> torch_reference.Arrays:
        """Returns the first victims in torch's layout."""
        starts = np.stack([self.start(victim) for victim in range(count)])
        return {
            **torch_reference.torch_weights(self.params),
            "images": np.asarray(self.images[:count]).transpose(0, 3, 1, 2),
            "labels": np.asarray(self.labels[:count]).astype(np.uint8),
            "starts": starts.transpose(0, 3, 1, 2),
        }


def measure_ours(problem: Problem, slots: int | None, repeats: int) -> dict[str, Any]:
    """Returns rates of the best of several runs; the first one compiles."""
    victims = Victims(len(problem.images), problem.observe)
    key, runs = jax.random.key(ATTACK_KEY), []
    for _ in range(repeats + 1):
        began, cpu = time.perf_counter(), time.process_time()
        rebuilt = ATTACK.reconstruct_many(key, problem.model, victims, slots)
        runs.append((time.perf_counter() - began, time.process_time() - cpu))
    errors = np.asarray(rebuilt.inputs)[:, 0] - problem.images
    rmse = np.sqrt(np.mean(np.square(errors), axis=(1, 2, 3)))
    seconds = min(run[0] for run in runs[1:])
    measured = rates(victims.count, int(np.sum(rebuilt.evaluations)), seconds)
    return {
        **measured,
        "cpu_seconds": min(run[1] for run in runs[1:]),
        "compile_seconds": runs[0][0] - seconds,
        "median_rmse": float(np.median(rmse)),
        "slots": slots or lanes.default_slots(problem.layout.size),
        "devices": len(jax.local_devices()),
    }


def rates(victims: int, evaluations: int, seconds: float) -> dict[str, Any]:
    """Returns what is compared."""
    return {
        "victims": victims,
        "evaluations": evaluations,
        "seconds": seconds,
        "victims_per_second": victims / seconds,
        "ms_per_evaluation": 1e3 * seconds / evaluations,
    }


def measure_torch(problem: Problem, threads: int, processes: int) -> dict[str, Any]:
    """Returns rates of torch, its victims dealt out over the processes."""
    arrays = problem.for_torch(REFERENCE_VICTIMS)
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(processes):
            path = pathlib.Path(folder) / f"{rank}.npz"
            per_victim = {"images", "labels", "starts"}
            mine = {
                name: value[rank::processes] if name in per_victim else value
                for name, value in arrays.items()
            }
            np.savez(path, **mine)  # type: ignore[arg-type]
            command = [sys.executable, torch_reference.__file__, "time", str(path)]
            command += ["--outer", str(OUTER), "--threads", str(threads)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        setting = {"threads": threads, "processes": processes}
        try:
            outputs = [p.communicate(timeout=REFERENCE_LIMIT)[0] for p in running]
        except subprocess.TimeoutExpired:
            for process in running:
                process.kill()
            return {**setting, "gave_up_after_seconds": REFERENCE_LIMIT}
    parts = [json.loads(output) for output in outputs]
    evaluations = sum(part["evaluations"] for part in parts)
    seconds = max(part["seconds"] for part in parts)
    cpu = sum(part["cpu_seconds"] for part in parts)
    measured = rates(REFERENCE_VICTIMS, evaluations, seconds)
    return {**measured, "cpu_seconds": cpu, **setting}


def profile(problem: Problem, slots: int | None, repeats: int = 10) -> dict[str, float]:
    """Returns core-milliseconds per victim and update of each part, on one device.

    The parts run alone inside a scan of one attack iteration at the engine's number of
    slots; the rest (snapshots, stop rules, host) is what the whole run takes beyond.
    """
    count = slots or lanes.default_slots(problem.layout.size)
    model = for_shared_weights(problem.model)
    optimizer = LBFGS(updates=UPDATES)
    device = jax.local_devices()[0]
    starts = np.stack([problem.start(v).reshape(-1) for v in range(count)])
    inputs = jax.device_put(
        (
            problem.params,
            problem.observe(np.arange(count)).gradient,
            problem.labels[:count, None],
            starts,
        ),
        device,
    )

    def evaluations(params: PyTree, gradients: PyTree, labels: Any, x: Any) -> Any:
        def one(gradient: PyTree, label: Any, position: Any) -> Any:
            observation = Observation(params, gradient)
            evaluate = objective(
                ATTACK.distance, (), problem.layout, model, observation, False, label
            )
            return evaluate(position)[1]

        def step(position: Any, _: None) -> Any:
            slope = jax.vmap(one)(gradients, labels, position)
            return position - 1e-3 * slope, None

        return jax.lax.scan(step, x, None, length=UPDATES)[0]

    def memory(params: PyTree, gradients: PyTree, labels: Any, x: Any) -> Any:
        del params, gradients, labels

        def bowl(position: Any) -> Any:  # an objective that costs nothing
            weight = 1.0 + jax.numpy.arange(position.size) % 7
            return 0.5 * jax.numpy.vdot(position, weight * position), weight * position

        def one(position: Any) -> Any:
            best = Best.start(position)
            empty = optimizer.init(position)
            clock = Clock(jax.numpy.zeros((), jax.numpy.int32), OUTER)
            return optimizer.iterate(bowl, None, position, empty, best, clock)

        return jax.vmap(one)(x)

    parts = {"evaluation": evaluations, "L-BFGS memory": memory}
    spent: dict[str, float] = {}
    for name, function in parts.items():
        compiled = jax.jit(function).lower(*inputs).compile()
        times = []
        for _ in range(repeats):
            cpu = time.process_time()
            jax.block_until_ready(compiled(*inputs))
            times.append(time.process_time() - cpu)
        spent[name] = 1e3 * min(times) / (count * UPDATES)
    whole = measure_ours(problem, slots, 2)
    total = 1e3 * whole["cpu_seconds"] / whole["evaluations"]
    return {**spent, "snapshots, host": total - sum(spent.values()), "total": total}


def main() -> None:
    """Runs what was asked for and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", action="store_true", help="skip torch")
    parser.add_argument("--profile", action="store_true", help="where our time goes")
    parser.add_argument("--slots", type=int, help="victims per device at a time")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    machine.configure()
    problem = Problem.draw(VICTIMS)
    if options.profile:
        parts = profile(problem, options.slots)
        for name, milliseconds in parts.items():
            print(f"{name:>16}  {milliseconds:.3f} core-ms per victim and evaluation")
        return
    if not options.ours:
        torch_reference.import_torch()
    ours = measure_ours(problem, options.slots, options.repeats)
    print(f"ours: {describe(ours)}; compiling took {ours['compile_seconds']:.1f} s")
    if options.ours:
        return
    cores = machine.describe()["cores"]
    settings = [(1, 1), (1, cores), (cores, 1)]  # threads, processes
    reference = [measure_torch(problem, *setting) for setting in settings]
    for entry in reference:
        print(f"torch, {entry['processes']} x {entry['threads']}: {describe(entry)}")
    write(ours, reference)


def describe(entry: dict[str, Any]) -> str:
    """Returns one line on one side."""
    if "seconds" not in entry:
        return f"gave up after {entry['gave_up_after_seconds']} s"
    return (
        f"{entry['victims_per_second']:.3f} victims/s, "
        f"{entry['ms_per_evaluation']:.3f} ms per evaluation "
        f"({entry['victims']} victims, {entry['evaluations']} evaluations, "
        f"{entry['cpu_seconds']:.1f} s of CPU)"
    )


def write(ours: dict[str, Any], reference: list[dict[str, Any]]) -> None:
    """Prints the ratios and stores everything."""
    done = [entry for entry in reference if "seconds" in entry]

    def best(entries: list[dict[str, Any]]) -> float:
        return max(float(entry["victims_per_second"]) for entry in entries)

    rate = ours["victims_per_second"]
    single = rate / best([entry for entry in done if entry["processes"] == 1])
    any_setting = rate / best(done)
    print(f"ratio: {single:.1f}x the best single process, {any_setting:.1f}x the best")
    versions = machine.describe()
    versions["packages"]["torch"] = torch_reference.import_torch().__version__
    result = {
        "ours": ours,
        "torch": reference,
        "ratio_single_process": single,
        "ratio_best_setting": any_setting,
        "environment": versions,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
