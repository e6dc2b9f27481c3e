"""The papers' attack in torch, as its authors ran it: the reference of two bars.

    python benchmarks/torch_reference.py make OUT.npz            a new trace
    python benchmarks/torch_reference.py again IN.npz OUT.npz    the same problem again
    python benchmarks/torch_reference.py time IN.npz --threads 1   seconds, as JSON

It needs the `reference` extra (`pip install gradaudit[reference]`). A trace holds the
problem (weights in torch's layout, images, labels, starts) and what
`torch.optim.LBFGS` made of it: the objective at every evaluation, the iterate after
every outer step and the evaluations per step. tests/attacks/test_torch_parity.py
reads one.
"""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

STRIDES = (2, 2, 1, 1)


def import_torch() -> Any:
    """Returns torch, or leaves with advice."""
    try:
        import torch
    except ImportError:
        sys.exit("torch is missing: pip install 'gradaudit[reference]'")
    return torch


def torch_weights(params: Any) -> Arrays:
    """Returns our parameters of the CPL net in torch's layout."""
    weights: Arrays = {}
    for index in range(len(STRIDES)):
        layer = params[f"conv{index + 1}"]
        weights[f"conv{index}_weight"] = np.asarray(layer["kernel"]).transpose(
            3, 2, 0, 1
        )
        weights[f"conv{index}_bias"] = np.asarray(layer["bias"])
    dense, features = np.asarray(params["output"]["kernel"]), 12
    side = int(np.sqrt(len(dense) // features))
    # torch flattens (channels, height, width), we (height, width, channels).
    by_place = dense.reshape(side, side, features, -1).transpose(3, 2, 0, 1)
    weights["dense_weight"] = by_place.reshape(dense.shape[1], -1)
    weights["dense_bias"] = np.asarray(params["output"]["bias"])
    return {name: np.ascontiguousarray(value) for name, value in weights.items()}


def draw_problem(victims: int, seed: int) -> Arrays:
    """Returns the first MNIST test images, fresh weights and patterned starts."""
    import jax

    from gradaudit.attacks.starts import Patterned
    from gradaudit.data import load_dataset
    from gradaudit.models.networks import build_model

    dataset = load_dataset("mnist")
    params_key, starts_key = jax.random.split(jax.random.key(seed))
    params = build_model("cpl", dataset.shape, dataset.classes).init(params_key)
    starts = [
        Patterned()(key, (1, *dataset.shape))[0]
        for key in jax.random.split(starts_key, victims)
    ]
    return {
        **torch_weights(params),
        "images": np.asarray(dataset.inputs[:victims]).transpose(0, 3, 1, 2),
        "labels": np.asarray(dataset.labels[:victims]).astype(np.uint8),
        "starts": np.asarray(starts).transpose(0, 3, 1, 2),
    }


class Reference:
    """CPL in torch: the net, its gradients and the attack on one victim."""

    def __init__(self, problem: Arrays) -> None:
        self._torch = import_torch()
        tensor = self._torch.tensor  # copies: arrays of jax are read-only
        convolutions = [
            (tensor(problem[f"conv{i}_weight"]), tensor(problem[f"conv{i}_bias"]))
            for i in range(len(STRIDES))
        ]
        dense = (tensor(problem["dense_weight"]), tensor(problem["dense_bias"]))
        self._weights = [
            leaf.clone().requires_grad_()
            for pair in (*convolutions, dense)
            for leaf in pair
        ]
        self._problem = problem

    def gradients(self, image: Any, label: Any, differentiable: bool) -> Any:
        """Returns the gradient of the cross-entropy in every tensor."""
        functional = self._torch.nn.functional
        values = image
        for index, stride in enumerate(STRIDES):
            weight, bias = self._weights[2 * index : 2 * index + 2]
            values = functional.conv2d(
                values, weight, bias, stride, padding=2
            ).sigmoid()
        weight, bias = self._weights[-2:]
        logits = functional.linear(values.flatten(1), weight, bias)
        loss = functional.cross_entropy(logits, label)
        return self._torch.autograd.grad(
            loss, self._weights, create_graph=differentiable
        )

    def attack(self, victim: int, outer: int) -> Arrays:
        """Returns objective, iterates and evaluations of `outer` outer steps."""
        torch = self._torch
        image = torch.tensor(self._problem["images"][victim][None])
        label = torch.tensor([int(self._problem["labels"][victim])])
        leaked = [leaf.detach() for leaf in self.gradients(image, label, False)]
        dummy = torch.tensor(self._problem["starts"][victim][None])
        dummy.requires_grad_()
        optimizer = torch.optim.LBFGS([dummy])  # the defaults
        objective: list[float] = []

        def closure() -> Any:
            optimizer.zero_grad()
            guessed = self.gradients(dummy, label, True)
            value = sum(
                ((mine - theirs) ** 2).sum()
                for mine, theirs in zip(guessed, leaked, strict=True)
            )
            (dummy.grad,) = torch.autograd.grad(value, [dummy])
            objective.append(value.item())
            return value

        iterates, evaluations = [], []
        for _ in range(outer):
            before = len(objective)
            optimizer.step(closure)
            iterates.append(dummy.detach().numpy()[0].copy())
            evaluations.append(len(objective) - before)
        return {
            "objective": np.asarray(objective),
            "iterates": np.asarray(iterates),
            "evaluations": np.asarray(evaluations),
        }


def make_trace(problem: Arrays, outer: int) -> Arrays:
    """Returns the problem with what torch makes of it (one thread: reproducible)."""
    import_torch().set_num_threads(1)
    reference = Reference(problem)
    traces = [reference.attack(v, outer) for v in range(len(problem["images"]))]
    longest = max(len(trace["objective"]) for trace in traces)
    for trace in traces:  # a victim that stops early has no further evaluations
        missing = longest - len(trace["objective"])
        trace["objective"] = np.pad(
            trace["objective"], (0, missing), constant_values=np.nan
        )
    recorded = {
        name: np.stack([trace[name] for trace in traces])
        for name in ("objective", "iterates", "evaluations")
    }
    return {**problem, **recorded}


def time_victims(problem: Arrays, outer: int, threads: int) -> dict[str, float]:
    """Returns what attacking every victim costs; the first evaluations are warm-up."""
    import_torch().set_num_threads(threads)
    reference = Reference(problem)
    reference.attack(0, 1)
    began, cpu = time.perf_counter(), time.process_time()
    counts = [
        reference.attack(victim, outer)["evaluations"].sum()
        for victim in range(len(problem["images"]))
    ]
    return {
        "victims": len(counts),
        "evaluations": int(np.sum(counts)),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "threads": threads,
    }


def read(path: pathlib.Path) -> Arrays:
    """Returns the stored problem, without what torch made of it."""
    with np.load(path) as stored:
        made = {"objective", "iterates", "evaluations"}
        return {name: stored[name] for name in stored.files if name not in made}


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="draw a problem and trace it")
    make.add_argument("--victims", type=int, default=3)
    make.add_argument("--seed", type=int, default=0)
    again = commands.add_parser("again", help="trace a stored problem anew")
    again.add_argument("source", type=pathlib.Path)
    for command in (make, again):
        command.add_argument("out", type=pathlib.Path)
        command.add_argument("--outer", type=int, default=3)
    timing = commands.add_parser("time", help="time a stored problem")
    timing.add_argument("source", type=pathlib.Path)
    timing.add_argument("--outer", type=int, default=15)
    timing.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import_torch()
    if options.command == "time":
        result = time_victims(read(options.source), options.outer, options.threads)
        print(json.dumps(result))
        return
    if options.command == "make":
        problem = draw_problem(options.victims, options.seed)
    else:
        problem = read(options.source)
    trace: dict[str, Any] = make_trace(problem, options.outer)
    np.savez_compressed(options.out, **trace)
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
