"""What networks are made of: layers, and convolution as fast as the backend allows.

On CPU XLA's own is slow inside loops, and a convolution whose weights differ per
victim or per client becomes a slower grouped one under vmap. There C that is compiled
with the package is several times faster (`convolution_maps.c` says why), and so are its
first and second derivatives; a package without it writes patches and multiplies
matrices. Accelerators have good native convolutions. This module decides, and nothing
else does.

A convolution and its two derivatives are three bilinear maps, and each is a derivative
of the others: told so, jax derives every order, forward and in reverse, and under vmap
either operand may be each unit's own.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gradaudit import machine
from gradaudit.errors import InputError
from gradaudit.models.model import INPUTS, STATISTICS
from gradaudit.types import Key

Padding = tuple[tuple[int, int], ...]  # before and after, of height and width
# (height, width) of the inputs, (height, width) of the window, stride, padding
_Geometry = tuple[tuple[int, int], tuple[int, int], int, Padding]


class Path(enum.Enum):
    """How a convolution is computed; AUTO asks the backend when it is traced."""

    AUTO = "auto"
    NATIVE = "native"
    PATCHES = "patches"
    COMPILED = "compiled"


def same_padding(inputs: jax.Array, kernel: tuple[int, int], stride: int) -> Padding:
    """Returns the padding that makes the output ceil(size / stride)."""
    strides = (stride, stride)
    pads = lax.padtype_to_pads(inputs.shape[1:3], kernel, strides, "SAME")
    return tuple((int(before), int(after)) for before, after in pads)


def convolve(
    inputs: jax.Array,
    kernel: jax.Array,
    stride: int,
    padding: Padding,
    path: Path = Path.AUTO,
) -> jax.Array:
    """Returns inputs (n, h, w, c) convolved with kernel (kh, kw, c, features)."""
    if path is Path.AUTO:
        path = fastest()
    if path is Path.NATIVE:
        return _native(inputs, kernel, stride, padding)
    if path is Path.COMPILED:
        if not is_compiled():
            raise InputError(
                "this gradaudit was built without a C compiler and has no compiled "
                "convolution; use the path 'auto', or install a C compiler and "
                "gradaudit again"
            )
        # It knows float32 alone, which every net of the catalogue is.
        if inputs.dtype == kernel.dtype == jnp.float32:
            (_, height, width, _), (tall, wide, *_) = inputs.shape, kernel.shape
            geometry = ((height, width), (tall, wide), stride, padding)
            return map_of("outputs", inputs, kernel, geometry)
    patches = _gather_patches(inputs, kernel.shape[:2], stride, padding)
    return patches @ kernel.reshape(-1, kernel.shape[-1])


def fastest() -> Path:
    """Returns what AUTO stands for on this machine."""
    if jax.default_backend() != "cpu":
        return Path.NATIVE
    return Path.COMPILED if is_compiled() else Path.PATCHES


@functools.cache
def is_compiled() -> bool:
    """Whether the C was built with the package and loads."""
    symbols = {target(name): f"convolution_{name}" for name in MAPS}
    return machine.offer_to_xla(machine.CONVOLUTIONS, symbols)


def _gather_patches(
    inputs: jax.Array, window: Sequence[int], stride: int, padding: Padding
) -> jax.Array:
    """Returns (n, rows, columns, kernel entries): what each output sees."""
    # A negative amount of padding cuts, which jnp.pad refuses.
    amounts = [(low, high, 0) for low, high in ((0, 0), *padding, (0, 0))]
    padded = lax.pad(inputs, jnp.zeros((), inputs.dtype), amounts)
    # Columns first, then rows: 5 + 5 slices where one go would take 25, and the
    # second set copies runs that are kernel_width times as long.
    across = _windows(padded, 2, window[1], stride)
    return _windows(across, 1, window[0], stride)


def _windows(values: jax.Array, axis: int, window: int, stride: int) -> jax.Array:
    """Stacks the `window` neighbours along `axis` into the last axis."""
    count = (values.shape[axis] - window) // stride + 1
    reach = (count - 1) * stride + 1
    shifted = [
        lax.slice_in_dim(values, start, start + reach, stride, axis)
        for start in range(window)
    ]
    return jnp.concatenate(shifted, axis=-1)


def _native(
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
    if name == "outputs":
        return _native(first, second, stride, padding)
    wanted = ShapedArray(MAPS[name](first, second, geometry), first.dtype)
    if name == "by_inputs":
        back = jax.linear_transpose(
            lambda x: _native(x, second, stride, padding), wanted
        )
        return back(first)[0]
    back = jax.linear_transpose(lambda x: _native(first, x, stride, padding), wanted)
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
MAPS = {"outputs": _outputs, "by_inputs": _by_inputs, "by_kernel": _by_kernel}
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
        own = MAPS[name](first, second, geometry)
        return ShapedArray((*batch, *own), first.dtype)

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


_PRIMITIVES = {name: _primitive(name) for name in MAPS}


Activation = Callable[[jax.Array], jax.Array]
Initializer = Callable[..., Any]


def symmetric_uniform(
    key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.Array:
    """U(-0.5, 0.5) for weights and biases: the untrained nets of the attack papers."""
    return jax.random.uniform(key, shape, dtype, -0.5, 0.5)


# One object each: two calls of glorot_uniform() compare unequal and would retrace.
GLOROT: Initializer = nn.initializers.glorot_uniform()
HE: Initializer = nn.initializers.he_normal()


@dataclasses.dataclass(frozen=True)
class Layer:
    """One convolution: features, kernel side, stride; then max-pooling, if any.

    `padding` None pads so that the output is ceil(size / stride).
    """

    features: int
    kernel: int
    stride: int
    padding: int | None = None
    pool: int = 1


class Convolution(nn.Module):
    """A convolution through `gradaudit.convolution`; no bias_init, no bias."""

    layer: Layer
    kernel_init: Initializer
    bias_init: Initializer | None
    conv_path: Path

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns (n, h, w, features)."""
        layer = self.layer
        side = (layer.kernel, layer.kernel)
        shape = (*side, inputs.shape[-1], layer.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        if layer.padding is None:
            padding = same_padding(inputs, side, layer.stride)
        else:
            padding = ((layer.padding, layer.padding),) * 2
        values = convolve(inputs, kernel, layer.stride, padding, self.conv_path)
        if self.bias_init is None:
            return values
        bias: jax.Array = self.param("bias", self.bias_init, (layer.features,))
        return values + bias


class Dense(nn.Dense):
    """flax's dense layer, which hands out its inputs to whoever asks for them."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns (n, features)."""
        self.sow(INPUTS, "inputs", inputs)
        return super().__call__(inputs)


class BatchNorm(nn.BatchNorm):
    """flax's batch norm, which hands out the statistics of what it reads."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the normalised inputs, (n, ..., features)."""
        axes = tuple(range(inputs.ndim - 1))
        self.sow(STATISTICS, "mean", jnp.mean(inputs, axes))
        self.sow(STATISTICS, "var", jnp.var(inputs, axes))
        normalised: jax.Array = super().__call__(inputs)
        return normalised
