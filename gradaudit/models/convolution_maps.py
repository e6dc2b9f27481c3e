"""A convolution and its two derivatives on CPU, compiled with the package.

All three are bilinear, and each is a derivative of the others: told so, jax derives
every order, forward and in reverse, and under vmap either operand may be each unit's
own. The loops are C (`convolution_maps.c` says why) and XLA calls them. A package that
was built without a C compiler has none, and `compiled_convolution` returns None.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gradaudit import machine

Padding = tuple[tuple[int, int], tuple[int, int]]
Convolve = Callable[[jax.Array, jax.Array, int, Padding], jax.Array]
# (height, width) of the inputs, (height, width) of the window, stride, padding
_Geometry = tuple[tuple[int, int], tuple[int, int], int, Padding]


@functools.cache
def compiled_convolution() -> Convolve | None:
    """Returns the compiled one, or None if it was not built or does not load."""
    symbols = {target(name): f"convolution_{name}" for name in _SHAPES}
    return _convolve if machine.offer_to_xla(machine.CONVOLUTIONS, symbols) else None


def _convolve(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    (_, height, width, _), (tall, wide, *_) = inputs.shape, kernel.shape
    geometry = ((height, width), (tall, wide), stride, padding)
    return map_of("outputs", inputs, kernel, geometry)


def native_convolution(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    """Returns XLA's own."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        inputs, kernel, (stride, stride), padding, dimension_numbers=layout
    )


def natively(name: str, first: Any, second: Any, geometry: _Geometry) -> Any:
    """Returns what a map does, for platforms that the C is not for."""
    if first.ndim > 4:
        operands = first, second
        shared = [operand.shape[0] == 1 for operand in operands]
        left = (x[0] if one else x for x, one in zip(operands, shared, strict=True))
        inner = functools.partial(natively, name, geometry=geometry)
        if all(shared):
            return inner(*left)[None]
        return jax.vmap(inner, [None if one else 0 for one in shared])(*left)
    _, _, stride, padding = geometry

    def outputs(inputs: Any, kernel: Any) -> jax.Array:
        return native_convolution(inputs, kernel, stride, padding)

    if name == "outputs":
        return outputs(first, second)
    wanted = ShapedArray(_SHAPES[name](first, second, geometry), first.dtype)
    if name == "by_inputs":
        back = jax.linear_transpose(lambda inputs: outputs(inputs, second), wanted)
        return back(first)[0]
    back = jax.linear_transpose(lambda kernel: outputs(first, kernel), wanted)
    return back(second)[0]


def map_of(name: str, first: Any, second: Any, geometry: _Geometry) -> jax.Array:
    """Returns one of the three maps of its two operands, batch axes in front."""
    result: jax.Array = _PRIMITIVES[name].bind(first, second, geometry=geometry)
    return result


def target(name: str) -> str:
    """Returns the name by which XLA knows a map."""
    return f"gradaudit_convolution_{name}"


def _outputs(inputs: Any, kernel: Any, geometry: _Geometry) -> tuple[int, ...]:
    size, window, stride, padding = geometry
    rows, columns = (
        (size[axis] + sum(padding[axis]) - window[axis]) // stride + 1
        for axis in (0, 1)
    )
    return inputs.shape[-4], rows, columns, kernel.shape[-1]


def _by_inputs(cotangent: Any, kernel: Any, geometry: _Geometry) -> tuple[int, ...]:
    return cotangent.shape[-4], *geometry[0], kernel.shape[-2]


def _by_kernel(inputs: Any, cotangent: Any, geometry: _Geometry) -> tuple[int, ...]:
    return *geometry[1], inputs.shape[-1], cotangent.shape[-1]


# What each map returns of its two operands, batch axes aside.
_SHAPES = {"outputs": _outputs, "by_inputs": _by_inputs, "by_kernel": _by_kernel}
# Its derivative by the first operand and by the second: a map, and what of.
_DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "outputs": (
        lambda back, inputs, kernel: ("by_inputs", back, kernel),
        lambda back, inputs, kernel: ("by_kernel", inputs, back),
    ),
    "by_inputs": (
        lambda back, cotangent, kernel: ("outputs", back, kernel),
        lambda back, cotangent, kernel: ("by_kernel", back, cotangent),
    ),
    "by_kernel": (
        lambda back, inputs, cotangent: ("by_inputs", cotangent, back),
        lambda back, inputs, cotangent: ("outputs", inputs, back),
    ),
}


def _primitive(name: str) -> Any:
    primitive: Any = Primitive(f"convolution_{name}")

    def shape(first: Any, second: Any, *, geometry: _Geometry) -> ShapedArray:
        # An operand is shared along a batch axis if its length is 1 there.
        batch = np.broadcast_shapes(first.shape[:-4], second.shape[:-4])
        return ShapedArray(
            (*batch, *_SHAPES[name](first, second, geometry)), first.dtype
        )

    @functools.partial(jax.jit, static_argnames="geometry")
    def at_once(first: Any, second: Any, *, geometry: _Geometry) -> jax.Array:
        return map_of(name, first, second, geometry)

    def lower(context: Any, *operands: Any, geometry: _Geometry) -> Any:
        _, _, stride, ((top, _), (left, _)) = geometry
        numbers = np.asarray([stride, top, left], np.int64)
        return jax.ffi.ffi_lowering(target(name))(context, *operands, geometry=numbers)

    def batched(operands: Any, axes: Any, *, geometry: _Geometry) -> Any:
        first, second = (
            operand[None] if axis is None else jnp.moveaxis(operand, axis, 0)
            for operand, axis in zip(operands, axes, strict=True)
        )
        return map_of(name, first, second, geometry), 0

    def transposed(rule: Callable[..., Any], operand: int) -> Callable[..., Any]:
        def transpose(back: Any, *operands: Any, geometry: _Geometry) -> jax.Array:
            map_name, first, second = rule(back, *operands)
            result = map_of(map_name, first, second, geometry)
            return _summed(result, operands[operand].aval.shape)

        return transpose

    primitive.def_impl(at_once)
    primitive.def_abstract_eval(shape)
    elsewhere = functools.partial(natively, name)
    mlir.register_lowering(primitive, mlir.lower_fun(elsewhere, multiple_results=False))
    mlir.register_lowering(primitive, lower, platform="cpu")
    batching.primitive_batchers[primitive] = batched
    rules = (transposed(rule, i) for i, rule in enumerate(_DERIVATIVES[name]))
    ad.defbilinear(primitive, *rules)  # type: ignore[no-untyped-call]
    return primitive


def _summed(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the sum over the batch axes along which an operand was shared."""
    shared = [axis for axis, length in enumerate(shape) if values.shape[axis] != length]
    return jnp.sum(values, axis=shared, keepdims=True) if shared else values


MAPS = tuple(_SHAPES)
_PRIMITIVES = {name: _primitive(name) for name in _SHAPES}
