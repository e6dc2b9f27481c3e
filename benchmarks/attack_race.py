"""The papers' attack in torch against ours: the same victims, starts and budget."""

import dataclasses
import json
import pathlib
import subprocess
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.attacks.base import Victims
from gradaudit.attacks.matching import Matching, Stop
from gradaudit.attacks.starts import Start
from gradaudit.benchmarks import torch_reference
from gradaudit.benchmarks.peer_room import peer_python
from gradaudit.benchmarks.suite import Context, Plain
from gradaudit.data import load_dataset
from gradaudit.executors import core_count
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.types import Observation, PyTree

_LIMIT = 300  # seconds before a setting of torch is given up
_KEY = 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """The victims, what leaked from them, and the attack whose starts they get."""

    attack: Matching
    model: Model
    params: PyTree
    images: Any
    labels: Any
    gradients: PyTree

    @classmethod
    def draw(cls, attack: Matching, dataset: str, count: int, seed: int) -> "Problem":
        """Returns the first images of a data set under fresh weights of CPL's net."""
        data = load_dataset(dataset)
        model = build_model("cpl", data.shape, data.classes)
        params = model.init(jax.random.key(seed))
        images, labels = data.inputs[:count], data.labels[:count]
        targets = one_hot(jnp.asarray(labels), data.classes)
        gradients = per_example_gradients(model, params, {}, images, targets)
        leaked = jax.tree.map(np.asarray, gradients)
        return cls(attack, model, params, images, labels, leaked)

    def observe(self, ids: Any) -> Observation:
        """Returns the observations of these victims, stacked."""
        leaked = jax.tree.map(lambda leaf: leaf[ids], self.gradients)
        return Observation(self.params, leaked)

    def start(self, victim: int) -> Any:
        """Returns the picture that the engine starts this victim from."""
        key = jax.random.fold_in(jax.random.key(_KEY), victim)
        one = jax.tree.map(lambda leaf: leaf[victim], self.gradients)
        begin = Start(self.attack.init, self.attack.labels, ordered=False)
        pixels, _ = begin(
            jax.random.fold_in(key, 0), self.model, Observation(self.params, one)
        )
        return np.asarray(pixels)[0]

    def for_torch(self, count: int) -> torch_reference.Arrays:
        """Returns the first victims in torch's layout."""
        starts = np.stack([self.start(victim) for victim in range(count)])
        return {
            **torch_reference.torch_weights(self.params),
            "images": np.asarray(self.images[:count]).transpose(0, 3, 1, 2),
            "labels": np.asarray(self.labels[:count]).astype(np.uint8),
            "starts": starts.transpose(0, 3, 1, 2),
        }


def run_ours(problem: Problem, repeats: int) -> Plain:
    """Returns the best of several runs; the first one compiles."""
    victims = Victims(len(problem.images), problem.observe)
    key, runs = jax.random.key(_KEY), []
    for _ in range(repeats + 1):
        began, cpu = time.perf_counter(), time.process_time()
        rebuilt = problem.attack.reconstruct_many(key, problem.model, victims, None)
        runs.append((time.perf_counter() - began, time.process_time() - cpu))
    handed = np.clip(np.asarray(rebuilt.inputs)[:, 0], 0.0, 1.0)
    rmse = np.sqrt(np.mean(np.square(handed - problem.images), axis=(1, 2, 3)))
    seconds = min(run[0] for run in runs[1:])
    return {
        **_rates(victims.count, int(np.sum(rebuilt.evaluations)), seconds),
        "cpu_seconds": min(run[1] for run in runs[1:]),
        "compile_seconds": runs[0][0] - seconds,
        "rmse": [float(value) for value in rmse],
        "iterations": [int(value) for value in np.asarray(rebuilt.iterations)],
        "devices": len(jax.local_devices()),
    }


def _rates(victims: int, evaluations: int, seconds: float) -> Plain:
    return {
        "victims": victims,
        "evaluations": evaluations,
        "seconds": seconds,
        "victims_per_second": victims / seconds,
    }


def _run_torch(
    python: pathlib.Path, arrays: Plain, outer: int, threads: int, processes: int
) -> Plain:
    """Returns torch's rates, its victims dealt out over the processes."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(processes):
            path = pathlib.Path(folder) / f"{rank}.npz"
            per_victim = {"images", "labels", "starts"}
            mine = {
                name: value[rank::processes] if name in per_victim else value
                for name, value in arrays.items()
            }
            np.savez(path, **mine)
            command = [str(python), torch_reference.__file__, "time", str(path)]
            command += ["--outer", str(outer), "--threads", str(threads)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        setting = {"threads": threads, "processes": processes}
        try:
            outputs = [each.communicate(timeout=_LIMIT)[0] for each in running]
        except subprocess.TimeoutExpired:
            for process in running:
                process.kill()
            return {**setting, "gave_up_after_seconds": _LIMIT}
    parts = [json.loads(output) for output in outputs]
    evaluations = sum(part["evaluations"] for part in parts)
    seconds = max(part["seconds"] for part in parts)
    cpu = sum(part["cpu_seconds"] for part in parts)
    rates = _rates(len(arrays["images"]), evaluations, seconds)
    return {**rates, "cpu_seconds": cpu, **setting}


def measure_attack_race(
    context: Context, *, victims: int, reference: int, iterations: int
) -> Plain:
    """Compares victims per second with torch's, at its best numbers of threads.

    torch attacks victims one after the other, so that a few of them tell its rate. The
    budget alone ends the attack, on both sides.
    """
    machine.configure()
    python = peer_python(lambda text: context.tell(text, 0, 1))
    attack = Matching(stop=Stop(iterations=iterations, patience=iterations))
    problem = Problem.draw(attack, "mnist", victims, seed=0)
    ours = run_ours(problem, repeats=3)
    cores, arrays = core_count(), problem.for_torch(reference)
    settings = [(1, 1), (1, cores), (cores, 1)]  # threads, processes
    others = [_run_torch(python, arrays, iterations, *each) for each in settings]
    done = [each for each in others if "seconds" in each]

    def best(entries: list[Plain]) -> float:
        return max(float(entry["victims_per_second"]) for entry in entries)

    def processor(entry: Plain) -> float:
        return float(entry["cpu_seconds"] / entry["victims"])

    rate = ours["victims_per_second"]
    alone = [each for each in done if each["processes"] == 1]
    return {
        "timing": {
            "ours": ours,
            "torch": others,
            "ratio_single_process": rate / best(alone) if alone else None,
            "ratio_best_setting": rate / best(done) if done else None,
            # A busy machine takes time from both sides, but hardly adds work.
            "ratio_processor_time": (
                min(processor(each) for each in done) / processor(ours)
                if done
                else None
            ),
        }
    }
