"""README keeps what it says: figures, links, pictures, commands."""

import json
import re
import shlex

import pytest
import typer

from gradaudit.cli.app import app

SUITE = "measured/asr"
TIMES = "measured/timing"
RECORDS = [
    (
        "attacks/small",
        f"cells/lfw-patches, cpl/{SUITE}/value",
        "1.00 [0.71, 1.00], 3.5",
    ),
    (
        "attacks/small",
        "cells/lfw-patches, cpl/measured/iterations/median",
        "3.5 (1.0, 25)",
    ),
    ("attacks/small", f"cells/lfw-patches, dlg/{SUITE}/value", "0.85 [0.58,"),
    (
        "attacks/small",
        f"cells/lfw-patches, idlg/{SUITE}/value",
        "1.00 [0.71, 1.00] (–)",
    ),
    ("attacks/small", f"cells/mnist, cpl/{SUITE}/value", "CPL 1.00 ["),
    ("attacks/small", f"cells/mnist, cpl/{SUITE}/low", "[0.71,"),
    ("attacks/small", f"cells/mnist, dlg/{SUITE}/value", "DLG 0.85 ["),
    ("attacks/small", f"cells/mnist, idlg/{SUITE}/value", "iDLG 1.00"),
    ("attacks/small", f"cells/mnist, gradinv/{SUITE}/value", "Gradients 0.55 ["),
    ("attacks/small", f"cells/lfw-patches, gradinv/{SUITE}/value", "0.90 [0.62,"),
    ("attacks/small", f"cells/cifar10, cpl/{SUITE}/value", "CPL 0.95 ["),
    ("attacks/small", f"cells/cifar10, dlg/{SUITE}/value", "DLG 0.65 ["),
    ("attacks/small", f"cells/cifar10, idlg/{SUITE}/value", "iDLG 0.80 ["),
    ("attacks/small", f"cells/cifar10, gradinv/{SUITE}/value", "0.20 [0.06,"),
    ("speed/small", f"cells/attack/{TIMES}/ratio_single_process", "34.1 times"),
    ("speed/small", f"cells/attack/{TIMES}/ratio_best_setting", "17.3 times"),
    ("speed/small", f"cells/memory/{TIMES}/megabytes/1", "602 against"),
    ("speed/small", f"cells/memory/{TIMES}/megabytes/0", "573 MB"),
    ("speed/small", f"cells/clients, none/{TIMES}/vectorised_ms", "0.40 ms"),
    ("speed/small", f"cells/clients, none/{TIMES}/ratio", "6.1 times"),
    ("cost/small", f"cells/mnist, federated/{TIMES}/ratio/fed-cdp", "Fed-CDP 1.1x"),
    (
        "cost/small",
        f"cells/mnist, federated/{TIMES}/ratio/quantile-clip",
        "quantile clipping 1.1x",
    ),
    ("cost/small", f"cells/mnist, federated/{TIMES}/ratio/adaclip", "AdaClip 2.5x"),
    ("clients/paper", "cells/N=1000, 10%: none/measured/accuracy", "accuracy 0.971"),
    ("clients/paper", "cells/N=1000, 10%: fed-cdp/measured/accuracy", "0.098 (0.956)"),
    (
        "clients/paper",
        "cells/N=1000, 10%: fed-cdp:noise_at=batch,sigma=0.5/measured/accuracy",
        "code's 0.873;",
    ),
]


@pytest.mark.parametrize(("file", "path", "printed"), RECORDS)
def test_a_figure_is_that_of_its_record(file, path, printed, root):
    readme = (root / "README.md").read_text()
    assert printed in readme
    value = json.loads((root / f"benchmarks/results/{file}.json").read_text())
    for part in path.split("/"):
        value = value[int(part) if isinstance(value, list) else part]
    words = re.sub("[,;]", " ", printed).replace("[", " ").replace("(", " ").split()
    number = next(word.rstrip("x") for word in words if word[0].isdigit())
    decimals = len(number.partition(".")[2])
    assert f"{value:.{decimals}f}" == number


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text()


def test_links_and_pictures_are_there(readme, root):
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", readme)
    assert "docs/faces.png" in links
    for link in links:
        assert (root / link).exists(), link
        if link.endswith(".png"):  # small: it is the first thing that is loaded
            assert (root / link).stat().st_size < 200_000


def test_commands_are_those_that_there_are(readme):
    """Every line of a block of commands is one that the program would begin with."""
    blocks = re.findall(r"```\n(.*?)```", readme, re.DOTALL)
    whole = (block.replace("\\\n", "") for block in blocks)  # over several lines
    lines = [line for block in whole for line in block.splitlines()]
    found = [line for line in lines if line.startswith("gradaudit ")]
    assert len(found) > 10
    for line in found:
        words = shlex.split(line, comments=True)[1:]
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)  # unknown options raise
