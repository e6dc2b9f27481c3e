"""The machine side of a run: caches, devices, and how units are cut over them."""

import ctypes
import functools
import gc
import importlib.util
import os
import pathlib
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gradaudit.errors import InputError
from gradaudit.executors import core_count

CACHE_VARIABLE = "GRADAUDIT_CACHE"  # a folder, or `off`
# C that is built with the package, or not.
CONVOLUTIONS = "gradaudit.models._convolution_maps"
NORMAL_NUMBERS = "gradaudit.defenses._normal_numbers"
UNIT_NORMS = "gradaudit.defenses._unit_norms"


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


_MAPPINGS = pathlib.Path("/proc/self/maps")
_MOST_MAPPINGS = pathlib.Path("/proc/sys/vm/max_map_count")
_SHARE = 1 / 3  # of the mappings that a process may have


def forget_programs() -> None:
    """Lets go of compiled programs where they fill a third of what Linux maps.

    Call it between pieces of work that share next to nothing. A program is a dozen
    mappings and more, and at the limit (65,530) the compiler ends the whole process.
    What is needed again comes from the cache folder.
    """
    try:
        most = int(_MOST_MAPPINGS.read_text())
        with _MAPPINGS.open("rb") as file:
            used = sum(1 for _ in file)
    except (OSError, ValueError):
        return  # not Linux
    if used > _SHARE * most:
        jax.clear_caches()  # type: ignore[no-untyped-call]
        gc.collect()


# Variables that are there when a cluster has started several processes, and the one
# that says how many (if any does): jax knows how to read the rest.
_CLUSTERS = {
    "SLURM_STEP_NODELIST": "SLURM_NTASKS",
    "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE",
    "JOB_COMPLETION_INDEX": None,  # a Kubernetes job
    "TPU_WORKER_HOSTNAMES": None,
    "MEGASCALE_COORDINATOR_ADDRESS": None,
}


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
    """Joins the processes that share one attack; before the first computation.

    Without arguments this is what the cluster says that started the processes (SLURM,
    Open MPI, Kubernetes, TPU pods), and nothing where there is none.
    """
    given = (coordinator, processes, process)
    if given == (None, None, None):
        if jax.distributed.is_initialized() or not _in_cluster():
            return
    else:
        _check_processes(coordinator, processes, process)
        if processes == 1:
            return
    settings: Any = jax.config
    # Who is left says in words that another process died, in place of an abort.
    settings.update("jax_enable_recoverability", True)
    # Else jax takes SIGTERM for itself, and the run can't be ended by it.
    settings.update("jax_enable_preemption_service", False)
    waiting = threading.Timer(_PATIENCE, _nobody_came)
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            *given,
            cluster_detection_method="deactivate" if processes else None,
            initialization_timeout=2 * _PATIENCE,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes can't be brought together: {error}{_TOGETHER}"
        ) from None
    finally:
        waiting.cancel()


def _nobody_came() -> None:
    """Ends this process in words; jax would abort it."""
    print(
        f"incomplete: not all processes came within {_PATIENCE} s{_TOGETHER}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(3)


_TOGETHER = (
    "; start all of them together, with the same --coordinator, a free port of process "
    "0's machine that the others can reach"
)
_PATIENCE = 120  # seconds until the last process must have been started
_LAST = 1.0  # seconds that process 0 stays after everybody has said that it is done


def _in_cluster() -> bool:
    for sign, size in _CLUSTERS.items():
        if sign in os.environ and (size is None or os.environ.get(size, "1") != "1"):
            return True
    return False


def _check_processes(
    coordinator: str | None, processes: int | None, process: int | None
) -> None:
    if coordinator is None or processes is None or process is None:
        raise InputError(
            "several processes need all of --coordinator HOST:PORT, --processes N and "
            "--process 0..N-1"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator must be HOST:PORT, got {coordinator!r}")
    if not processes >= 1:
        raise InputError(f"--processes must be at least 1, got {processes}")
    if not 0 <= process < processes:
        raise InputError(f"--process must lie in 0..{processes - 1}, got {process}")


def leave() -> None:
    """Leaves the processes again; process 0 goes last, or jax aborts the others."""
    if jax.distributed.is_initialized():
        time.sleep(_LAST if jax.process_index() == 0 else 0)
        jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def joined() -> tuple[int, int, Any]:
    """Returns (index, count, store) of the processes that share this run.

    The store of keys and values is jax's coordination service; None where this
    process is alone.
    """
    if not jax.distributed.is_initialized():
        return 0, 1, None
    # The store has no public name; orbax and others read it there, too.
    from jax._src import distributed

    client = distributed.global_state.client
    return jax.process_index(), jax.process_count(), client


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
        "compiled_convolutions": bool(importlib.util.find_spec(CONVOLUTIONS)),
        "compiled_normal_numbers": bool(importlib.util.find_spec(NORMAL_NUMBERS)),
        "compiled_unit_norms": bool(importlib.util.find_spec(UNIT_NORMS)),
    }


def offer_to_xla(module: str, symbols: dict[str, str]) -> bool:
    """Registers a module's C functions, by the names that XLA will know them by.

    Returns False where the module was not built or does not load.
    """
    built = importlib.util.find_spec(module)
    if built is None or built.origin is None:
        return False
    try:
        library = ctypes.CDLL(built.origin)
        for target, symbol in symbols.items():
            function = getattr(library, symbol)
            capsule = jax.ffi.pycapsule(function)  # type: ignore[no-untyped-call]
            jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    except (OSError, AttributeError, jax.errors.JaxRuntimeError):
        return False  # of another platform, or for an interface that XLA has left
    return True


def in_c(
    target: str, shape: tuple[int, ...], elsewhere: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """Returns a function of arrays whose result, float32, has this shape: C on CPU.

    `elsewhere` is what other platforms run. Under vmap, C gets the batch in front.
    """
    result = jax.ShapeDtypeStruct(shape, np.float32)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(target, result, vmap_method="broadcast_all")

    def function(*operands: jax.Array) -> jax.Array:
        found: jax.Array = jax.lax.platform_dependent(
            *operands, cpu=call, default=elsewhere
        )
        return found

    return function


def briefly(
    *, static_argnums: tuple[int, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Is `jax.jit` for programs that run a few times: compiling is what takes theirs.

    Without the optimiser a CPU's program is compiled several times faster. Inside
    another program the function is a part of that one.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def compiled() -> Callable[..., Any]:
            plain = {"xla_backend_optimization_level": 0}
            cpu = jax.default_backend() == "cpu"
            return jax.jit(
                function,
                static_argnums=static_argnums,
                compiler_options=plain if cpu else None,
            )

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            leaves = jax.tree.leaves(arguments)
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            return function(*arguments) if traced else compiled()(*arguments)

        return call

    return decorated


AXIS = "units"


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that asks LAPACK: under vmap it is called one by one.

    jaxlib spreads a batch of factorisations over XLA's threads and waits in one of them
    until they are done. Where every core is a device, all of them may wait at once, for
    ever; and no signal ends it. One matrix is computed where it is asked for.
    """
    one_by_one: Any = jax.custom_batching.sequential_vmap
    return functools.wraps(function)(one_by_one(function))


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
