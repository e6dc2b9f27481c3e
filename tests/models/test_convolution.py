"""Every way to convolve is the same function, with the same derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.models.convolution import Path, convolve, same_padding

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
}
OTHERS = ("patches", "shared")
COMPARED = ("native", *OTHERS)  # names: keys of a tree must be sortable


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def setting(case: str, units: int = 2):
    """Returns inputs, kernel and a function of (path) -> convolution of the two."""
    height, width, channels, features, tall, wide, stride, padding = CASES[case]
    if padding is SAME:
        padding = same_padding(height, width, (tall, wide), stride)
    inputs = draw(0, units, height, width, channels)
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
    orders = {
        "forward": function(inputs, kernel),
        "gradient": gradient(function, inputs, kernel),
        "gradient of gradient": second(function, inputs, kernel),
    }
    if function.keywords["path"] is not Path.SHARED:  # reverse mode only
        orders["gradient of a tangent"] = second_forward(function, inputs, kernel)
    return orders


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


@pytest.mark.parametrize(
    ("backend", "convolves_natively"), [("cpu", False), ("gpu", True), ("tpu", True)]
)
def test_the_backend_decides(monkeypatch, backend, convolves_natively):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    inputs, kernel, function = setting("attack net")
    program = str(jax.make_jaxpr(function("auto"))(inputs, kernel))
    assert ("conv_general_dilated" in program) == convolves_natively


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
def test_same_padding_is_that_of_lax(stride, window):
    for length in range(1, 12):
        expected = jax.lax.padtype_to_pads(
            (length, 7), (window, 3), (stride, stride), "SAME"
        )
        padding = same_padding(length, 7, (window, 3), stride)
        assert list(padding) == [tuple(map(int, pair)) for pair in expected]
