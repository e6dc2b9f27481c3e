"""docs/own-system.md from zero to the page, by its own commands alone."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tomllib
import venv

import pytest
from packaging.requirements import Requirement

VERDICTS = {
    "none": "leaks",
    "clipping": "leaks",
    "local-dp": "not shown to leak",
}


def commands(root: pathlib.Path) -> list[list[str]]:
    """Returns the commands of the page's first block."""
    page = (root / "docs/own-system.md").read_text()
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return [shlex.split(line) for line in block[1].splitlines()]


def test_the_page_begins_with_commands(root):
    told = commands(root)
    first = [words[0] for words in told]
    assert first == ["pip", "gradaudit", "python", "gradaudit", "gradaudit"]
    for words in told:
        for word in words:
            if word.startswith("examples/"):
                assert (root / word.partition(":")[0]).is_file()
    assert told[-1][1:3] == ["audit", "--captured"]


def test_an_install_without_extras_brings_no_framework(root):
    """Everything that the package needs, and what that needs in turn."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    waiting = list(project["dependencies"])
    seen: set[str] = set()
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.name.lower() in seen or not _applies(needed):
            continue
        seen.add(needed.name.lower())
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            waiting += importlib.metadata.requires(needed.name) or []
    assert "numpy" in seen and "jaxlib" in seen  # it did look
    assert not seen & {"torch", "torchax", "flwr", "ray", "tensorflow"}


def _applies(needed: Requirement) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": ""})


# Of the tests, for speed; people have none of them.
_OURS = {"PYTHONPATH", "VIRTUAL_ENV", "XLA_FLAGS"}
_NO_INDEX = ("No matching distribution", "NewConnectionError", "name resolution")


@dataclasses.dataclass(frozen=True)
class Environment:
    """A new environment of Python, and how the page's commands run in it."""

    folder: pathlib.Path
    checkout: pathlib.Path

    def run(self, words: list[str], where: pathlib.Path, again: int = 0) -> None:
        """Runs a command of the page; Ray's start may need another."""
        if words[0] == "pip":  # what is here, in place of what was published
            words = [w.replace("gradaudit[", f"{self.checkout}[") for w in words]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OURS and not name.startswith(("JAX_", "TF_"))
        }
        programs = self.folder / "bin"
        kept["PATH"] = f"{programs}{os.pathsep}{kept['PATH']}"
        done = subprocess.run(
            [str(programs / words[0]), *words[1:]], cwd=where, text=True, timeout=3000,
            env=kept | {"FLWR_TELEMETRY_ENABLED": "0"}, capture_output=True,
        )  # fmt: skip
        if done.returncode and again:
            for left in ("recorded", "truth"):
                shutil.rmtree(where / left, ignore_errors=True)
            return self.run(words, where, again - 1)
        if done.returncode and words[0] == "pip":
            for said in _NO_INDEX:
                if said in done.stderr:
                    pytest.skip(f"no package index here: {said}")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def environment(root, tmp_path_factory):
    """An environment without anything, and the page's first command run in it."""
    folder = tmp_path_factory.mktemp("environment")
    # Building a package leaves files beside it.
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True
    )
    if tracked.returncode:
        pytest.skip("the checkout is copied by git, and this is none of git's")
    for name in filter(None, tracked.stdout.split("\0")):
        copy = folder / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy, follow_symlinks=False)
    venv.create(folder / "python", with_pip=True)
    made = Environment(folder / "python", folder / "checkout")
    install, *_ = commands(root)
    made.run(install, folder)
    return made


@pytest.fixture(scope="module")
def done(root, environment, tmp_path_factory):
    """The page's other commands, one after the other."""
    folder = tmp_path_factory.mktemp("own-system")
    (folder / "examples").symlink_to(root / "examples")
    for words in commands(root)[1:]:
        environment.run(words, folder, again=int(words[0] == "python"))
    return folder / "audit"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_example_runs_to_its_page_with_its_verdicts(done):
    page = (done / "report.html").read_text()
    assert "times too small" in page and "data:image/png" in page
    document = json.loads((done / "audit.json").read_text())
    worst = {}
    for cell in document["cells"]:
        name = cell["defense"]["text"]
        worst.setdefault(name, set()).add(cell["verdict"]["kind"])
    for run_name, verdict in VERDICTS.items():
        expected = {verdict} if verdict != "leaks" else worst[run_name] | {"leaks"}
        assert worst[run_name] == expected, (run_name, worst)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_noise_is_measured_and_the_typo_is_found(done):
    document = json.loads((done / "audit.json").read_text())
    checks = {}
    for row in document["mechanism"]:
        result = json.loads((done / row["folder"] / "result.json").read_text())
        checks[row["defense"]] = result["metrics"]
    assert checks["local-dp"]["verdict"] == "consistent"
    claimed = checks["local-dp"]["claimed"]["noise_std"]
    assert checks["local-dp"]["noise_std"]["value"] == pytest.approx(claimed, rel=0.05)
    assert checks["local-dp-typo"]["verdict"] == "refuted"
    (claim,) = document["headline"]["claims"]
    assert claim["defense"] == "local-dp-typo"
    factor = re.search(r": ([\d.]+) times too small", claim["sentence"])
    assert factor is not None and float(factor[1]) == pytest.approx(100, rel=0.05)
    assert checks["clipping"]["verdict"] == "consistent"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_plain_torch_loop_is_audited(root, environment, tmp_path):
    (tmp_path / "examples").symlink_to(root / "examples")
    text = (root / "examples/torch_loop/loop.py").read_text().partition('"""')[2]
    lines = text.partition('"""')[0].replace("\\\n", " ").splitlines()
    told = [
        shlex.split(line)
        for line in lines
        if line.startswith(("python ", "gradaudit "))
    ]
    assert len(told) == 2
    for words in told:
        environment.run(words, tmp_path)
    document = json.loads((tmp_path / "gradaudit-audit/audit.json").read_text())
    found = {c["defense"]["text"]: c["verdict"]["kind"] for c in document["cells"]}
    assert found == {"none": "leaks", "own-dp": "not shown to leak"}
    assert [row["verdict"] for row in document["mechanism"]] == [
        "can't tell", "consistent",
    ]  # fmt: skip
