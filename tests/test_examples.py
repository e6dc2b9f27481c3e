"""examples/: what can be run of it is run, as it stands."""

import json
import os
import pathlib
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from gradaudit.audit.audit_plan import read_plan

FOLDER = pathlib.Path(__file__).parents[1] / "examples" / "ci"


@pytest.fixture(scope="module")
def steps():
    workflow = yaml.safe_load((FOLDER / "leakage.yml").read_text())
    assert workflow[True].keys() >= {"pull_request"}  # YAML's word for `on`
    return workflow["jobs"]["audit"]["steps"]


def named(steps, name):
    (step,) = [step for step in steps if step.get("name") == name]
    return step


def test_the_workflow_reads_what_the_audit_writes(steps):
    uses = [step["uses"] for step in steps if "uses" in step]
    assert all("@v" in each for each in uses)
    kept = named(steps, "Keep the page")["with"]["path"].split()
    assert {pathlib.Path(each).name for each in kept} <= {
        *("report.html", "audit.json", "junit.xml", "summary.md")
    }
    for step in ("Summary", "Keep the page"):  # also when a gate is broken
        assert named(steps, step)["if"] == "always()"
    plan, gates = read_plan(FOLDER / "audit.toml")
    assert gates.require_certificate and gates.max_asr and gates.max_epsilon
    assert named(steps, "Audit")["run"].split()[2] == "examples/ci/audit.toml"
    assert "none" in plan.defenses  # the control


# The workflow's own commands, with less work in each cell.
LESS = "--attack cpl:iterations=5 --victims 2 --mechanism-trials 0"


@pytest.fixture
def shell(tmp_path):
    """Runs commands as a runner does: a shell, the summary's file, our program."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gradaudit"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gradaudit.cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "examples").symlink_to(FOLDER.parent)
    root = str(FOLDER.parents[1])
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "step-summary.md"),
    }

    def run(command):
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip

    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_workflow_passes_and_fails_as_it_says(steps, shell, tmp_path):
    audit = named(steps, "Audit")["run"]
    done = shell(f"{audit} {LESS}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shell(named(steps, "Summary")["run"]).returncode == 0
    assert "held" in (tmp_path / "step-summary.md").read_text()
    for file in named(steps, "Keep the page")["with"]["path"].split():
        assert (tmp_path / file).is_file()
    # Somebody turns the noise down: the same workflow fails, and says which gate.
    weak = "fed-cdp:clip=4,sigma=0.01,scope=global"
    done = shell(f"{audit} {LESS} --defense none --defense {weak}")
    assert done.returncode == 1 and "gate broken" in done.stderr, done.stderr
    document = json.loads((tmp_path / "leakage" / "audit.json").read_text())
    broken = [c for c in document["gates"]["checks"] if c["verdict"] == "broken"]
    assert {check["gate"] for check in broken} >= {"require-certificate", "max-epsilon"}
    suites = ElementTree.parse(tmp_path / "leakage" / "junit.xml").getroot()
    assert sum(int(suite.get("failures", 0)) for suite in suites) == len(broken)


def test_the_file_says_only_what_it_changes():
    given = tomllib.loads((FOLDER / "audit.toml").read_text())
    assert given["gates"]["max_asr"] <= 0.5 and given["scope"]["types"] == [2]
