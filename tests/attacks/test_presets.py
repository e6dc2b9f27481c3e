"""A budget is one thing, wherever it is given."""

import dataclasses
import inspect

import jax.numpy as jnp
import pytest

import gradaudit as ga
from gradaudit.attacks import PRESETS, Adam, Matching
from gradaudit.attacks.optimizers import Standing
from gradaudit.attacks.presets import parse
from gradaudit.audit.attack import chosen_attack
from gradaudit.errors import InputError
from tests.attacks.attack_cases import MATCHING

BUDGETS = (1, 20, 500, 4800, 10_000)


def rates(attack: Matching, iterations: int) -> list[float]:
    """The learning rate at every iteration, if the optimizer is Adam."""
    optimizer = attack.optimizer
    if not isinstance(optimizer, Adam):
        return []
    budget = attack.stop.iterations
    steps = jnp.arange(iterations)
    return [
        float(r)
        for r in jnp.stack(
            [optimizer._rate(Standing((), (), (), i, budget)) for i in steps]
        )
    ]


@pytest.mark.parametrize("iterations", BUDGETS)
@pytest.mark.parametrize("name", MATCHING)
def test_iterations_given_apart_build_the_same_attack(name, iterations):
    inside = parse(f"{name}:iterations={iterations}")
    assert parse(name, iterations=iterations) == inside
    assert parse(f"{name}:iterations=7", iterations=iterations) == inside
    assert chosen_attack(name, iterations, None) == inside
    assert inside.stop.iterations == iterations
    # ... and so does an object of it, told its budget later.
    assert PRESETS[name].make().budgeted(iterations, None) == inside
    assert chosen_attack(PRESETS[name].make(), iterations, None) == inside


@pytest.mark.parametrize("name", MATCHING)
def test_restarts_given_apart_build_the_same_attack(name):
    inside = parse(f"{name}:restarts=3")
    assert (
        parse(name, restarts=3)
        == inside
        == chosen_attack(PRESETS[name].make(), None, 3)
    )


@pytest.mark.parametrize("iterations", [16, 40])
def test_the_rate_of_gradinv_falls_at_the_same_shares_of_any_budget(iterations):
    for attack in (
        parse("gradinv", iterations=iterations),
        parse("gradinv").budgeted(iterations, None),
    ):
        found = rates(attack, iterations)
        for index, rate in enumerate(found):
            falls = sum(index >= iterations * eighths // 8 for eighths in (3, 5, 7))
            assert rate == pytest.approx(0.1 * 0.1**falls, rel=1e-5)
        assert len(set(found)) == 4


def test_a_closed_form_has_no_budget():
    with pytest.raises(InputError, match="no iterations"):
        parse("analytic", iterations=3)
    with pytest.raises(InputError, match="no iterations"):
        ga.attack(dataset="cancer", method=ga.attacks.analytic(), iterations=3)


def test_every_preset_that_iterates_takes_both():
    for name in MATCHING:
        known = inspect.signature(PRESETS[name].make).parameters
        assert {"iterations", "restarts"} <= set(known)


def test_the_published_weight_is_the_first_of_those_that_are_chosen_from():
    chosen = parse("gradinv-chosen", iterations=7)
    assert chosen.members[0].attack == parse("gradinv", iterations=7)
    assert chosen.solved == 0.0  # all of them are asked about everybody
    assert len({member.attack.priors for member in chosen.members}) == 3


def test_a_patient_search_tries_other_labels_only_where_it_ends_early():
    first, *others = parse("patient", iterations=7).members
    assert all(member.above > 0 for member in others) and first.above == 0
    told = dataclasses.replace(others[0].attack, labels=first.attack.labels)
    assert told == first.attack != others[0].attack
