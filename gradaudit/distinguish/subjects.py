"""What is put to the test: a defense or a user's function, and what it claims."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import defenses
from gradaudit.defenses.transforms import Defense, init_states, run
from gradaudit.distinguish.bounds import check_epsilon
from gradaudit.errors import InputError
from gradaudit.mechanism import Mechanism, NoiseKind
from gradaudit.text import load_user_object, takes, users_code
from gradaudit.tree import flatten, size
from gradaudit.types import Key, PyTree

Release = Callable[[Key, jax.Array], jax.Array]  # (key, (d,)) -> (d,)


class Neighbours(enum.Enum):
    """Which pairs a privacy claim is about."""

    LOCAL = "local"  # any two inputs: distance up to twice the clip
    ADD_REMOVE = "add-remove"  # an input and none: distance up to the clip


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Two vectors, (2, d), and what they are called."""

    name: str
    vectors: jnp.ndarray


def pairs(
    sizes: Sequence[int], norm: float, neighbours: Neighbours
) -> tuple[Pair, ...]:
    """Returns the pairs to try for a claim about these neighbours.

    They are made of spikes: at the first or the last coordinate of each block of a
    vector, as high as the norm.
    """
    if not len(sizes) or not min(sizes) >= 1:
        raise InputError(
            f"a vector needs at least one coordinate in every block, got {sizes}"
        )
    if not norm > 0:
        raise InputError(f"the canary's norm must be positive, got {norm}")
    ends = np.cumsum(sizes)
    spike, other = np.zeros((2, ends[-1]), np.float32)
    spike[ends - np.array(sizes)] = norm
    other[ends - 1] = norm
    nothing = Pair("present and absent", jnp.stack([spike, np.zeros_like(spike)]))
    if neighbours is Neighbours.ADD_REMOVE:
        return (nothing,)
    opposite = Pair("opposite", jnp.stack([spike, -spike]))
    if len(spike) == len(sizes):  # one coordinate per block: no other direction
        return (opposite, nothing)
    return opposite, Pair("orthogonal", jnp.stack([spike, other])), nothing


DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Claim:
    """(epsilon, delta) for a pair of neighbours."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must lie in [0, 1), got {self.delta}")


def claimed_by(
    mechanisms: tuple[Mechanism, ...], neighbours: Neighbours, delta: float = DELTA
) -> Claim:
    """Returns what the noise claims in round 0: that a change of norm S is hidden.

    Two inputs (local neighbours) differ by up to 2 S. Pure mechanisms claim delta = 0.
    """
    times = _distance(mechanisms, neighbours)
    kinds = {mechanism.kind for mechanism in mechanisms}
    scales = [mechanism.multiplier(0) for mechanism in mechanisms]
    if not kinds or min(scales) <= 0:
        raise InputError(
            "the mechanism claims no privacy of its own; say which epsilon to test it "
            "against (epsilon)"
        )
    if kinds == {NoiseKind.GAUSSIAN}:
        sigma = sum(scale**-2 for scale in scales) ** -0.5
        return Claim(_gaussian(sigma / times, delta), delta)
    if NoiseKind.GAUSSIAN in kinds:
        raise InputError(
            "the mechanism mixes Gaussian and pure noise; say which epsilon to test it "
            "against (epsilon)"
        )
    return Claim(times * sum(scales))


def closed_form(
    mechanisms: tuple[Mechanism, ...],
    neighbours: Neighbours,
    tensors: int,
    size: int,
    delta: float = DELTA,
) -> float | None:
    """Returns the exact epsilon of one release at the worst pair, or None if unknown.

    It counts what the clip really allows: C * sqrt(tensors) when every tensor is
    clipped on its own. Unknown: several mechanisms, no clip, data-dependent noise.
    """
    if len(mechanisms) != 1:
        return None
    mechanism, times = mechanisms[0], _distance(mechanisms, neighbours)
    clip, scale = mechanism.clip(0), mechanism.multiplier(0)
    if clip is None or mechanism.data_dependent or mechanism.on_batch_sum:
        return None
    if mechanism.kind is NoiseKind.RANDOMIZER:
        return scale
    change = times * clip / mechanism.sensitivity(0)
    blocks = tensors if mechanism.per_tensor else 1
    if mechanism.kind is NoiseKind.LAPLACE:
        # Blocks add up in L1; an L2 ball reaches sqrt(d) times its radius in L1.
        widest = blocks if mechanism.norm == 1 else math.sqrt(blocks * size)
        return scale * change * widest
    if mechanism.norm == 1:
        blocks = 1  # an L1 ball lies in the L2 ball of its radius
    return _gaussian(scale / (change * math.sqrt(blocks)), delta) if scale else math.inf


def _distance(mechanisms: tuple[Mechanism, ...], neighbours: Neighbours) -> int:
    """How many times S neighbours differ by; a randomizer has no S to multiply."""
    return 2 if neighbours is Neighbours.LOCAL and not _randomize(mechanisms) else 1


def _randomize(mechanisms: tuple[Mechanism, ...]) -> bool:
    """Returns whether all of them are local randomizers."""
    return all(entry.kind is NoiseKind.RANDOMIZER for entry in mechanisms)


def _gaussian(sigma: float, delta: float) -> float:
    """Returns the exact epsilon of the Gaussian mechanism of sensitivity 1."""
    import dp_accounting

    if not delta > 0:
        raise InputError(f"Gaussian noise needs a positive delta, got {delta}")
    return float(dp_accounting.get_epsilon_gaussian(sigma, delta))


def load_function(text: str) -> Release | None:
    """Returns the function of `path.py:name` if it takes (key, vector), else None."""
    path, _, name = text.partition(":")
    if not path.endswith(".py") or not name.isidentifier():
        return None
    found: Release = load_user_object(path, name)
    # A defense of a user's can be called without arguments, or is one.
    needs_two = takes(found, 2) and not takes(found, 0)
    return found if needs_two and not isinstance(found, type) else None


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
) -> Subject:
    """Returns a function (key, vector) -> vector with canaries of norm 1."""
    return Subject(name, release, pairs((size,), 1.0, neighbours), claim)


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
        local = _randomize(mechanisms)
        neighbours = Neighbours.LOCAL if local else Neighbours.ADD_REMOVE
    sizes = tuple(int(leaf.size) for leaf in jax.tree.leaves(params))
    blocks, norm = _canaries(mechanisms, sizes)
    pure = all(entry.kind is not NoiseKind.GAUSSIAN for entry in mechanisms)
    if epsilon is None:
        claim = claimed_by(mechanisms, neighbours, delta)
    else:
        claim = Claim(epsilon, 0.0 if mechanisms and pure else delta)
    return Subject(
        name=defense.name,
        release=_release_of(defense, params),
        pairs=pairs(blocks, norm, neighbours),
        claim=claim,
        closed_form=closed_form(mechanisms, neighbours, len(sizes), sum(sizes), delta),
        caveats=tuple(text for entry in mechanisms for text in entry.caveats),
    )


def check_release(key: Key, release: Release, vector: jax.Array) -> None:
    """Raises `InputError` unless the mechanism returns finite values of one shape."""
    try:
        with users_code():
            output = jax.jit(release)(key, vector)
    except InputError:
        raise
    except Exception as error:
        first_line = str(error).strip().split("\n")[0]
        raise InputError(
            "the mechanism failed on a vector of "
            f"{vector.size} numbers: {type(error).__name__}: {first_line}; it must be "
            "a function (key, vector) -> vector in jax.numpy"
        ) from error
    shape = getattr(output, "shape", type(output).__name__)
    if shape != vector.shape:
        raise InputError(
            f"the mechanism must return the shape of its input, {vector.shape}, "
            f"got {shape}"
        )
    bad = int(jnp.sum(~jnp.isfinite(output)))
    if bad:
        raise InputError(
            f"the mechanism returned {bad} of {vector.size} values that are NaN or "
            "infinite for a finite vector"
        )


def load_subject(
    mechanism: str | Defense,
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
    function = load_function(mechanism) if isinstance(mechanism, str) else None
    if function is None:
        return of_defense(
            defenses.parse(mechanism),
            params,
            neighbours=neighbours,
            epsilon=epsilon,
            delta=delta,
        )
    if epsilon is None:
        raise InputError(
            f"{mechanism} claims nothing by itself; say which epsilon to test"
        )
    neighbours = neighbours or Neighbours.LOCAL
    claim = Claim(epsilon)
    return of_function(
        str(mechanism), function, size(params), claim, neighbours=neighbours
    )


def _release_of(defense: Defense, params: PyTree) -> Release:
    """Returns a defense as a function of one unit's vector, in round 0."""
    _, unflatten = flatten(params)

    def release(key: Key, vector: jax.Array) -> jax.Array:
        tree = jax.tree.map(lambda leaf: leaf[None], unflatten(vector))
        points = (defense.per_example, defense.update, defense.server)
        for index, transforms in enumerate(points):
            states = init_states(transforms, params)
            point_key = jax.random.fold_in(key, index)
            tree, _ = run(transforms, point_key, tree, states, 0)
        return flatten(tree)[0]

    return release


def _canaries(
    mechanisms: tuple[Mechanism, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    """Returns blocks and a norm beyond the clip; tensors if they are clipped apart."""
    whole = (sum(sizes),)
    if not mechanisms:
        return whole, 1.0
    bounded = [entry for entry in mechanisms if entry.clip(0) is not None]
    blocks = sizes if any(entry.per_tensor for entry in bounded) else whole
    clips = [clip for clip in (entry.clip(0) for entry in bounded) if clip is not None]
    if not clips:
        return blocks, max(entry.sensitivity(0) for entry in mechanisms)
    # A randomizer sends a direction: there is no clip to be missing.
    return blocks, max(clips) * (1.0 if _randomize(mechanisms) else _BEYOND)
