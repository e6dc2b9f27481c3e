"""Where compiled programs are kept, what is silenced, what a result says of a run."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from gradaudit import __version__, executors, machine


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_the_cache_can_be_switched_off(monkeypatch, word):
    monkeypatch.setenv(machine.CACHE_VARIABLE, word)
    assert machine.cache_folder() is None


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path))
    assert machine.cache_folder() == tmp_path / "xla"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_the_cache_is_the_users_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv(machine.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "gradaudit" / "xla"


PROGRAM = """
import json, pathlib, sys
from gradaudit import executors, machine
machine.configure()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3))).block_until_ready()
folder = jax.config.jax_compilation_cache_dir
print(json.dumps({"folder": folder, "devices": jax.local_device_count()}))
"""


def run(program: str = PROGRAM, **variables: str) -> tuple[dict[str, object], str]:
    """Runs the program in a process of its own; returns what it says, and stderr."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "GRADAUDIT_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_programs_are_kept_and_every_core_is_a_device(tmp_path):
    said, noise = run(GRADAUDIT_CACHE=str(tmp_path))
    assert said["folder"] == str(tmp_path / "xla")
    assert any((tmp_path / "xla").iterdir())
    assert said["devices"] == len(os.sched_getaffinity(0))
    assert noise == ""


def test_off_means_that_nothing_is_written(tmp_path):
    said, _ = run(GRADAUDIT_CACHE="off", XDG_CACHE_HOME=str(tmp_path))
    assert said["folder"] is None
    assert not list(tmp_path.iterdir())


def test_what_the_user_set_for_jax_wins(tmp_path):
    own = str(tmp_path / "own")
    said, _ = run(
        GRADAUDIT_CACHE=str(tmp_path / "ours"),
        JAX_COMPILATION_CACHE_DIR=own,
        JAX_NUM_CPU_DEVICES="3",
    )
    assert said == {"folder": own, "devices": 3}
    flag = "--xla_force_host_platform_device_count=3"
    assert run(GRADAUDIT_CACHE="off", XLA_FLAGS=flag)[0]["devices"] == 3


CELLS = """
import json, pathlib, sys
from gradaudit.benchmarks.running import measured
from gradaudit.executors import core_count
sys.modules["nothing"] = sys  # whose measure is no work at all
sys.idle = lambda context: {"value": 1}
cell = {"name": "idle", "measure": "nothing:idle", "arguments": {}}
found = measured(cell, pathlib.Path(), lambda *words: None)
said = {"devices": len(found["environment"]["devices"]), "cores": core_count()}
print(json.dumps(said))
"""


def test_a_cell_without_jax_does_not_take_the_devices_from_the_next():
    """Else all later cells of `bench run` are measured on one core."""
    said, _ = run(CELLS)
    assert said["devices"] == said["cores"]


def test_configuring_late_keeps_the_callers_devices():
    devices = jax.local_devices()
    machine.configure()
    assert jax.local_devices() == devices


def test_a_result_can_say_where_it_was_made():
    said = machine.describe()
    assert said["gradaudit"] == __version__
    assert said["backend"] == jax.default_backend()
    assert len(said["devices"]) == jax.local_device_count()
    assert said["packages"]["jax"] == jax.__version__
    assert str(pathlib.Path.home()) not in json.dumps(said)


def test_systems_that_do_not_tell_the_allowed_cores(monkeypatch):
    """macOS and Windows have no sched_getaffinity."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert executors.core_count() == 6
    assert machine.describe()["cores"] == 6
    machine.configure()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert executors.core_count() == 1


MAPS = """
import gc, json, jax, jax.numpy as jnp
from gradaudit import machine
machine.configure()
def used():
    return sum(1 for _ in machine._MAPPINGS.open())
for n in range(40):
    jax.jit(lambda x: jnp.sin(x + n) @ x)(jnp.eye(n + 2))
many = used()
machine.forget_programs()  # far from the limit: kept
kept = used()
machine._SHARE = 0.0
machine.forget_programs()
again = jax.jit(lambda x: x + 1)(jnp.ones(2)).tolist()
print(json.dumps([many, kept, used(), again]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits mappings")
def test_programs_are_let_go_before_the_limit_of_mappings():
    """Else a long benchmark dies: "Unable to allocate section memory"."""
    (many, kept, left, again), _ = run(MAPS)
    assert kept > many - 20  # the system takes and gives back a few of its own
    assert left < kept - 40
    assert again == [2, 2]


def gradients_apart(over_units):
    """Returns each unit's own gradient in shared weights: x of 2 w x."""

    def each(weights, inputs):
        return jax.vmap(jax.grad(lambda w, x: jnp.sum(w * w * x)), (None, 0))(
            weights, inputs
        )

    return over_units(each)


def checked(function, mesh):
    """The same cut as `machine.over_units`, with what jax checks by default."""
    specs = (PartitionSpec(), PartitionSpec(machine.AXIS))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[1])


def test_gradients_in_shared_weights_are_not_summed_over_devices(monkeypatch):
    """jax sums them by itself unless `check_vma=False`: they would not be one's own."""
    mesh = AbstractMesh((4,), (machine.AXIS,), axis_types=(AxisType.Auto,))
    monkeypatch.setattr(machine, "unit_mesh", lambda: mesh)
    at = jnp.ones(3), jnp.ones((8, 3))
    ours = gradients_apart(lambda f: machine.over_units(f, shared=1))
    assert "psum" not in str(jax.make_jaxpr(ours)(*at))
    theirs = gradients_apart(lambda f: checked(f, mesh))
    assert "psum" in str(jax.make_jaxpr(theirs)(*at))  # the test can fail


APART = """
import json, jax.numpy as jnp
from tests.test_environment import checked, gradients_apart
from gradaudit import executors, machine
mesh, at = machine.unit_mesh(), (jnp.ones(3), jnp.arange(12.0).reshape(4, 3))
ours = gradients_apart(lambda f: machine.over_units(f, shared=1))(*at)
theirs = gradients_apart(lambda f: checked(f, mesh))(*at)
right = 2 * at[1]
print(json.dumps([bool((ours == right).all()), bool((theirs == right).all())]))
"""


@pytest.mark.slow
def test_on_two_devices_only_ours_are_right(root):
    said = subprocess.run(
        [sys.executable, "-c", APART],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(said.stdout) == [True, False]


@pytest.mark.parametrize("obstacle", ["a file in the way", "no permission"])
def test_a_cache_that_can_not_be_written_stops_nothing(tmp_path, obstacle):
    if obstacle == "a file in the way":
        (tmp_path / "cache").write_text("")
        program = PROGRAM
    else:  # whoever runs the tests may be allowed everything: say that it is not
        program = "import os; os.access = lambda *a, **k: False\n" + PROGRAM
    said, noise = run(program, GRADAUDIT_CACHE=str(tmp_path / "cache"))
    assert said["folder"] is None
    assert noise == ""


ATTACK = """
import json, jax
import gradaudit as ga
reports = {}
for method in METHODS:
    result = ga.attack(type=1, method=method, dataset="cancer", victims=4, draws=1,
                       batch_size=1, line_ups=0)
    reports[method] = [score.rmse for score in result.scores]
print(json.dumps({"x64": jax.config.jax_enable_x64, "errors": reports}))
"""


OTHERS = ("dlg:iterations=2", "gradinv:iterations=3", "analytic")
OTHERS += ("gauss-newton:iterations=2", "strongest:iterations=2", "idlg:iterations=2")


@pytest.mark.parametrize(
    "methods",
    [("cpl:iterations=30",), pytest.param(OTHERS, marks=pytest.mark.slow)],
    ids=["cpl", "others"],
)
def test_attacks_run_in_double_precision(methods):
    said, _ = run(
        f"METHODS = {methods!r}\n" + ATTACK,
        JAX_ENABLE_X64="1",
        JAX_NUM_CPU_DEVICES="1",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
        XLA_FLAGS=os.environ["XLA_FLAGS"],
    )
    assert said["x64"] is True
    assert sorted(said["errors"].get("cpl:iterations=30", [0.0] * 4))[1] < 0.1
    assert max(said["errors"].get("analytic", [0.0])) < 1e-5
    for errors in said["errors"].values():
        assert all(0 <= error < 1 for error in errors)


LDP = """
import json, jax
import gradaudit as ga
report = ga.ldp_audit(dataset="cancer", model="mlp", epsilons=(1.0,), trials=100,
                      measurements=1)
print(json.dumps({"x64": jax.config.jax_enable_x64, "cells": len(report.cells)}))
"""


@pytest.mark.slow
def test_an_ldp_audit_runs_in_double_precision():
    """Without other clients the black box has an empty sum to add up."""
    wide = {"JAX_ENABLE_X64": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    said, _ = run(LDP, JAX_NUM_CPU_DEVICES="1", **wide)
    assert said == {"x64": True, "cells": 12}
