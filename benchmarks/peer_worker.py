"""Runs breaching on stored victims: a script for the peers' own environment.

    python peer_worker.py PROBLEM.npz CONFIG ITERATIONS

Nothing of gradaudit is imported. The problem holds CPL's net in torch's layout, the
private images, their labels and the starts; breaching gets the net, the gradients that
torch computes from the images, and the starts. It attacks one victim after the other on
one thread, which suits tensors of this size best. Prints JSON.
"""

import json
import sys
import time
from typing import Any

import numpy as np

STRIDES = (2, 2, 1, 1)


def build_network(torch: Any, problem: dict[str, Any]) -> Any:
    """Returns CPL's net with the stored weights."""
    layers: list[Any] = []
    for index, stride in enumerate(STRIDES):
        weight = problem[f"conv{index}_weight"]
        outputs, inputs, side, _ = weight.shape
        layers.append(torch.nn.Conv2d(inputs, outputs, side, stride, padding=2))
        layers.append(torch.nn.Sigmoid())
    classes, features = problem["dense_weight"].shape
    layers += [torch.nn.Flatten(), torch.nn.Linear(features, classes)]
    network = torch.nn.Sequential(*layers)
    names = [f"conv{i}" for i in range(len(STRIDES))] + ["dense"]
    stored = [
        problem[f"{name}_{kind}"] for name in names for kind in ("weight", "bias")
    ]
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), stored, strict=True):
            parameter.copy_(torch.tensor(value))
    return network


def attack(problem: dict[str, Any], config: str, iterations: int) -> dict[str, Any]:
    """Returns each victim's RMSE, wall seconds and CPU seconds."""
    import torch

    _declare_vision(torch)
    import breaching  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    settings = breaching.get_attack_config(config)
    settings.optim.max_iterations = iterations
    network = build_network(torch, problem)
    loss = torch.nn.CrossEntropyLoss()
    channels, height, width = problem["images"].shape[1:]
    metadata: Any = _Metadata(
        shape=(channels, height, width),
        classes=network[-1].out_features,
        modality="vision",
        task="classification",
        mean=[0.0] * channels,
        std=[1.0] * channels,
    )
    answers: dict[str, list[float]] = {"rmse": [], "seconds": [], "cpu_seconds": []}
    for index in range(len(problem["images"])):
        image = torch.tensor(problem["images"][index][None])
        label = torch.tensor([int(problem["labels"][index])])
        gradients = torch.autograd.grad(
            loss(network(image), label), list(network.parameters())
        )
        payload = [
            {
                "parameters": [p.detach() for p in network.parameters()],
                "buffers": [],
                "metadata": metadata,
            }
        ]
        shared = [
            {
                "gradients": [g.detach() for g in gradients],
                "buffers": None,
                "metadata": {
                    "num_data_points": 1,
                    "labels": None,
                    "local_hyperparams": None,
                },
            }
        ]
        start = torch.tensor(problem["starts"][index][None])
        torch.manual_seed(index)
        attacker = breaching.attacks.prepare_attack(network, loss, settings)
        began, cpu = time.perf_counter(), time.process_time()
        found, _ = attacker.reconstruct(payload, shared, {}, initial_data=start)
        answers["seconds"].append(time.perf_counter() - began)
        answers["cpu_seconds"].append(time.process_time() - cpu)
        rebuilt = np.clip(found["data"].detach().numpy(), 0.0, 1.0)
        wrong = rebuilt - problem["images"][index][None]
        answers["rmse"].append(float(np.sqrt(np.mean(np.square(wrong)))))
    return {"versions": _versions(), **answers}


def _declare_vision(torch: Any) -> None:
    """Lets torchvision be imported beside a torch that its operators don't fit.

    breaching imports it for its models and data, of which none is used here; two of
    the operators must be declared before, or the import fails.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    _KEPT.append(library)  # what it declares is withdrawn when nobody holds it
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            arguments = "Tensor dets, Tensor scores, float iou_threshold"
            library.define(f"{name}({arguments}) -> Tensor")


_KEPT: list[Any] = []


class _Metadata(dict[str, Any]):
    """What breaching reads of the data, by key and by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _versions() -> dict[str, str]:
    import importlib.metadata

    return {name: importlib.metadata.version(name) for name in ("breaching", "torch")}


def main() -> None:
    """Reads the problem, attacks, prints."""
    path, config, iterations = sys.argv[1:]
    with np.load(path) as stored:
        problem = {name: stored[name] for name in stored.files}
    print(json.dumps(attack(problem, config, int(iterations))))


if __name__ == "__main__":
    main()
