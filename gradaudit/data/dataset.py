"""The one type for data: inputs in [0, 1], integer labels, and where they are from."""

import dataclasses
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError, require


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, validated on construction.

    Guarantees: `inputs` is a finite float32 array in [0, 1] with a leading example
    axis (images are NHWC), `labels` is int32 in [0, classes), both non-empty and of
    equal length.
    """

    name: str
    inputs: NDArray[np.float32]  # (n, *shape)
    labels: NDArray[np.int32]  # (n,)
    classes: int
    split: str
    licence: str

    def __post_init__(self) -> None:
        inputs, labels = np.asarray(self.inputs), np.asarray(self.labels)
        require(len(inputs) > 0, f"dataset {self.name!r} is empty")
        require(
            inputs.ndim in (2, 4),
            f"dataset {self.name!r}: inputs must be (examples, features) or "
            f"(examples, height, width, channels), got shape {inputs.shape}",
        )
        require(
            labels.shape == (len(inputs),),
            f"dataset {self.name!r}: {len(inputs)} inputs need labels of shape "
            f"({len(inputs)},), got {labels.shape}",
        )
        bad = ~np.isfinite(inputs)
        if bad.any():
            where = int(np.argwhere(bad)[0][0])
            raise InputError(
                f"dataset {self.name!r}: input {where} holds {inputs[bad][0]}; "
                "every pixel must be finite"
            )
        low, high = float(inputs.min()), float(inputs.max())
        require(
            low >= 0.0 and high <= 1.0,
            f"dataset {self.name!r}: inputs must be in [0, 1], found {low} to {high}; "
            "divide by 255 or scale the features first",
        )
        outside = (labels < 0) | (labels >= self.classes)
        if outside.any():
            where = int(np.argwhere(outside)[0][0])
            raise InputError(
                f"dataset {self.name!r}: label {labels[where]} of example {where} is "
                f"outside [0, {self.classes})"
            )
        object.__setattr__(self, "inputs", inputs.astype(np.float32, copy=False))
        object.__setattr__(self, "labels", labels.astype(np.int32, copy=False))

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def take(self, indices: NDArray[np.integer] | slice) -> Self:
        """Returns the chosen examples as a dataset of the same kind."""
        return dataclasses.replace(
            self, inputs=self.inputs[indices], labels=self.labels[indices]
        )
