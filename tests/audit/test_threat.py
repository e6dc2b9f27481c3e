"""The threat: what it gives, what an attack needs, and what is said of the two."""

import pytest

from gradaudit import defenses
from gradaudit.attacks import PRESETS, cpl, gradinv
from gradaudit.attacks.labels import Known, LastLayer
from gradaudit.audit.threat import (
    GRANTS,
    SOK,
    THREATS,
    Threat,
    remarks,
    transforms_seen,
)
from gradaudit.defenses.compression import Sign
from gradaudit.errors import InputError
from gradaudit.types import Knowledge, Leakage


def said_of(attack, defense, leakage):
    return remarks(attack, defense, Threat.parse("curious", leakage))


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
        said = " ".join(said_of(cpl(), defense, leakage))
        assert ("protects nothing" in said) == (leakage in unseen)
        assert bool(transforms_seen(defense, leakage)) == (leakage not in unseen)


def test_no_defense_needs_no_words():
    for preset in PRESETS.values():
        assert said_of(preset.make(), defenses.none(), Leakage(2)) == []


def test_signs_can_not_be_matched_by_l2():
    with pytest.raises(InputError, match="gradinv"):
        said_of(cpl(), SIGNED, Leakage.EXAMPLE)
    assert said_of(gradinv(), SIGNED, Leakage.EXAMPLE) == []


def test_a_closed_form_is_said_to_need_an_exact_gradient():
    said = said_of(PRESETS["analytic"].make(), defenses.fed_cdp(), Leakage.EXAMPLE)
    assert any("exact gradient" in sentence for sentence in said)


def test_threats_grow_and_grants_add_to_them():
    known = {
        name: Threat.parse(name, Leakage.CLIENT).knows for name in ("curious", "aware")
    }
    assert known["curious"] < known["aware"]
    assert known["aware"] < Threat.parse("informed", Leakage.CLIENT).knows
    assert known["aware"] < Threat.parse("malicious", Leakage.CLIENT).knows
    granted = Threat.parse("curious+labels", Leakage.CLIENT)
    assert granted.knows == known["curious"] | {Knowledge.LABELS}
    assert granted.name == "curious+labels"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("curios", "did you mean 'curious'"),
        ("curious+label", "did you mean 'labels'"),
        ("", "threat"),
        ("+labels", "threat"),
    ],
)
def test_an_unknown_threat_is_answered_in_words(text, words):
    with pytest.raises(InputError, match=words):
        Threat.parse(text, Leakage.EXAMPLE)


@pytest.mark.parametrize("name", ["curious", "aware"])
def test_an_attack_that_needs_more_than_the_threat_gives_is_refused(name):
    asking, modest = cpl(labels="known"), cpl()
    threat = Threat.parse(name, Leakage.CLIENT)
    threat.check(modest)
    with pytest.raises(InputError, match=rf"--threat {name}\+labels"):
        threat.check(asking)
    Threat.parse(f"{name}+labels", Leakage.CLIENT).check(asking)
    assert set(GRANTS) == {"labels"}  # what the words above can promise


@pytest.mark.parametrize("name", sorted({*THREATS} - {"curious", "aware"}))
def test_a_threat_may_not_promise_what_the_attack_makes_no_use_of(name):
    with pytest.raises(InputError, match="makes no use of"):
        Threat.parse(name, Leakage.CLIENT).check(cpl())


@pytest.mark.parametrize(
    ("text", "letter", "uncounted"),
    [
        ("curious", "C", []),
        ("curious+labels", "C", [Knowledge.LABELS]),
        ("aware", "D", [Knowledge.DEFENSE]),
        ("informed", "D", [Knowledge.DEFENSE, Knowledge.CANDIDATES]),
        ("malicious", "G", [Knowledge.DEFENSE]),
    ],
)
def test_the_record_has_the_letter_of_the_systematization(text, letter, uncounted):
    record = Threat.parse(text, Leakage.SERVER).to_dict(cpl())["sok"]
    assert record["letter"] == letter and record["name"] == SOK[letter]
    assert record["uncounted"] == [knowledge.value for knowledge in uncounted]


# They read one look, layer by layer or in closed form.
ALONE = ("analytic", "spear", "imprint", "peeling")


def test_several_looks_are_for_attacks_that_explain_them_together():
    twice = Threat.parse("curious", Leakage.EXAMPLE, looks=2)
    for name, preset in PRESETS.items():
        attack = preset.make()
        assert attack.joint == (name not in ALONE)
        if attack.joint:
            twice.check(attack)
        else:
            with pytest.raises(InputError, match="one look only"):
                twice.check(attack)
    assert twice.to_dict(cpl())["looks"] == 2


def test_known_labels_come_in_order_and_the_record_says_so():
    assert Known.ordered and not getattr(LastLayer(), "ordered", False)
    record = Threat.parse("curious+labels", Leakage.CLIENT).to_dict(cpl(labels="known"))
    for said in (record["knows"], record["attack_needs"]):
        assert any("labels" in words and "which local step" in words for words in said)
    modest = Threat.parse("curious", Leakage.CLIENT).to_dict(cpl())
    assert not any("labels" in words for words in modest["knows"])
    assert modest["attack_needs"] == []
