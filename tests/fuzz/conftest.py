"""One process, the heavy work left out: what begins it has passed every check."""

import contextlib
import dataclasses
import pathlib
import signal
import tempfile
from collections.abc import Callable, Iterator

import matplotlib.font_manager  # noqa: F401 - looks at HOME when it is imported
import pytest
import typer
from typer.testing import CliRunner

from gradaudit.cli.app import app

COMMAND = typer.main.get_command(app)  # the runner would build it for every case
SECONDS = 10  # of one case, on a busy machine
ENDS = {0, 1, 2, 3, 130}


class Began(BaseException):
    """The work would begin now: everything that was given is accepted."""


def _begin(*_: object, **__: object) -> None:
    raise Began


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a command line."""

    code: int | None  # None: the work began
    out: str
    err: str

    @property
    def accepted(self) -> bool:
        return self.code in (None, 0)


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks the program, and checks what holds of every answer."""
    for place in (
        "gradaudit.audit.scenario.Simulated.groups",
        "gradaudit.audit.train.train_until",
        "gradaudit.distinguish.ldp_sgd._play",
        "gradaudit.distinguish.any_mechanism._choose",
        "gradaudit.audit.line_up_cells.Game",
        "gradaudit.benchmarks.running.run_cell",
        "subprocess.run",
        "subprocess.Popen",
    ):
        monkeypatch.setattr(place, _begin)
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(here))  # crashes leave a file there
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("COLUMNS", "80")
    before = {path for path in tmp_path.rglob("*")}

    def run(*words: str, out: str = "out", ours: tuple[str, ...] = ()) -> Answer:
        try:
            with at_most(SECONDS):
                done = CliRunner().invoke(app, words)
        except Began:
            answer = Answer(None, "", "")
        else:
            answer = Answer(done.exit_code, done.stdout, done.stderr)
            where = f"{words}\n{done.output}\n{done.exception!r}"
            assert done.exit_code in ENDS, where
            assert "Traceback" not in done.output, where
            if done.exit_code == 2:
                assert done.stderr.strip() and done.stdout == "", where
                assert len(done.stderr) < 8000, where
        allowed = (here / out).resolve()
        new = {path for path in tmp_path.rglob("*")} - before
        strange = [
            path
            for path in new
            if allowed not in (path, *path.parents) and path not in allowed.parents
            if path.name not in ours
        ]
        assert not strange, f"{words} wrote {strange}"
        return answer

    return run
