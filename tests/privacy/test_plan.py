"""The plan: what a run samples, who shares its examples, and what that costs."""

import dataclasses
import functools
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from gradaudit import defenses
from gradaudit.data import CATALOGUE, FullCopy, Iid, Shards
from gradaudit.defenses import PRESETS, fed_cdp, fed_sdp
from gradaudit.errors import InputError
from gradaudit.federation.setting import (
    PAPER_SETTINGS,
    Batches,
    Selection,
    Setting,
    paper_setting,
    setting_as_plain,
    setting_in_words,
)
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.privacy import (
    PrivacyPlan,
    affordable_rounds,
    copies_in,
    epsilon,
    gaussian,
    spend,
)
from gradaudit.privacy.calibrate import rounds_within
from gradaudit.privacy.events import in_turn, pure
from gradaudit.privacy.statement import privacy_as_plain

DELTA = 1e-5
JOINT = defenses.parse("fed-cdp:scope=global")  # its claim is about one joint clip
EVERY_DRAW = list(itertools.product(Selection, Batches))


@dataclasses.dataclass(frozen=True)
class Stated:
    """A defense that is only its mechanisms."""

    mechanisms: tuple[Mechanism, ...]
    name: str = "stated"


def classes_of(dataset):
    return CATALOGUE[dataset].class_sizes("train")


def published(dataset, **changes):
    return dataclasses.replace(paper_setting(dataset), **changes)


def ask(dataset, defense=JOINT, **changes):
    setting = published(dataset, **changes)
    return epsilon(defense, setting, class_sizes=classes_of(dataset))


# Shared examples.


def test_copies_come_from_the_partition_and_the_data():
    assert copies_in(published("cancer")) == 1000
    assert copies_in(published("mnist")) is None
    # 200 clients hold a class, 250 of its examples each; the smallest class has 5,421.
    assert copies_in(published("mnist"), classes_of("mnist")) == 10
    # 1,000 clients with 500 examples each out of 60,000.
    iid = published("mnist", partition=Iid())
    assert copies_in(iid, classes_of("mnist")) == 9
    apart = published("mnist", partition=Iid(), clients=120, clients_per_round=12)
    assert copies_in(apart, classes_of("mnist")) == 1
    assert copies_in(Setting(clients=1, clients_per_round=1)) == 1
    assert copies_in(Setting()) is None


@pytest.mark.parametrize("partition", [Iid(), Shards(2), FullCopy()])
def test_copies_of_a_real_partition_never_exceed_what_is_counted_without_it(partition):
    labels = np.repeat(np.arange(4), [40, 60, 80, 20])
    setting = Setting(clients=30, clients_per_round=5, examples=16, partition=partition)
    held = partition.assign(3, labels, setting.clients, setting.examples)
    real = copies_in(setting, held=held)
    assert 1 <= real <= copies_in(setting, np.bincount(labels).tolist())


def test_cancer_mnist_and_a_partition_without_sharing_are_three_figures():
    """With coins as the claim counts them, only the sharing is left."""
    coins = {"batches": Batches.POISSON}
    apart = {"partition": Iid(), "clients": 120, "clients_per_round": 12}
    cancer, mnist, alone = (
        ask("cancer", **coins),
        ask("mnist", **coins),
        ask("mnist", **coins, **apart),
    )
    assert cancer.claimed["pld"] == pytest.approx(0.090, abs=5e-4)
    assert cancer.effective_epsilon == pytest.approx(1.096, abs=1e-3)
    assert mnist.effective_epsilon == pytest.approx(2.134, abs=2e-3)
    assert alone.effective_epsilon == pytest.approx(0.601, abs=1e-3)
    assert [p.guarantee.valid for p in (cancer, mnist, alone)] == [False, False, True]
    for privacy, words in ((cancer, "up to 1,000 clients"), (mnist, "up to 10 clie")):
        assert any(words in reason for reason in privacy.guarantee.reasons)


def test_the_copies_that_take_part_are_the_smaller_of_copies_and_clients():
    def steps(**changes):
        setting = published("cancer", **changes)
        plan = PrivacyPlan(JOINT, setting, copies=copies_in(setting))
        return plan.accounted().steps

    assert steps() == 300 * 100
    assert steps(clients_per_round=7) == 300 * 7
    assert steps(clients=5, clients_per_round=5) == 300 * 5
    # On coins a round has no fixed size: as many as are not exceeded.
    coins = published("cancer", selection=Selection.POISSON)
    holders = PrivacyPlan(JOINT, coins, copies=copies_in(coins)).holders
    assert stats.binom.sf(holders, 1000, 0.1) * 3 <= 1e-12
    assert 100 < holders < 200


def test_sharing_is_no_matter_for_clients_but_is_said():
    privacy = ask("cancer", fed_sdp(), selection=Selection.POISSON)
    assert privacy.plan.holders == 1
    assert privacy.accounted_epsilon == pytest.approx(privacy.claimed["pld"])
    assert any("does not hide an example" in note for note in privacy.guarantee.notes)


def test_an_unknown_number_of_copies_is_said():
    privacy = epsilon(JOINT, Setting(batches=Batches.POISSON))
    assert any("not known how many clients" in n for n in privacy.guarantee.notes)
    assert "if no two clients hold the same one" in privacy.guarantee.holds


# Selection, batches and the accountant.


def test_the_draw_decides_the_events():
    sigma = 6.0

    def tight(defense, **changes):
        privacy = epsilon(defense, Setting(rounds=20, local_steps=1, **changes))
        return privacy.accounted_epsilon

    def expected(noise, q, **kind):
        return spend("pld", gaussian(noise, q, 20, **kind), DELTA).epsilon

    fixed, poisson, active = Selection
    assert tight(JOINT, batches=Batches.POISSON) == expected(sigma, 0.01)
    assert tight(JOINT, batches=Batches.FIXED) == expected(sigma / 2, 0.01, fixed=True)
    assert tight(fed_sdp(), selection=poisson) == expected(sigma, 0.1)
    assert tight(fed_sdp(), selection=fixed) == expected(sigma / 2, 0.1, fixed=True)
    assert tight(fed_sdp(), selection=active) == expected(sigma, 1.0)


def test_a_draw_of_everything_is_no_draw():
    everybody = {"clients": 10, "clients_per_round": 10, "rounds": 3}
    for selection in Selection:
        privacy = epsilon(fed_sdp(), Setting(selection=selection, **everybody))
        one = spend("pld", gaussian(6.0, 1.0, 3), DELTA).epsilon
        assert privacy.accounted_epsilon == one


@pytest.mark.parametrize("kind", [NoiseKind.LAPLACE, NoiseKind.RANDOMIZER])
def test_replacing_doubles_what_adding_costs_unless_replacing_was_meant(kind):
    mechanism = Mechanism(
        point=Point.UPDATE,
        kind=kind,
        multiplier=lambda t: 0.5,
        sensitivity=lambda t: 1.0,
        clip=lambda t: 1.0,
        norm=1,
        per_tensor=False,
    )
    setting = Setting(rounds=1, selection=Selection.FIXED)
    counted = 1.0 if kind is NoiseKind.LAPLACE else 0.5
    assert epsilon(Stated((mechanism,)), setting).accounted_epsilon == pytest.approx(
        spend("base", pure(counted, 0.1), DELTA).epsilon, rel=1e-2
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_defense_and_draw_says_what_holds_for_the_run(name):
    defense = PRESETS[name].make()
    for selection, batches in EVERY_DRAW:
        setting = Setting(rounds=2, local_steps=1, selection=selection, batches=batches)
        privacy = epsilon(defense, setting, copies=1)
        holds, reasons = privacy.guarantee.holds, privacy.guarantee.reasons
        assert holds[0].isupper()
        assert holds.endswith(".")
        if privacy.effective is None:
            assert "no finite epsilon holds" in holds
        else:
            assert f"epsilon = {privacy.effective_epsilon:.4g}" in holds
            assert privacy.effective.relation in holds
        if not defense.mechanisms:
            continue
        example = privacy.unit.value == "example"
        drawn = batches.value if example else selection.value
        words = {"fixed": "of fixed size", "poisson": "independent coins"}
        assert words.get(drawn, "no amplification (q = 1)") in holds
        assert ("looks at" in " ".join(reasons)) == (selection is Selection.ACTIVE)
        assert ("fixed size" in " ".join(reasons)) == (drawn == "fixed")


# Budgets.


CLAIMING = [
    name
    for name, preset in PRESETS.items()
    if PrivacyPlan(preset.make(), Setting(rounds=2)).accounted() is not None
]


@pytest.mark.parametrize("name", CLAIMING)
def test_the_rounds_within_a_budget_are_all_that_fit(name):
    defense = PRESETS[name].make()
    setting = Setting(rounds=6, local_steps=2)

    @functools.cache
    def spent(rounds):
        done = dataclasses.replace(setting, rounds=rounds)
        events = PrivacyPlan(defense, done).accounted()
        return spend("pld", events, DELTA).epsilon

    plan = PrivacyPlan(defense, setting)
    for share in (0.4, 0.8, 1.01):
        target = spent(6) * share
        rounds = rounds_within(target, plan, DELTA)
        assert rounds == 0 or spent(rounds) <= target
        assert rounds == 6 or spent(rounds + 1) > target


def both():
    """`fed-sdp-client` and `fed-sdp` at once: noise at the client and the server."""
    parts = PRESETS["fed-sdp-client"].make(sigma=3.0), fed_sdp(sigma=3.0)
    return Stated(tuple(m for part in parts for m in part.mechanisms), "both")


def mixed():
    """Gaussian noise at the client, and Laplace noise at the server."""
    noisy = both().mechanisms[0]
    laplace = dataclasses.replace(
        noisy, kind=NoiseKind.LAPLACE, multiplier=lambda t: 0.2, norm=1
    )
    return Stated((noisy, laplace), "mixed")


@pytest.mark.parametrize(
    ("selection", "defense"),
    [
        pytest.param(
            *(selection, defense),
            id=f"{selection}-{defense.name}",
            marks=[pytest.mark.slow]
            * (defense.name == "mixed" and selection is not Selection.ACTIVE),
        )
        for selection in Selection
        for defense in (both(), mixed())
    ],
)
def test_two_mechanisms_do_not_overspend(selection, defense):
    setting = Setting(rounds=20, selection=selection)
    whole = epsilon(defense, setting).accounted_epsilon
    for target in (0.651, whole * 0.7):
        rounds = rounds_within(target, PrivacyPlan(defense, setting))
        for done, within in ((rounds, True), (rounds + 1, False)):
            if 0 < done <= setting.rounds:
                part = dataclasses.replace(setting, rounds=done)
                spent = epsilon(defense, part).accounted_epsilon
                assert (spent <= target) == within
        assert 0 <= rounds <= setting.rounds


def test_two_mechanisms_on_one_draw_are_one_release_and_kinds_take_turns():
    plan = PrivacyPlan(both(), Setting(rounds=4, selection=Selection.POISSON))
    assert plan.accounted().noise.tolist() == pytest.approx([3 / math.sqrt(2)] * 4)
    one, two = gaussian([1.0, 2.0], 0.1), pure([0.3, 0.4], 0.1)
    assert in_turn([one, two]).noise.tolist() == [1.0, 0.3, 2.0, 0.4]
    assert in_turn([one, two]).pure.tolist() == [False, True, False, True]


def test_a_budget_without_a_round_or_without_noise_is_refused():
    with pytest.raises(InputError, match="not even one round"):
        affordable_rounds(1e-6, PrivacyPlan(fed_cdp(), Setting(rounds=3)))
    with pytest.raises(InputError, match="claims no finite epsilon"):
        affordable_rounds(1.0, PrivacyPlan(defenses.none(), Setting()))


# Views.


def test_views_show_the_expected_and_a_frequent_client():
    views = epsilon(JOINT, Setting(), copies=1).views
    high = int(stats.binom.ppf(0.95, 100, 0.1))
    for view in views:
        assert (view.usual.participations, view.high.participations) == (10, high)
        assert view.usual.epsilon < view.high.epsilon
    # Type 2 reads each use: of 100 batches with 5 out of 500 examples, in 10 rounds.
    assert views[2].usual.releases == 10
    assert views[2].high.releases == int(stats.binom.ppf(0.95, high * 100, 0.01))
    # Of the clients, at most 5 % take part more often than the frequent one.
    rng = np.random.default_rng(0)
    often = rng.binomial(100, 0.1, 200_000)
    assert np.mean(often > high) < 0.05 < np.mean(often >= high)


def test_views_count_the_rounds_of_a_real_run_where_there_is_one():
    setting = Setting(rounds=20, batches=Batches.POISSON)
    for rounds in (3, 20):
        view = epsilon(JOINT, setting, participations=rounds).views[0]
        assert view.usual.participations == view.high.participations == rounds
        counted = gaussian(6.0, 0.01, rounds * 100)
        assert view.epsilon == spend("pld", counted, DELTA).epsilon
    assert epsilon(JOINT, setting, participations=0).views[0].epsilon == 0.0


def test_active_selection_may_take_the_same_client_every_round():
    setting = Setting(rounds=20, selection=Selection.ACTIVE)
    views = epsilon(JOINT, setting).views
    assert views[0].usual.participations == views[0].high.participations == 20


# The setting goes with the answer.


@pytest.mark.parametrize("dataset", PAPER_SETTINGS)
def test_an_answer_carries_its_setting(dataset):
    setting = paper_setting(dataset)
    plain = privacy_as_plain(epsilon(fed_cdp(), setting))
    assert plain["setting"] == setting_as_plain(setting)
    assert plain["setting"]["examples"] == setting.examples
    assert plain["setting"]["partition"]["scheme"] in plain["setting_in_words"]
    words = setting_in_words(setting)
    for number in (setting.examples, setting.batch_size, setting.rounds):
        assert str(number) in words


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("copies must lie in 1..1000", {"copies": 0}),
        ("copies must lie in 1..1000", {"copies": 1001}),
        ("participations must lie in 0..100", {"participations": 101}),
        ("tensors must be at least 1", {"tensors": 0}),
    ],
)
def test_an_impossible_plan_is_refused_in_words(message, changes):
    with pytest.raises(InputError, match=message):
        PrivacyPlan(JOINT, Setting(), **changes)


def test_settings_and_accounting_don_t_wait_for_jax():
    code = (
        "import sys, gradaudit.privacy, gradaudit.federation.setting;"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
