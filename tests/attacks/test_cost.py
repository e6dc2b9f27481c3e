"""What a victim costs, as docs/scaling.md has it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import lanes
from gradaudit.attacks.distances import RelativeL2
from gradaudit.attacks.objective import objective
from gradaudit.attacks.presets import cpl
from gradaudit.attacks.starts import Layout
from gradaudit.models.convolution import Path
from gradaudit.models.networks import build_model
from gradaudit.types import Observation

SETS = {
    "faces": ((25, 25, 1), 2),
    "MNIST": ((28, 28, 1), 10),
    "CIFAR-10": ((32, 32, 3), 10),
}


def bytes_of(values):
    return sum(leaf.size * 4 for leaf in jax.tree.leaves(values))


@pytest.fixture(scope="module", params=SETS)
def cost(request):
    """Returns a name, unknowns, an evaluation, bytes of a trial and of a gradient."""
    shape, classes = SETS[request.param]
    model = build_model("cpl", shape, classes, Path("native"))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    unknowns, attack = int(np.prod(shape)), cpl()
    seen = Observation(params, jax.tree.map(lambda leaf: leaf[None], params))
    problem = attack.problem(model, seen)
    state = jax.eval_shape(
        lambda key, own: problem.start(key, attack.shared(seen), own),
        jax.random.key(0),
        jax.tree.map(lambda leaf: leaf[0], attack.own(seen)),
    )
    evaluate = objective(
        RelativeL2(),
        (),
        Layout((1, *shape), classes, searches_labels=False),
        model,
        Observation(params, params),
        False,
        jnp.zeros(1, jnp.int32),
    )
    evaluation = jax.jit(evaluate).lower(jnp.zeros(unknowns))
    return request.param, unknowns, evaluation, bytes_of(state), bytes_of(params)


def test_the_table_of_costs_is_what_the_compiler_says(cost, root):
    name, unknowns, evaluation, state, gradient = cost
    text = (root / "docs" / "scaling.md").read_text()
    (row,) = re.findall(rf"^\| {name} \| (.*) \|$", text, re.M)[:1]
    counted, operations, slot, leaked = row.split(" | ")
    assert counted == f"{unknowns:,}"
    flops = evaluation.cost_analysis()["flops"]
    assert float(operations.removesuffix(" MFLOP")) == pytest.approx(flops / 1e6, 0.05)
    assert slot == f"{state / 1e6:.2f} MB" and leaked == f"{gradient / 1e3:.0f} kB"
    assert 0.8 < state / (lanes._STATE * unknowns) < 1  # what slots are counted by


@pytest.mark.parametrize(
    ("memory", "unknowns", "slots"),
    [
        (None, 784, 256),
        (40 << 30, 784, 4096),
        (40 << 30, 3072, 1024),
        (40 << 30, 224 * 224 * 3, 32),  # 256 of these would not fit
        (1 << 30, 224 * 224 * 3, 1),
    ],
)
def test_slots_follow_the_memory(memory, unknowns, slots):
    assert lanes.slots_of_memory(memory, unknowns) == slots
