"""Recording at the client: light, bounded, and never in the way of a training."""

import concurrent.futures
import json
import logging
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import gradaudit
from gradaudit.errors import InputError
from gradaudit.record import ABOUT, RECEIVED, SENT, Facts, Sample, record, write

GIVEN = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
BACK = {"w": np.full((2, 3), 2, np.float32), "b": np.ones(3, np.float32)}


def test_recording_loads_neither_jax_nor_torch(root):
    program = (
        "import sys, numpy as np, gradaudit.record, gradaudit;"
        "from gradaudit import record;"
        "gradaudit.record({'w': np.ones(2)}, {'w': np.zeros(2)}, sys.argv[1]);"
        "assert gradaudit.record is record;"
        "heavy = {'jax', 'jaxlib', 'torch', 'flax', 'scipy', 'flwr', 'rich', 'typer'};"
        "loaded = heavy & {name.partition('.')[0] for name in sys.modules};"
        "assert not loaded, loaded"
    )
    command = [sys.executable, "-c", program, "/dev/null/x"]
    subprocess.run(command, cwd=root, check=True)


def test_what_is_written_is_what_was_given(tmp_path):
    made = gradaudit.record(GIVEN, BACK, tmp_path, round=1, client=4, batch_size=2)
    for name, known in ((RECEIVED, GIVEN), (SENT, BACK)):
        found = load_file(made / name)
        assert found.keys() == known.keys()
        for key in found:
            np.testing.assert_array_equal(found[key], known[key])
    about = json.loads((made / ABOUT).read_text())
    assert (about["format"], about["type"], about["client"]) == (2, 1, 4)
    assert about["learning_rate"] is None  # what nobody said


class Tensor:
    """Quacks like torch's."""

    dtype = "torch.bfloat16"

    def __init__(self, values):
        self._values = values

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return self

    def numpy(self):
        return self._values


def test_tensors_of_other_libraries_and_lists_are_taken(tmp_path):
    views = [Tensor(GIVEN["w"].T), GIVEN["b"]]
    made = record(views, [Tensor(BACK["w"].T), BACK["b"]], tmp_path)
    np.testing.assert_array_equal(load_file(made / SENT)["0"], BACK["w"].T)


WRONG = {
    "no folder": ({}, {"folder": "/dev/null/x"}),
    "text": ({"sent": {"w": "text"}}, {}),
    "nothing sent": ({"sent": {}}, {}),
    "nothing received": ({"received": {}}, {}),
    "None": ({"sent": None}, {}),
    "objects": ({"sent": {"w": np.array([object()])}}, {}),
    "an unknown fact": ({}, {"lr": 0.1}),
    "an unknown place": ({}, {"place": "moon"}),
    "an unknown kind": ({}, {"sent_is": "signs"}),
    "an unknown claim": ({}, {"claim": {"sigma": 1}}),
    "labels of text": ({}, {"labels": ["a"]}),
}


@pytest.mark.parametrize("case", WRONG)
def test_whatever_is_wrong_the_training_goes_on(case, tmp_path, caplog):
    tensors, facts = WRONG[case]
    given = {"received": GIVEN, "sent": BACK} | tensors
    folder = facts.get("folder", tmp_path)
    others = {name: value for name, value in facts.items() if name != "folder"}
    with caplog.at_level(logging.WARNING, "gradaudit"):
        assert record(given["received"], given["sent"], folder, **others) is None
    assert "not recorded" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_disk_is_bounded_and_its_limit_is_said_once(tmp_path, caplog):
    size = sum(array.nbytes for array in (*GIVEN.values(), *BACK.values()))
    sample = Sample(most_mib=3000 / (1 << 20))
    with caplog.at_level(logging.WARNING, "gradaudit"):
        made = [
            record(GIVEN, BACK, tmp_path, round=number, client=0, sample=sample)
            for number in range(1, 50)
        ]
    assert 0 < sum(path is not None for path in made) < 49
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) < 3000 + 20 * size
    assert caplog.text.count("would exceed") == 1


def test_places_sample_the_same_rounds_and_clients(tmp_path):
    sample = Sample(rounds=5, clients=0.25)
    chosen = {
        place: [
            (number, client)
            for number in range(1, 41)
            for client in range(50)
            if sample.wants(number, client)
        ]
        for place in ("raw", "wire")
    }
    assert chosen["raw"] == chosen["wire"]
    assert {number for number, _ in chosen["raw"]} <= {1, 6, 11, 16, 21, 26, 31, 36}
    assert 0.15 < len(chosen["raw"]) / (8 * 50) < 0.35
    assert write(tmp_path, GIVEN, BACK, Facts(round=2), sample) is None


@pytest.mark.parametrize("field", [{"rounds": 0}, {"clients": 2.0}, {"most_mib": 0}])
def test_a_sample_is_checked(field):
    with pytest.raises(InputError):
        Sample(**field)


def test_clients_that_record_at_once_get_folders_of_their_own(tmp_path):
    def one(_):
        return record(GIVEN, BACK, tmp_path, round=1, client="a/../b")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(24)))
    assert len(set(made)) == 24 and None not in made
    assert {path.parent for path in made} == {tmp_path}
    for path in made:
        assert len(list(path.iterdir())) == 3
