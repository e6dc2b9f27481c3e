"""What is written in the contract of a transform: states, refusals, claims, specs."""

import dataclasses
import inspect
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit.defenses as defenses
from gradaudit.defenses import PRESETS, Bound, defend, parse
from gradaudit.defenses.adaptive import AdaClip, QuantileClip
from gradaudit.defenses.clipping import Clip, Norm, Scope
from gradaudit.defenses.compression import Prune, RandomSelection, Sign, TopK
from gradaudit.defenses.layers import DenseLayers, OnLayers
from gradaudit.defenses.noise import NoiseAt, plain_gaussian
from gradaudit.defenses.schedules import Constant, Table, decay
from gradaudit.defenses.transforms import FromFunction, check_state, release_of
from gradaudit.errors import InputError
from gradaudit.mechanism import Point
from gradaudit.spec import describe, rebuild

TREE = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 4))}
PARAMS = jax.tree.map(lambda leaf: leaf[0], TREE)


@dataclasses.dataclass(frozen=True)
class Remembers:
    """A transform whose state is `first`."""

    first: Any = dataclasses.field(compare=False)

    def init(self, params):
        return self.first

    def apply(self, key, tree, state, t):
        return tree, state


STATES = {
    "a count": (jnp.int32(0), "holds int32"),
    "a flag": ({"seen": jnp.array(False)}, r"its state\['seen'\] holds bool"),
    "a key": ((jnp.ones(2), jax.random.key(0)), r"its state\[1\] holds key<"),
    "an old key": (jax.random.PRNGKey(0), "holds uint32"),
    "a number": (0.5, "its state is a float, not an array"),
}


@pytest.mark.parametrize("point", Point)
@pytest.mark.parametrize("name", STATES)
def test_a_state_that_can_not_be_averaged_is_refused_at_the_clients(name, point):
    state, words = STATES[name]
    transform = Remembers(state)
    if point is Point.SERVER and name != "a number":
        check_state(transform, transform.init(PARAMS), point)
        return
    with pytest.raises(InputError, match=f"Remembers: .*{words}"):
        check_state(transform, transform.init(PARAMS), point)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_state_that_can_be_averaged(name):
    defense = PRESETS[name].make()
    for point in Point:
        for transform in getattr(defense, point.value):
            state = transform.init(PARAMS)
            check_state(transform, state, Point.UPDATE)
            leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(state)]
            mean = [jnp.mean(jnp.stack([leaf, leaf]), axis=0) for leaf in leaves]
            assert [m.dtype for m in mean] == [leaf.dtype for leaf in leaves]


def _run(transform, tree=TREE):
    states = defenses.init_states((transform,), PARAMS)
    return jax.eval_shape(
        lambda key, units: defenses.run((transform,), key, units, states, 0)[0],
        jax.random.key(0),
        tree,
    )


BROKEN_FUNCTIONS = {
    "nothing": (lambda key, tree, t: None, "keep the structure of the tree, got None"),
    "a mean": (
        lambda key, tree, t: jax.tree.map(lambda leaf: leaf.mean(0), tree),
        r"\['a'\] was float32\[2, 3\] and became float32\[3\]",
    ),
    "half precision": (
        lambda key, tree, t: jax.tree.map(lambda leaf: leaf.astype("float16"), tree),
        r"was float32\[2, 3\] and became float16\[2, 3\]",
    ),
    "a part": (lambda key, tree, t: tree["a"], "structure of the tree, got .*Tracer"),
}


@pytest.mark.parametrize("name", BROKEN_FUNCTIONS)
def test_a_transform_that_breaks_its_promise_is_refused(name):
    function, words = BROKEN_FUNCTIONS[name]
    with pytest.raises(InputError, match=words):
        _run(FromFunction(function))


@dataclasses.dataclass(frozen=True)
class Custom:
    """A transform whose `apply` returns `result`."""

    result: Any = dataclasses.field(compare=False)

    def init(self, params):
        return jnp.zeros(())

    def apply(self, key, tree, state, t):
        return self.result(tree, state)


def test_a_transform_returns_tree_and_state():
    with pytest.raises(InputError, match=r"must return \(tree, state\), got dict"):
        _run(Custom(lambda tree, state: tree))
    with pytest.raises(InputError, match="Custom: .*structure of its state, got None"):
        _run(Custom(lambda tree, state: (tree, None)))
    with pytest.raises(InputError, match=r"its state; the array was float32\[\]"):
        _run(Custom(lambda tree, state: (tree, jnp.zeros(3))))


def test_what_can_not_be_a_transform_is_refused_when_the_defense_is_made():
    class NoApply:
        def init(self, params):
            return ()

    class Arity(NoApply):
        def apply(self, tree):
            return tree

    @dataclasses.dataclass
    class NotHashable(NoApply):
        def apply(self, key, tree, state, t):
            return tree, state

    for bad in (NoApply(), Arity(), 3):
        with pytest.raises(InputError, match=r"needs the method (init|apply)\("):
            defend("mine", update=(bad,))
    with pytest.raises(InputError, match="must be hashable .*frozen dataclass"):
        defend("mine", update=(NotHashable(),))
    with pytest.raises(InputError, match=r"must be a function of \(key, tree, t\)"):
        FromFunction(lambda tree: tree)


PLUG_IN = """
import sys
import jax
import jax.numpy as jnp
from gradaudit.defenses import FromFunction, defend, fed_cdp

def at_call(key, tree, t):
    print("noise")
    return [1][2]

def leaves(key, tree, t):
    sys.exit(0)

fails = defend("fails", update=(FromFunction(at_call),))
exits = defend("exits", update=(FromFunction(leaves),))
shrinks = defend("shrinks", update=(FromFunction(lambda key, tree, t: None),))

def exits_when_made():
    sys.exit(0)

def nothing():
    pass

def needs(clip):
    return fed_cdp(clip=clip)

def wrong(clip=4):
    return fed_cdp(clip=-clip)

def raw(key, tree, t):
    return tree
"""
REFUSED = {
    "exits_when_made": r"mine\.py:19 failed: .*sys\.exit\(0\)",
    "nothing": r"mine\.py:nothing must be a Defense, .*got None",
    "needs": r"mine\.py:needs: missing a required argument: 'clip'",
    "needs:clip=4,clip=5": "clip is given twice",
    "needs:clip=big": r"mine\.py:25 failed: clip must be a number or a sche.*'big'",
    "wrong:clip=four": "clip must be a number, got 'four'",
    "wrong": r"mine\.py:28 failed: clip must be positive and finite, got -4",
    "raw": "missing a required argument: 'key'",
    "fails:step=1": r"mine\.py:fails takes no parameters, got 'step=1'",
    "": "say which name of",
}


@pytest.fixture
def plug_in(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUG_IN)
    return path


@pytest.mark.parametrize("words", REFUSED)
def test_a_plug_in_is_refused_in_words(words, plug_in, capsys):
    with pytest.raises(InputError, match=REFUSED[words]):
        parse(f"{plug_in}:{words}")
    assert capsys.readouterr().out == ""


def test_parameters_of_a_plug_in_need_no_annotations(plug_in):
    made = parse(f"{plug_in}:needs:clip=2.5")
    assert made == defenses.fed_cdp(clip=2.5)


CALLED = {
    "fails": r"mine\.py:9 failed: IndexError",
    "exits": r"mine\.py:12 failed: it ends the program, sys\.exit\(0\)",
    "shrinks": r"mine\.py:16 \(<lambda>\): .*structure of the tree, got None",
}


@pytest.mark.parametrize("name", CALLED)
def test_a_plug_in_that_fails_when_called_names_its_line(name, plug_in, capsys):
    (transform,) = parse(f"{plug_in}:{name}").update
    with pytest.raises(InputError, match=CALLED[name]):
        _run(transform)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == ("noise\n" if name == "fails" else "")


BOUND = Bound(Constant(3.0), 1, per_tensor=False)


def test_each_part_says_what_bounds_a_unit_after_it():
    def after(part, bound=BOUND):
        return release_of(part, Point.UPDATE, bound)

    assert after(Clip(Constant(4.0))) == ((), Bound(Constant(4.0)))
    joint = Clip(Constant(4.0), Scope.GLOBAL, Norm.L1)
    assert after(joint, None) == ((), Bound(Constant(4.0), 1, per_tensor=False))
    for part in (Prune(0.5), TopK(2), RandomSelection(0.1)):
        assert after(part) == ((), BOUND) and after(part, None) == ((), None)
    for part in (Sign(), FromFunction(lambda key, tree, t: tree)):
        assert after(part) == ((), None)
    (mechanism,), bound = after(plain_gaussian(0.1))
    assert bound is None and mechanism.clip(0) == 3.0 and mechanism.norm == 1
    for part in (QuantileClip(4.0, 6.0), AdaClip(4.0, 6.0)):
        released, bound = after(part)
        assert released == after(part, None)[0] and bound is None
    partial = OnLayers(Clip(Constant(1.0)), DenseLayers())
    assert after(partial) == ((), None)  # the other layers are not bounded


def test_a_clip_of_the_users_own_counts_as_one():
    """What bounds a unit is asked of the part, whatever its class."""

    @dataclasses.dataclass(frozen=True)
    class Boxed:
        size: float

        def init(self, params):
            return ()

        def apply(self, key, tree, state, t):
            return jax.tree.map(lambda x: jnp.clip(x, -self.size, self.size), tree), ()

        def release(self, point, bound):
            return (), Bound(Constant(self.size * 7**0.5), 2, per_tensor=False)

    _, noise = defenses.fed_cdp().per_example
    (mechanism,) = defend("mine", per_example=(Boxed(1.0), noise)).mechanisms
    assert mechanism.clip(0) == pytest.approx(7**0.5) and not mechanism.per_tensor
    assert mechanism.caveats == ()


ALIASES = {
    "dp-baseline": "fed-cdp",
    "dp-dyns-cdecay": "fed-cdp-decay",
    "dp-dyns-l2max": "fed-alpha-cdp",
    "dpfl-even": "dpfl",
}


def test_aliases_are_the_same_thing_under_another_name():
    found = {n: p.alias_of for n, p in PRESETS.items() if p.alias_of is not None}
    assert found == ALIASES
    for name, of in ALIASES.items():
        entry, known = PRESETS[name], PRESETS[of]
        made, same = entry.make(), known.make(**entry.defaults)
        for point in Point:
            assert getattr(made, point.value) == getattr(same, point.value)
        assert made.mechanisms == same.mechanisms and made.name == name
        assert made.paper == entry.paper != known.paper
        assert made.parameters == tuple(entry.defaults.items())
        assert set(entry.defaults) <= set(known.defaults)
        assert f"`{of}`" in inspect.getdoc(entry.make)
    assert PRESETS["dp-dyns-cdecay"].defaults["rounds"] == 10_000
    assert "importance" not in PRESETS["dpfl-even"].defaults


def _parts(defense):
    return defense.per_example, defense.update, defense.server


def test_two_presets_that_are_the_same_are_aliases():
    for one in PRESETS.values():
        for other in PRESETS.values():
            shared = set(one.defaults) == set(other.defaults)
            if one.name < other.name and shared:
                equal = _parts(one.make()) == _parts(other.make(**one.defaults))
                related = one.alias_of == other.name or other.alias_of == one.name
                assert not equal or related, (one.name, other.name)


OTHERS = {
    "none": {},
    "prune": {"ratio": 0.7, "scope": Scope.TENSOR, "at": Point.SERVER},
    "dssgd": {"share": 0.5, "threshold": 0.01, "at": Point.PER_EXAMPLE},
    "dssgd-noise": {"share": 0.5, "bound": 0.2, "epsilon": 3.0},
    "gaussian-noise": {"std": 0.3, "at": Point.SERVER},
    "laplace-noise": {"scale": 0.3, "at": Point.PER_EXAMPLE},
    "fed-sdp": {"clip": 2, "sigma": decay("cyclic", 9.0, 3.0, 40)},
    "fed-sdp-client": {"clip": decay("triangle", 6.0, 2.0, 50), "scope": Scope.GLOBAL},
    "fed-cdp": {"clip": Table((3.0, 2.0)), "noise_at": NoiseAt.BATCH},
    "fed-cdp-decay": {"start": 8.0, "rounds": 20, "policy": "staircase"},
    "fed-alpha-cdp": {"clip": 1.5, "sigma": 0.0, "noise_at": NoiseAt.BATCH},
    "fed-alpha-cdp-sigma": {"start": 9.0, "end": 1.0, "policy": "inverse-linear"},
    "dp-baseline": {"clip": decay("exponential", 9.0, 3.0, 40), "scope": Scope.GLOBAL},
    "dp-dyns-cdecay": {"end": 1.0, "policy": "cyclic"},
    "dp-dyns-l2max": {"sigma": 2.0},
    "dp-dyns": {"rounds": 500, "sigma": decay("linear", 9.0, 3.0, 40)},
    "dp-dynsigma": {"sigma_start": 20.0, "policy": "linear"},
    "dp-dyn": {"sigma_end": 1.0, "end": 3.0},
    "quantile-clip": {"quantile": 0.9, "rate": 0.1, "at": Point.UPDATE},
    "adaclip": {"mean_decay": 0.5, "at": Point.UPDATE},
    "dpfl": {"importance": (("conv1", 0.4), ("output", 0.2)), "learning_rate": 1.0},
    "dpfl-even": {"epsilon": 3.0},
    "lip": {"layers": ("conv1", "output"), "alpha": 2.0},
    "ldp-sgd": {"epsilon": 2.0, "as_printed": True},
}


def again(defense):
    """The defense after a way through JSON."""
    return rebuild(json.loads(json.dumps(describe(defense), allow_nan=False)))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_rebuilt_from_plain_data(name):
    make = PRESETS[name].make
    other = make(**OTHERS[name])
    assert again(make()) == make() and again(other) == other
    assert other != make() or not OTHERS[name]
    described = describe(other)
    assert described["call"].endswith(f"published:{name.replace('-', '_')}")
    # Results that were saved when it stood elsewhere can still be run again.
    earlier = described["call"].replace("published:", "presets:")
    assert rebuild({**described, "call": earlier}) == other
    plain = defend("", server=(Sign(),))
    changed = dataclasses.replace(plain, made_by=other.made_by, name=name)
    assert again(changed) == changed  # a constructor that no longer makes it is left


def test_composed_and_own_defenses_are_rebuilt(tmp_path):
    path = tmp_path / "sigma.txt"
    path.write_text("6.0, 5.0\n4.0\n")
    table = parse(f"fed-cdp:sigma=@{path}")
    path.unlink()  # the values are in the description, not the file
    clip, noise = defenses.fed_cdp().per_example
    for defense in (
        table,
        parse("prune:ratio=0.3,at=per_example + fed-cdp:clip=2 + fed-sdp"),
        defenses.compose(table, defenses.lip()),
        defend("mine", per_example=(clip, TopK(3), noise), server=(Sign(),)),
        defend("mine", update=(OnLayers(QuantileClip(1.0, 2.0), DenseLayers()),)),
    ):
        assert again(defense) == defense
        assert again(defense).mechanisms == defense.mechanisms


def test_a_users_own_function_is_refused_in_words_when_it_is_rebuilt():
    mine = defend("mine", update=(FromFunction(lambda key, tree, t: tree),))
    with pytest.raises(InputError, match="can't be run again: .*path/to/file.py:name"):
        again(mine)
    np.testing.assert_array_equal(_run(mine.update[0])["a"].shape, (2, 3))
