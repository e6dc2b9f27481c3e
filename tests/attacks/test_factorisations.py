"""LAPACK is asked for one matrix at a time: a batch of them can wait for ever.

jaxlib spreads a batch over XLA's threads and waits in one of them. With a device for
every core, as the command line has it, all threads wait, and none is left to work.
"""

import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import PRESETS
from gradaudit.data import load_dataset
from gradaudit.models.networks import build_model
from tests.attacks.attack_cases import leak

LAPACK = {
    *("cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg"),
    *("householder_product", "lu", "qr", "schur", "svd", "triangular_solve"),
}


def asked(program):
    """Yields the name and the operand's shape of everything that LAPACK computes."""
    for equation in program.eqns:
        if equation.primitive.name in LAPACK:
            yield equation.primitive.name, equation.invars[0].aval.shape
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from asked(inner)


def of_three_victims(function, *operands):
    """Returns what LAPACK is asked for when three victims are attacked together."""
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), operands)
    return list(asked(jax.make_jaxpr(jax.vmap(function))(*stacked).jaxpr))


def test_a_batch_would_be_seen():
    shapes = dict(of_three_victims(jnp.linalg.qr, jnp.ones((4, 2))))
    assert shapes["qr"] == (3, 4, 2)


def searches():
    """Every attack of the loop, in portfolios too; by default those that factorise."""
    attacks = [preset.make() for preset in PRESETS.values()]
    alone = [[m.attack for m in attack.members] or [attack] for attack in attacks]
    for attack in dict.fromkeys(itertools.chain(*alone)):
        for model_name in ("dpfl-2conv", "vit"):
            uses = "Gauss" in repr(attack) or (model_name, attack.exact) == (
                "vit",
                True,
            )
            marks = [pytest.mark.slow] * (not uses)
            name = f"{type(attack).__name__}-{model_name}"
            yield pytest.param(attack, model_name, uses, id=name, marks=marks)


@pytest.mark.parametrize(("attack", "model_name", "uses"), list(searches()))
def test_no_search_asks_for_a_batch(attack, model_name, uses):
    digits = load_dataset("digits")
    model = build_model(model_name, digits.shape, digits.classes)
    seen, _ = leak(model, digits.inputs[:1], digits.labels[:1])
    stacked = seen.per_victim(lambda leaf: np.asarray(leaf)[None])
    if attack.unfit(model, stacked):
        return  # nothing is run
    problem = attack.problem(model, stacked)
    if problem is None:
        return  # victims come one by one
    shared = attack.shared(stacked)
    own = jax.tree.map(lambda leaf: leaf[0], attack.own(stacked))
    if attack.continues:
        shape = (1, *model.input_shape)
        own = *own, (jnp.full(shape, jnp.nan), jnp.zeros(1, jnp.int32))

    def whole(key, own):
        return problem.step(shared, own, *problem.start(key, shared, own))

    found = of_three_victims(whole, jax.random.key(0), own)
    assert [shape for _, shape in found if len(shape) > 2] == []
    assert bool(found) == uses  # those that were meant were looked at


@pytest.mark.slow
def test_devices_that_factorise_at_once_come_to_an_end(tmp_path):
    """Two devices, four victims each, systems of 128 unknowns: it used to hang."""
    words = "attack --method gauss-newton --dataset digits --type 1 --batch-size 2"
    words += " --victims 8 --draws 1 --iterations 5"
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit.cli", *words.split(), "--out", tmp_path],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
