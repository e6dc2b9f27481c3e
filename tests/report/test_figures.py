"""Figures: titles that say what is shown, whole rounds, nothing empty, nothing cut."""

import dataclasses
import types

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import gradaudit as ga
from gradaudit.federation.setting import Setting
from gradaudit.federation.training import RoundRecord
from gradaudit.privacy import gaussian
from gradaudit.report import figures, figures_of_privacy


def record(number: int, accuracy: float | None = 0.5) -> RoundRecord:
    given = {
        "round": number, "clients": 2, "participants": (0, 1), "accuracy": accuracy,
        "loss": 1.0, "training_loss": 1.0, "norm_before": (1.0, 2.0),
        "norm_after": (2.0, 3.0), "seconds": 0.1,
    }  # fmt: skip
    names = [field.name for field in dataclasses.fields(RoundRecord)]
    return RoundRecord(**{name: given.get(name) for name in names})


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_rounds_are_whole_and_one_round_is_seen(rounds):
    figure = figures.training_curve([record(n + 1) for n in range(rounds)], "title")
    for axes in figure.axes:
        ticks = axes.xaxis.get_major_locator()()
        assert np.allclose(ticks, np.round(ticks))
        for line in axes.lines:  # a line of one point is nothing without its marker
            assert len(line.get_xdata()) == rounds and line.get_marker() == "."


def test_a_long_title_is_not_cut():
    title = ", ".join(["fed-cdp:clip=4,sigma=6"] * 12)
    figure = figures.training_curve([record(1), record(2)], title)
    assert_title_fits(figure)
    assert " ".join(figure.get_suptitle().split()) == title


def assert_title_fits(figure) -> None:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure._suptitle.get_window_extent(canvas.get_renderer())
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_closed_form_has_no_empty_panel_and_a_whole_title():
    result = ga.attack(dataset="digits", model="mlp", method="analytic", victims=2)
    drawn = result.figures()
    assert "figures/convergence.png" not in drawn
    figure = drawn["figures/victims.png"]()
    assert_title_fits(figure)
    assert "analytic against none on digits" in " ".join(figure.get_suptitle().split())


def test_the_title_of_a_training_says_data_defense_and_epsilon(tmp_path):
    setting = Setting(
        clients=4,
        clients_per_round=2,
        local_steps=1,
        batch_size=2,
        rounds=1,
        examples=8,
    )
    result = ga.train("cancer", defense="fed-cdp:clip=4,sigma=6", setting=setting)
    title = result.figures()["curve.png"]().get_suptitle()
    spent = result.to_dict()["accounting"]["epsilon"]["accounted"]
    assert "cancer, fed-cdp:clip=4,sigma=6" in title and f"ε = {spent:.3g}" in title


def test_the_figure_of_an_ldp_audit_shows_what_is_proven():
    """Beside what was measured, in every panel; a grid's empty places are hidden."""
    cells = [
        {
            "adversary": name, "box": "white", "epsilon": epsilon, "spread": 0.1,
            "mean": 0.8 * epsilon, "lower_bound": 0.5 * epsilon, "ceiling": 9.0,
        }
        for name in ("a", "b", "c", "d")
        for epsilon in (1.0, 4.0)
    ]  # fmt: skip
    document = {"family": {"cells": 8}, "cells": cells}
    figure = ga.plot.epsilon(types.SimpleNamespace(to_dict=lambda: document))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 4
    for axes in shown:
        drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_allclose(drawn["white box, proven"], [0.5, 2.0])


@pytest.mark.parametrize("name", ["plot", "plot.svg"])
def test_a_plot_has_the_name_that_was_asked_for(name, tmp_path):
    figures_of_privacy.plot_over_steps(tmp_path / name, gaussian(6.0, 0.01, 20), 1e-5)
    assert [path.name for path in tmp_path.iterdir()] == [name]
