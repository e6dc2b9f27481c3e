"""What every defense must keep, as functions that raise AssertionError.

The presets must pass them; the planted bugs of test_defense_mutants.py must not. A
contract receives a constructor, so that it can switch parts of the defense off.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradaudit.defenses as defenses
from gradaudit.defenses.clipping import Norm, Scope
from gradaudit.mechanism import NoiseKind, Point

Make = Callable[..., defenses.Defense]

UNITS, KEYS = 5, 20_000  # 10^5 draws of every coordinate
SHAPES = {
    "conv1": {"kernel": (1, 2, 1, 2), "bias": (2,)},
    "output": {"kernel": (2, 2), "bias": (2,)},
}


def shaped(fill: Callable[[int, tuple[int, ...]], Any]) -> Any:
    """A tree of SHAPES, each tensor made by fill(index, shape)."""
    leaves, structure = jax.tree.flatten(SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    filled = [fill(index, shape) for index, shape in enumerate(leaves)]
    return jax.tree.unflatten(structure, filled)


PARAMS = shaped(lambda index, shape: jnp.zeros(shape))


def gradients(seed: int = 0, units: int = UNITS, size: float = 1.0) -> Any:
    """Units of normal coordinates; a large `size` makes every clip bind."""
    key = jax.random.key(seed)
    return shaped(
        lambda index, shape: (
            size * jax.random.normal(jax.random.fold_in(key, index), (units, *shape))
        )
    )


@dataclasses.dataclass(frozen=True)
class Noiseless:
    """How to switch the noise of a preset off, and what then bounds a unit."""

    parameters: Mapping[str, Any]
    clip: Callable[[int], float] | None = None
    scope: Scope = Scope.TENSOR
    norm: Norm = Norm.L2


def points(defense: defenses.Defense) -> dict[Point, tuple[Any, ...]]:
    every = {point: getattr(defense, point.value) for point in Point}
    return {point: transforms for point, transforms in every.items() if transforms}


def apply_all(defense: defenses.Defense, key: Any, tree: Any, t: Any = 0) -> Any:
    """Runs every point in the order of a round."""
    return _apply(_every_transform(defense), key, tree, t)


def _every_transform(defense: defenses.Defense) -> tuple[Any, ...]:
    return defense.per_example + defense.update + defense.server


def _apply(transforms: tuple[Any, ...], key: Any, tree: Any, t: Any) -> Any:
    states = defenses.init_states(transforms, PARAMS)
    return defenses.run(transforms, key, tree, states, t)[0]


# The tests compile a hundred small functions and run each for milliseconds.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jitted(defense: defenses.Defense) -> Callable[..., Any]:
    """`apply_all` of one defense, compiled once whoever asks."""
    return _jitted(_every_transform(defense), many=False)


def over_keys(defense: defenses.Defense) -> Callable[..., Any]:
    """`apply_all` of one defense for many keys, compiled once."""
    return _jitted(_every_transform(defense), many=True)


@functools.cache
def _jitted(transforms: tuple[Any, ...], many: bool) -> Callable[..., Any]:
    run = functools.partial(_apply, transforms)
    if many:
        run = jax.vmap(run, in_axes=(0, None, None))
    return jax.jit(run, compiler_options=QUICK)


def keeps_structure(make: Make) -> None:
    """Structure, shapes and dtypes are kept."""
    for dtype in (jnp.float32, jnp.bfloat16):
        tree = jax.tree.map(lambda leaf, d=dtype: leaf.astype(d), gradients())
        run = functools.partial(apply_all, make())
        out = jax.eval_shape(run, jax.random.key(0), tree)
        assert jax.tree.structure(out) == jax.tree.structure(tree)
        for before, after in zip(
            jax.tree.leaves(tree), jax.tree.leaves(out), strict=True
        ):
            assert (after.shape, after.dtype) == (before.shape, before.dtype)


def is_identity_when_off(make: Make, off: Mapping[str, Any]) -> None:
    """Without noise and without a clip nothing happens."""
    tree = gradients(1)
    out = jitted(make(**off))(jax.random.key(1), tree, 0)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), tree, out)


def repeats_with_equal_keys(make: Make) -> None:
    """Equal keys give equal bytes; where there is noise, other keys others."""
    defense, tree = make(), gradients(2)
    run = jitted(defense)
    first, again, other = (run(jax.random.key(k), tree, 0) for k in (7, 7, 8))
    same = [
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True)
    ]
    assert all(same)
    if defense.mechanisms:
        differ = jax.tree.map(lambda a, b: not np.array_equal(a, b), first, other)
        assert any(jax.tree.leaves(differ))


def is_same_under_jit(make: Make) -> None:
    """jit gives what eager gives, for Python and for traced rounds."""
    defense, tree, key = make(), gradients(3), jax.random.key(3)
    for t in (0, 3):
        eager, traced = apply_all(defense, key, tree, t), jitted(defense)(key, tree, t)
        assert jax.tree.structure(eager) == jax.tree.structure(traced)
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(traced), strict=True):
            scale = max(1.0, float(np.max(np.abs(a))))
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * scale)


def shows_broken_units(make: Make) -> None:
    """NaN or infinity in a unit is still there afterwards."""
    run = jitted(make())
    for bad in (np.nan, np.inf, -np.inf):
        for path in ("conv1", "output"):
            tree = gradients(4)
            kernel = tree[path]["kernel"]
            tree[path]["kernel"] = kernel.at[(2,) + (0,) * (kernel.ndim - 1)].set(bad)
            broken = run(jax.random.key(4), tree, 0)
            unit = [np.asarray(leaf[2]) for leaf in jax.tree.leaves(broken)]
            assert not all(np.all(np.isfinite(leaf)) for leaf in unit), (bad, path)


def norms_of(tree: Any, scope: Scope, norm: Norm) -> np.ndarray:
    """(tensors or 1, units) in float64."""
    rows = [
        np.asarray(leaf, np.float64).reshape(len(leaf), -1)
        for leaf in jax.tree.leaves(tree)
    ]
    if scope is Scope.GLOBAL:
        rows = [np.concatenate(rows, axis=1)]
    return np.stack([np.linalg.norm(row, norm.value, axis=1) for row in rows])


def bounds_every_unit(run: Callable[[Any, int], Any], quiet: Noiseless, tree: Any):
    """The noiseless output is inside the bound; what was inside is untouched."""
    assert quiet.clip is not None
    for t in (0, 3):
        bound = quiet.clip(t)
        before = norms_of(tree, quiet.scope, quiet.norm)
        out = run(tree, t)
        after = norms_of(out, quiet.scope, quiet.norm)
        assert np.all(after <= bound + 1e-6 * max(1.0, bound)), (t, after.max())
        inside = before <= bound * (1 - 1e-5)
        np.testing.assert_allclose(after[inside], before[inside], rtol=1e-5, atol=1e-9)
        clipped = before > bound * (1 + 1e-5)
        np.testing.assert_allclose(after[clipped], bound, rtol=1e-4)


def declared_std(defense: defenses.Defense, t: int) -> float:
    """The std of every coordinate, as the first mechanism declares it."""
    mechanism = defense.mechanisms[0]
    multiplier, sensitivity = mechanism.multiplier(t), mechanism.sensitivity(t)
    if mechanism.kind is NoiseKind.LAPLACE:
        return 2**0.5 * sensitivity / multiplier
    spread = UNITS if mechanism.on_batch_sum else 1
    return multiplier * sensitivity / spread


def noise_draws(make: Make, quiet: Mapping[str, Any], t: int, size: float) -> Any:
    """Noise alone, (KEYS, UNITS, ...) for each tensor: with minus without noise."""
    tree = gradients(5, size=size)
    keys = jax.random.split(jax.random.key(5), KEYS)
    without = jitted(make(**quiet))(keys[0], tree, t)
    with_noise = over_keys(make())(keys, tree, t)
    return jax.tree.map(lambda a, b: a - b, with_noise, without)


def has_declared_std(draws: Any, declared: Any, tolerance: float = 0.02) -> None:
    """The std of each coordinate over 10^5 draws is the declared one, the mean 0."""
    for draw, std in zip(
        jax.tree.leaves(draws), jax.tree.leaves(declared), strict=True
    ):
        flat = np.asarray(draw, np.float64).reshape(KEYS * UNITS, -1)
        assert np.all(np.abs(flat.std(0) - std) <= tolerance * std), (flat.std(0), std)
        assert np.all(np.abs(flat.mean(0)) <= 6 * std / len(flat) ** 0.5)


def is_independent(draws: Any) -> None:
    """No correlation between coordinates, units, and calls (clients and rounds)."""
    flat = np.concatenate(
        [
            np.asarray(leaf, np.float64).reshape(KEYS, UNITS, -1)
            for leaf in jax.tree.leaves(draws)
        ],
        axis=2,
    )
    columns = flat.reshape(KEYS, -1)
    moving = columns[:, columns.std(0) > 0]
    between = np.corrcoef(moving.T) - np.eye(moving.shape[1])
    assert np.max(np.abs(between)) < 6 / KEYS**0.5
    for lag in (1, 2):
        next_call = np.sum(moving[lag:] * moving[:-lag], 0) / np.sum(moving**2, 0)
        assert np.max(np.abs(next_call)) < 6 / KEYS**0.5


def averages_like_run(mean: Callable[..., Any], make: Make, quiet: Mapping[str, Any]):
    """Without noise, the mean over units is the mean of what `run` gives."""
    defense, tree = make(**quiet), gradients(6, size=3.0)
    for transforms in points(defense).values():
        states = defenses.init_states(transforms, PARAMS)
        key = jax.random.key(6)
        whole, _ = defenses.run(transforms, key, tree, states, 1)
        fused, _ = mean(transforms, key, tree, states, 1)
        assert jax.tree.structure(fused) == jax.tree.structure(whole)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a.mean(0), b, rtol=1e-5, atol=1e-6),
            whole,
            fused,
        )


def averages_noise_like_run(mean: Callable[..., Any], make: Make) -> None:
    """The noise of the mean has the std that averaging would give, and the law."""
    defense, tree = make(), gradients(7, size=100.0)
    for transforms in points(defense).values():
        states = defenses.init_states(transforms, PARAMS)
        keys = jax.random.split(jax.random.key(7), 40_000)

        def both(key: Any, transforms=transforms, states=states) -> Any:
            whole, _ = defenses.run(transforms, key, tree, states, 1)
            fused, _ = mean(transforms, jax.random.fold_in(key, 9), tree, states, 1)
            return jax.tree.map(lambda leaf: leaf.mean(0), whole), fused

        expected, fused = jax.jit(jax.vmap(both), compiler_options=QUICK)(keys)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(fused), strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(b.std(0), a.std(0), rtol=0.03)
            error = np.abs(a.mean(0) - b.mean(0))
            assert np.all(error < 6 * a.std(0) * (2 / len(keys)) ** 0.5 + 1e-6)
            quantiles = [0.01, 0.1, 0.5, 0.9, 0.99]
            gap = np.quantile(a, quantiles, 0) - np.quantile(b, quantiles, 0)
            assert np.all(np.abs(gap) <= 0.08 * a.std(0) + 1e-6)


def treats_units_alone(transform: Any) -> None:
    """No state; a unit's output does not depend on the others, nor on their number."""
    state = transform.init(PARAMS)
    assert jax.tree.leaves(state) == [], "it keeps a state"
    keys = jax.random.split(jax.random.key(10), 4_000)
    one = functools.partial(_apply, (transform,))
    apply = jax.jit(jax.vmap(one, in_axes=(0, None, None)), compiler_options=QUICK)
    tree, other = gradients(10, size=3.0), gradients(11, size=30.0)
    mixed = jax.tree.map(lambda a, b: b.at[0].set(a[0]), tree, other)
    alone = jax.tree.map(lambda leaf: leaf[:1], tree)
    in_one, in_other, by_itself = (
        jax.tree.map(lambda leaf: np.asarray(leaf[:, 0]), apply(keys, units, 0))
        for units in (tree, mixed, alone)
    )
    jax.tree.map(np.testing.assert_array_equal, in_one, in_other)
    for a, b in zip(jax.tree.leaves(in_one), jax.tree.leaves(by_itself), strict=True):
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.15, atol=1e-6)
        spread = 6 * (a.std(0) + b.std(0)) / len(keys) ** 0.5
        assert np.all(np.abs(a.mean(0) - b.mean(0)) <= spread + 1e-5)
