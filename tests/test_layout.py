"""The package map, the links and the folders say the same thing."""

import pathlib
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

LINKED = (
    "attacks",
    "benchmarks",
    "defenses",
)  # real folders at the top, imported from gradaudit


@pytest.fixture(scope="module")
def setuptools(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.mark.parametrize("name", LINKED)
def test_links_and_map_lead_to_the_same_folder(root, setuptools, name):
    link = root / "gradaudit" / name
    assert link.is_symlink() and link.readlink() == pathlib.Path("..") / name
    assert (root / name / "__init__.py").is_file()
    assert setuptools["package-dir"][f"gradaudit.{name}"] == name
    assert not [entry for entry in (root / name).iterdir() if is_package(entry)]


def test_every_folder_with_python_in_it_is_a_listed_package(root, setuptools):
    folders = {
        ".".join(folder.relative_to(root).parts)
        for folder in [root / "gradaudit", *(root / "gradaudit").rglob("*")]
        if is_package(folder)
    }
    linked = {f"gradaudit.{name}" for name in LINKED}
    assert folders | linked == set(setuptools["packages"])


def is_package(folder: pathlib.Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.py"))


@pytest.mark.parametrize("name", LINKED)
def test_the_plain_name_is_refused_in_words(root, name):
    refused = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert refused.returncode != 0
    assert f"write `import gradaudit.{name}`" in refused.stderr.splitlines()[-1]


def test_the_plain_checkout_imports(root):
    names = ", ".join(f"gradaudit.{name}" for name in LINKED)
    program = f"import {names}; print(*(m.__file__ for m in ({names},)), sep='\\n')"
    # -P keeps the current folder away; only the checkout on the path is left.
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(root)!r}); {program}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    places = [pathlib.Path(line).resolve() for line in shown.stdout.splitlines()]
    assert places == [root / name / "__init__.py" for name in LINKED]


@pytest.fixture(scope="module")
def wheel(root, setuptools, tmp_path_factory):
    """The real wheel, built from a copy so that no build folder stays behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for entry in ("gradaudit", *LINKED):
        shutil.copytree(
            root / entry,
            copy / entry,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    for entry in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(root / entry, copy / entry)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps"]
    command += [
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(out),
        str(copy),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("gradaudit-*.whl"))


def test_the_wheel_holds_every_module_once(root, wheel):
    inside = zipfile.ZipFile(wheel).namelist()
    assert len(inside) == len(set(inside))
    expected = {
        str(file.relative_to(root)) for file in (root / "gradaudit").rglob("*.py")
    }
    for name in LINKED:
        files = (root / name).glob("*.py")
        expected |= {f"gradaudit/{name}/{file.name}" for file in files}
    python = {name for name in inside if name.endswith(".py")}
    assert python == expected
    assert "gradaudit/py.typed" in inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    parts = (
        "models/_convolution_maps",
        "defenses/_normal_numbers",
        "defenses/_unit_norms",
    )
    for source in parts:
        compiled = [name for name in inside if f"gradaudit/{source}" in name]
        assert len(compiled) == bool(shutil.which("cc"))  # no compiler, none of it


def test_the_wheel_imports_from_anywhere(wheel, tmp_path):
    """Unpacked alone, away from the checkout: nothing hangs on the links."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import gradaudit.attacks, gradaudit.defenses;"
        "print(gradaudit.attacks.__file__)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == str(tmp_path / "gradaudit/attacks/__init__.py")
