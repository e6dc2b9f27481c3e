"""The page in a real browser: nothing is missing, wrong, or fetched from elsewhere.

Chromium comes from the system, or from apt where that may be asked; playwright-core and
axe-core from npm into a folder of their own. What can't be had is a reason to skip.
GRADAUDIT_PAGE=folder looks at the page of a finished audit instead of a quick one, and
leaves its screenshots in the folder that GRADAUDIT_SHOTS names.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

import gradaudit as ga
from gradaudit.report.page import page
from gradaudit.report.result import load
from tests.report.test_page import hostile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LOOK = pathlib.Path(__file__).parent / "browser" / "look.cjs"
PACKAGES = ("playwright-core@1.65.1", "axe-core@4.14.0")
NAMES = ("chromium", "chromium-browser", "google-chrome")
# The default grid, every cell of it, with less work in each.
QUICK = {"attacks": ["cpl"], "victims": 2, "draws": 1, "iterations": 16}
QUICK |= {"line_ups": 20, "mechanism_trials": 1000}


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, timeout=900, **more)


def found_chromium():
    return next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium():
    if found_chromium() is None and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "install", "-y", "chromium", env=quiet)
    program = found_chromium()
    if program is None:
        pytest.skip("there is no chromium, and apt could not install it")
    return program


@pytest.fixture(scope="session")
def modules(tmp_path_factory):
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("there is no node with npm")
    folder = tmp_path_factory.mktemp("node")
    done = run("npm", "install", "--no-audit", "--no-fund", *PACKAGES, cwd=folder)
    if done.returncode:
        pytest.skip(f"npm could not install {PACKAGES}: {done.stderr[-300:]}")
    return folder / "node_modules"


@pytest.fixture(scope="session")
def shown(tmp_path_factory):
    """A folder with the page of an audit whose grid is the default one."""
    given = os.environ.get("GRADAUDIT_PAGE")
    if given:
        return pathlib.Path(given).resolve()
    folder = tmp_path_factory.mktemp("audit")
    ga.audit(**QUICK, out=folder)
    return folder


@pytest.fixture
def look(chromium, modules, tmp_path, request):
    shots = pathlib.Path(os.environ.get("GRADAUDIT_SHOTS", tmp_path))
    shots /= request.node.name
    shots.mkdir(parents=True, exist_ok=True)

    def looked(path):
        words = [modules, chromium, path, shots]
        done = run("node", LOOK, *map(str, words))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return looked


def assert_well_shown(views):
    assert {(v["width"], v["scheme"]) for v in views} == {
        (width, scheme) for width in (390, 1280) for scheme in ("light", "dark")
    }
    for view in views:
        where = f"{view['width']} px, {view['scheme']}"
        assert not view["messages"], (where, view["messages"])
        assert not view["requests"], (where, view["requests"])
        assert view["overflow"] <= 0 and view["open_overflow"] <= 0, where
        assert view["shift"] == 0, where
        assert not view["scripts"] and not view["ids"], where
        assert not view["empty_cells"] and not view["empty_images"], where
        assert not view["empty_figures"], where
        grave = [
            v for v in view["violations"] if v["impact"] in ("serious", "critical")
        ]
        assert not grave, (where, grave)


def test_the_page_of_the_default_grid(look, shown):
    document = load(shown).to_dict()
    views = look(shown / "report.html")
    assert_well_shown(views)
    for view in views:
        assert document["headline"]["verdict"] in view["verdict"].lower()
        assert view["cells"] == len(document["cells"]) == 36
        # Seven pairs of a place and a defense read something of their own.
        assert view["images"] >= 14 and view["figures"] >= 4


def test_names_that_want_to_break_it(look, shown, tmp_path):
    saved = load(shown)
    target = tmp_path / "hostile.html"
    target.write_text(page(hostile(saved.to_dict()), saved.folder))
    assert_well_shown(look(target))
