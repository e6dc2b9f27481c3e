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


def over_units(
    function: Callable[..., Any], shared: int, leading: int = 0
) -> Callable[..., Any]:
    """Cuts every argument but the first `shared` along its leading axis.

    There is no communication: each device runs the same program on its own units,
    so that the number of devices never changes a number. Results are cut along axis
    `leading`... of 0; a tuple's second entry along axis 1 when `leading` is 1.
    """
    units = PartitionSpec(AXIS)

    def mapped(*arguments: Any) -> Any:
        specs = tuple(
            PartitionSpec() if index < shared else units
            for index in range(len(arguments))
        )
        out = units if leading == 0 else (units, PartitionSpec(None, AXIS))
        return jax.shard_map(
            function,
            mesh=unit_mesh(),
            in_specs=specs,
            out_specs=out,
            check_vma=False,  # pure per-unit programs: nothing is replicated
        )(*arguments)

    return mapped


def place(tree: Any, shared: bool = False) -> Any:
    """Puts a tree on the devices, cut along its leading axis or copied to each."""
    spec = PartitionSpec() if shared else PartitionSpec(AXIS)
    return jax.device_put(tree, NamedSharding(unit_mesh(), spec))
