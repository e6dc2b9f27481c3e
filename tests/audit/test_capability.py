import pytest

from gradaudit import defenses
from gradaudit.attacks import PRESETS, cpl, gradinv
from gradaudit.audit.threat import Setting, check, transforms_seen
from gradaudit.defenses.compression import Sign
from gradaudit.errors import InputError
from gradaudit.types import Leakage

SIGNED = defenses.defend("signed", per_example=(Sign(),))


@pytest.mark.parametrize(
    ("defense", "unseen"),
    [
        (defenses.fed_sdp(), {Leakage.CLIENT, Leakage.EXAMPLE}),
        (defenses.fed_sdp_client(), {Leakage.EXAMPLE}),
        (defenses.fed_cdp(), set()),
    ],
    ids=["fed-sdp", "fed-sdp-client", "fed-cdp"],
)
def test_a_defense_behind_the_tap_is_said_to_protect_nothing(defense, unseen):
    for leakage in Leakage:
        said = " ".join(check(Setting(cpl(), defense, leakage, 1)))
        assert ("protects nothing" in said) == (leakage in unseen)
        assert bool(transforms_seen(defense, leakage)) == (leakage not in unseen)


def test_no_defense_needs_no_words():
    for preset in PRESETS.values():
        assert check(Setting(preset.make(), defenses.none(), Leakage(2), 1)) == []


def test_signs_can_not_be_matched_by_l2():
    with pytest.raises(InputError, match="gradinv"):
        check(Setting(cpl(), SIGNED, Leakage.EXAMPLE, 1))
    assert check(Setting(gradinv(), SIGNED, Leakage.EXAMPLE, 1)) == []


def test_cyclic_needs_a_batch():
    with pytest.raises(InputError, match="one input"):
        check(Setting(cpl(cyclic=True), defenses.none(), Leakage.EXAMPLE, 1))
    assert check(Setting(cpl(cyclic=True), defenses.none(), Leakage.CLIENT, 3)) == []
