"""Attacks on captured updates: with the truth all is scored, without it what can be."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit import tree
from gradaudit.audit.captured_files import Capture, find, read_capture
from gradaudit.audit.captured_result import distance, explained, weigh
from gradaudit.audit.captured_scenario import Captured, private_data
from gradaudit.cli.app import app
from gradaudit.data import load_dataset
from gradaudit.defenses import none
from gradaudit.errors import InputError
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.networks import build_model
from gradaudit.record import Facts
from gradaudit.types import Observation, Reconstruction, Status

DATA = load_dataset("digits")
MODEL = build_model("mlp", DATA.shape, DATA.classes)
RATE, CLIENTS, CANDIDATES = 0.1, 3, 12
FILE = """\
from gradaudit.models import build_model

def build():
    return build_model("mlp", (8, 8, 1), 10)
"""


def capture(folder, noise=0.0, clip=1e9, batch=1, claim=None, **others):
    """Records updates of clients over two rounds, and their truth beside them."""
    rng = np.random.default_rng(0)
    (folder / "truth").mkdir(parents=True)
    for client in range(CLIENTS):
        rows = np.arange(client * batch, (client + 1) * batch)
        params = MODEL.init(jax.random.key(client // 2))
        targets = one_hot(jnp.asarray(DATA.labels[rows]), DATA.classes)
        inputs = jnp.asarray(DATA.inputs[rows])
        gradient = batch_gradient(MODEL, params, {}, inputs, targets)
        raw = jax.tree.map(lambda leaf: np.asarray(-RATE * leaf), gradient)
        factor = min(1.0, clip / float(tree.global_norm(raw)))
        wire = jax.tree.map(
            lambda leaf, f=factor: f * leaf + rng.normal(0, noise, leaf.shape), raw
        )
        facts = {
            "round": client // 2 + 1, "client": client, "learning_rate": RATE,
            "local_steps": 1, "batch_size": batch, "optimizer": "sgd",
        } | others  # fmt: skip
        for place, update in (("raw", raw), ("wire", wire)):
            sent = jax.tree.map(lambda p, u: (p + u).astype("f4"), params, update)
            own = claim if place == "wire" else None
            made = ga.record(
                tree.named(params),
                tree.named(sent),
                folder / "rec",
                place=place,
                claim=own,
                **facts,
            )
            assert made is not None
        x, y = DATA.inputs[rows], DATA.labels[rows]
        np.savez(folder / "truth" / f"client-{client}.npz", x=x, y=y)
    most = slice(0, CANDIDATES * batch)
    np.savez(folder / "people.npz", x=DATA.inputs[most], y=DATA.labels[most])
    (folder / "mine.py").write_text(FILE)
    return folder / "rec"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    capture(folder)
    return folder


def test_without_the_truth_it_says_what_can_be_said(plain, tmp_path):
    found = ga.attack_captured(
        plain / "rec", MODEL, method="analytic", candidates=plain / "people.npz"
    )
    assert (found.determined.value, found.asked) == (1.0, CLIENTS)
    for client, answer in enumerate(found.answers):
        weighed = answer.weighed
        assert weighed.client == str(client) and weighed.unexplained < 1e-6
        assert weighed.labels == (int(DATA.labels[client]),)
        assert distance(answer.inputs, DATA.inputs[client : client + 1]) < 1e-3
    picks = found.to_dict()["metrics"]["line_up"]["picks"]
    assert [pick["candidate"] for pick in picks] == [0, 1, 2]
    assert all(p["unexplained"] < 1e-6 < p["next_unexplained"] for p in picks)
    assert any("No truth" in words for words in found.to_dict()["limitations"])
    found.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "evidence.csv"}
    text = (tmp_path / "result.json").read_text()
    assert "reconstruction" not in text


def test_pictures_are_written_if_asked_for(plain, tmp_path):
    found = ga.attack_captured(plain / "rec", MODEL, method="analytic", pictures=True)
    found.save(tmp_path)
    with np.load(tmp_path / "reconstructions.npz") as arrays:
        np.testing.assert_allclose(
            arrays["reconstruction"][:, 0], DATA.inputs[:CLIENTS], atol=1e-3
        )
    assert (tmp_path / "figures/victims.png").exists()


def test_with_the_truth_all_is_scored(plain, tmp_path):
    found = ga.attack_captured(
        plain / "rec",
        MODEL,
        truth=plain / "truth",
        method="analytic",
        candidates=plain / "people.npz",
    )
    assert found.asr.value == 1.0 and found.rmse["worst"] < 1e-3
    assert found.to_dict()["line_up"]["candidates"] == CANDIDATES
    found.save(tmp_path)
    assert not (tmp_path / "reconstructions.npz").exists()
    again = dataclasses.replace(found, withheld=False)
    assert "reconstructions.npz" in again.arrays()


def test_noise_leaves_nothing_determined_and_is_measured(tmp_path):
    claim = {"clip": 0.05, "noise_std": 0.5}
    folder = capture(tmp_path, noise=0.005, clip=0.05, claim=claim)
    found = ga.attack_captured(folder, MODEL, method="analytic").to_dict()
    assert found["metrics"]["determined"]["value"] == 0.0
    assert found["mechanism"]["verdict"] == "refuted"
    assert "100 times too small" in found["mechanism"]["findings"][0]["sentence"]


def test_clipping_alone_changes_nothing_for_a_closed_form(tmp_path):
    folder = capture(tmp_path, clip=0.01)
    found = ga.attack_captured(folder, MODEL, method="analytic")
    assert found.determined.value == 1.0
    worst = max(answer.weighed.residual for answer in found.answers)
    assert worst > 0.1  # at the scale that arrived; at the best one it explains all


def test_captured_folders_are_grouped_by_their_parameters(plain):
    read = [read_capture(f) for f in find(plain / "rec") if f.name.endswith("wire")]
    scenario = Captured(read, MODEL, none())
    groups = [group.ids.tolist() for group in scenario.groups()]
    assert groups == [[0, 1], [2]]
    stacked = [group.ids.tolist() for group in scenario.groups(2)]
    assert stacked == [[0, 1, 2, 3], [4, 5]]
    with pytest.raises(InputError, match="no truth"):
        scenario.truth(np.arange(1))


def test_places_are_chosen(plain):
    raw = ga.attack_captured(plain / "rec", MODEL, method="analytic", place="raw")
    assert raw.about["place"] == "raw"
    with pytest.raises(InputError, match="only raw, wire"):
        ga.attack_captured(plain / "rec", MODEL, method="analytic", place="server")


def test_a_truth_that_can_not_be_is_refused(plain, tmp_path):
    def ask(x, y):
        np.savez(tmp_path / "t.npz", x=x, y=y)
        ga.attack_captured(plain / "rec", MODEL, tmp_path / "t.npz", method="analytic")

    with pytest.raises(InputError, match="of 1 examples"):
        ask(DATA.inputs[:2], DATA.labels[:2])
    with pytest.raises(InputError, match="reads"):
        ask(np.zeros((1, 9, 9, 1)), np.zeros(1, int))
    with pytest.raises(InputError, match="10 classes"):
        ask(DATA.inputs[:1], np.asarray([12]))
    with pytest.raises(InputError, match="no truth of"):
        (tmp_path / "empty").mkdir()
        ga.attack_captured(plain / "rec", MODEL, tmp_path / "empty")
    with pytest.raises(InputError, match="no file or folder"):
        ga.attack_captured(plain / "rec", MODEL, tmp_path / "none")


def test_channels_first_is_turned_round(tmp_path):
    model = build_model("cpl", (8, 6, 3), 10)
    images = np.random.default_rng(0).uniform(size=(2, 8, 6, 3)).astype("f4")
    for name, x in (("last", images), ("first", np.moveaxis(images, -1, 1))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(2))
        found = private_data(tmp_path / f"{name}.npz", model)
        np.testing.assert_array_equal(found.inputs, images)


def answers(*pictures, labels=None, objectives=None, iterations=5):
    count = len(pictures)
    return Reconstruction(
        inputs=np.stack(pictures)[:, None].astype("f4"),
        labels=np.asarray(labels or [[0]] * count),
        objective=np.asarray(objectives or np.arange(count), "f4"),
        iterations=np.full(count, iterations),
        evaluations=np.ones(count, int),
        status=np.full(count, Status.BUDGET),
    )


@pytest.fixture(scope="module")
def observation():
    params = MODEL.init(jax.random.key(0))
    targets = one_hot(jnp.asarray(DATA.labels[:1]), DATA.classes)
    inputs = jnp.asarray(DATA.inputs[:1])
    return Observation(params, batch_gradient(MODEL, params, {}, inputs, targets))


TRUE, OTHER = DATA.inputs[0], DATA.inputs[1]
LABEL = [int(DATA.labels[0])]
CAPTURE = Capture(pathlib.Path("x"), Facts(round=1, client="0"), {}, {})
# What the starts ended at, the labels -> agreement, determined
STARTS = {
    "all agree": ([TRUE, TRUE, TRUE], True, 1.0, True),
    "half agree": ([TRUE, TRUE, OTHER], True, 0.5, True),
    "nobody agrees": ([TRUE, OTHER, 1 - OTHER], True, 0.0, False),
    "they agree on what explains nothing": ([OTHER, OTHER, OTHER], True, 1.0, False),
    "they began at one place": ([TRUE, TRUE, TRUE], False, None, False),
}


@pytest.mark.parametrize("case", STARTS)
def test_an_answer_is_determined_if_it_explains_and_starts_agree(case, observation):
    pictures, different, agreement, determined = STARTS[case]
    begun = np.random.default_rng(0).uniform(size=(3, 1, 8, 8, 1)).astype("f4")
    begun = begun if different else begun[[0, 0, 0]]
    found = answers(*pictures, labels=[LABEL] * 3)
    weighed = weigh(0, CAPTURE, MODEL, observation, begun, found, 0.1).weighed
    assert (weighed.agreement, weighed.determined) == (agreement, determined)
    assert weighed.label_confidence == 1.0


def test_explaining_is_measured_at_the_scale_and_without_it(observation):
    assert max(explained(MODEL, observation, TRUE[None], np.asarray(LABEL))) < 1e-9
    halved = dataclasses.replace(
        observation, sent=jax.tree.map(lambda leaf: leaf / 2, observation.sent)
    )
    residual, unexplained = explained(MODEL, halved, TRUE[None], np.asarray(LABEL))
    assert residual == pytest.approx(1.0, rel=1e-3) and unexplained < 1e-9
    assert explained(MODEL, observation, TRUE[None] * np.nan, np.asarray(LABEL))[1] == 1


def ask(folder, *words):
    return CliRunner().invoke(
        app, ["attack", "--captured", str(folder / "rec"), *map(str, words)]
    )


def test_the_command_attacks_your_own_model(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ("--model", f"{plain}/mine.py:build", "--method", "analytic")
    done = ask(plain, *model, "--candidates", plain / "people.npz", "--out", "a")
    assert done.exit_code == 0, done.output
    assert "determined" in done.output and "withheld" in done.output
    done = ask(plain, *model, "--truth", plain / "truth", "--json", "--out", "b")
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["metrics"]["asr"]["value"] == 1.0
    done = ask(plain, *model, "--truth", plain / "truth", "--max-asr", "0.4")
    assert done.exit_code == 1, done.output
    again = CliRunner().invoke(app, ["run", "a", "--out", "c"])
    assert again.exit_code == 2 and "--trust" in again.stderr
    again = CliRunner().invoke(app, ["run", "a", "--out", "c", "--trust"])
    assert again.exit_code == 0, again.output
    first, second = (
        json.loads(pathlib.Path(name, "result.json").read_text()) for name in "ac"
    )
    assert first["metrics"] == second["metrics"]


REFUSED = {
    "no model": ((), "needs the client's model"),
    "a name without data": (("--model", "mlp"), "there is none to ask"),
    "a type": (("--model", "mlp", "--type", "1"), "--type has no effect"),
    "a data set": (("--model", "mlp", "--dataset", "digits"), "--dataset"),
    "no such file": (("--model", "none.py:build"), "no file none.py"),
    "another rate": (
        ("--model", "mine.py:build", "--learning-rate", "9"),
        "correct one of them",
    ),
    "a gate without truth": (
        ("--model", "mine.py:build", "--method", "analytic", "--max-asr", "0.1"),
        "only --truth can tell",
    ),
    "not a model": (("--model", "other.py:build"), "got int"),
    "no victims": (("--model", "mine.py:build", "--victims", "0"), "at least 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_is_refused_in_words(case, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("mine.py").write_text(FILE)
    pathlib.Path("other.py").write_text("def build():\n    return 3\n")
    words, said = REFUSED[case]
    done = ask(plain, *words, "--out", "out")
    assert done.exit_code == 2 and said in done.stderr, done.output


def test_options_of_captured_updates_need_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["attack", "--truth", "x.npz", "--out", "out"])
    assert done.exit_code == 2 and "without --captured" in done.stderr
