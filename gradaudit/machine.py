"""The machine side of a run: caches, devices, and how units are cut over them."""

import functools
import os
import pathlib
import platform
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

CACHE_VARIABLE = "GRADAUDIT_CACHE"  # a folder, or `off`


def configure() -> None:
    """Prepares jax for our programs; call it before the first computation.

    - Compiled programs are kept in the user's cache folder, so that the second run
      starts fast; `GRADAUDIT_CACHE=off` switches it off, another value moves it.
    - On CPU every core becomes a device: our programs are many small operations,
      which run faster side by side than spread over threads.
    Settings that the user made for jax itself are left alone.
    """
    folder = cache_folder()
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None and _can_write(folder):
        settings.update("jax_compilation_cache_dir", str(folder))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and "JAX_NUM_CPU_DEVICES" not in os.environ:
        try:
            settings.update("jax_num_cpu_devices", core_count())
        except RuntimeError:
            return  # the caller has used jax already: keep its devices


def core_count() -> int:
    """Returns how many cores this process may use; not every system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _can_write(folder: pathlib.Path | None) -> bool:
    """Returns whether programs can be kept there: a cache must never stop a run."""
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def cache_folder() -> pathlib.Path | None:
    """Returns where compiled programs are kept; None if switched off."""
    import platformdirs

    setting = os.environ.get(CACHE_VARIABLE, "")
    if setting.lower() in {"off", "0", "no"}:
        return None
    return pathlib.Path(setting or platformdirs.user_cache_dir("gradaudit")) / "xla"


def describe() -> dict[str, Any]:
    """Returns versions, backend and devices for a result."""
    import importlib.metadata

    packages = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "dp-accounting")
    return {
        "gradaudit": importlib.metadata.version("gradaudit"),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.local_devices()],
        "machine": platform.machine(),
        "cores": core_count(),
    }


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
