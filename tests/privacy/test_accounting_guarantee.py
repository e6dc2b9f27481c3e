"""What a defense claims and what holds, over every preset and over single causes."""

import dataclasses
import math

import numpy as np
import pytest

import gradaudit as ga
from gradaudit.defenses import PRESETS, fed_cdp, fed_sdp
from gradaudit.errors import InputError
from gradaudit.federation.setting import (
    PAPER_SETTINGS,
    Batches,
    Selection,
    Setting,
    paper_setting,
)
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.privacy import METHODS, Sampling, Unit, epsilon, gaussian, spend
from gradaudit.privacy.statement import privacy_as_plain

# As the claims count: independent coins, and nobody shares an example.
COINS = Setting(selection=Selection.POISSON, batches=Batches.POISSON)
SMALL = dataclasses.replace(COINS, rounds=5, local_steps=4)


@dataclasses.dataclass(frozen=True)
class Stated:
    """A defense that is only its mechanisms."""

    mechanisms: tuple[Mechanism, ...]
    name: str = "stated"


def constant(value):
    return lambda t: value


SOUND = Mechanism(
    point=Point.PER_EXAMPLE,
    kind=NoiseKind.GAUSSIAN,
    multiplier=constant(6.0),
    sensitivity=constant(4.0),
    clip=constant(4.0),
    per_tensor=False,
)


def ask(setting=SMALL, **changes):
    mechanism = dataclasses.replace(SOUND, **changes)
    return epsilon(Stated((mechanism,)), setting)


def test_a_joint_clip_with_tied_noise_is_a_valid_guarantee():
    privacy = ask()
    assert privacy.guarantee.valid
    assert privacy.guarantee.reasons == ()
    assert privacy.effective_epsilon == privacy.accounted_epsilon
    assert privacy.guarantee.effective_multiplier == 6.0


BREAKS = {
    "computed from the private batch": {"data_dependent": True},
    "M = 6 tensors is clipped to C on its own": {"per_tensor": True},
    "scaled to 1 while one unit can change the release by 4": {
        "sensitivity": constant(1.0)
    },
    "Nothing bounds what one unit can change": {"clip": constant(None)},
    "multiplier is 0 in some round": {"multiplier": lambda t: 6.0 * (t != 3)},
    "Only dense layers get noise": {"coordinates": "dense layers"},
}


@pytest.mark.parametrize("sentence", BREAKS)
def test_each_cause_alone_makes_the_guarantee_not_valid(sentence):
    guarantee = ask(**BREAKS[sentence]).guarantee
    assert guarantee.verdict == "not valid"
    assert [sentence in reason for reason in guarantee.reasons] == [True]


def test_per_tensor_clipping_divides_sigma_by_the_root_of_the_tensors():
    """M = 6: sigma = 2.449, moments 2.156 instead of 0.823 at T = 10,000."""
    privacy = epsilon(fed_cdp(clip=4.0, sigma=6.0), COINS, tensors=6)
    assert privacy.steps == 10_000
    assert privacy.q == pytest.approx(0.01)
    assert privacy.guarantee.effective_multiplier == pytest.approx(6 / math.sqrt(6))
    assert privacy.claimed_epsilon == pytest.approx(0.823, abs=5e-4)
    assert privacy.accounted_epsilon == pytest.approx(0.601, abs=5e-4)
    assert privacy.effective["moments"] == pytest.approx(2.156, abs=2e-3)


def test_one_norm_clips_per_tensor_add_up():
    changes = {"kind": NoiseKind.LAPLACE, "norm": 1, "per_tensor": True}
    privacy = ask(multiplier=constant(0.5), **changes)
    assert privacy.guarantee.effective_multiplier == pytest.approx(1 / (0.5 * 6))


@pytest.mark.parametrize("dataset", PAPER_SETTINGS)
def test_example_level_counts_rounds_times_local_steps_at_the_papers_rate(dataset):
    setting = paper_setting(dataset)
    privacy = epsilon(fed_cdp(), setting)
    assert privacy.unit is Unit.EXAMPLE
    assert privacy.q == pytest.approx(0.01)
    assert privacy.steps == setting.rounds * 100
    everywhere = epsilon(fed_cdp(), setting, sampling=Sampling.GLOBAL)
    assert everywhere.q == pytest.approx(0.001)
    assert everywhere.claimed["pld"] < privacy.claimed["pld"]
    # A client that is drawn brings all its examples: no run is hidden by that draw.
    assert everywhere.accounted_epsilon == privacy.accounted_epsilon
    assert any("in the claim only" in note for note in everywhere.guarantee.notes)


@pytest.mark.parametrize("local_steps", [1, 100])
def test_client_level_counts_rounds_whatever_the_local_steps(local_steps):
    setting = Setting(local_steps=local_steps)
    privacy = epsilon(fed_sdp(), setting, convention="paper")
    assert privacy.unit is Unit.CLIENT
    assert (privacy.q, privacy.steps) == (0.1, 100)
    assert round(privacy.claimed_epsilon, 4) == 0.8536


def test_noise_protects_only_the_adversaries_after_it():
    inf = math.inf
    finite = {
        Point.PER_EXAMPLE: (True, True, True),
        Point.UPDATE: (True, True, False),
        Point.SERVER: (True, False, False),
    }
    for point, expected in finite.items():
        views = ask(point=point).views
        assert tuple(view.epsilon < inf for view in views) == expected
        assert all((view.reason != "") != (view.epsilon < inf) for view in views)
    on_batch = ask(on_batch_sum=True)
    assert [view.epsilon < inf for view in on_batch.views] == [True, True, False]
    assert on_batch.guarantee.valid
    assert any("share that draw" in note for note in on_batch.guarantee.notes)


def test_the_type_2_view_spends_far_more_than_the_mean():
    """10 rounds of 100, 100 steps of 5 out of 500: each example is read 10 times."""
    privacy = ask(COINS)
    example = privacy.views[2]
    assert (example.releases, example.q) == (10, 1.0)
    assert example.epsilon == pytest.approx(
        spend("pld", gaussian(6, 1.0, 10), 1e-5).epsilon
    )
    assert example.epsilon > 3 * privacy.accounted_epsilon


def test_a_reader_who_knows_the_rounds_is_given_the_ones_with_least_noise():
    noise = np.linspace(9, 5, 20)
    setting = dataclasses.replace(COINS, rounds=20, clients_per_round=500)
    privacy = ask(setting, multiplier=lambda t: float(noise[t]))
    expected = spend("pld", gaussian(noise[-10:], 1.0), 1e-5).epsilon
    assert privacy.views[2].epsilon == pytest.approx(expected)


def test_schedules_are_read_round_by_round_and_repeated_for_local_steps():
    privacy = ask(multiplier=lambda t: 5.0 + t)
    assert privacy.events.noise.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert privacy.events.count.tolist() == [4] * 5
    assert privacy.steps == privacy.events.steps == 20


def test_two_releases_on_one_draw_cost_as_much_as_the_joint_one():
    """Quantile clipping: 7.5 for the gradients and 10 for the count are sigma = 6."""
    two = Stated(
        (
            dataclasses.replace(SOUND, multiplier=constant(7.5)),
            dataclasses.replace(SOUND, multiplier=constant(10.0)),
        )
    )
    assert epsilon(two, SMALL).accounted_epsilon == pytest.approx(
        ask().accounted_epsilon
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_verdict_with_reasons_and_three_numbers(name):
    privacy = epsilon(PRESETS[name].make(), SMALL)
    guarantee = privacy.guarantee
    assert guarantee.valid == (not guarantee.reasons)
    if guarantee.valid:
        assert privacy.effective_epsilon == pytest.approx(privacy.accounted_epsilon)
    else:
        assert privacy.effective_epsilon >= privacy.accounted_epsilon
    assert privacy.effective_epsilon >= privacy.at_best * (1 - 1e-12)
    for sentence in (*guarantee.reasons, *guarantee.notes):
        assert sentence.endswith(".")
        assert sentence[0].isupper()
    plain = privacy_as_plain(privacy)
    assert {"claimed", "accounted", "effective"} <= set(plain["epsilon"])
    assert set(plain["methods"]) in (set(METHODS), set())


def test_l2_max_has_no_finite_epsilon_and_says_what_it_would_be_at_best():
    privacy = epsilon(PRESETS["fed-alpha-cdp"].make(), SMALL)
    assert math.isinf(privacy.effective_epsilon)
    assert math.isfinite(privacy.at_best)
    assert any(f"{privacy.at_best:.4g}" in note for note in privacy.guarantee.notes)


def test_it_is_reachable_from_the_top():
    assert ga.epsilon is epsilon


def test_bad_settings_are_refused_in_words():
    with pytest.raises(InputError, match="tensors must be at least 1, got 0"):
        epsilon(Stated((SOUND,)), SMALL, tensors=0)
    with pytest.raises(InputError, match="delta must lie in"):
        epsilon(Stated((SOUND,)), SMALL, delta=2.0)
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        paper_setting("mnits")
