"""A training loop in plain torch, recorded: no federated framework at all.

python examples/torch_loop/loop.py
gradaudit audit --captured recorded --truth truth --attack analytic \
    --model examples/torch_loop/loop.py:build

Four clients take a step each, once as they are and once through a clip and noise of
their own. `gradaudit.record` is the whole integration; it needs numpy, not jax.
"""

import pathlib

import numpy as np
import torch
from torch import nn

import gradaudit

CLIENTS, RATE = 4, 0.1
CLIP, NOISE = 0.05, 0.02
FACTS = {
    "learning_rate": RATE,
    "local_steps": 1,
    "batch_size": 1,
    "optimizer": "sgd",
}
CLAIMS = {"none": None, "own-dp": {"clip": CLIP, "noise_std": NOISE}}


def net() -> nn.Module:
    """Returns two dense layers over images of 8x8."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def build():
    """Returns the network for the audit."""
    from gradaudit.models import from_torch

    return from_torch(net(), input_shape=(1, 8, 8), classes=10, name="two layers")


def trained(model: nn.Module, image: torch.Tensor, label: torch.Tensor) -> nn.Module:
    """Takes one step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    nn.functional.cross_entropy(model(image), label).backward()
    optimizer.step()
    return model


def defended(before: dict, after: dict) -> dict:
    """Clips what a client would send, and adds Gaussian noise."""
    update = {name: after[name] - before[name] for name in before}
    norm = sum(part.square().sum() for part in update.values()).sqrt()
    factor = min(1.0, CLIP / norm.item())
    return {
        name: before[name] + factor * part + NOISE * torch.randn_like(part)
        for name, part in update.items()
    }


def main() -> None:
    """Runs both, and writes what was received and sent."""
    from gradaudit.data import load_dataset

    data = load_dataset("digits")
    pathlib.Path("truth").mkdir(exist_ok=True)
    torch.manual_seed(0)
    given = {name: part.clone() for name, part in net().state_dict().items()}
    for client in range(CLIENTS):
        x, y = data.inputs[[client]], data.labels[[client]]
        np.savez(f"truth/client-{client}.npz", x=x, y=y)
        model = net()
        model.load_state_dict(given)
        image = torch.from_numpy(np.array(x, np.float32)).permute(0, 3, 1, 2)
        after = trained(model, image, torch.tensor(y).long()).state_dict()
        for run, claim in CLAIMS.items():
            sent = defended(given, after) if claim else after
            folder, facts = f"recorded/{run}", FACTS | {"round": 1, "client": client}
            gradaudit.record(given, after, folder, place="raw", **facts)
            gradaudit.record(given, sent, folder, place="wire", claim=claim, **facts)


if __name__ == "__main__":
    main()
