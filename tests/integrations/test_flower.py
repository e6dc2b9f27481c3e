"""Flower's messages through the recorder: unchanged, recorded, and never in the way.

With flwr installed its own messages, mods and strategies are used; the first tests
need nothing but the shape of a message.
"""

import json
import logging
import subprocess
import sys
import types

import numpy as np
import pytest

from gradaudit.audit.mechanism_check import mechanism_check
from gradaudit.integrations.flower import Recorder, claim_of, recorded
from gradaudit.record import ABOUT, Sample

WEIGHTS = {"w": np.ones((40, 30), np.float32), "b": np.zeros(9, np.float32)}


def test_the_mod_loads_neither_jax_nor_torch_nor_flwr(root):
    program = (
        "import sys, gradaudit.integrations.flower;"
        "heavy = {'jax', 'torch', 'flwr', 'ray'};"
        "assert not heavy & {name.partition('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


def message(arrays, config=None, error=False):
    """Has what the recorder reads of a message."""
    held = {n: types.SimpleNamespace(numpy=lambda a=a: a) for n, a in arrays.items()}
    content = types.SimpleNamespace(
        array_records={"arrays": held} if arrays else {},
        config_records={"config": config or {}},
    )
    return types.SimpleNamespace(
        content=content, has_error=lambda: error, has_content=lambda: not error
    )


CONTEXT = types.SimpleNamespace(node_config={"partition-id": 7}, node_id=99)


def moved(by=0.5):
    return {name: array + np.float32(by) for name, array in WEIGHTS.items()}


def test_what_passes_is_recorded_and_unchanged(tmp_path):
    asked = message(WEIGHTS, {"server-round": 3, "clipping_norm": 0.25})
    answer = message(moved())
    recorder = Recorder(tmp_path, facts={"learning_rate": 0.1, "batch_size": 4})
    assert recorder(asked, CONTEXT, lambda m, c: answer) is answer
    (folder,) = tmp_path.iterdir()
    assert folder.name == "round-0003-client-7-wire"
    about = json.loads((folder / ABOUT).read_text())
    assert (about["round"], about["client"], about["batch_size"]) == (3, "7", 4)
    assert about["claim"]["clip"] == 0.25


def test_facts_may_depend_on_the_message(tmp_path):
    def facts(asked, context, reply):
        return {"batch_size": asked.content.config_records["config"]["b"]}

    recorder = Recorder(tmp_path, facts=facts)
    recorder(message(WEIGHTS, {"b": 5}), CONTEXT, lambda m, c: message(moved()))
    (about,) = tmp_path.glob(f"*/{ABOUT}")
    assert json.loads(about.read_text())["batch_size"] == 5


NOTHING = {
    "secure aggregation": (message(WEIGHTS), message({})),
    "an error": (message(WEIGHTS), message({}, error=True)),
    "an evaluation without arrays": (message({}), message({})),
}


@pytest.mark.parametrize("case", NOTHING)
def test_there_is_nothing_to_record(case, tmp_path, caplog):
    asked, answer = NOTHING[case]
    with caplog.at_level(logging.WARNING, "gradaudit"):
        assert Recorder(tmp_path)(asked, CONTEXT, lambda m, c: answer) is answer
    assert not list(tmp_path.iterdir()) and not caplog.text


def fails(*_):
    raise RuntimeError("no")


def test_a_recorder_that_fails_leaves_the_training_alone(tmp_path, caplog):
    answer = message(moved())
    for recorder in (
        Recorder("/dev/null/x"),
        Recorder(tmp_path, facts=fails),
        Recorder(tmp_path, facts={"nonsense": 1}),
        Recorder(tmp_path, place="moon"),
    ):
        assert recorder(message(WEIGHTS), CONTEXT, lambda m, c: answer) is answer
    assert caplog.text.count("not recorded") == 4


def test_the_clients_own_error_is_not_swallowed(tmp_path):
    with pytest.raises(RuntimeError, match="no"):
        Recorder(tmp_path)(message(WEIGHTS), CONTEXT, fails)


def test_claims_are_read_off_a_defense():
    local = types.SimpleNamespace(
        clipping_norm=0.5, sensitivity=0.005, epsilon=10, delta=1e-5
    )
    claim = claim_of(local)
    assert (claim["clip"], claim["sensitivity"], claim["epsilon"]) == (0.5, 0.005, 10)
    central = types.SimpleNamespace(
        clipping_norm=0.5, noise_multiplier=2.0, num_sampled_clients=4
    )
    assert claim_of(central)["noise_std"] == 0.25
    assert claim_of(None) is None and claim_of({"clip": 1.0}) == {"clip": 1.0}


# Flower's own.


@pytest.fixture
def flower(monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    app = pytest.importorskip("flwr.app", reason="flwr is not installed")
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, 1)
    return app


def real(flower, arrays, **others):
    record = flower.ArrayRecord({n: flower.Array(a) for n, a in arrays.items()})
    return flower.RecordDict({"arrays": record, **others})


def asked_of(flower, number, config=None):
    words = flower.ConfigRecord({"server-round": number, **(config or {})})
    content = real(flower, WEIGHTS, config=words)
    return flower.Message(content=content, dst_node_id=1, message_type="train")


def trained(flower, seed):
    def client(asked, context):
        rng = np.random.default_rng(seed)
        after = {
            n: a + rng.normal(0, 0.1, a.shape).astype("f4") for n, a in WEIGHTS.items()
        }
        metrics = flower.MetricRecord({"num-examples": 4})
        return flower.Message(
            content=real(flower, after, metrics=metrics), reply_to=asked
        )

    return client


def chained(mods, client):
    """Returns the client inside its mods, the first of them outermost."""
    if not mods:
        return client
    inner = chained(mods[1:], client)
    return lambda asked, context: mods[0](asked, context, inner)


# What is typed for the sensitivity, and what the check finds.
TYPED = {1.0: "consistent", 0.01: "refuted"}


@pytest.mark.parametrize("share", TYPED)
def test_the_noise_of_local_dp_is_measured(share, flower, tmp_path):
    from flwr.clientapp.mod import LocalDpMod

    clip = 0.5
    guard = LocalDpMod(clip, share * clip, 10.0, 1e-5)
    mods = [Recorder(tmp_path, claim=guard), guard, Recorder(tmp_path, "raw")]
    for number in range(1, 4):
        chain = chained(mods, trained(flower, number))
        assert not chain(asked_of(flower, number), CONTEXT).has_error()
    result = mechanism_check(tmp_path)
    assert len(result.pairs) == 3 and result.verdict == TYPED[share]
    expected = share * clip * np.sqrt(2 * np.log(1.25e5)) / 10
    assert result.noise.value == pytest.approx(expected, rel=0.05)


def test_fixed_clipping_has_no_noise(flower, tmp_path):
    from flwr.clientapp.mod import fixedclipping_mod

    mods = [Recorder(tmp_path), fixedclipping_mod, Recorder(tmp_path, "raw")]
    chain = chained(mods, trained(flower, 0))
    chain(asked_of(flower, 1, {"clipping_norm": 0.05}), CONTEXT)
    result = mechanism_check(tmp_path)
    assert result.clip.value == pytest.approx(0.05, rel=1e-3)
    assert result.claim.clip == 0.05 and result.verdict == "consistent"
    assert "no noise" in result.findings[0].sentence


def test_the_server_sees_replies_and_the_noisy_aggregate(flower, tmp_path):
    from flwr.serverapp.strategy import (
        DifferentialPrivacyServerSideFixedClipping,
        FedAvg,
    )

    inner = recorded(FedAvg(), tmp_path, aggregate=False)
    guard = DifferentialPrivacyServerSideFixedClipping(inner, 2.0, 0.5, 3)
    outer = recorded(guard, tmp_path, replies=False, claim=guard)
    given = real(flower, WEIGHTS)["arrays"]
    for strategy in (outer, guard, inner):
        assert strategy.summary() is None
    answers = [
        trained(flower, client)(asked_of(flower, 1), CONTEXT) for client in range(3)
    ]
    for client, answer in enumerate(answers):
        answer.metadata.__dict__["_src_node_id"] = client + 10
    guard.current_arrays = given
    for strategy in (outer, inner):
        strategy._sent_out = {n: a.numpy().copy() for n, a in given.items()}
    arrays, _ = outer.aggregate_train(1, answers)
    assert arrays is not None
    result = mechanism_check(tmp_path)
    assert len(result.pairs) == 1 and result.verdict == "consistent"
    assert result.noise.value == pytest.approx(2.0 * 0.5 / 3, rel=0.1)


def test_a_sample_bounds_what_is_recorded(tmp_path):
    recorder = Recorder(tmp_path, sample=Sample(rounds=2))
    for number in range(1, 7):
        asked = message(WEIGHTS, {"server-round": number})
        recorder(asked, CONTEXT, lambda m, c: message(moved()))
    assert len(list(tmp_path.iterdir())) == 3
