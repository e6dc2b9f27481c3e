"""What the results of both audits share: the file, the settings, the progress."""

import dataclasses
import enum
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
Progress = Callable[[str, int, int], None]  # what is running, trials done, of how many
CAVEATS = (
    "An empirical epsilon is a point estimate; only lower_bound is proven, with the "
    "stated confidence.",
    "'consistent' says that these adversaries did not refute the claim, not that no "
    "adversary can.",
)


def silent(label: str, done: int, total: int) -> None:
    """Ignores progress."""


class Counter:
    """Adds up trials for a progress display."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def __call__(self, label: str, trials: int) -> None:
        """Counts trials that were just played."""
        self._done += trials
        self._progress(label, self._done, self._total)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Writes result.json into a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, allow_nan=False)
    (folder / "result.json").write_text(text + "\n")


def plain_setting(value: Any) -> Any:
    """Returns a setting as JSON can hold it."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_setting(entry) for entry in value]
    return value
