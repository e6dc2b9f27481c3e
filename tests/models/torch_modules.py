"""torch modules of many kinds, as their owners write them; imported only with torch."""

from torch import nn

SIDE, CLASSES = 28, 10


class LeNet(nn.Module):
    """The attack papers' network: strided convolutions 5x5 and sigmoids."""

    def __init__(self, strides=(2, 2, 1, 1)) -> None:
        super().__init__()
        inside = [1] + [12] * (len(strides) - 1)
        pairs = zip(inside, strides, strict=True)
        self.convs = nn.ModuleList(nn.Conv2d(n, 12, 5, s, 2) for n, s in pairs)
        self.fc = nn.Linear(12 * 7 * 7, CLASSES)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, x):
        for conv in self.convs:
            x = conv(x).sigmoid()
        return self.fc(x.flatten(1))


def mlp():
    """Returns two dense layers over the pixels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.Sigmoid(), nn.Linear(64, CLASSES)
    )


def pooled():
    """Returns a CNN with ReLU and max pooling, and a dropout that evaluation skips."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, inside, outside, stride, norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = norm(outside)
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.around(x)).relu()


def residual(norm):
    """Returns a ResNet of two blocks."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), Block(8, 8, 1, norm), Block(8, 16, 2, norm),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def batch_normed():
    """Returns the ResNet with batch norm, its statistics not those of a start."""
    module = residual(nn.BatchNorm2d)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return module


def group_normed():
    """Returns the ResNet with group norm."""
    return residual(lambda channels: nn.GroupNorm(4, channels))


class Encoder(nn.Module):
    """A transformer encoder over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(SIDE, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x[:, 0])).mean(1))


MODULES = {
    "lenet": LeNet,
    "mlp": mlp,
    "relu, pooling": pooled,
    "resnet, batch norm": batch_normed,
    "resnet, group norm": group_normed,
    "transformer": Encoder,
}
