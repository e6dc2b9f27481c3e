"""Where tasks run: the same answers and folders, whatever dies and whoever stops."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from gradaudit import clusters, executors, files
from gradaudit.clusters import placed
from gradaudit.errors import InputError, LostProcess
from gradaudit.executors import Task, in_this_process
from tests.faults.commands import PROGRAM, essence
from tests.faults.tasks import die, environment, fail, write


def task(function, folder, **argument):
    name = function.__name__
    return Task(name, f"{function.__module__}:{name}", argument, folder)


def ran(executor, tasks):
    """Returns the answers in the tasks' order, and what was heard."""
    heard, answers = [], {}
    for index, answer in executor(tasks, lambda *words: heard.append(words)):
        answers[index] = answer
    return [answers[index] for index in range(len(tasks))], heard


TWO = "local:2"


@pytest.mark.parametrize("on", ["local:1", TWO])
def test_answers_folders_and_words_come_back(on, tmp_path):
    tasks = [task(write, tmp_path / str(n), n=n) for n in range(1, 5)]
    answers, heard = ran(placed(on), tasks)
    assert [answer["wrote"] for answer in answers] == [1, 2, 3, 4]
    for n in range(1, 5):
        assert len(list((tmp_path / str(n)).glob("*.part"))) == n
    assert {words[0] for words in heard} == {0, 1, 2, 3}
    here = {answer["pid"] for answer in answers} == {os.getpid()}
    assert here == (on == "local:1")
    assert ran(placed(on), tasks)[0][2]["before"] == 3  # it goes on from its folder


@pytest.mark.parametrize("on", ["local:1", TWO])
def test_what_a_task_raises_is_raised(on, tmp_path):
    with pytest.raises(InputError, match="there is no such thing"):
        ran(placed(on), [task(fail, tmp_path, what="such thing")])


def test_a_killed_process_is_replaced_and_its_task_alone_runs_again(tmp_path):
    tasks = [task(write, tmp_path / "a", n=3), task(die, tmp_path / "b", times=2)]
    answers, _ = ran(placed(TWO), tasks)
    assert answers[0]["before"] == 0 and answers[1] == {"deaths": 2}


@pytest.mark.slow
def test_a_task_that_kills_every_process_is_lost_and_the_others_go_on(tmp_path):
    tasks = [task(die, tmp_path / "b", times=99), task(write, tmp_path / "a", n=3)]
    answers, _ = ran(placed(TWO), tasks)
    assert isinstance(answers[0], LostProcess) and answers[1]["wrote"] == 3
    assert "killed" in str(answers[0])


@pytest.mark.parametrize("on", ["local:1", TWO])
def test_ctrl_c_takes_what_there_is_and_the_rest_goes_on_later(on, tmp_path):
    tasks = [task(write, tmp_path / str(i), n=60, pause=0.05) for i in range(4)]
    pressed, answers = threading.Event(), {}

    def hear(index, done, total, text):
        # In this process a task is told as if it were pressed; else for real.
        if done >= 3 and not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for index, answer in placed(on)(tasks, hear):
            answers[index] = answer
    assert answers and all(0 < a["wrote"] < 60 for a in answers.values())
    assert not (tmp_path / "3").exists()  # nobody begins after Ctrl-C
    tasks = [task(write, t.folder, n=60) for t in tasks]
    later, _ = ran(placed(on), tasks)
    for index, answer in answers.items():
        assert later[index]["before"] == answer["wrote"]


def test_processes_get_their_part_of_the_machine(tmp_path):
    names = ["JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES"]
    tasks = [task(environment, tmp_path, names=names)]
    ((found,), _) = ran(placed("local:1,cpus=3,gpus=2"), tasks)
    assert found == {"JAX_NUM_CPU_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_nothing_to_do_starts_nothing(monkeypatch):
    monkeypatch.setattr(executors, "Processes", None)
    assert list(placed(TWO)([], print)) == []


def test_one_process_is_this_one():
    assert placed("local:1") is in_this_process


def test_auto_is_a_process_per_core_unless_jax_has_devices(tmp_path, monkeypatch):
    def processes(count):
        tasks = [task(write, tmp_path / str(n), n=1) for n in range(count)]
        return {answer["pid"] for answer in ran(placed("auto"), tasks)[0]}

    monkeypatch.setattr(clusters, "core_count", lambda: 2)
    monkeypatch.setattr(clusters, "_ACCELERATORS", ())
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    assert os.getpid() not in processes(2)
    assert processes(1) == {os.getpid()}  # nobody to wait for
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert processes(2) == {os.getpid()}
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")  # somebody chose
    assert processes(2) == {os.getpid()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown place"),
        ("loca", "did you mean 'local'"),
        ("auto:2", "auto takes no number"),
        ("local:0", "local processes must lie in 1..4096"),
        ("local:x", "local processes must lie in"),
        ("local:2,cpus=0", "cpus must lie in"),
        ("local:2,cpus=1,cpus=2", "takes cpus=N and gpus=N"),
        ("ray:host:1,gpu=1", "takes cpus=N and gpus=N"),
        ("local:99999999999999999999999", "local processes must lie in"),
    ],
)
def test_no_such_place(text, words):
    with pytest.raises(InputError, match=words):
        placed(text)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_an_engine_that_is_not_installed_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, {"dask": "distributed"}.get(name, name), None)
    with pytest.raises(InputError, match=rf"gradaudit\[{name}\]"):
        ran(placed(name), [task(write, pathlib.Path(), n=1)])


def test_a_folder_travels_whole_and_workers_of_other_versions_refuse(tmp_path):
    class Silent:
        def say(self, *words):
            pass

        def stopped(self):
            return False

    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "0.part").write_text("x")
    (tmp_path / "a" / "b" / "deep").write_bytes(b"\0")
    parcel = clusters.Parcel.of(0, task(write, tmp_path / "a", n=3), None)
    answer = parcel.open(Silent())
    assert answer.value["before"] == 1
    files.unpack_folder(answer.folder, tmp_path / "a")
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"a/0.part", "a/1.part", "a/2.part", "a/b/deep"}
    other = dataclasses.replace(parcel, versions={"jax": "0"})
    assert "install the same" in str(other.open(Silent()).error)


# --- whole audits

AUDIT = ["audit", "--dataset", "cancer", "--attack", "analytic", "--type", "2"]
AUDIT += ["--type", "1", "--type", "0", "--batch-size", "1", "--threat", "curious"]
AUDIT += ["--mechanism-trials", "0", "--victims", "8", "--draws", "2"]
DEFENSES = (
    "none",
    "prune:at=per_example",
    "fed-sdp",
    "gaussian-noise:std=0.1,at=per_example",
)
AUDIT += [word for each in DEFENSES for word in ("--defense", each)]
CELLS = 12  # that are really run


def audited(folder, on, **more):
    return subprocess.Popen(
        [*PROGRAM, *AUDIT, "--on", on, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def ended(process, limit=500):
    out, err = process.communicate(timeout=limit)
    assert "Traceback" not in err, err
    return process.returncode, out + err


@pytest.fixture(scope="session")
def in_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in-process")
    assert ended(audited(folder, "local:1"))[0] == 0
    assert len(finished(folder)) == CELLS
    return folder


def finished(folder):
    """Returns the finished cells of an audit, and when each was."""
    found = {}
    for path in sorted(folder.glob("cells/*/cell.json")):
        record = json.loads(path.read_text())
        if record["outcome"] is not None:
            found[path.parent.name] = record["outcome"]["seconds"]
    return found


def until(condition, process, limit=300):
    end = time.monotonic() + limit
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def killed(pids):
    """Kills one of the processes that run cells; returns whether there was one."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def children(pid, mark):
    """Returns the processes below one whose command line has a mark."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
                words = (path.parent / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if int(fields[1]) == parent:
                waiting.append(int(path.parent.name))
                if mark in words:
                    found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def local(tmp_path):
    """Two processes of this machine."""
    yield TWO, lambda pid: children(pid, "multiprocessing.spawn")


@contextlib.contextmanager
def dask(tmp_path):
    """A scheduler and two workers, as they are started by hand."""
    pytest.importorskip("distributed")
    address = f"tcp://127.0.0.1:{free_port()}"
    program = [sys.executable, "-m", "distributed.cli.dask_{}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [word.format("scheduler") for word in program]
    scheduler += ["--host", address, "--no-dashboard"]
    worker = [word.format("worker") for word in program]
    worker += [address, "--nthreads", "1", "--no-dashboard"]
    worker += ["--local-directory", str(tmp_path / "dask")]
    started = [subprocess.Popen(scheduler, **quiet, cwd=tmp_path)]
    try:
        started += [subprocess.Popen(worker, **quiet, cwd=tmp_path) for _ in "12"]
        nannies = [process.pid for process in started[1:]]
        yield f"dask:{address}", lambda pid: children(nannies[0], "spawn_main")
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def ray(tmp_path):
    """Two nodes on this machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield f"ray:{cluster.address}", lambda pid: children(os.getpid(), "ray::_run")
    finally:
        cluster.shutdown()


ENGINES = [local, dask, ray]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.__name__)
def test_an_audit_survives_a_killed_worker(engine, in_process, tmp_path):
    """The same result as in this process; nothing that was finished runs again."""
    folder = tmp_path / "out"
    with engine(tmp_path) as (on, workers):
        running = audited(folder, on)
        until(lambda: len(finished(folder)) >= 2, running)
        until(lambda: killed(workers(running.pid)), running)
        before = finished(folder)
        code, said = ended(running)
    assert code == 0, said
    after = finished(folder)
    assert len(before) < CELLS == len(after)
    assert {name: after[name] for name in before} == before
    assert essence(folder) == essence(in_process)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.__name__)
def test_an_interrupted_audit_goes_on_elsewhere(engine, in_process, tmp_path):
    folder = tmp_path / "out"
    with engine(tmp_path) as (on, _):
        running = audited(folder, on)
        until(lambda: len(finished(folder)) >= 2, running)
        running.send_signal(signal.SIGINT)
        code, said = ended(running)
        assert code == 130 and "the same command goes on" in " ".join(said.split())
    before = finished(folder)
    assert 2 <= len(before) < CELLS
    code, said = ended(audited(folder, "local:1"))
    assert code == 0, said
    after = finished(folder)
    assert {name: after[name] for name in before} == before
    assert essence(folder) == essence(in_process)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
