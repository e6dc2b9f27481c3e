"""LeNet-5 in torch, and what `gradaudit` is told about it: `build`."""

from torch import nn

from gradaudit.models import Model, from_torch


def net() -> nn.Module:
    """Returns the network that clients train: grey images, ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(),
        nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip


def build() -> Model:
    """Returns it as a model that can be audited; its weights come with each update."""
    return from_torch(net(), input_shape=(1, 28, 28), classes=10, name="LeNet-5")
