"""The machine side of a run: caches, devices, and what a result says of both."""

import os
import pathlib
import platform
from typing import Any

CACHE_VARIABLE = "GRADAUDIT_CACHE"  # a folder, or `off`


def configure() -> None:
    """Prepares jax for our programs; call it before the first computation.

    - Compiled programs are kept in the user's cache folder, so that the second run
      starts fast; `GRADAUDIT_CACHE=off` switches it off, another value moves it.
    - On CPU every core becomes a device: our programs are many small operations,
      which run faster side by side than spread over threads.
    Settings that the user made for jax itself are left alone.
    """
    import jax

    folder = cache_folder()
    settings: Any = jax.config
    if folder is not None and settings.jax_compilation_cache_dir is None:
        folder.mkdir(parents=True, exist_ok=True)
        settings.update("jax_compilation_cache_dir", str(folder))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and "JAX_NUM_CPU_DEVICES" not in os.environ:
        try:
            settings.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
        except RuntimeError:
            return  # the caller has used jax already: keep its devices


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

    import jax

    packages = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "dp-accounting")
    return {
        "gradaudit": importlib.metadata.version("gradaudit"),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.local_devices()],
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
    }
