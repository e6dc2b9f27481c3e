"""Transforms and defenses: pure functions at the three named places of a round."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp

from gradaudit.errors import InputError
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, Point
from gradaudit.spec import rebuilds
from gradaudit.text import takes, users_code, written_at
from gradaudit.types import Key, PyTree

State = Any  # what a transform must remember from one call to the next; () if nothing
Round = jax.Array | int  # counted from 0
Applied = tuple[PyTree, State]  # what became of the units, and the next state


class Transform(Protocol):
    """One step of a defense; a frozen dataclass, so that it is hashable.

    The tree has the structure of the parameters with a leading axis of *units*: the
    examples of a batch at `per_example`, the clients at `update` and `server` (an
    axis of one where there is one client). Guarantee: structure, shapes and dtypes
    are kept, each unit's randomness is independent, and a tree that holds NaN or
    infinity gives one that does.

    State: a tree of floating-point arrays, or (). Each client begins a round with the
    state of the point and changes a copy of its own; after the round the clients'
    states are averaged, as their models are. What can't be averaged (integers,
    booleans, keys) is therefore refused at `per_example` and `update`: see
    `check_state`. At the server there is one state, which may be of any arrays.

    Two statements are optional (absent: False). `independent`: what is done to a unit
    depends on that unit, the key and the round alone, without state. At the server an
    independent transform is run for each client alone, with a key that is addressed by
    round and client; any other sees the clients of the whole round at once, with one
    key. `additive`: it only adds noise that does not depend on the units, so that a
    Poisson batch can get the noise of its expected size. And two protocols: `Releases`
    says what the transform releases, for accounting; `OnePass` (in clipping) gives
    the mean over units at less cost.
    """

    def init(self, params: PyTree) -> State:
        """Returns the state before the first round."""

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the transformed tree and the next state; `t` is the round."""


Transforms = tuple[Transform, ...]  # one after the other
States = tuple[State, ...]  # of each of them


class Stateless:
    """A transform that remembers nothing."""

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()


@dataclasses.dataclass(frozen=True)
class Bound:
    """What bounds one unit in round t: a norm of at most `limit(t)`."""

    limit: Callable[[Any], Any]
    norm: int = 2
    per_tensor: bool = True  # each tensor on its own, or the unit's whole tree


Release = tuple[tuple[Mechanism, ...], Bound | None]  # and what bounds a unit after it


@runtime_checkable
class Releases(Protocol):
    """A transform that can say what it releases, and what bounds a unit after it."""

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the mechanisms at this point and the bound on a unit after it.

        `bound` holds before the transform (None = nothing bounds a unit). A clip
        returns a new one, what never makes a norm larger passes it on, noise uses it
        up. A transform without this method releases nothing and voids the bound.
        """


def is_independent(transform: Transform) -> bool:
    """Returns whether the transform says that it treats each unit on its own."""
    return bool(getattr(transform, "independent", False))


def is_additive(transform: Transform) -> bool:
    """Returns whether the transform says that it adds noise and does no more."""
    return bool(getattr(transform, "additive", False))


@dataclasses.dataclass(frozen=True)
class Defense:
    """Three tuples of transforms and what they claim.

    `mechanisms` are derived from the transforms' own parameters by `defend`;
    accounting reads them and nothing else. `parameters` are what the constructor
    `made_by` was called with, so that a result can be run again.
    """

    name: str
    per_example: Transforms = ()
    update: Transforms = ()
    server: Transforms = ()
    mechanisms: tuple[Mechanism, ...] = ()
    paper: str = ""
    summary: str = ""
    parameters: tuple[tuple[str, Any], ...] = ()
    made_by: Callable[..., Self] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    def rebuilt_by(self) -> tuple[Callable[..., "Defense"], dict[str, Any]] | None:
        """Returns a constructor and its arguments that give this defense again."""
        called = dict(self.parameters)
        if self.made_by is not None and self.made_by(**called) == self:
            return self.made_by, called
        derived = ("mechanisms", "made_by")
        names = [field.name for field in dataclasses.fields(self)]
        parts = {name: getattr(self, name) for name in names if name not in derived}
        return (defend, parts) if defend(**parts) == self else None


@rebuilds
def defend(
    name: str,
    per_example: Transforms = (),
    update: Transforms = (),
    server: Transforms = (),
    paper: str = "",
    summary: str = "",
    parameters: tuple[tuple[str, Any], ...] = (),
) -> Defense:
    """Returns the defense of these transforms, with the mechanisms they claim.

    Nobody types sigma or C a second time: the noise says how it is scaled, the clip
    before it says what bounds the unit, and the sentences say where the two don't add
    up to a guarantee.
    """
    for transform in (*per_example, *update, *server):
        check_transform(transform)
    return Defense(
        name=name,
        per_example=per_example,
        update=update,
        server=server,
        mechanisms=(
            _mechanisms_at(Point.PER_EXAMPLE, per_example)
            + _mechanisms_at(Point.UPDATE, update)
            + _mechanisms_at(Point.SERVER, server)
        ),
        paper=paper,
        summary=summary,
        parameters=parameters,
    )


def _mechanisms_at(point: Point, transforms: Transforms) -> tuple[Mechanism, ...]:
    """Returns what the transforms at one point release.

    What follows a bounded release without a new clip is post-processing.
    """
    found: tuple[Mechanism, ...] = ()
    bound: Bound | None = None
    for transform in transforms:
        released, bound = release_of(transform, point, bound)
        if not _bounded(found) or _bounded(released):
            found += released
    return found


def release_of(transform: Transform, point: Point, bound: Bound | None) -> Release:
    """Returns what any transform releases, and what bounds a unit after it."""
    if isinstance(transform, Releases):
        return transform.release(point, bound)
    return (), None


def _bounded(mechanisms: tuple[Mechanism, ...]) -> bool:
    return any(mechanism.clip(0) is not None for mechanism in mechanisms)


def compose(*defenses: Defense) -> Defense:
    """Returns the defenses one after the other, at each point in the given order."""
    return defend(
        name=" + ".join(defense.name for defense in defenses),
        per_example=sum((defense.per_example for defense in defenses), ()),
        update=sum((defense.update for defense in defenses), ()),
        server=sum((defense.server for defense in defenses), ()),
        paper="; ".join(defense.paper for defense in defenses if defense.paper),
        summary="; then ".join(defense.summary for defense in defenses),
        parameters=tuple((defense.name, defense.parameters) for defense in defenses),
    )


def run(
    transforms: Transforms, key: Key, tree: PyTree, states: States, t: Round
) -> tuple[PyTree, States]:
    """Runs transforms in order, each with its own key; none = the identity.

    Raises `InputError` if one of them fails in a user's file, or breaks its promise to
    keep structure, shapes and dtypes.
    """
    following = []
    for index, (transform, state) in enumerate(zip(transforms, states, strict=True)):
        with users_code():
            result = transform.apply(jax.random.fold_in(key, index), tree, state, t)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"{_title(transform)}: apply must return (tree, state), got "
                f"{_kind(result)}"
            )
        _check_kept(transform, "the tree", tree, result[0])
        _check_kept(transform, "its state", state, result[1])
        tree, state = result
        following.append(state)
    return tree, tuple(following)


def run_alone(
    transforms: Transforms, key: Key, unit: PyTree, states: States, t: Round
) -> tuple[PyTree, States]:
    """Runs transforms on one unit that has no axis of units."""
    units = jax.tree.map(lambda leaf: leaf[None], unit)
    units, following = run(transforms, key, units, states, t)
    return jax.tree.map(lambda leaf: leaf[0], units), following


def init_states(transforms: Transforms, params: PyTree) -> States:
    """Returns the state of every transform before the first round."""
    if not transforms:
        return ()
    with users_code():
        return tuple(transform.init(params) for transform in transforms)


@dataclasses.dataclass(frozen=True)
class FromFunction(Stateless):
    """Makes `function(key, tree, t) -> tree` a transform without state."""

    function: Callable[[Key, PyTree, jax.Array | int], PyTree]
    independent: bool = False  # whether it treats each unit on its own

    def __post_init__(self) -> None:
        if not takes(self.function, 3):
            raise InputError(
                f"{_title(self)} must be a function of (key, tree, t) that returns a "
                "tree"
            )

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns what the function makes of the tree."""
        return self.function(key, tree, t), state


@runtime_checkable
class Explains(Protocol):
    """A transform that tells an aware adversary what it does to a guess."""

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the evidence about its output from that about its input."""


def explain(
    transforms: Transforms, evidence: Evidence, states: States, t: Round
) -> Evidence:
    """Returns what is known of the transforms' output, in order.

    A transform without `explain` leaves the evidence as it is and says so.
    """
    for transform, state in zip(transforms, states, strict=True):
        if isinstance(transform, Explains):
            evidence = transform.explain(evidence, state, t)
        else:
            words = f"{type(transform).__name__} does not say what it does to a guess"
            evidence = dataclasses.replace(evidence, opaque=words)
    return evidence


@dataclasses.dataclass(frozen=True)
class ToldDefense:
    """A defense as an aware adversary knows it: an `evidence.Told`."""

    at_examples: Transforms
    at_updates: Transforms  # of the client, then of the server
    reads_updates: bool
    t: int  # the round

    def per_example(self, evidence: Evidence, memory: PyTree) -> Evidence:
        """Returns what becomes of the examples' gradients."""
        return explain(self.at_examples, evidence, memory[0], self.t)

    def update(self, evidence: Evidence, memory: PyTree) -> Evidence:
        """Returns what becomes of the update, at the client and at the server."""
        return explain(self.at_updates, evidence, memory[1], self.t)


def check_transform(transform: Transform) -> None:
    """Raises `InputError` unless this can be a transform."""
    for method, words in (("init", "params"), ("apply", "key, tree, state, t")):
        if not takes(getattr(transform, method, None), len(words.split(","))):
            raise InputError(
                f"{_title(transform)}: a transform needs the method {method}({words})"
            )
    try:
        hash(transform)
    except TypeError as error:
        raise InputError(
            f"{_title(transform)}: a transform must be hashable ({error}); make it a "
            "frozen dataclass whose fields are numbers, texts and tuples"
        ) from None


def check_state(transform: Transform, state: State, point: Point) -> None:
    """Raises `InputError` unless a state can be kept at this point (see `Transform`).

    To be called when a training or a scenario starts, with what `init` returned.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        dtype: Any = getattr(leaf, "dtype", None)
        name = "its state" + jax.tree_util.keystr(path)
        if dtype is None:
            raise InputError(
                f"{_title(transform)}: {name} is a {_kind(leaf)}, not an array; write "
                "jnp.asarray(...)"
            )
        if not (point is Point.SERVER or jnp.issubdtype(dtype, jnp.floating)):
            raise InputError(
                f"{_title(transform)}: {name} holds {dtype}; clients' states are "
                f"averaged after a round, so at {point.value} a state must be of "
                "floating-point arrays (keep counts as floats, and take keys from the "
                "call)"
            )


def _check_kept(transform: Transform, what: str, before: PyTree, after: PyTree) -> None:
    """Refuses another structure, shape or dtype; costs nothing under jit."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        raise InputError(
            f"{_title(transform)}: apply must keep the structure of {what}, got "
            f"{_kind(after)}"
        )
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    )
    for (path, old), new in pairs:
        expected = jnp.shape(old), jnp.result_type(old)
        shape, dtype = getattr(new, "shape", None), getattr(new, "dtype", None)
        if (shape, dtype) != expected:
            raise InputError(
                f"{_title(transform)}: apply must keep shapes and dtypes of {what}; "
                f"{jax.tree_util.keystr(path) or 'the array'} was {expected[1]}"
                f"{list(expected[0])} and became "
                + (_kind(new) if shape is None else f"{dtype}{list(shape)}")
            )


def _title(transform: object) -> str:
    """Returns what a transform is called in a message: its line in a user's file."""
    called = getattr(transform, "function", None) or getattr(transform, "apply", None)
    line = written_at(called) if callable(called) else None
    name = getattr(called, "__name__", "") if called is not None else ""
    kind = name if isinstance(transform, FromFunction) else type(transform).__name__
    return f"{line} ({kind})" if line else kind or type(transform).__name__


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
