"""Every notebook runs from top to bottom, and is kept with what came out.

`jupyter execute --inplace notebooks/*.ipynb` (of the `notebooks` extra) writes the
outputs anew.
"""

import json
import os
import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LARGEST = 400_000  # bytes: pictures are small, and a clone stays one

every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def pictures(cells):
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    return [out for out in outputs if "image/png" in out.get("data", {})]


def test_there_are_seven():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n}_" for n in range(1, 8)]


@every
def test_a_notebook_is_kept_with_its_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    kinds = {out["output_type"] for cell in code for out in cell["outputs"]}
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert pictures(code)


@every
def test_a_notebook_is_small_and_speaks_of_no_machine(path):
    text = path.read_text()
    assert len(text) <= LARGEST
    for cell in json.loads(text)["cells"]:
        for out in cell.get("outputs", []):
            out.get("data", {}).pop("image/png", None)
        said = json.dumps(cell)
        assert not any(word in said for word in ("/tmp/", "/home/", "/root/", "stderr"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@every
def test_a_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs the `notebooks` extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the `notebooks` extra")
    notebook = nbformat.read(path, as_version=4)
    kept = len(pictures(notebook.cells))
    client = nbclient.NotebookClient(
        notebook, timeout=1500, resources={"metadata": {"path": str(tmp_path)}}
    )
    # As people run it, not as the tests: all devices, optimised programs.
    own = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    client.execute(env=own)
    assert len(pictures(notebook.cells)) == kept
