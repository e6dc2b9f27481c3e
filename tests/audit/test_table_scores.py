"""Cells: which of them are right, and what guessing reaches."""

import numpy as np
import pytest

import gradaudit as ga
from gradaudit.audit.further_scores import TOLERANCE, cell_scores
from gradaudit.data.dataset import Column

COLUMNS = (Column("age"), Column("kind", ("a", "b"), optional=True))
RNG = np.random.default_rng(0)
AGES = RNG.random(200)
KINDS = RNG.choice(3, 200, p=[0.6, 0.3, 0.1])
INPUTS = np.column_stack([AGES, KINDS == 0, KINDS == 1]).astype(np.float32)
LABELS = (AGES > 0.7).astype(np.int32)
VICTIMS, BATCH = 5, 4
TRUTH = INPUTS[:20].reshape(VICTIMS, BATCH, 3), LABELS[:20].reshape(VICTIMS, BATCH)


def scored(inputs, labels):
    found = cell_scores(COLUMNS, TRUTH, (inputs, labels), (INPUTS, LABELS))
    assert found is not None
    return found


def test_the_truth_is_right_in_any_order():
    order = RNG.permutation(BATCH)
    found = scored(TRUTH[0][:, order], TRUTH[1][:, order])
    assert found["right"]["value"] == found["rows"]["value"] == 1.0
    assert found["right"]["low"] < 1.0  # five victims prove little
    assert [row["name"] for row in found["columns"]] == ["age", "kind", "label"]


def test_a_wrong_cell_counts_where_it_is():
    inputs, labels = TRUTH[0].copy(), TRUTH[1].copy()
    inputs[0, 0, 0] += 2 * TOLERANCE * AGES.std()
    labels[1] = 1 - labels[1]
    found = scored(inputs, labels)
    age, kind, label = (row["value"] for row in found["columns"])
    assert (age, kind, label) == (0.95, 1.0, 0.8)
    assert found["rows"]["value"] == pytest.approx(15 / 20)
    assert found["right"]["value"] == pytest.approx(1 - 5 / 60)


def test_guessing_takes_what_is_commonest_among_others():
    found = scored(*TRUTH)
    others = KINDS[20:]
    commonest = np.bincount(others).argmax()
    assert found["columns"][1]["guess"] == np.mean(KINDS[:20] == commonest)
    assert found["columns"][2]["guess"] == np.mean(LABELS[:20] == 0)


def test_pictures_have_no_cells():
    assert cell_scores((), TRUTH, TRUTH, (INPUTS, LABELS)) is None


def test_a_tables_result_says_its_cells(tmp_path):
    result = ga.attack(dataset="cancer", method="analytic", victims=4, draws=2)
    cells = result.to_dict()["cells"]
    assert cells["right"]["value"] == 1.0 > cells["right"]["guess"]
    result.save(tmp_path / "out")
    assert "mean radius" in (tmp_path / "out" / "cells.csv").read_text()
