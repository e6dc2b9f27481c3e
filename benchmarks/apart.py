"""Runs one of our functions in a process of its own, and brings back what it returns.

jax fixes its devices once, peak memory belongs to a process, and imports count only in
a fresh one.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gradaudit.benchmarks.suite import Plain
from gradaudit.errors import InputError

_ROOM = "gradaudit.benchmarks."


def in_process(
    function: Callable[..., Plain], devices: int | None = None, **arguments: Any
) -> Plain:
    """Returns `function(**arguments)`, computed by a fresh interpreter."""
    name = f"{function.__module__}:{function.__qualname__}"
    settings = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, "-m", __name__, name, json.dumps(arguments)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: Plain = json.loads(done.stdout.splitlines()[-1])
    return answer


def _main(name: str, arguments: str) -> None:
    module, _, function = name.partition(":")
    if not module.startswith(_ROOM):
        raise InputError(f"{module} is no benchmark")
    found = getattr(importlib.import_module(module), function)
    print(json.dumps(found(**json.loads(arguments))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
