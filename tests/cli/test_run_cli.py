"""`gradaudit run`: ten different saved results, each repeated to equal numbers."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit import defenses
from gradaudit.attacks import Adam, Matching, Stop
from gradaudit.attacks.starts import Uniform
from gradaudit.cli.app import app
from gradaudit.data import Dirichlet
from gradaudit.federation.setting import Batches, Selection, Setting
from tests.faults.commands import untimed

ATTACK = {"dataset": "digits", "model": "dpfl-2conv", "victims": 3, "draws": 2}
ROUND = {"clients": 6, "clients_per_round": 2, "local_steps": 2, "batch_size": 4}
SETTING = Setting(**ROUND, rounds=2, examples=30)
MINE = """
import jax
from gradaudit import defenses

def guard(clip=1.0):
    return defenses.fed_cdp(clip=clip, sigma=0.1)

def mechanism(key, vector):
    return vector + 3.0 * jax.random.laplace(key, vector.shape)
"""


def _attack(**asked):
    return lambda mine: ga.attack(**(ATTACK | asked))


def _train(**asked):
    return lambda mine: ga.train(dataset="cancer", **asked)


CASES = {
    "attack, names": _attack(method="cpl:iterations=3", defense="fed-cdp:sigma=0.01"),
    "attack, a method as an object": _attack(
        method=Matching(init=Uniform(), optimizer=Adam(0.1), stop=Stop(iterations=3)),
        seed=5,
    ),
    "attack, a defense as an object": _attack(
        type=1, batch_size=2, iterations=2, defense=defenses.fed_sdp(clip=2.0)
    ),
    "attack, a file": lambda mine: ga.attack(
        **ATTACK, iterations=2, defense=f"{mine}:guard:clip=0.5"
    ),
    "attack, two local steps with known labels": _attack(
        type=0, batch_size=1, local_steps=2, iterations=2,
        method="cpl:labels=known", threat="curious+labels",
    ),
    "train, names": _train(setting=SETTING, defense="fed-cdp:clip=1,sigma=0.2"),
    "train, objects": _train(
        setting=Setting(
            **ROUND, rounds=2, examples=30, selection=Selection.POISSON,
            batches=Batches.POISSON, partition=Dirichlet(alpha=0.3),
        ),
        defense=defenses.fed_cdp(clip=2.0, sigma=0.1),
        seed=3,
    ),
    "train, a file": lambda mine: ga.train(
        dataset="cancer", setting=SETTING, defense=f"{mine}:guard", standardize=True
    ),
    "ldp, adversaries": lambda mine: ga.ldp_audit(
        dataset="digits", model="mlp", epsilons=(1.0, 4.0), trials=200,
        measurements=2, seed=2,
    ),
    "ldp, a file's mechanism": lambda mine: ga.distinguish.mechanism_audit(
        f"{mine}:mechanism", epsilon=1.0, model="mlp", trials=500, seed=1
    ),
}  # fmt: skip


def numbers(folder):
    """Returns everything of a saved result but its times."""
    found = {"report": untimed(json.loads((folder / "result.json").read_text()))}
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        found[path.name] = untimed(rows)
    for path in sorted(folder.glob("reconstructions.npz")):
        with np.load(path) as arrays:
            found |= {name: arrays[name].tobytes() for name in arrays.files}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_saved_result_is_repeated_to_equal_numbers(case, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    CASES[case](mine).save(tmp_path / "first")
    words = ["run", str(tmp_path / "first"), "--out", str(tmp_path / "again")]
    trusted = ["--trust"] if "file" in case else []
    done = CliRunner().invoke(app, [*words, *trusted])
    assert done.exit_code == 0, done.output
    first, again = numbers(tmp_path / "first"), numbers(tmp_path / "again")
    assert first == again
    if not trusted:
        return
    mine.write_text(MINE + "\n# edited\n")
    edited = CliRunner().invoke(app, [*words, "--overwrite", "--trust"])
    assert edited.exit_code == 2 and "has changed since the run" in edited.output


def test_there_are_ten_of_them():
    kinds = [name.split(",")[0] for name in CASES]
    assert [kinds.count(kind) for kind in ("attack", "train", "ldp")] == [5, 3, 2]
