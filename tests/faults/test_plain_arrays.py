"""What an attack's own code is handed: plain arrays, nothing behind them."""

import dataclasses
import gc
import types

import jax
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks import Attack, Matching, Stop, Victims, cpl
from gradaudit.audit.scenario import Simulated
from gradaudit.audit.scores import Evaluator
from gradaudit.data import Dataset
from gradaudit.federation.recipe import Population
from gradaudit.types import Reconstruction, Status, Victim

FORBIDDEN = (Simulated, Evaluator, Victims, Victim, Population, Dataset)
_CODE = (types.ModuleType, type, types.FrameType, types.CodeType)
MOST = 200_000  # objects; a walk that is cut short proves nothing


def inside(value):
    """What an object holds: attributes, items, closures, bases, what it is bound to.

    Modules and classes are left out: what they lead to is there for everybody.
    """
    if isinstance(value, types.FunctionType):
        yield from value.__closure__ or ()
        yield from (value.__defaults__, value.__kwdefaults__, value.__dict__)
        return
    if isinstance(value, np.ndarray):
        yield value.base
    yield from gc.get_referents(value)
    for name in ("__self__", "__wrapped__", "__func__", "func", "args", "keywords"):
        yield getattr(value, name, None)


def reachable(*roots):
    """Yields everything that these objects lead to, each once."""
    seen, queue = set(), list(roots)
    while queue:
        value = queue.pop()
        if id(value) in seen or isinstance(value, _CODE):
            continue
        if isinstance(value, dict) and "__builtins__" in value:  # a module's globals
            continue
        seen.add(id(value))
        assert len(seen) < MOST, "the walk does not end"
        yield value
        queue.extend(inside(value))


def check(roots, truth):
    count = 0
    wanted = {row.tobytes() for row in truth}
    for value in reachable(*roots):
        count += 1
        assert not isinstance(value, FORBIDDEN), f"reached a {type(value).__name__}"
        if isinstance(value, (np.ndarray, jax.Array)) and not is_key(value):
            array = np.asarray(value)
            if array.size >= truth[0].size and array.dtype == np.float32:
                content = array.tobytes()
                assert not any(w in content for w in wanted), "reached private data"
    return count


def is_key(value):
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


SMALL = {"dataset": "digits", "model": "mlp", "victims": 3, "draws": 1}
SMALL |= {"line_ups": 0}
HANDED = []


@dataclasses.dataclass(frozen=True)
class Closed(Attack):
    """A user's closed form that remembers what it was handed."""

    def reconstruct(self, key, model, observation):
        HANDED.append((key, model, observation))
        return Reconstruction(
            inputs=np.full((1, *model.input_shape), 0.5, np.float32),
            labels=np.zeros(1, np.int32),
            objective=np.float32(1.0),
            iterations=np.int32(0),
            evaluations=np.int32(0),
            status=np.int32(Status.CONVERGED),
        )


@dataclasses.dataclass(frozen=True)
class Searching(Matching):
    """A user's search that does the same."""

    def problem(self, model, observation):
        HANDED.append((model, observation))
        return super().problem(model, observation)

    def shared(self, observation):
        HANDED.append((observation,))
        return super().shared(observation)


def searching():
    fields = {f.name: getattr(cpl(), f.name) for f in dataclasses.fields(Matching)}
    return Searching(**fields | {"stop": Stop(iterations=2)})


# An aware adversary is handed what a curious one is, and more; a closed form what a
# search is.
@pytest.mark.parametrize(
    ("threat", "attack"),
    [
        pytest.param("curious", Closed(), id="curious-closed", marks=pytest.mark.slow),
        pytest.param(
            "curious", searching(), id="curious-search", marks=pytest.mark.slow
        ),
        pytest.param("aware", Closed(), id="aware-closed", marks=pytest.mark.slow),
        pytest.param("aware", searching(), id="aware-search"),
        pytest.param("curious+labels", Closed(), id="labels-closed"),
        pytest.param(
            "curious+labels", searching(), id="labels-search", marks=pytest.mark.slow
        ),
    ],
)
def test_nothing_leads_from_what_an_attack_gets_to_the_truth(attack, threat):
    HANDED.clear()
    defense = "fed-cdp:clip=4,sigma=1" if threat == "aware" else "none"
    result = ga.attack(method=attack, threat=threat, defense=defense, **SMALL)
    assert len(result.scores) == 3 and HANDED
    truth = np.asarray(result.truth)
    assert check(HANDED, truth) > 100
    HANDED.clear()


def test_the_walk_finds_what_is_hidden():
    """Through bound methods, closures, partials, views and nested containers."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Spy(Closed):
        def reconstruct(self, key, model, observation):
            (scenario,) = (o for o in gc.get_objects() if type(o) is Simulated)
            seen.append(scenario)
            return super().reconstruct(key, model, observation)

    gc.collect()
    result = ga.attack(method=Spy(), **SMALL)
    HANDED.clear()
    truth, scenario = np.asarray(result.truth), seen[0]
    hidden = [
        scenario.truth,
        lambda: scenario,
        {"a": [(scenario._observe,)]},
        truth.reshape(-1)[1:3],  # a view: its base is all of it
        next(iter(scenario.groups())).victims.observe,
    ]
    for each in hidden:
        with pytest.raises(AssertionError, match="reached"):
            check([each], truth)
