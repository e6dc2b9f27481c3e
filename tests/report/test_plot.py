"""`ga.plot`: of fresh results and of saved ones, with a finding for a title."""

import copy
import itertools
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

import gradaudit as ga
from gradaudit.distinguish import Box
from gradaudit.errors import InputError
from gradaudit.report import drawing
from gradaudit.report.pictures import films
from gradaudit.report.result import Result


class Plainly(Result):
    """A result that is nothing but its document."""

    def __init__(self, document, folder=None):
        self.document, self.folder = document, folder

    def to_dict(self):
        return self.document


@pytest.fixture(scope="module")
def attack(audited):
    cells = audited.to_dict()["cells"]
    cell = next(c for c in cells if c["kind"] == "attack" and c["defense"]["control"])
    return ga.load(audited.folder / cell["folder"])


@pytest.fixture(scope="module")
def trained(audited):
    """The audit as if it had trained."""
    document = copy.deepcopy(audited.to_dict())
    about = {"status": "done", "error": None, "folder": None, "rounds": 3}
    document["training"] = [
        {"defense": d, "dataset": "digits", "accuracy": a, "milliseconds": 1.0, **about}
        for d, a in (("none", 0.9), ("fed-cdp:sigma=3", 0.3))
    ]
    return Plainly(document, audited.folder)


def title(figure):
    said = figure.get_label()
    assert figure.get_suptitle().replace("\n", " ") == said
    return said


def check(figure):
    assert isinstance(figure, Figure) and title(figure)
    png = figure._repr_png_()
    assert png.startswith(b"\x89PNG") and len(png) > 2000
    return title(figure)


def test_reconstructions(attack):
    said = check(ga.plot.reconstructions(attack))
    assert said.startswith("6 of 6 rebuilt") and "analytic against none" in said


ERRORS = np.asarray([0.0, 0.1, 0.2], np.float32).reshape(1, 3, 1, 1, 1)


BATCH = {
    "about": {
        "method": "cpl", "defense": "none", "dataset": "mine", "type": 1,
        "batch_size": 3, "local_steps": 1,
    },
    "metrics": {
        "asr": {"low": 0.0, "high": 0.8, "threshold": 0.15},
        "examples_rebuilt": 2 / 3,
    },
    "draws": [{"successes": 0, "victims": 1}],
    "victims": {"asked": 1},
}  # fmt: skip


class Batch(Plainly):
    """A victim of three examples, each rebuilt so badly, in another order."""

    def arrays(self):
        truth = np.random.default_rng(0).random((1, 3, 4, 4, 1), np.float32) / 2
        found = (truth + ERRORS)[:, [2, 0, 1]]
        return {
            "reconstructions.npz": {
                "truth": truth,
                "reconstruction": found,
                "victim": np.asarray([7]),
                "pictured": np.asarray([7]),
                "iterations": np.asarray([1, 2]),
                "frames": np.stack([found[0], found[0]])[None],
            }
        }


def test_a_batch_is_shown_in_the_order_of_the_truth_each_with_its_own_error():
    found = films(Batch({}))
    errors = ERRORS.ravel().tolist()
    assert [film["rmse"] for film in found] == pytest.approx(errors, abs=1e-6)
    for film, error in zip(found, errors, strict=True):
        names, (private, *guesses) = zip(*film["frames"], strict=True)
        assert names == ("private", "iteration 1", "iteration 2", "rebuilt")
        for guess in guesses:
            np.testing.assert_allclose(guess, private + error, atol=1e-6)


def test_the_picture_of_a_batch_counts_examples_too():
    """No batch is right as a whole, and yet most of what is in it was rebuilt."""
    said = title(ga.plot.reconstructions(Batch(BATCH)))
    assert said.startswith("67% of all examples, 0 of 1 batches of 3 rebuilt [0.00")


def test_resilience_of_an_audit_and_of_attacks(audited, attack):
    assert "none 6 of 6" in check(ga.plot.resilience(audited))
    assert "fed-cdp:sigma=3 0 of 6" in title(ga.plot.resilience(audited))
    assert "analytic 6 of 6" in check(ga.plot.resilience(attack, by="method"))


def test_resilience_is_the_share_of_victims_at_a_threshold(attack):
    axes = ga.plot.resilience(attack).axes[0]
    line = axes.lines[0]
    errors = sorted(row["rmse"] for row in attack.rows()["trials.csv"])
    for threshold in (1e-3, 0.1, 0.5):
        reached = np.searchsorted(line.get_xdata(), threshold, side="right") - 1
        share = sum(e <= threshold for e in errors) / len(errors)
        assert line.get_ydata()[reached] == pytest.approx(share)


def test_line_up(audited):
    said = check(ga.plot.line_up(audited))
    assert "Picked out of 3 with 1 look" in said and "no bound" in said
    cell = next(c for c in audited.to_dict()["cells"] if c["kind"] == "line-up")
    assert "Picked out of 3" in check(
        ga.plot.line_up(ga.load(audited.folder / cell["folder"]))
    )


def test_epsilon(audited):
    said = check(ga.plot.epsilon(audited))
    assert "fed-cdp:sigma=3 claims ε" in said and "holds" in said
    document = copy.deepcopy(audited.to_dict())
    epsilon = document["accounting"][0]["accounting"]["epsilon"]
    epsilon |= {"claimed": "inf", "accounted": "inf", "effective": "inf"}
    assert "has no finite ε" in check(ga.plot.epsilon(Plainly(document)))


def test_norms(audited):
    assert "times as large as the gradient" in check(ga.plot.norms(audited))


def test_frontier(trained):
    said = check(ga.plot.frontier(trained))
    assert "none 0.90 and 1.00" in said


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (ga.plot.frontier, "did not train"),
        (lambda result: ga.plot.frontier(ga.load(result)), "of an audit"),
    ],
)
def test_what_can_not_be_drawn_is_said(draw, words, audited):
    cell = next((audited.folder / "cells").glob("attack-*"))
    with pytest.raises(InputError, match=words):
        draw(audited if words == "did not train" else cell)


def test_no_two_lines_of_a_figure_look_the_same(attack):
    """Four defenses under two threats: a colour each, and dashes for the threat."""
    results = []
    for defense, threat in itertools.product("abcd", ("curious", "aware")):
        document = copy.deepcopy(attack.to_dict())
        document["about"]["defense"] = defense
        document["threat"]["name"] = threat
        results.append(type(attack)(document, attack.folder))
    (axes,) = ga.plot.resilience(*results).axes
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    looks = {(each.get_color(), str(each._dash_pattern)) for each in lines}
    assert len(looks) == len(lines) == 8


def test_epsilon_that_adversaries_reach():
    """Of a local mechanism, fresh and as its file has it: null where no error was."""
    report = ga.ldp_audit(
        epsilons=(1.0, 4.0), adversaries=("dummy-gradient",), trials=200,
        boxes=(Box.WHITE,), measurements=1,
    )  # fmt: skip
    said = check(ga.plot.epsilon(report))
    assert "dummy-gradient" in said and "white box" in said
    document = copy.deepcopy(report.to_dict())
    document["cells"][0] |= {"mean": None, "spread": None}
    figure = ga.plot.epsilon(Plainly(document))
    assert check(figure) == said
    (axes,) = figure.axes
    names = axes.get_legend_handles_labels()[1]
    assert {"theory", "white box, measured", "white box, proven"} == set(names)


@pytest.mark.parametrize(
    "draw", [ga.plot.line_up, ga.plot.epsilon, ga.plot.norms, ga.plot.frontier]
)
def test_another_kind_of_result_is_refused_in_words(draw, attack):
    with pytest.raises(InputError):
        draw(attack)


def test_a_page_gets_text_in_its_own_colours(audited):
    drawn = {
        name: drawing.svg(getattr(ga.plot, name)(audited), name)
        for name in ("epsilon", "norms")
    }
    for name, text in drawn.items():
        assert text.startswith("<svg") and "#000000" not in text
        assert "<text" in text and "currentColor" in text
        assert "<metadata" not in text and "<!DOCTYPE" not in text
        ids = set(re.findall(r'id="([^"]+)"', text))
        assert ids and all(each.startswith(f"{name}-") for each in ids)


def test_lines_can_be_told_apart_without_colour():
    shown = [
        (style["marker"], str(style["linestyle"]))
        for style in itertools.islice(drawing.styles(), 6)
    ]
    assert len(set(shown)) == 6


def test_a_loaded_result_is_the_saved_one(audited):
    saved = ga.load(audited.folder)
    assert saved.to_dict() == audited.to_dict() and saved.is_audit
    rows = saved.rows()["cells.csv"]
    assert [row["id"] for row in rows] == [c["id"] for c in saved.to_dict()["cells"]]
