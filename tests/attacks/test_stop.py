"""When an attack stops: at the attacker's own level, without another number changed."""

import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks import Stop, lanes
from gradaudit.attacks.presets import parse
from gradaudit.errors import InputError

SMALL = {"dataset": "digits", "model": "dpfl-2conv", "victims": 4, "draws": 2}
LEVEL = 1e-7


@pytest.fixture(scope="module")
def stopped():
    paper = ga.attack(method="cpl:stop=paper,history=3,iterations=60", **SMALL)
    programs = lanes.advance._cache_size()
    found = ga.attack(method="cpl:stop=found,history=3,iterations=60", **SMALL)
    # The level is data: both rules run one compiled program.
    assert lanes.advance._cache_size() == programs
    return {"paper": paper, "found": found}


def test_the_rule_cuts_a_search_and_changes_nothing_before(stopped):
    assert stopped["found"].asr.value == stopped["paper"].asr.value == 1.0
    for short, long in zip(
        stopped["found"].traces, stopped["paper"].traces, strict=True
    ):
        assert len(short.objective) < len(long.objective)
        assert short.objective == long.objective[: len(short.objective)]
        assert short.rmse == long.rmse[: len(short.rmse)]


def test_it_stops_at_the_first_iteration_that_is_at_the_level(stopped):
    weight = parse("cpl").distance.weight
    for score, trace in zip(
        stopped["found"].scores, stopped["found"].traces, strict=True
    ):
        relative = np.asarray(trace.objective) / weight
        assert score.status == "converged"
        assert relative[-1] <= LEVEL < relative[:-1].min()


@pytest.mark.parametrize("name", ["cpl", "dlg", "idlg"])
def test_a_batch_is_searched_for_to_the_end(name):
    stop = parse(name).stop
    assert stop.level(1) == LEVEL and stop.level(2) == stop.objective == 1e-10
    paper = parse(f"{name}:stop=paper").stop
    assert paper.level(1) == paper.level(2) == 1e-10


def test_wrong_rules_are_refused():
    with pytest.raises(InputError, match="found must not be negative, got -1"):
        Stop(found=-1.0)
    with pytest.raises(InputError, match="unknown stop 'papers'; did you mean 'paper'"):
        parse("cpl:stop=papers")
