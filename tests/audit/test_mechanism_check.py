"""The mechanism check finds what a defense does not do, and only that."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit.audit.measured_noise import measure, most_noise
from gradaudit.audit.mechanism_check import Claim, mechanism_check
from gradaudit.cli.app import app
from gradaudit.errors import InputError
from gradaudit.record import record

SHAPES = {"conv": (12, 5, 5), "dense": (60, 100), "bias": (10,)}
CLIP, STD = 0.5, 0.05


def draw(rng, scale=1.0):
    return {
        name: (scale * rng.normal(size=shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def norm(tensors):
    return math.sqrt(
        sum(float(np.square(t, dtype=float).sum()) for t in tensors.values())
    )


def clipped(update, clip):
    factor = min(1.0, clip / norm(update))
    return {name: (factor * t).astype(np.float32) for name, t in update.items()}


def noised(rng, update, std, law="normal", bare=()):
    return {
        name: t
        + (0 if name in bare else getattr(rng, law)(0, std, t.shape)).astype("f4")
        if name not in bare
        else t
        for name, t in update.items()
    }


def federation(folder, defend, rounds=3, clients=2, claim=None, places=("raw", "wire")):
    """Records updates before and after `defend(rng, update)`."""
    for number in range(1, rounds + 1):
        given = draw(np.random.default_rng(number), 0.1)
        for client in range(clients):
            rng = np.random.default_rng([number, client])
            raw = draw(rng, 0.02)
            sent = {"raw": raw, "wire": defend(rng, raw)}
            for place in places:
                after = {name: given[name] + sent[place][name] for name in given}
                facts = {"place": place, "round": number, "client": client}
                facts |= {"claim": claim if place == "wire" else None}
                assert record(given, after, folder, **facts) is not None
    return folder


def as_claimed(rng, update):
    return noised(rng, clipped(update, CLIP), STD)


def same_seed(rng, update):
    return noised(np.random.default_rng(7), clipped(update, CLIP), STD)


def by_tensor(rng, update):
    each = {name: clipped({name: t}, CLIP)[name] for name, t in update.items()}
    return noised(rng, each, STD / 2)


CLAIM = {"clip": CLIP, "noise_std": STD}
# What the defense really does, what it claims, the verdict, and what is found.
CASES = {
    "as claimed": (as_claimed, CLAIM, "consistent", None),
    "more than claimed": (
        lambda rng, u: noised(rng, clipped(u, CLIP), 2 * STD),
        CLAIM,
        "consistent",
        None,
    ),
    "a multiplier": (
        as_claimed,
        {"clip": CLIP, "noise_multiplier": STD / CLIP},
        "consistent",
        None,
    ),
    "a tenth too little": (
        lambda rng, u: noised(rng, clipped(u, CLIP), 0.9 * STD),
        CLAIM,
        "refuted",
        "noise",
    ),
    "a hundredth": (
        lambda rng, u: noised(rng, clipped(u, CLIP), STD / 100),
        CLAIM,
        "refuted",
        "noise",
    ),
    "off": (lambda rng, u: clipped(u, CLIP), CLAIM, "refuted", "noise"),
    "no clip": (lambda rng, u: noised(rng, u, STD), CLAIM, "refuted", "clip"),
    "a larger clip": (
        lambda rng, u: noised(rng, clipped(u, 1.3), STD),
        CLAIM,
        "refuted",
        "clip",
    ),
    "tensors one by one": (
        by_tensor,
        CLAIM | {"noise_std": STD / 2},
        "refuted",
        "clip",
    ),
    "one seed": (same_seed, CLAIM, "refuted", "fresh noise"),
    "a tensor without": (
        lambda rng, u: noised(rng, clipped(u, CLIP), STD, bare=("conv",)),
        CLAIM,
        "refuted",
        "every tensor",
    ),
    "Laplace": (
        lambda rng, u: noised(rng, clipped(u, CLIP), STD / math.sqrt(2), "laplace"),
        CLAIM,
        "refuted",
        "law",
    ),
    "Laplace, claimed": (
        lambda rng, u: noised(rng, clipped(u, CLIP), STD / math.sqrt(2), "laplace"),
        CLAIM | {"law": "laplace"},
        "consistent",
        None,
    ),
    "nothing claimed": (as_claimed, None, "can't tell", None),
    "only clipped, as claimed": (
        lambda rng, u: clipped(u, CLIP),
        {"clip": CLIP},
        "consistent",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_found(case, tmp_path):
    defend, claim, verdict, found = CASES[case]
    result = mechanism_check(federation(tmp_path, defend, claim=claim))
    assert result.verdict == verdict, result.findings
    against = {finding.what for finding in result.findings if finding.against}
    assert against == ({found} if found else set()), result.findings
    assert len(result.pairs) == 6
    json.dumps(result.to_dict(), allow_nan=False)


def test_clip_and_noise_are_measured(tmp_path):
    result = mechanism_check(federation(tmp_path, as_claimed, claim=CLAIM))
    assert result.noise.value == pytest.approx(STD, rel=0.02)
    assert result.clip.low < CLIP < result.clip.high
    # One update against none, by the closed form of the Gaussian mechanism.
    assert result.epsilon == pytest.approx(mu_epsilon(CLIP / STD), rel=0.05)


def mu_epsilon(mu, delta=1e-5):
    from scipy import optimize, stats

    def excess(epsilon):
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        log = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return first - math.exp(log) - delta

    return optimize.brentq(excess, 0, 1000)


def test_epsilon_claims_stand_for_the_noise_that_the_clip_needs():
    claim = Claim.of({"clip": 0.5, "epsilon": 10, "delta": 1e-5, "sensitivity": 0.005})
    assert claim.noise_std == pytest.approx(0.5 * math.sqrt(2 * math.log(1.25e5)) / 10)


def test_the_intervals_hold_what_they_say():
    covered = {"noise": 0, "clip": 0}
    small = {"w": (20, 10)}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        raw = {n: rng.normal(size=s).astype("f4") for n, s in small.items()}
        sent = noised(rng, clipped(raw, CLIP), STD)
        pair = measure("", raw, sent, raw)
        covered["noise"] += pair.noise.low <= STD <= pair.noise.high
        covered["clip"] += pair.bound().low <= CLIP <= pair.bound().high
    for name, hits in covered.items():
        assert 0.91 <= hits / 300 <= 0.99, name


def test_what_arrived_alone_bounds_the_noise(tmp_path):
    """Valid for any update, and enough to refute noise that is far too small."""
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        update = {"w": np.zeros((30, 10)), "b": rng.normal(size=3) * 0.3}
        held += most_noise([noised(rng, update, STD)]) >= STD
    assert held >= 0.95 * 200 - 10
    small = federation(
        tmp_path,
        lambda rng, u: noised(rng, clipped(u, CLIP), STD / 100),
        claim=CLAIM,
        places=("wire",),
    )
    result = mechanism_check(small)
    assert result.verdict == "refuted" and "at most" in result.findings[0].sentence
    assert result.epsilon is None and result.alone == 6


def test_honest_noise_alone_is_not_refuted(tmp_path):
    folder = federation(tmp_path, as_claimed, claim=CLAIM, places=("wire",))
    assert mechanism_check(folder).verdict == "can't tell"


def test_noise_on_an_aggregate_is_measured(tmp_path):
    given = draw(np.random.default_rng(0), 0.1)
    rng = np.random.default_rng(1)
    replies = [clipped(draw(rng, 0.02), CLIP) for _ in range(4)]
    for client, update in enumerate(replies):
        facts = {"place": "server", "round": 1, "client": client}
        record(given, update, tmp_path, sent_is="difference", **facts)
    mean = {name: np.mean([u[name] for u in replies], axis=0) for name in given}
    facts = {
        "place": "aggregate",
        "round": 1,
        "clients": 4,
        "claim": {"noise_std": 0.01},
    }
    record(given, noised(rng, mean, 0.01), tmp_path, sent_is="difference", **facts)
    result = mechanism_check(tmp_path)
    assert result.verdict == "consistent"
    assert result.noise.value == pytest.approx(0.01, rel=0.05)


def test_pairs_of_other_parameters_are_refused(tmp_path):
    federation(tmp_path, as_claimed, rounds=1, clients=1, places=("raw",))
    other = draw(np.random.default_rng(9))
    record(other, draw(np.random.default_rng(8)), tmp_path, round=1, client=0)
    with pytest.raises(InputError, match="no pair"):
        mechanism_check(tmp_path)


def test_different_claims_are_refused(tmp_path):
    federation(tmp_path / "a", as_claimed, 1, 1, claim=CLAIM)
    federation(tmp_path / "b", as_claimed, 1, 1, claim={"clip": 2.0})
    with pytest.raises(InputError, match="different claims"):
        mechanism_check(tmp_path)


def ask(*words):
    return CliRunner().invoke(app, ["captured", *map(str, words)])


def test_the_command_says_what_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    little = federation(
        tmp_path / "little", lambda rng, u: noised(rng, clipped(u, CLIP), STD / 100)
    )
    claim = "clip=0.5,noise_std=0.05"
    done = ask("check", little, "--claim", claim, "--out", "out")
    assert done.exit_code == 1, done.output
    assert "claimed noise 0.05, measured 0.000" in done.output
    assert "refuted" in done.output
    good = federation(tmp_path / "good", as_claimed)
    done = ask("check", good, "--claim", claim, "--out", "out", "--json")
    assert done.exit_code == 2 and "--overwrite" in done.stderr
    done = ask("check", good, "--claim", claim, "--out", "other", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["status"] == "done"
    again = CliRunner().invoke(app, ["run", "other", "--out", "again"])
    assert again.exit_code == 0, again.output
    assert ask("check", good, "--out", "third").exit_code == 3
    shown = ask("show", good, "--json")
    assert len(json.loads(shown.stdout)) == 12
    assert "raw" in ask("show", good).output


@pytest.mark.parametrize(
    "claim", ["clip", "clip=x", "clip=-1", "sigma=1", "law=cauchy"]
)
def test_a_claim_that_can_not_be_is_refused(claim, tmp_path):
    federation(tmp_path / "f", as_claimed, 1, 1)
    words = ("check", tmp_path / "f", "--claim", claim, "--out", tmp_path / "out")
    assert ask(*words).exit_code == 2
