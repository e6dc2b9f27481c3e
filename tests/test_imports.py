"""Data flows one way: who may import whom, and what `--help` may not load."""

import ast
import functools
import os
import pathlib
import re
import resource
import subprocess
import sys

import pytest

# Each line may import the lines above it and itself inside its own folder, nothing
# else. A new module of `gradaudit` gets its place here.
LAYERS = (
    ("errors",),
    ("files", "mechanism", "types"),
    ("executors",),
    ("evidence", "machine", "record", "spec", "text", "tree"),
    ("clusters", "integrations"),
    ("models", "data"),
    ("attacks", "defenses"),
    ("federation",),
    ("privacy",),
    ("report",),
    ("distinguish",),
    ("audit",),
    ("benchmarks",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# Loads by name, on first use.
ENTRANCE = "__init__"


def modules(root: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Returns the files of every module or folder directly inside gradaudit."""
    found: dict[str, list[pathlib.Path]] = {}
    for entry in sorted((root / "gradaudit").iterdir()):
        files = sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]
        python = [file for file in files if file.suffix == ".py"]
        if python:
            found[entry.stem] = python
    found.pop(ENTRANCE)
    return found


@functools.cache
def imported(file: pathlib.Path) -> set[str]:
    """Returns every dotted name that a file imports, wherever it does so.

    Imports for type checkers only are left out: they are never run.
    """
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write the whole name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        pending += ast.iter_child_nodes(node)
    return names


def edges(root: pathlib.Path) -> set[tuple[str, str]]:
    """Returns (importer, imported) between the modules of gradaudit."""
    return {
        (name, target.split(".")[1])
        for name, files in modules(root).items()
        for file in files
        for target in imported(file)
        if target.startswith("gradaudit.") and target.split(".")[1] != name
        if target != "gradaudit.__version__"
    }


def test_every_module_has_a_place(root):
    missing = set(modules(root)) - set(RANK)
    assert not missing, f"give {missing} a line in LAYERS of {__file__}"
    gone = set(RANK) - set(modules(root))
    assert not gone, f"take {gone} out of LAYERS of {__file__}"


def test_imports_go_up_the_table_only(root):
    wrong = {
        f"{importer} imports {target}"
        for importer, target in edges(root)
        if RANK.get(target, 0) >= RANK.get(importer, len(LAYERS))
    }
    assert not wrong


def test_no_two_modules_share_a_name(root):
    """A name says which file is meant: search for it and there is one."""
    names = [
        file.stem
        for files in modules(root).values()
        for file in files
        if file.stem not in ("__init__", "__main__")
    ]
    assert sorted(names) == sorted(set(names))


def test_no_file_of_the_library_is_too_long(root):
    long = {
        f"{file.relative_to(root)}: {lines}"
        for files in modules(root).values()
        for file in files
        if (lines := len(file.read_text().splitlines())) > 400
    }
    assert not long


def test_no_command_is_too_long(root):
    """What a command does beyond its options stands in functions of its own."""
    long = {
        f"{file.relative_to(root)}: {node.name} {length}"
        for file in modules(root)["cli"]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > 70
    }
    assert not long


def test_no_import_inside_a_function_breaks_a_cycle(root):
    """Beside the command line, only heavy libraries are imported where used."""
    inside = {
        f"{file.relative_to(root)}: {ast.unparse(inner)}"
        for folder, files in modules(root).items()
        for file in files
        if folder not in ("cli", "benchmarks")
        if file.name != "__init__.py"  # names that are loaded when they are asked for
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("grad")
    }
    assert not inside


def test_accounting_needs_no_jax(root):
    program = "import sys, gradaudit.privacy; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


def test_an_attack_loads_only_what_it_needs(root):
    """Each of these takes a fifth to half a second, and is loaded where it is used."""
    heavy = "scipy.stats flax.nnx jax_privacy dp_accounting matplotlib sklearn skimage"
    program = "import sys, gradaudit.audit.attack; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(heavy.split()) & set(said.stdout.split())


def test_an_attacker_knows_neither_the_defense_nor_the_victim(root):
    assert not {("attacks", "defenses"), ("attacks", "federation")} & edges(root)
    for file in modules(root)["attacks"]:
        assert "gradaudit.types.Victim" not in imported(file), file


@pytest.mark.parametrize("folder", ["attacks", "benchmarks", "defenses"])
def test_nobody_imports_the_folders_by_their_plain_name(root, folder):
    every = [file for files in modules(root).values() for file in files]
    for file in every + sorted((root / "tests").rglob("*.py")):
        plain = {name for name in imported(file) if name.split(".")[0] == folder}
        assert not plain, file


def test_help_loads_nothing_heavy(root):
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gradaudit.cli", "--help"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(re.findall(r"\|\s+([\w.]+)$", shown.stderr, re.MULTILINE))
    assert "gradaudit.cli.app" in loaded  # the pattern reads what it should
    heavy = {"jax", "jaxlib", "numpy", "scipy", "flax", "optax", "matplotlib"}
    assert not heavy & {name.split(".")[0] for name in loaded}


def test_help_is_quick(root):
    """Processor time, which a busy machine changes least; the best of three."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "gradaudit.cli", "--help"]
        subprocess.run(command, cwd=root, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    assert min(once() for _ in range(3)) < 0.6


def test_the_package_itself_loads_by_name(root):
    program = (
        "import sys, gradaudit; assert 'jax' not in sys.modules;"
        "[getattr(gradaudit, name) for name in gradaudit.__all__];"
        "assert dir(gradaudit)"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=root, check=True, env=os.environ
    )
