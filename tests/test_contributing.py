"""CONTRIBUTING's worked examples are run as they are printed."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import presets as attacks
from gradaudit.audit import threat
from gradaudit.data import formats, load_dataset
from gradaudit.data.dataset import Contents
from gradaudit.defenses import parsing
from gradaudit.defenses import published as defenses
from gradaudit.types import Knowledge, Leakage


@pytest.fixture(scope="module")
def added(root):
    """Returns the lines that each diff adds, without their indentation's first sign."""
    text = (root / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4  # an attack, a defense, a format, a threat
    return [
        "\n".join(line[1:] for line in block.splitlines() if line.startswith("+"))
        for block in blocks
    ]


def test_a_new_attack(added, monkeypatch):
    function, line = re.match(r"(def .*?\n)( +Preset.*)", added[0], re.DOTALL).groups()
    names = dict(vars(attacks))
    exec(function, names)
    (preset,) = eval(f"({line.strip()})", names)
    monkeypatch.setitem(attacks.PRESETS, preset.name, preset)
    assert attacks.parse("mine:iterations=7").stop.iterations == 7
    assert attacks.parse("mine:restarts=2").restarts == 2
    assert attacks.PRESETS["mine"].summary.startswith("Mine: ")


@dataclasses.dataclass(frozen=True)
class Round:
    digits: int

    def init(self, params):
        return ()

    def apply(self, key, tree, state, t):
        return jax.tree.map(lambda leaf: jnp.round(leaf, self.digits), tree), state


def test_a_new_defense(added, monkeypatch):
    monkeypatch.setattr(parsing, "PRESETS", dict(parsing.PRESETS))
    exec(added[1], dict(vars(defenses)) | {"Round": Round})
    defense = parsing.parse("round-off:digits=1")
    assert defense.update == (Round(1),) and not defense.mechanisms
    assert parsing.PRESETS["round-off"].summary.startswith("Rounds every coordinate")


def test_a_new_format(added, monkeypatch, tmp_path):
    class mine:  # noqa: N801 - a module
        @staticmethod
        def accepts(path: pathlib.Path) -> bool:
            return any(path.glob("*.mine"))

        @staticmethod
        def read(path: pathlib.Path) -> Contents:
            inputs = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
            return Contents({"all": (inputs, np.arange(6) % 2)}, 2)

    (reader,) = eval(f"({added[2].strip()})", dict(vars(formats)) | {"mine": mine})
    monkeypatch.setattr(formats, "READERS", (reader, *formats.READERS))
    (tmp_path / "one.mine").write_text("")
    assert load_dataset(str(tmp_path)).shape == (2,)


def test_a_new_threat(added, monkeypatch):
    named = eval(f"{{{added[3].strip()}}}", dict(vars(threat)))
    for name, knows in named.items():
        monkeypatch.setitem(threat.THREATS, name, knows)
    insider = threat.Threat.parse("insider", Leakage.CLIENT)
    assert {Knowledge.LABELS, Knowledge.DEFENSE} <= insider.knows
    insider.check(attacks.parse("cpl:labels=known"))
