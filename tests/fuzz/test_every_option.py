"""Every option of every command, with every kind of nonsense."""

import pathlib
import typing

import pytest
import typer

from gradaudit.cli.app import app

HUGE, LONG = "9" * 23, "x" * 5000
# The first three of each kind run by default, the others in the slow suite.
NONSENSE: dict[type, tuple[str, ...]] = {
    int: ("-3", "0", HUGE, "1.5", "x"),
    float: ("-1", "nan", "1e300", "0", "inf", "1e-320", "x"),
    str: (LONG, "~nouser/x", "x:=,", "", "[/]", "a\nb", "ü\udcff", "1,,2"),
    pathlib.Path: (LONG, "/dev/full", "", "/proc/none/x"),
    list: (LONG, "../../etc", "[/]", ""),
}
NOISE = ("--sigma", "6", "--q", "0.01", "--steps", "100")
OUT = ("--out", "out")
BASE = {
    "audit": ("--dataset", "cancer", "--defense", "none", "--victims", "2"),
    "attack": ("--dataset", "cancer", "--victims", "2"),
    "train": ("--dataset", "cancer", "--clients", "4", "--clients-per-round", "2"),
    "line-up": ("--dataset", "cancer", "--victims", "2", "--draws", "1"),
    "calibrate": ("--max-success", "0.5", "--dataset", "cancer", "--victims", "2"),
    "account": ("--defense", "fed-cdp", "--dataset", "cancer"),
    "bench run": ("accounting",),
}
# Options of `account` that describe the noise itself can't be given with a defense.
OF_NOISE = {
    "sigma", "q", "steps", "schedule", "trace", "noise_std", "target_epsilon", "delta",
    "convention", "plot", "log", "target_accuracy",
}  # fmt: skip


def commands(group, path: tuple[str, ...] = ()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def kind_of(command, parameter) -> type:
    """Returns what a parameter is read as: of `int | None`, int."""
    hint = typing.get_type_hints(command.callback)[parameter.name]
    inside = [part for part in typing.get_args(hint) if part is not type(None)]
    found = inside[0] if inside and typing.get_origin(hint) is not list else hint
    return list if typing.get_origin(found) is list else found


def cases():
    for path, command in commands(typer.main.get_command(app)):
        name = " ".join(path)
        for parameter in command.params:
            kind = kind_of(command, parameter)
            for number, value in enumerate(NONSENSE.get(kind, ())):
                base = BASE.get(name, ())
                if name == "account" and parameter.name in OF_NOISE:
                    base = NOISE
                option = [p for p in parameter.opts if p.startswith("--")]
                if any("--out" in other.opts for other in command.params):
                    base = (*OUT, *base)
                words = (*path, *base, *option, value)
                yield pytest.param(
                    words,
                    id=f"{name} {parameter.name}={value[:12]!r}",
                    marks=[pytest.mark.slow] if number > 2 else [],
                )


CASES = list(cases())


@pytest.mark.parametrize("words", CASES)
def test_nonsense_is_refused_in_words_or_work(words, ask):
    """Whatever it is: no traceback, nothing outside --out, an answer within seconds."""
    named = {"--out", "--plot", "--page"} & set(words[-2:])
    out = words[-1] if named else "out"
    ask(*words, out=out or ".")


def test_there_are_enough_cases():
    assert sum(not case.marks for case in CASES) >= 300
