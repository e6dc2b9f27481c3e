"""Words of the command line and files of the user: read, or refused in words."""

import enum
import sys

import pytest

from gradaudit import text
from gradaudit.errors import InputError


class Colour(enum.Enum):
    DARK_RED = "dark_red"
    BLUE = "blue"


def plain(size, name="x", ratio=0.5, deep=False, colour=Colour.BLUE):
    return size, name, ratio, deep, colour


def annotated(size: int, shares: tuple[float, ...] = (), unknown: "Nothing" = 1):  # noqa: F821
    return size, shares, unknown


def test_without_annotations_the_default_says_the_kind():
    read = text.call_with_text
    assert read("f", plain, "size=3") == (3, "x", 0.5, False, Colour.BLUE)
    assert read("f", plain, "size=small,name=7,deep=true")[:2] == ("small", "7")
    assert read("f", plain, "size=1e3,ratio=2,colour=dark-red")[:3] == (1000.0, "x", 2)
    with pytest.raises(InputError, match="f: ratio must be a number, got 'half'"):
        read("f", plain, "size=1,ratio=half")
    with pytest.raises(InputError, match="deep must be true or false, got 'yes'"):
        read("f", plain, "size=1,deep=yes")


def test_annotations_that_name_nothing_count_as_none():
    assert text.call_with_text("f", annotated, "size=3,unknown=2") == (3, (), 2)


REFUSED = {
    "size=1,size=2": "f: size is given twice",
    "ratio=0.5": "f: missing a required argument: 'size'; write f:key=value",
    "sise=1": "unknown parameter of f 'sise'; did you mean 'size'",
    "size": "f: write key=value, got 'size'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_parameters_are_refused_in_words(words):
    with pytest.raises(InputError, match=REFUSED[words]):
        text.call_with_text("f", plain, words)


def test_parameters_that_take_the_rest_can_not_be_named():
    with pytest.raises(InputError, match="unknown parameter of f 'kwargs'"):
        text.call_with_text("f", lambda **kwargs: kwargs, "kwargs=1")
    with pytest.raises(InputError, match="does not say which parameters"):
        text.call_with_text("f", min, "a=1")


@pytest.fixture
def write(tmp_path):
    def write(source):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return path

    return write


BROKEN = {
    "\n1 / 0\n": r"mine\.py:2 can't be imported: ZeroDivisionError: division by zero",
    "import sys\nsys.exit(0)\n": r"mine\.py:2 can't be imported: .*sys\.exit\(0\)",
    "\n\ndef f(:\n": r"mine\.py:3 can't be imported: SyntaxError",
    "class E(BaseException): pass\nraise E\n": r"mine\.py:2 can't be imported: E$",
    "import nowhere_at_all\n": r"mine\.py:1 can't be imported: ModuleNotFoundError",
    "raise ValueError('one\\ntwo')\n": r"ValueError: one$",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_file_that_can_not_be_imported_names_its_line(source, write):
    modules = set(sys.modules)
    with pytest.raises(InputError, match=BROKEN[source]):
        text.load_user_object(write(source), "mine")
    assert not {name for name in set(sys.modules) - modules if "mine" in name}


def test_a_users_interrupt_is_not_an_error_of_the_file(write):
    with pytest.raises(KeyboardInterrupt):
        text.load_user_object(write("raise KeyboardInterrupt\n"), "mine")


def test_prints_of_a_file_and_of_its_functions_go_to_stderr(write, capsys):
    path = write("print('hello')\ndef mine():\n    print('again')\n    return 3\n")
    with text.users_code():
        assert text.load_user_object(path, "mine")() == 3
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "hello\nagain\n"


def test_errors_of_a_users_function_name_the_line(write):
    path = write(
        "import sys\ndef leave():\n    sys.exit(0)\n"
        "def fail():\n    return [][1]\n"
        "def call(function):\n    return function()\n"
    )
    for name, said in (("leave", r"sys\.exit\(0\)"), ("fail", "IndexError")):
        function, words = text.load_user_object(path, name), rf"mine\.py:\d .*{said}"
        with pytest.raises(InputError, match=words), text.users_code():
            function()
    with pytest.raises(ZeroDivisionError), text.users_code():
        1 / 0  # noqa: B018  not the user's
    call, words = text.load_user_object(path, "call"), r"mine\.py:7 failed: ZeroDiv"
    with pytest.raises(InputError, match=words), text.users_code():
        call(lambda: 1 / 0)


def test_equal_content_gives_equal_objects(write):
    source = (
        "from __future__ import annotations\nimport dataclasses\n"
        "from typing import ClassVar\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Part:\n    kind: ClassVar[str] = 'x'\n    size: int = 1\n"
    )
    first = text.load_user_object(write(source), "Part")
    again = text.load_user_object(write(source), "Part")
    assert first is again and first() == again()
    other = text.load_user_object(write(source + "\n"), "Part")
    assert other is not first


def test_missing_files_and_names(tmp_path, write):
    with pytest.raises(InputError, match="there is no file"):
        text.load_user_object(tmp_path / "none.py", "mine")
    with pytest.raises(InputError, match="say which name of"):
        text.load_user_object(write("mine = 1\n"), "")
    with pytest.raises(InputError, match=r"unknown name in .*did you mean 'mine'"):
        text.load_user_object(write("mine = 1\n"), "mina")


def test_what_takes_how_many(write):
    assert text.takes(lambda key, vector: 0, 2)
    assert text.takes(lambda key, vector, scale=1: 0, 2)
    assert not text.takes(lambda key: 0, 2) and not text.takes(3, 2)
    path = write("\ndef mine(key):\n    return key\n")
    found = text.load_user_object(path, "mine")
    assert text.written_at(found) == f"{path}:2"
    assert text.written_at(plain) is None
