"""One helper for devices: the victim (or client) axis is cut over all of them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "units"


@functools.cache
def unit_mesh() -> Mesh:
    """Returns a mesh with one axis over every local device."""
    devices = np.asarray(jax.local_devices())
    return Mesh(devices, (AXIS,), axis_types=(AxisType.Auto,))


def device_count() -> int:
    """Returns over how many devices the unit axis is cut."""
    return int(unit_mesh().devices.size)


def _spec(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


def over_units(
    function: Callable[..., Any], shared: int, traced: bool = False
) -> Callable[..., Any]:
    """Cuts every argument but the first `shared` along its leading axis.

    There is no communication: each device runs the same program on its own units,
    so that the number of devices never changes a number. A `traced` function returns
    (state, trace) with the units on axis 0 of the state and on axis 1 of the trace.
    """

    def mapped(*arguments: Any) -> Any:
        specs = tuple(
            _spec() if index < shared else _spec(AXIS)
            for index in range(len(arguments))
        )
        return jax.shard_map(
            function,
            mesh=unit_mesh(),
            in_specs=specs,
            out_specs=(_spec(AXIS), _spec(None, AXIS)) if traced else _spec(AXIS),
            check_vma=False,  # pure per-unit programs: nothing is replicated
        )(*arguments)

    return mapped


def place(tree: Any, shared: bool = False) -> Any:
    """Puts a tree on the devices, cut along its leading axis or copied to each."""
    spec = _spec() if shared else _spec(AXIS)
    return jax.device_put(tree, NamedSharding(unit_mesh(), spec))
