"""The published numbers: Wei & Liu 2022, Wei et al. 2021 and Wei et al. 2023.

`002`, `001` and `000` in the data are these three papers, in this order.
"""

import csv
import functools
import math
import pathlib

import numpy as np
import pytest

from gradaudit.privacy import account, gaussian, spend
from gradaudit.privacy.calibrate import exhausted_at

DATA = pathlib.Path(__file__).parents[2] / "benchmarks" / "published"
NAMES = {
    "BaseC": "base",
    "AdvC": "advanced",
    "OptC": "optimal",
    "zCDP": "zcdp",
    "MA": "moments",
}


def read(name):
    with (DATA / name).open(newline="") as file:
        return [
            row | {"id": f"{row['source']} {row['method']} T={row['steps']}"}
            for row in csv.DictReader(file)
        ]


REFERENCE = read("accounting.csv")
MORE = read("accounting_more.csv")
EVERY = [pytest.param(row, id=row["id"]) for row in REFERENCE]
EVERY_PUBLISHED = EVERY + [pytest.param(row, id=row["id"]) for row in MORE]

# Where printed steps and counted compositions are not T and T + 1.
COUNTED = {10_000: 10_000, 8124: 8123, 8841: 8840}

FEW_STEPS = "one composition more or less is over 0.3 % of a short run"
FAR_FROM_CLEAN = {
    row["id"]: FEW_STEPS
    for row in REFERENCE
    if row["source"] != "000 Table 7 Fed-aCDP"
    and (
        row["q"] == "0.1"
        or (row["source"] == "001 Table VI Fed-CDP L=1" and int(row["steps"]) <= 100)
    )
}

ROUNDED_UP = "the unrounded value ends in 4 or less and was rounded up"
SHORT = "one unit in the last digit below the formula, with no consistent count"
MISCOUNTED = "the figures belong to one composition less than the printed steps"
UNEXPLAINED = "the stated setting does not give this figure"
NOT_REPRODUCED = {
    "002 Table V BaseC T=10000": ROUNDED_UP,
    "002 Table V AdvC T=6000": SHORT,
    "002 Table V OptC T=6000": SHORT,
    "002 Table VI BaseC T=8124": MISCOUNTED,
    "002 Table VI AdvC T=8124": MISCOUNTED,
    "002 Table VI OptC T=8124": MISCOUNTED,
    "002 Table VI BaseC T=8841": MISCOUNTED,
    "002 Table VI AdvC T=8841": MISCOUNTED,
    "001 Table VI Fed-CDP L=1 MA T=100": ROUNDED_UP,
    "000 Table 6 Fed-(a)CDP MA T=300": UNEXPLAINED,
    "000 Table 6 Fed-SDP MA T=3": UNEXPLAINED,
}


def compositions(row):
    steps = int(row["steps"])
    counts_as_printed = row["source"].startswith("000") and row["q"] == "0.01"
    return steps if counts_as_printed else COUNTED.get(steps, steps + 1)


@functools.cache
def epsilon_of(method, sigma, q, delta, steps, convention):
    return spend(method, gaussian(sigma, q, steps), delta, convention).epsilon


def answer(row, steps, convention="clean", method=None):
    sigma, q, delta = (float(row[name]) for name in ("sigma", "q", "delta"))
    name = method or NAMES[row["method"]]
    return epsilon_of(name, sigma, q, delta, steps, convention)


@pytest.mark.parametrize("row", EVERY)
def test_clean_formulas_agree_at_the_counted_compositions(row):
    assert answer(row, compositions(row)) == pytest.approx(
        float(row["computed_eps"]), rel=0.0015
    )


@pytest.mark.parametrize("row", EVERY)
def test_clean_formulas_agree_at_the_printed_steps_unless_listed(row):
    error = answer(row, int(row["steps"])) / float(row["computed_eps"]) - 1
    assert (abs(error) > 0.003) == (row["id"] in FAR_FROM_CLEAN)


@pytest.mark.parametrize("row", EVERY_PUBLISHED)
def test_paper_convention_gives_the_printed_digits_unless_listed(row):
    printed = row["published_eps"]
    digits = 4 if row["source"].startswith("001") else 3
    epsilon = answer(row, int(row["steps"]), "paper")
    agrees = math.isclose(round(epsilon, digits), float(printed), abs_tol=1e-9)
    assert agrees == (row["id"] not in NOT_REPRODUCED)


@pytest.mark.parametrize("row", EVERY)
def test_loss_distribution_agrees_with_the_reference(row):
    # The two smallest values have few digits in the reference.
    assert answer(row, int(row["steps"]), method="pld") == pytest.approx(
        float(row["pld_eps"]), rel=0.005, abs=5e-6
    )


@pytest.mark.parametrize("row", EVERY)
def test_tighter_methods_are_tighter_on_every_row(row):
    steps = int(row["steps"])
    tight, renyi, moments = (
        answer(row, steps, method=name) for name in ("pld", "rdp", "moments")
    )
    assert tight <= renyi <= moments


def schedule(name):
    """Returns the noise scales behind Wei & Liu 2022, Table VIII.

    Both start from the same epsilon of the Gaussian mechanism, 0.307468; "linear"
    is linear in that epsilon, so in 1 / sigma.
    """
    scale, t = math.sqrt(2 * math.log(1.25e5)), np.arange(10_000)
    if name == "linear":
        return scale / (0.307468 + 1e-4 * t)
    return scale / 0.307468 * np.exp(-1.662e-4 * t)


STOPS = {
    ("linear", "base"): 9646,
    ("linear", "advanced"): 9481,
    ("linear", "optimal"): 8908,
    ("linear", "zcdp"): 9494,
    ("linear", "moments"): 9450,
    ("exponential", "base"): 9678,
    ("exponential", "advanced"): 9311,
    ("exponential", "optimal"): 8955,
    ("exponential", "zcdp"): 9553,
    ("exponential", "moments"): 9501,
}


@pytest.fixture(scope="module")
def budgets():
    return account(gaussian(6, 0.01, 10_000), 1e-5, convention="paper")


@pytest.mark.parametrize(("policy", "method"), STOPS)
def test_budget_stops_at_the_published_step(budgets, policy, method):
    """The budget is what the run with sigma = 6 spends in 10,000 steps."""
    events = gaussian(schedule(policy), 0.01)
    stop = exhausted_at(budgets[method], events, 1e-5, method, "paper")
    assert stop.step == STOPS[policy, method]


def test_the_stated_schedules_never_exhaust_the_stated_budget():
    """15 -> 4.85 over 100 rounds of 100 steps (Wei et al. 2023, Table 8)."""
    t = np.arange(100)
    linear = gaussian(15 + (4.85 - 15) * t / 100, 0.01).repeated(100)
    exponential = gaussian(15 * (4.85 / 15) ** (t / 100), 0.01).repeated(100)
    for events, epsilon in ((linear, 0.575), (exponential, 0.638)):
        stop = exhausted_at(0.823, events, 1e-5, "moments")
        assert stop.step is None
        assert stop.final == pytest.approx(epsilon, rel=0.01)
