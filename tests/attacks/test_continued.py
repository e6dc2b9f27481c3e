"""One attack goes on from what another one handed in."""

import dataclasses

import jax
import numpy as np
import pytest

from gradaudit.attacks import Adam, Analytic, Matching, Stop, lanes
from gradaudit.attacks.base import run
from gradaudit.attacks.starts import Normal
from gradaudit.errors import InputError
from tests.attacks.attack_cases import QUICK, SLOTS, digit_victims, quick

KEY = jax.random.key(3)


def test_a_search_goes_on_from_an_answer_and_keeps_its_own_start_without_one():
    model, victims, _ = digit_victims()
    alone = run(QUICK, KEY, model, victims, SLOTS)
    lost = np.asarray(alone.inputs).copy()
    lost[1] = np.nan
    begun = dataclasses.replace(alone, inputs=lost)
    again = run(QUICK, KEY, model, victims, SLOTS, begun=begun)
    others = np.asarray([0, 2, 3])
    assert (again.objective[others] <= alone.objective[others]).all()
    np.testing.assert_array_equal(again.inputs[1], alone.inputs[1])
    # The first evaluation is at the answer itself.
    first = run(quick(QUICK, 1), KEY, model, victims, SLOTS, begun=alone)
    assert (first.objective <= alone.objective).all()


def test_an_attack_that_cannot_go_on_says_so():
    model, victims, _ = digit_victims()
    with pytest.raises(InputError, match="can't go on"):
        run(Analytic(), KEY, model, victims, begun=run(QUICK, KEY, model, victims))


def test_a_search_and_what_continues_it_are_one_program():
    model, victims, _ = digit_victims()
    alone = run(QUICK, KEY, model, victims, SLOTS)
    programs = lanes.advance._cache_size()
    run(QUICK, KEY, model, victims, SLOTS, begun=alone)
    assert lanes.advance._cache_size() == programs


def test_the_box_holds_an_answer_and_leaves_a_start_of_its_own_alone():
    """What goes on is brought into the pixel box; a start outside of it is a start."""
    boxed = Matching(
        init=Normal(), optimizer=Adam(1e-9), box=True, stop=Stop(iterations=1)
    )
    model, victims, _ = digit_victims()
    alone = run(boxed, KEY, model, victims, SLOTS)
    assert np.asarray(alone.inputs).min() < 0  # the start was evaluated as it is
    again = run(boxed, KEY, model, victims, SLOTS, begun=alone)
    np.testing.assert_array_equal(again.inputs, np.clip(alone.inputs, 0, 1))
