"""What an audit of a mechanism is about: a defense, or a function of the user's."""

import dataclasses

import jax
import numpy as np

from gradaudit import defenses
from gradaudit.defenses.base import Defense, init_states, run
from gradaudit.errors import InputError
from gradaudit.ldp.claims import DELTA, Claim, claimed_by, closed_form
from gradaudit.ldp.functions import load_function
from gradaudit.ldp.pairs import Blocks, Neighbours, Pair, pairs
from gradaudit.ldp.release_game import Release
from gradaudit.mechanism import Mechanism, NoiseKind
from gradaudit.tree import flatten
from gradaudit.types import Key, PyTree

_BEYOND = 10.0  # how far beyond the clip a canary is, so that a missing clip shows


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A mechanism, the pairs to try on it, its claim and the closed form, if known."""

    name: str
    release: Release
    pairs: tuple[Pair, ...]
    claim: Claim
    closed_form: float | None = None
    caveats: tuple[str, ...] = ()


def of_function(
    name: str,
    release: Release,
    size: int,
    claim: Claim,
    *,
    neighbours: Neighbours = Neighbours.LOCAL,
    norm: float = 1.0,
) -> Subject:
    """Returns a function (key, vector) -> vector with canaries of this norm."""
    return Subject(name, release, pairs(Blocks((size,), norm), neighbours), claim)


def of_defense(
    defense: Defense,
    params: PyTree,
    *,
    neighbours: Neighbours | None = None,
    epsilon: float | None = None,
    delta: float = DELTA,
) -> Subject:
    """Returns all that a defense does to one client's tree, at its three points.

    Neighbours are those that the kind of noise is made for, unless given: any two
    inputs for a local randomizer, an input and none otherwise. `epsilon` replaces what
    the defense claims by itself.
    """
    mechanisms = defense.mechanisms
    if neighbours is None:
        neighbours = _usual_neighbours(mechanisms)
    sizes = tuple(int(leaf.size) for leaf in jax.tree.leaves(params))
    pure = all(entry.kind is not NoiseKind.GAUSSIAN for entry in mechanisms)
    if epsilon is None:
        claim = claimed_by(mechanisms, neighbours, delta)
    else:
        claim = Claim(epsilon, 0.0 if mechanisms and pure else delta)
    return Subject(
        name=defense.name,
        release=_DefenseRelease(defense, params),
        pairs=pairs(_canary_blocks(mechanisms, sizes), neighbours),
        claim=claim,
        closed_form=closed_form(mechanisms, neighbours, len(sizes), sum(sizes), delta),
        caveats=tuple(text for entry in mechanisms for text in entry.caveats),
    )


def load_subject(
    text: str,
    params: PyTree,
    *,
    neighbours: Neighbours | None = None,
    epsilon: float | None = None,
    delta: float = DELTA,
) -> Subject:
    """Returns the subject of `fed-cdp:clip=4`, `file.py:defense` or `file.py:function`.

    A function gets vectors of the parameters' size and canaries of norm 1; it claims
    nothing by itself, so it needs an epsilon, and delta is 0 for it.
    """
    function = load_function(text)
    if function is None:
        return of_defense(
            defenses.parse(text),
            params,
            neighbours=neighbours,
            epsilon=epsilon,
            delta=delta,
        )
    if epsilon is None:
        raise InputError(f"{text} claims nothing by itself; say which epsilon to test")
    size = sum(int(leaf.size) for leaf in jax.tree.leaves(params))
    return of_function(
        text,
        function,
        size,
        Claim(epsilon),
        neighbours=neighbours or Neighbours.LOCAL,
    )


class _DefenseRelease:
    """A defense as a function of one unit's vector, in round 0."""

    def __init__(self, defense: Defense, params: PyTree) -> None:
        self._points = (defense.per_example, defense.update, defense.server)
        self._params = params

    def __call__(self, key: Key, vector: jax.Array) -> jax.Array:
        """Returns the vector after the defense's three points."""
        _, unflatten = flatten(self._params)
        tree = jax.tree.map(lambda leaf: leaf[None], unflatten(vector))
        for index, transforms in enumerate(self._points):
            states = init_states(transforms, self._params)
            point_key = jax.random.fold_in(key, index)
            tree, _ = run(transforms, point_key, tree, states, 0)
        return flatten(tree)[0]


def _usual_neighbours(mechanisms: tuple[Mechanism, ...]) -> Neighbours:
    randomizers = [entry.kind is NoiseKind.RANDOMIZER for entry in mechanisms]
    return Neighbours.LOCAL if all(randomizers) else Neighbours.ADD_REMOVE


def _canary_blocks(mechanisms: tuple[Mechanism, ...], sizes: tuple[int, ...]) -> Blocks:
    """Returns a canary beyond the clip, per tensor where tensors are clipped apart."""
    if not mechanisms:
        return Blocks((sum(sizes),), 1.0)
    clips = [mechanism.clip(0) for mechanism in mechanisms]
    per_tensor = any(
        mechanism.per_tensor and clip is not None
        for mechanism, clip in zip(mechanisms, clips, strict=True)
    )
    blocks = sizes if per_tensor else (int(np.sum(sizes)),)
    bounds = [clip for clip in clips if clip is not None]
    randomizer = all(entry.kind is NoiseKind.RANDOMIZER for entry in mechanisms)
    if bounds:  # a randomizer sends a direction: there is no clip to be missing
        return Blocks(blocks, max(bounds) * (1.0 if randomizer else _BEYOND))
    return Blocks(blocks, max(entry.sensitivity(0) for entry in mechanisms))
