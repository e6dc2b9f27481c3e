"""Tasks for executors: they count, fail or die, in a process that imports little."""

import os
import signal
import time

from gradaudit.errors import InputError
from gradaudit.executors import Interrupted


def write(argument, folder, tell):
    """Counts to n, a file each; goes on from what is in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    before = len(list(folder.glob("*.part")))
    for number in range(before, argument["n"]):
        time.sleep(argument.get("pause", 0.0))
        try:
            tell(number, argument["n"], "counting")
        except KeyboardInterrupt:
            raise Interrupted({"wrote": number}) from None
        (folder / f"{number}.part").write_text(str(os.getpid()))
    return {"wrote": argument["n"], "before": before, "pid": os.getpid()}


def fail(argument, folder, tell):
    raise InputError(f"there is no {argument['what']}")


def die(argument, folder, tell):
    """Is killed, until it was `times` times."""
    folder.mkdir(parents=True, exist_ok=True)
    deaths = len(list(folder.glob("*.death")))
    if deaths < argument["times"]:
        (folder / f"{deaths}.death").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"deaths": deaths}


def environment(argument, folder, tell):
    return {name: os.environ.get(name) for name in argument["names"]}
