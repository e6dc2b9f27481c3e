"""What every test shares: one device, and compiled programs kept between runs."""

import functools
import gc
import json
import os
import pathlib
import signal

# Before anything imports jax. One device: tests of several start their own process.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests check the mathematics on tiny inputs: compiling is what takes their time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Nobody reads where in the sources an operation of a test's program came from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# XLA's older code generator needs two thirds of the time; the benchmarks run the newer.
# One part per program: split for a pool of threads, small ones take a sixth longer.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import jax
import pytest

from gradaudit import machine
from gradaudit.federation.setting import Setting
from gradaudit.report.result import Result, kind_of, validate


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores Ctrl-C, and so would the tests that press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    machine.configure()
    # Two processes may meet at one entry of the cache; both then compile.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Error (reading|writing) persistent compilation cache:UserWarning",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Side by side, so that one worker makes the small audit and not all of them.
    items.sort(key=lambda item: "audited" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    # Tracing makes objects by the million and hardly a cycle: by a profile, 7 %
    # of the tests' time was spent on looking for some, mostly among what was imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout."""
    return pathlib.Path(__file__).resolve().parent.parent


# A closed form on small pictures: a whole audit, real, within seconds.
SMALL_AUDIT = {
    "datasets": ["digits"],
    "model": "mlp",
    "attacks": ["analytic"],
    "threats": ["curious", "informed"],
    "types": [2],
    "defenses": ["none", "fed-cdp:sigma=3"],
    "victims": 6,
    "draws": 2,
    "line_ups": 12,
    "candidates": 3,
    "looks": [1, 4],
    "mechanism_trials": 1000,
    "setting": Setting(10, 5, local_steps=2, batch_size=2, rounds=2, examples=20),
}


@pytest.fixture(scope="session")
def audited(tmp_path_factory):
    """The small audit, done; tests may go on in its folder, and leave it as it is."""
    import gradaudit as ga

    return ga.audit(**SMALL_AUDIT, out=tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def quick_jit():
    """A jit for programs that run once: compiles several times faster."""
    options = {"xla_backend_optimization_level": 0}
    return functools.partial(jax.jit, compiler_options=options)


@pytest.fixture(scope="session", autouse=True)
def results_are_of_their_schema():
    """Whatever a test saves is checked against the schema that the package ships."""
    plain = Result._write

    def checked(self, folder):
        names = plain(self, folder)
        if type(self).__module__.startswith("gradaudit."):
            document = json.loads((folder / names[-1]).read_text())
            validate(document, kind_of(document))
        return names

    Result._write = checked
    yield
    Result._write = plain


@pytest.fixture(scope="module")
def optimized():
    """For tests of millions of draws: running them takes longer than compiling."""
    setting = "jax_disable_most_optimizations"
    before = jax.config.values[setting]
    jax.config.update(setting, False)
    yield
    jax.config.update(setting, before)
