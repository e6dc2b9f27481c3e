"""The page: one file, nothing from elsewhere, every cell, any name."""

import copy
import html.parser
import itertools
import json
import pathlib
import re
import shutil

import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app
from gradaudit.errors import InputError
from gradaudit.report.page import page
from gradaudit.report.result import AUDIT, load, validate

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Reader(html.parser.HTMLParser):
    """Reads a page as a browser would, and complains where one would not."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links = [], [], [], []
        self.images, self.heads, self.words = [], [], []
        self.attributes = set()
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        if "id" in named:
            self.ids.append(named["id"])
        if tag == "a":
            self.links.append(named["href"])
        if tag == "img":
            self.images.append(named)
        if re.fullmatch("h[1-6]", tag):
            self.heads.append(int(tag[1]))
        self.attributes |= set(named)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.attributes |= set(named)
        if "id" in named:
            self.ids.append(named["id"])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def text(audited):
    return (audited.folder / "report.html").read_text()


@pytest.fixture
def document(audited):
    return copy.deepcopy(audited.to_dict())


def test_the_verdict_is_first_and_every_cell_is_there(audited, text):
    read, document = Reader(text), audited.to_dict()
    head = document["headline"]
    assert read.text.index(head["sentence"][:40]) < read.text.index("Every place")
    for claim in head["claims"]:
        assert claim["sentence"] in read.text
    for cell in document["cells"]:
        assert cell["id"] in read.ids and cell["name"] in read.text
        assert cell["verdict"]["sentence"] in read.text
    for line in document["limitations"]:
        assert line in read.text


def test_it_needs_nothing_from_elsewhere(text):
    read = Reader(text)
    assert not {"script", "link", "iframe", "object", "embed"} & set(read.tags)
    names = set(re.findall(r"[a-z]+://[^\s\"'<)]+", text))
    assert names <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in text and "@import" not in text
    assert "url(" not in text.replace("url(#", "")


def test_links_lead_somewhere_and_ids_are_one_of_a_kind(text):
    read = Reader(text)
    assert len(read.ids) == len(set(read.ids))
    assert {link.removeprefix("#") for link in read.links} <= set(read.ids)


def test_pictures_have_words_and_room(text):
    read = Reader(text)
    assert len(read.images) == 6  # three victims of both attacks
    for image in read.images:
        assert image["src"].startswith("data:image/png;base64,")
        assert int(image["width"]) >= 100 and int(image["height"]) >= 30
        assert "private" in image["alt"] and "RMSE" in image["alt"]
    assert text.count('<svg role="img" aria-labelledby=') >= 4


def test_who_reads_the_same_shares_its_pictures(document, audited):
    first, second = (c for c in document["cells"] if c["kind"] == "attack")
    second |= {"folder": first["folder"], "same_as": first["id"]}
    read = Reader(page(document, audited.folder))
    assert len(read.images) == 3 and "type 2, none and fed-cdp" in read.text


def test_headings_go_down_one_by_one(text):
    heads = Reader(text).heads
    assert heads[0] == 1 and heads.count(1) == 1
    steps = [b - a for a, b in zip(heads, heads[1:], strict=False)]
    assert max(steps) == 1


def test_nothing_is_called_safe(text):
    assert "safe" not in Reader(text).text.lower()


def test_the_command_builds_the_same_page(audited, text):
    (audited.folder / "report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(audited.folder)])
    assert done.exit_code == 0, done.output
    assert (audited.folder / "report.html").read_text() == text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../../etc/passwd",
    "{{ 7 * 7 }}{% raw %}",
    "🦄🧨 \u202e\u0000\u0085",
    "x" * 300,
    "' onmouseover='alert(1)",
]


def hostile(document):
    """Returns an audit whose names all want to break its page."""
    document, names = copy.deepcopy(document), itertools.cycle(HOSTILE)
    document["title"] = next(names)
    document["limitations"] += HOSTILE
    for cell in document["cells"]:
        cell["name"] = cell["model"] = next(names)
        cell["defense"]["text"] = cell["dataset"]["text"] = next(names)
        cell["error"] = cell["verdict"]["sentence"] = next(names)
        cell["threat"]["knows"] = HOSTILE
    for place in document["places"]:
        place["defense"] = next(names)
    for kind in ("accounting", "mechanism", "norms"):
        for row in document[kind]:
            row["defense"] = row["dataset"] = next(names)
    document["headline"]["sentence"] = next(names)
    document["headline"]["control"] = next(names)
    validate(document, AUDIT)
    return document


def test_no_name_breaks_the_page(document, audited):
    shown = page(hostile(document), audited.folder)
    read = Reader(shown)
    assert "script" not in read.tags and "{{ 7 * 7 }}" in read.text
    assert not {name for name in read.attributes if name.startswith("on")}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", shown)
    for image in read.images:
        assert set(image) <= {"src", "width", "height", "alt"}


def test_pictures_of_private_data_are_withheld(document, audited):
    for cell in document["cells"]:
        cell["dataset"]["public"] = False
    hidden = Reader(page(document, audited.folder))
    assert not hidden.images and "withheld" in hidden.text
    assert "--include-reconstructions" in hidden.text
    shown = Reader(page(document, audited.folder, include_reconstructions=True))
    assert len(shown.images) == 6 and "withheld" not in shown.text


def test_what_is_missing_is_said(document, tmp_path):
    """No cell's folder, cells that failed or were never run, nothing accounted."""
    document["status"] = "interrupted"
    for cell, status in zip(document["cells"], ("failed", "missing") * 9, strict=False):
        verdict = {"kind": status, "sentence": "It was not run.", "tried": "nothing"}
        nothing = dict.fromkeys(("rate", "guess", "certified"))
        cell |= {"status": status, "metrics": None, "victims": None, "line_ups": []}
        cell |= {"verdict": verdict | nothing, "certificate": None, "error": "why"}
    document["accounting"][0]["accounting"] = None
    document["norms"] = []
    validate(document, AUDIT)
    read = Reader(page(document, tmp_path))
    assert "This audit is interrupted" in read.text and not read.images


@pytest.mark.parametrize("kind", ["attack", "line-up", "mechanism"])
def test_one_run_has_a_page_too(kind, audited, tmp_path):
    rows = [*audited.to_dict()["cells"], *audited.to_dict()["mechanism"]]
    cell = next(r["folder"] for r in rows if f"cells/{kind}" in r["folder"])
    shutil.copytree(audited.folder / cell, tmp_path / "one")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "one" / "result.json")])
    assert done.exit_code == 0, done.output
    shown = (tmp_path / "one" / "report.html").read_text()
    read = Reader(shown)
    assert "How to repeat it" in read.text
    if kind == "attack":
        assert "leaks" in read.text.lower() and len(read.images) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "audit.json").unlink(),
        lambda folder: (folder / "audit.json").write_text("{}"),
        lambda folder: (folder / "audit.json").write_text("no json"),
        lambda folder: (folder / "audit.json").write_text('{"kind": "audit"}'),
        lambda folder: (folder / "audit.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_what_is_no_result_is_refused_in_words(damage, audited, tmp_path):
    shutil.copy(audited.folder / "audit.json", tmp_path)
    damage(tmp_path)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2 and "error:" in done.stderr, done.output
    assert not (tmp_path / "report.html").exists()


def test_damaged_pictures_leave_the_rest(audited, tmp_path):
    shutil.copytree(audited.folder, tmp_path / "audit")
    for file in (tmp_path / "audit").rglob("reconstructions.npz"):
        file.write_bytes(b"torn")
    with pytest.raises(InputError, match="can't be read"):
        attack = next((tmp_path / "audit" / "cells").glob("attack-*"))
        load(attack).arrays()
    read = Reader(page(audited.to_dict(), tmp_path / "audit"))
    assert not read.images and "Cell by cell" in read.text


def test_the_page_is_in_the_package(root):
    texts = root / "gradaudit" / "report" / "templates"
    assert {path.name for path in texts.iterdir()} >= {"audit.html", "page.css"}
    assert json.loads((texts.parent / "schemas" / "audit.schema.json").read_text())
    assert "templates/*" in pathlib.Path(root / "pyproject.toml").read_text()
