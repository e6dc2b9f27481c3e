"""Cells of a study: each is attacked once, kept in a file, and not run again."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import gradaudit as ga

RESULTS = pathlib.Path(__file__).parent / "results"


class Cells:
    """Named results in one JSON file; every new cell is on disk at once."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.values: dict[str, dict[str, Any]] = (
            json.loads(path.read_text()) if path.exists() else {}
        )

    def need(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the cell, after running it if the file does not have it."""
        if name not in self.values:
            self.values[name] = run()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(self.values, indent=1) + "\n")
            partial.replace(self.path)
            print(name, json.dumps(self.values[name]), flush=True)
        return self.values[name]


def attack_cell(pictures: pathlib.Path | None = None, **arguments: Any) -> dict:
    """Runs `ga.attack` and returns what the tables show; the pictures if asked for."""
    result = ga.attack(**arguments)
    if pictures is not None:
        folder = result.save(pathlib.Path("runs") / pictures.stem)
        pictures.write_bytes((folder / "figures" / "victims.png").read_bytes())
    whole = result.to_dict()
    metrics = whole["metrics"]
    return {
        "victims": whole["victims"]["asked"],
        "draws": whole["draws"],
        "asr": metrics["asr"],
        "rmse": metrics["rmse"]["mean"],
        "rmse_median": metrics["rmse"]["median"],
        "iterations": metrics["iterations"]["median"],
        "cap": metrics["iterations"]["cap"],
        "spent": metrics["iterations"]["run_median"],
        "labels": metrics["label_accuracy"],
        "status": whole["ended"],
    }


def rate(cell: dict[str, Any]) -> str:
    """Returns the success rate with its interval."""
    asr = cell["asr"]
    return f"{asr['value']:.2f} [{asr['low']:.2f}, {asr['high']:.2f}]"
