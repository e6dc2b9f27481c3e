"""The epsilon beside an attack belongs to a federation, and says to which."""

import pytest

import gradaudit as ga
from gradaudit.audit.train import train
from gradaudit.federation.setting import Setting, paper_setting, setting_as_plain

CHEAP = {"method": "analytic", "model": "mlp", "defense": "fed-cdp", "victims": 2}
CHEAP |= {"line_ups": 0}


def test_data_without_a_federation_has_no_epsilon():
    assert ga.attack(dataset="lfw-patches", draws=1, **CHEAP).accounting is None


def test_data_with_a_published_federation_is_accounted_for_that_one():
    found = ga.attack(dataset="cancer", draws=1, **CHEAP).accounting
    assert found["setting"] == setting_as_plain(paper_setting("cancer"))
    assert "N = 1,000 clients with 400" in found["setting_in_words"]
    without = ga.attack(dataset="cancer", draws=1, **(CHEAP | {"defense": "none"}))
    assert without.accounting is None


def test_a_recorded_training_is_accounted_for_its_own_federation(tmp_path):
    setting = Setting(
        clients=6, clients_per_round=2, local_steps=1, batch_size=1, examples=30,
        rounds=2,
    )  # fmt: skip
    guard = ga.defenses.fed_cdp(clip=1.0, sigma=2.0)
    trained = train(dataset="cancer", setting=setting, defense=guard, out=tmp_path)
    result = ga.attack(
        run=tmp_path,
        round=1,
        type=1,
        method="analytic",
        victims=1,
        draws=1,
        line_ups=0,
    )
    found, own = result.accounting, trained.to_dict()["accounting"]
    assert found["setting"] == own["setting"]
    assert found["epsilon"]["accounted"] == pytest.approx(own["epsilon"]["accounted"])
