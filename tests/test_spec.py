"""A spec is plain data that rebuilds every part of a run, and names no code to run."""

import dataclasses
import enum
import json
import math
import pathlib

import jax
import numpy as np
import pytest

import gradaudit as ga
from gradaudit import defenses
from gradaudit.attacks import (
    LBFGS,
    PRESETS,
    Adam,
    Analytic,
    LineSearchLBFGS,
    Matching,
    Stop,
)
from gradaudit.attacks.distances import (
    CONVOLUTIONS,
    Cosine,
    RelativeL2,
    SquaredL2,
    TensorCosine,
)
from gradaudit.attacks.ensembles import Consistency, MedianVote
from gradaudit.attacks.labels import Counts, FromBias, Joint, Known, LastLayer
from gradaudit.attacks.priors import OutsideBox, SmallPixels, TotalVariation
from gradaudit.attacks.starts import (
    Colour,
    Constant,
    Mixed,
    Normal,
    Patterned,
    PublicImage,
    Uniform,
)
from gradaudit.data import load_dataset
from gradaudit.defenses.compression import Sign
from gradaudit.errors import InputError
from gradaudit.models.convolution import Path
from gradaudit.models.model import from_function, standardize
from gradaudit.models.networks import MODELS, build_model
from gradaudit.spec import Spec, describe, rebuild
from gradaudit.types import Leakage


def again(value):
    """Through JSON and back."""
    return rebuild(json.loads(json.dumps(describe(value), allow_nan=False)))


PLAIN = [
    None, True, 3, -0.25, math.inf, "cpl:init=uniform", (1, (2.0, "x")), [1, None],
    {"a": (1, 2), "b": {"c": []}}, b"\x00\xff", Leakage.SERVER, Path.PATCHES,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back(value):
    found = again(value)
    assert found == value and type(found) is type(value)


PARTS = {
    "init": [
        Patterned(4), Uniform(), Normal(), Constant(0.2), Colour(),
        PublicImage.of(np.linspace(0, 1, 16).reshape(4, 4, 1)),
    ],
    "labels": [Known(), LastLayer(), FromBias(), Counts(samples=7), Joint()],
    "distance": [SquaredL2(), SquaredL2(CONVOLUTIONS), Cosine(("conv1",)),
                 TensorCosine(), RelativeL2(weight=0.5)],
    "priors": [(), (TotalVariation(0.3),), (SmallPixels(2.0), OutsideBox(1.5))],
    "optimizer": [LBFGS(history=9), Adam(0.3, signed=True, decays=True),
                  LineSearchLBFGS(search_steps=4)],
    "stop": [Stop(iterations=7, objective=1e-4, patience=3)],
    "box": [True], "cyclic": [True], "unroll": [False], "restarts": [5],
    "relaxation": [Mixed()], "coupling": [Consistency(0.1)], "pooling": [MedianVote()],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in PARTS.items() for value in values],
    ids=lambda value: repr(value)[:40],
)
def test_an_attack_comes_back_with_every_part(field, value):
    attack = dataclasses.replace(Matching(), **{field: value})
    found = again(attack)
    assert found == attack and hash(found) == hash(attack)
    assert getattr(found, field) == value


def test_every_field_of_an_attack_is_tried():
    assert {field.name for field in dataclasses.fields(Matching)} <= set(PARTS)


@pytest.mark.parametrize("name", PRESETS)
def test_published_attacks_come_back_as_objects(name):
    attack = PRESETS[name].make()
    assert again(attack) == attack
    assert again(Analytic(labels=FromBias())) == Analytic(labels=FromBias())


@pytest.mark.parametrize("name", defenses.PRESETS)
def test_published_defenses_come_back_as_objects(name):
    defense = defenses.parse(name)
    assert again(defense) == defense


def test_a_defense_keeps_its_parameters():
    made = defenses.fed_cdp(clip=2.0, sigma=0.5)
    found = again(made)
    assert found == made != defenses.fed_cdp()
    assert found.per_example == made.per_example
    assert found.mechanisms == made.mechanisms
    own = defenses.defend("mine", per_example=(Sign(),), update=made.per_example)
    assert again(own) == own


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name):
    model = build_model(name, (8, 8, 1), 4)
    assert again(model) == model


# Equal models are equal programs: one of each kind is run.
KINDS = ("mlp", "cnn", "resnet-bn")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in KINDS)) for n in MODELS],
)
def test_models_that_came_back_compute_the_same(name, quick_jit):
    model = build_model(name, (8, 8, 1), 4)
    found = again(model)
    key = jax.random.key(0)
    inputs = np.ones((2, 8, 8, 1), np.float32)
    made = [m.init(key) for m in (found, model)]
    buffers = model.initial_buffers(key)
    logits = [
        quick_jit(m.apply)(p, buffers, inputs)
        for m, p in zip((found, model), made, strict=True)
    ]
    np.testing.assert_array_equal(*logits)


def test_a_standardized_model_comes_back_with_its_statistics():
    data = load_dataset("cancer")
    plain = build_model("mlp", data.shape, data.classes)
    model = standardize(plain, data.inputs)
    found = again(model)
    assert found == model != plain
    params = model.init(jax.random.key(0))
    np.testing.assert_array_equal(
        found.apply(params, {}, data.inputs[:3]),
        model.apply(params, {}, data.inputs[:3]),
    )


class Home(enum.Enum):
    """An enum of a user's file."""

    HERE = 1


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A dataclass outside of gradaudit."""

    number: int = 1


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        load_dataset("cancer"),
        from_function(lambda p, x: x, lambda k: {}, (2,), 2),
        Foreign(),
        Home.HERE,
        np.ones(3),
        object(),
        pathlib.Path.exists,
        print,
        {"part": "a word that has a meaning here"},
    ],
    ids=["lambda", "dataset", "model of a function", "class", "enum", "array",
         "object", "method", "print", "reserved word"],
)  # fmt: skip
def test_what_can_not_be_described_is_refused_in_words(value):
    described = json.loads(json.dumps(describe(value)))
    with pytest.raises(InputError, match="can't|not inside gradaudit"):
        rebuild(described)


@pytest.mark.parametrize(
    "value",
    [
        {"call": "gradaudit.files:write_text",
         "arguments": {"path": "MARK", "text": "x"}},
        {"call": "os:system", "arguments": {"command": "touch MARK"}},
        {"call": "builtins:eval", "arguments": {"source": "open('MARK', 'w')"}},
        {"call": "gradaudit.files:os.system", "arguments": {"command": "touch MARK"}},
        {"call": "gradaudit.spec:importlib.import_module",
         "arguments": {"name": "antigravity"}},
        {"part": "pathlib:Path", "fields": {}},
        {"part": "gradaudit.files:pathlib.Path", "fields": {}},
        {"part": "subprocess:Popen", "fields": {"args": ["touch", "MARK"]}},
        {"part": "gradaudit.audit.resume:Kept", "fields": {}},
        {"part": "tests.test_spec:Foreign", "fields": {}},
        {"function": "os:system"},
        {"function": "gradaudit.files:write_text"},
        {"function": "builtins:eval"},
        {"function": "jax.nn:initializers.jax.core.eval_jaxpr"},
        {"function": "jax._src.nn.functions:jax.debug.callback"},
        {"function": "jax._src.nn.functions:np.save"},
        {"function": "jax.nn:initializers.Any"},
        {"function": "jax._src.nn.initializers:np.load"},
        {"function": "jax._src.nn.functions:partial"},
        {"enum": "re:RegexFlag", "member": "A"},
        {"enum": "gradaudit.files:write_text", "member": "x"},
        {"part": "gradaudit.attacks.matching:Matching", "fields": {"rubbish": 1}},
        {"part": "gradaudit.attacks.matching:Matching"},
        {"part": 3, "fields": {}},
        {"call": ["os", "system"], "arguments": {}},
        {"function": None},
        {"bytes": "not base 64!"},
        {"float": "three"},
        {"tuple": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_a_spec_can_name_no_code(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        rebuild(value)
    file = tmp_path / "result.json"
    spec = {"command": "attack", "arguments": {"method": value}, "sources": {}}
    file.write_text(json.dumps({"spec": spec}))
    with pytest.raises(InputError):
        Spec.read(file).call()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["result.json"]


ASKED = {
    "type": 1, "method": PRESETS["gradinv"].make(iterations=3),
    "defense": defenses.fed_cdp(clip=2.0), "victims": 2, "seed": 5, "model": None,
}  # fmt: skip


def test_a_spec_is_read_from_a_folder_a_result_and_by_itself(tmp_path):
    spec = Spec.of("attack", **ASKED)
    bare, result = tmp_path / "spec.json", tmp_path / "result.json"
    bare.write_text(json.dumps(spec.plain()))
    result.write_text(json.dumps({"schema_version": 2, "spec": spec.plain()}))
    for path in (bare, result, tmp_path):
        read = Spec.read(path)
        assert read == spec
        assert read.call() == ASKED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "can't be read"),
        ("[]", "holds no spec"),
        ('{"spec": 3}', "holds no spec"),
        ('{"spec": {"command": 1, "arguments": {}}}', "holds no spec"),
        ('{"config": {}}', "not a result of this version"),
        ("[" * 100_000, "can't be read"),
    ],
    ids=range(6),
)
def test_a_file_without_a_spec_is_refused_in_words(tmp_path, text, words):
    file = tmp_path / "result.json"
    file.write_text(text)
    for path in (file, tmp_path):
        with pytest.raises(InputError, match=words):
            Spec.read(path)
    with pytest.raises(InputError, match="there is no"):
        Spec.read(tmp_path / "nowhere.json")


def test_the_users_files_are_kept_by_path_and_content(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def f(): ...\n")
    data = tmp_path / "data.csv"
    data.write_text("1,2\n")
    spec = Spec.of("attack", defense=f"none + {mine}:f", dataset=str(data))
    assert set(spec.sources) == {str(mine), str(data)}
    assert spec.call()["dataset"] == str(data)
    data.write_text("1,3\n")
    with pytest.raises(InputError, match=r"data\.csv has changed"):
        spec.call()
    data.unlink()
    with pytest.raises(InputError, match="not there"):
        spec.call()


SMALL = {"dataset": "digits", "model": "dpfl-2conv", "victims": 2, "iterations": 2}


@pytest.mark.parametrize(
    "asked",
    [
        {"defense": defenses.fed_cdp(clip=0.5, sigma=0.1), "type": 1, "batch_size": 1,
         "model": "mlp", "line_ups": 0},
        pytest.param(
            {"method": "cpl:init=uniform", "defense": "fed-cdp:clip=2,sigma=0.01"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"method": Matching(init=Uniform(), labels=Joint()), "seed": 3, "draws": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"threat": "curious+labels", "method": "cpl:labels=known", "type": 0,
             "batch_size": 1, "local_steps": 2},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["a defense object", "words", "an attack object", "known labels"],
)  # fmt: skip
def test_an_attack_runs_again_from_what_it_wrote(asked, tmp_path):
    first = ga.attack(**(SMALL | asked))
    first.save(tmp_path)
    second = ga.attack(**Spec.read(tmp_path).call())
    np.testing.assert_array_equal(first.inputs, second.inputs)
    before, after = first.to_dict(), second.to_dict()
    for report in (before, after):
        report.pop("timing")
    assert before == after
    assert before["spec"]["arguments"]["seed"] == asked.get("seed", 0)
    if isinstance(asked.get("method"), str) and "seed" not in asked:
        other = ga.attack(**(Spec.read(tmp_path).call() | {"seed": 99}))
        assert (other.inputs != first.inputs).any()  # it would show


def test_an_attack_on_an_object_that_can_not_be_described_says_so(tmp_path):
    digits = load_dataset("digits")
    few = dataclasses.replace(
        digits, inputs=digits.inputs[:9], labels=digits.labels[:9]
    )
    ga.attack(**(SMALL | {"dataset": few, "draws": 1})).save(tmp_path)
    with pytest.raises(InputError, match="can't be run again"):
        Spec.read(tmp_path).call()
