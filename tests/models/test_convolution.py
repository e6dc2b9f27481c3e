"""Every way to convolve is the same function, with the same derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.errors import InputError
from gradaudit.models import convolution
from gradaudit.models.convolution import (
    MAPS,
    Path,
    convolve,
    fastest,
    is_compiled,
    map_of,
    natively,
    same_padding,
)

# (height, width, channels, features, kernel height, kernel width, stride, padding)
SAME = None
CASES = {
    "attack net": (16, 16, 3, 12, 5, 5, 2, ((2, 2), (2, 2))),
    "odd sizes, same": (13, 9, 2, 4, 3, 3, 2, SAME),
    "odd kernel 8x8, same": (25, 25, 1, 3, 8, 8, 2, SAME),
    "flat kernel": (6, 11, 3, 2, 1, 4, 1, SAME),
    "stride skips pixels": (11, 10, 2, 3, 2, 2, 3, ((0, 0), (0, 0))),
    "uneven padding": (8, 7, 2, 3, 3, 3, 2, ((0, 3), (2, 1))),
    "kernel as large as the image": (5, 5, 2, 3, 5, 5, 1, ((0, 0), (0, 0))),
    "more features than a vector": (6, 9, 17, 35, 3, 3, 1, SAME),
    "windows of padding alone": (3, 3, 1, 2, 2, 2, 1, ((3, 2), (2, 3))),
}
OTHERS = ("patches", *(["compiled"] if is_compiled() else []))
COMPARED = ("native", *OTHERS)  # names: keys of a tree must be sortable


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def setting(case: str, units: int = 2):
    """Returns inputs, kernel and a function of (path) -> convolution of the two."""
    height, width, channels, features, tall, wide, stride, padding = CASES[case]
    inputs = draw(0, units, height, width, channels)
    if padding is SAME:
        padding = same_padding(inputs, (tall, wide), stride)
    kernel = draw(1, tall, wide, channels, features)

    def function(path: str):
        return functools.partial(
            convolve, stride=stride, padding=padding, path=Path(path)
        )

    return inputs, kernel, function


def assert_close(actual, expected, tolerance: float = 1e-5) -> None:
    """Relative to the largest entry of each array: what a float32 sum can promise."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def energy(function, inputs, kernel):
    """A scalar whose every derivative depends on the inputs and on the kernel."""
    return jnp.sum(jnp.tanh(function(inputs, kernel) / np.sqrt(kernel.size)) ** 2)


def gradient(function, inputs, kernel):
    return jax.grad(functools.partial(energy, function), (0, 1))(inputs, kernel)


def second(function, inputs, kernel):
    """The gradient of a contraction of the gradient: reverse over reverse."""
    directions = draw(2, *inputs.shape), draw(3, *kernel.shape)

    def slope(inputs, kernel):
        first = gradient(function, inputs, kernel)
        return sum(jnp.vdot(d, g) for d, g in zip(directions, first, strict=True))

    return jax.grad(slope, (0, 1))(inputs, kernel)


def second_forward(function, inputs, kernel):
    """Forward in the kernel, reverse in x."""
    direction = draw(3, *kernel.shape)

    def slope(inputs):
        along = functools.partial(energy, function, inputs)
        return jax.jvp(along, (kernel,), (direction,))[1]

    return jax.grad(slope)(inputs)


def every_order(function, inputs, kernel):
    """Returns the value and every kind of derivative that the project takes."""
    return {
        "forward": function(inputs, kernel),
        "gradient": gradient(function, inputs, kernel),
        "gradient of gradient": second(function, inputs, kernel),
        "gradient of a tangent": second_forward(function, inputs, kernel),
    }


@pytest.mark.parametrize("case", CASES)
def test_every_path_equals_the_native_one_in_every_derivative(case, quick_jit):
    inputs, kernel, function = setting(case)

    @quick_jit  # one program for all paths: compiling is what takes the time
    def run(inputs, kernel):
        return {p: every_order(function(p), inputs, kernel) for p in COMPARED}

    results = run(inputs, kernel)
    for path in OTHERS:
        for order, value in results[path].items():
            assert_close(value, results["native"][order])


@pytest.mark.parametrize("own_kernels", [False, True], ids=["shared", "per unit"])
def test_they_agree_under_vmap(own_kernels, quick_jit):
    inputs, kernel, function = setting("uneven padding")
    units = draw(4, 3, *inputs.shape)
    kernels = draw(5, 3, *kernel.shape) if own_kernels else kernel

    def one(inputs, kernel):
        return {p: every_order(function(p), inputs, kernel) for p in COMPARED}

    run = quick_jit(jax.vmap(one, (0, 0 if own_kernels else None)))
    results = run(units, kernels)
    for path in OTHERS:
        for order, value in results[path].items():
            assert_close(value, results["native"][order])


def test_either_operand_may_be_shared_along_any_of_several_axes(quick_jit):
    """Draws of kernels, victims of each, and the other way around."""
    inputs, kernel, function = setting("odd sizes, same")
    units, kernels = draw(4, 3, *inputs.shape), draw(5, 2, *kernel.shape)

    def one(inputs, kernel):
        return {p: second(function(p), inputs, kernel) for p in COMPARED}

    inner = jax.vmap(one, (0, None))
    runs = jax.vmap(inner, (None, 0)), jax.vmap(jax.vmap(one, (None, 0)), (0, None))
    for run in runs:
        results = quick_jit(run)(units, kernels)
        for path in OTHERS:
            assert_close(results[path], results["native"])


@pytest.mark.skipif(not is_compiled(), reason="there was no C compiler")
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("shared", [(), (0,), (1,), (0, 1)], ids=str)
def test_what_other_platforms_run_is_the_same_map(name, shared):
    """Batch axes in front: of both operands, or of one of them."""
    geometry = ((7, 6), (3, 2), 2, ((1, 1), (0, 1)))
    inputs, kernel, outputs = (2, 7, 6, 3), (3, 2, 3, 4), (2, 4, 3, 4)
    shapes = {
        "outputs": (inputs, kernel),
        "by_inputs": (outputs, kernel),
        "by_kernel": (inputs, outputs),
    }[name]
    first, second = (
        draw(index, *((1, 2) if index in shared else (3, 2)), *shape)
        for index, shape in enumerate(shapes)
    )
    here = map_of(name, first, second, geometry)
    assert_close(here, natively(name, first, second, geometry))


def test_what_runs_beside_changes_no_bit():
    """Alone, among others, with a kernel of its own that equals the shared one."""
    inputs, kernel, function = setting("attack net", units=1)
    units = np.concatenate([inputs, draw(4, 4, *inputs.shape[1:])])[:, None]
    run = function(fastest().value)
    among = jax.jit(jax.vmap(run, (0, None)))(units, kernel)
    own = jax.jit(jax.vmap(run))(units, np.broadcast_to(kernel, (5, *kernel.shape)))
    if fastest() is Path.COMPILED:
        np.testing.assert_array_equal(among[0], run(inputs, kernel))
        np.testing.assert_array_equal(among, own)
    assert_close(among[0], run(inputs, kernel))


def test_without_a_compiler_there_are_patches(monkeypatch):
    monkeypatch.setattr(convolution, "is_compiled", lambda: False)
    inputs, kernel, function = setting("attack net")
    assert fastest() is Path.PATCHES
    assert_close(function("auto")(inputs, kernel), function("native")(inputs, kernel))
    with pytest.raises(InputError, match="C compiler"):
        function("compiled")(inputs, kernel)


def test_other_precisions_are_not_read_as_single():
    inputs, kernel, function = setting("attack net")
    half = function("auto")(inputs.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert_close(half.astype(np.float32), function("native")(inputs, kernel), 0.05)


@pytest.mark.parametrize(
    ("backend", "convolves_natively"), [("cpu", False), ("gpu", True), ("tpu", True)]
)
def test_the_backend_decides(monkeypatch, backend, convolves_natively):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    inputs, kernel, function = setting("attack net")
    program = str(jax.make_jaxpr(function("auto"))(inputs, kernel))
    assert ("conv_general_dilated" in program) == convolves_natively
