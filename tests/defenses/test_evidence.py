"""What a defense tells an aware adversary is what it really does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.defenses.clipping import Clip, Scope
from gradaudit.defenses.compression import Sign
from gradaudit.defenses.noise import NoiseAt, sanitize
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import defend, explain, init_states, run
from gradaudit.evidence import Evidence

KEY = jax.random.key(3)
PARAMS = {
    "conv1": {"kernel": jnp.full((3, 3, 1, 4), 0.1), "bias": jnp.zeros(4)},
    "output": {"kernel": jnp.full((20, 5), 0.1), "bias": jnp.zeros(5)},
}
UNITS = jax.tree.map(
    lambda leaf: (
        3 * jax.random.normal(jax.random.fold_in(KEY, leaf.size), (3, *leaf.shape))
    ),
    PARAMS,
)
DRAWS = 400
POINTS = [
    pytest.param(getattr(made, point), id=f"{name}-{point}")
    for name, preset in defenses.PRESETS.items()
    for made in [preset.make()]
    for point in ("per_example", "update", "server")
    if getattr(made, point)
]
# What is left out, or one noisy bit, has no mean to compare with.
WITHOUT_A_MEAN = {"Prune", "RandomSelection", "LdpRandomizer"}


@functools.cache
def drawn(transforms):
    """Returns mean and variance over many draws of the transforms' output."""
    states = init_states(transforms, PARAMS)

    @jax.jit
    def many(key):
        outputs = jax.vmap(lambda k: run(transforms, k, UNITS, states, 0)[0])(
            jax.random.split(key, DRAWS)
        )
        return jax.tree.map(lambda x: (x.mean(0), x.var(0)), outputs)

    pairs = jax.device_get(jax.tree.leaves(many(KEY)))
    return pairs[::2], pairs[1::2]


@pytest.mark.parametrize("transforms", POINTS)
def test_what_is_told_is_the_mean_and_the_variance_of_what_is_done(transforms):
    states = init_states(transforms, PARAMS)

    @jax.jit
    def explained():
        told = explain(transforms, Evidence.exact(UNITS), states, 0)
        return told, told.spread()

    told, spread = jax.device_get(explained())
    if {type(t).__name__ for t in transforms} & WITHOUT_A_MEAN:
        assert told.sparse or told.opaque
        return
    means, variances = drawn(transforms)
    expectations, spreads = jax.tree.leaves(told.expected), jax.tree.leaves(spread)
    for mean, variance, expected, said in zip(
        means, variances, expectations, spreads, strict=True
    ):
        error = np.sqrt(variance / DRAWS) + 1e-4
        assert np.max(np.abs(mean - expected) / error) < 5.5
        whole = np.broadcast_to(said, variance.shape)
        ratio = np.mean(variance) / max(np.mean(whole), 1e-12)
        assert np.mean(whole) == 0.0 or 0.85 < ratio < 1.15
        assert np.mean(whole) > 0.0 or np.mean(variance) < 1e-8


def test_a_wrong_scale_would_be_seen():
    """The test above rejects noise that is a third larger than what is told."""
    true = sanitize(4.0, 6.0)
    lying = (true[0], dataclasses.replace(true[1], multiplier=Constant(8.0)))
    _, variances = drawn(lying)
    told = explain(true, Evidence.exact(UNITS), ((), ()), 0)
    said = jax.tree.leaves(told.spread())
    assert all(
        float(jnp.mean(v)) / float(jnp.mean(s)) > 1.15
        for v, s in zip(variances, said, strict=True)
    )


def test_noise_of_the_batch_is_common_and_does_not_average_out():
    transforms = sanitize(4.0, 6.0, noise_at=NoiseAt.BATCH)
    told = explain(transforms, Evidence.exact(UNITS), ((), ()), 0).mean()
    apart = explain(sanitize(4.0, 6.0), Evidence.exact(UNITS), ((), ()), 0).mean()
    expected = (24.0 / 3) ** 2, 24.0**2 / 3
    for evidence, variance in zip((told, apart), expected, strict=True):
        for leaf in jax.tree.leaves(evidence.spread()):
            np.testing.assert_allclose(leaf, variance, rtol=1e-5)


@pytest.mark.parametrize("scope", list(Scope))
def test_a_clipped_guess_is_differentiable_even_where_it_is_zero(scope):
    clip = Clip(Constant(1.0), scope)
    zero = jax.tree.map(jnp.zeros_like, UNITS)

    def size(units):
        told = clip.explain(Evidence.exact(units), (), 0)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(told.expected))

    for units in (UNITS, zero):
        for leaf in jax.tree.leaves(jax.jit(jax.grad(size))(units)):
            assert np.isfinite(leaf).all()


def test_a_transform_that_is_silent_is_named():
    class Silent:
        def init(self, params):
            return ()

        def apply(self, key, tree, state, t):
            return tree, state

    told = explain((Silent(),), Evidence.exact(UNITS), ((),), 0)
    assert "Silent does not say" in told.opaque


def test_every_preset_explains_itself_or_says_why_not():
    for name, preset in defenses.PRESETS.items():
        made = preset.make()
        for transform in (*made.per_example, *made.update, *made.server):
            assert hasattr(transform, "explain"), (name, transform)


def test_signs_and_compositions_are_told_in_order():
    both = defend("both", per_example=(*sanitize(4.0, 0.5), Sign()))
    states = init_states(both.per_example, PARAMS)
    told = explain(both.per_example, Evidence.exact(UNITS), states, 0)
    assert told.signs
    np.testing.assert_allclose(jax.tree.leaves(told.spread())[0], 4.0, rtol=1e-6)
