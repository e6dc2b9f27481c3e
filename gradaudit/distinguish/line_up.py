"""The line-up: an informed adversary picks the victim out of n candidates.

It knows the defense and its parameters, so that it can compute what each candidate
would have sent and how likely what it read then is; it picks the likeliest, which no
rule beats (equal priors). No search: one gradient per candidate and look, and for
Gaussian noise an inner product, sum over looks of (<o, g_i> - |g_i|^2 / 2) / s^2.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.objective import expected_evidence
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense, ToldDefense, init_states
from gradaudit.evidence import Evidence
from gradaudit.federation.recipe import Population, Recipe, ServerState, initial_state
from gradaudit.federation.taps import observe_many, training_of
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, Leakage, Observation

Made = TypeVar("Made")
Ids = NDArray[np.int64]
Scores = NDArray[np.float32]  # (victims, pool)

_CHUNK = 64  # victims, and candidates, that are computed together: memory, no number
_KEPT = 12  # chunks of candidates that are kept, and of a draw parameters and defense
_EXACT = 1e-8  # variance, in units of a mean square reading, that counts as none


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Law:
    """How a reading scatters around what is expected; static."""

    peaked: bool = False
    sparse: bool = False
    thresholded: bool = False
    signs: bool = False
    opaque: str = ""  # no law is known: the direction is compared

    @classmethod
    def of(cls, evidence: Evidence) -> "Law":
        """Returns the law that the evidence states."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(evidence, name) for name in names})

    @property
    def normal(self) -> bool:
        """Whether it is Gaussian noise and nothing else."""
        return self == Law()


Expected = tuple[jax.Array, jax.Array, Law]  # what is sent, its variance, the law


def log_likelihood(
    law: Law, read: jax.Array, expected: jax.Array, variance: jax.Array
) -> jax.Array:
    """Returns log p(read | candidate) up to what all candidates share; all (d,).

    Where nothing random happens to a coordinate its error decides at once: the
    variance is floored far below the readings.
    """
    if law.opaque:
        return jnp.asarray(
            jnp.vdot(read, expected) / (jnp.linalg.norm(expected) + 1e-30)
        )
    if law.signs:
        return jnp.sum(jnp.sign(read) == jnp.sign(expected))
    floor = _EXACT * jnp.mean(jnp.square(read)) + 1e-30
    spread = jnp.maximum(variance, floor)
    error, counted = read - expected, jnp.ones_like(read)
    if law.sparse:
        sent = read != 0
        smallest = jnp.min(jnp.where(sent, jnp.abs(read), jnp.inf))
        beyond = jnp.maximum(jnp.abs(expected) - smallest, 0.0)
        error = jnp.where(sent, error, beyond if law.thresholded else 0.0)
        counted = sent.astype(read.dtype)
    if law.peaked:
        scale = jnp.sqrt(spread / 2)
        return -jnp.sum(jnp.abs(error) / scale + counted * jnp.log(scale))
    logs = counted * jnp.log(spread)
    return -jnp.sum(jnp.square(error) / spread + logs) / 2


@functools.partial(jax.jit, static_argnums=0)
def scores_by_likelihood(
    law: Law, read: jax.Array, expected: jax.Array, variance: jax.Array
) -> jax.Array:
    """Returns log p for readings (v, d) of candidates (n, d), as (v, n)."""

    def of(candidate: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.vmap(lambda row: log_likelihood(law, row, *candidate))(read)

    return jnp.transpose(jax.lax.map(of, (expected, variance)))


@jax.jit
def scores_by_product(
    total: jax.Array, looks: jax.Array | int, expected: jax.Array, variance: jax.Array
) -> jax.Array:
    """Returns the same for Gaussian noise of one variance (d,) in all candidates.

    `total` is the sum of the readings of so many looks at the same parameters.
    """
    weighted = expected / variance
    return total @ weighted.T - looks / 2 * jnp.sum(weighted * expected, axis=1)


@functools.partial(jax.jit, static_argnums=0)
def _expectations(
    model: Model, observation: Observation, population: Population, clients: jax.Array
) -> Expected:
    """Returns what each client would have sent, its variance, (clients, d), the law."""

    def one(client: jax.Array) -> Expected:
        places = population.starts[client] + jnp.arange(population.largest)
        chosen = population.indices[places]
        inputs, labels = population.inputs[chosen], population.labels[chosen]
        # The order in which a client uses its examples is not known: nothing to replay.
        evidence = expected_evidence(
            model, observation, False, inputs, one_hot(labels, model.classes)
        )
        leaves = [leaf[0] for leaf in jax.tree.leaves(evidence.expected)]
        spread = jax.tree.leaves(evidence.spread())
        variances = [
            jnp.broadcast_to(v[0] if v.ndim > leaf.ndim else v, leaf.shape)
            for v, leaf in zip(spread, leaves, strict=True)
        ]
        return _flat(leaves), _flat(variances), Law.of(evidence)

    return jax.vmap(one)(clients)


def _flat(leaves: Sequence[jax.Array], lead: int = 0) -> jax.Array:
    rows = [leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves]
    return jnp.concatenate(rows, axis=-1)


@dataclasses.dataclass(frozen=True)
class Group:
    """Clients that are each other's candidates, and who is the victim how often.

    Every line-up has a client of its own in the population, with the victim's data:
    what is read is addressed by client, so that no two line-ups share their noise.
    """

    pool: Ids  # (pool,) clients
    victims: Ids  # (line-ups,) positions in the pool
    read: Ids  # (line-ups,) clients


def _cut(group: Group) -> Iterator[tuple[Group, int]]:
    """Yields a group in chunks, and how many of each were in the one before."""
    count, size = len(group.read), min(_CHUNK, len(group.read))
    for begin in range(0, count, size):
        # The last chunk overlaps: one shape, one trace, and the same noise again.
        start = min(begin, count - size)
        cut = slice(start, start + size)
        yield Group(group.pool, group.victims[cut], group.read[cut]), begin - start


# Victims of each group (positions in its pool), and by looks the scores of the pool.
Played = list[tuple[Ids, dict[int, Scores]]]


class Game:
    """What is read of a victim, and what each candidate would have sent.

    `fresh`: every look has its own draw of the parameters; else all share one. With
    `state` they are not drawn: everything is read in this round of a training.
    """

    def __init__(
        self,
        recipe: Recipe,
        population: Population,
        leakage: Leakage,
        key: Key,
        fresh: bool = False,
        state: ServerState | None = None,
    ) -> None:
        self._recipe, self._population = recipe, population
        self._leakage, self._fresh, self._given = leakage, fresh, state
        self._model = recipe.model
        self._params_key, self._key = jax.random.split(key)
        self._kept: dict[Any, Any] = {}
        some = tuple(range(min(population.clients, _CHUNK)))
        _, variance, self.law = self._expected(0, some)
        # Whether all candidates share one Gaussian noise, on every coordinate.
        alike = jnp.all(variance == variance[0]) & jnp.all(variance > 0)
        self._normal = self.law.normal and bool(alike)

    def play(self, groups: Sequence[Group], looks: Sequence[int]) -> Iterator[Played]:
        """Yields some victims of some groups, and what their candidates scored.

        Small groups are read together, as many as have their candidates kept: but for
        scores, memory does not depend on how many victims or candidates there are.
        """
        chunks = max(-(-len(group.pool) // _CHUNK) for group in groups)
        widest = max(len(group.victims) for group in groups)
        most = max(1, min(_CHUNK // widest, (_KEPT - 2) // chunks))
        for some in np.array_split(np.arange(len(groups)), -(-len(groups) // most)):
            pieces = [piece for index in some for piece in _cut(groups[index])]
            for read in [[piece] for piece in pieces] if most == 1 else [pieces]:
                yield self._scored(read, sorted(set(looks)))

    def _scored(self, pieces: Sequence[tuple[Group, int]], looks: list[int]) -> Played:
        """Returns the scores of groups that are read together, each a chunk at most."""
        sizes = [len(group.read) for group, _ in pieces]
        rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        # One shape for every group: rows that are repeated are left out again.
        parts = [
            (group.pool, np.resize(own, max(sizes)))
            for (group, _), own in zip(pieces, rows, strict=True)
        ]
        clients = np.concatenate([group.read for group, _ in pieces])
        return [
            (group.victims[seen:], {k: v[seen:size] for k, v in scores.items()})
            for (group, seen), size, scores in zip(
                pieces, sizes, self._scores(parts, clients, looks), strict=True
            )
        ]

    def _scores(
        self, parts: Sequence[tuple[Ids, Ids]], clients: Ids, looks: list[int]
    ) -> list[dict[int, Scores]]:
        """Returns the scores of each pool for those rows of the clients."""
        found: list[dict[int, Scores]] = [{} for _ in parts]
        total: jax.Array | float = 0.0
        so_far = [np.zeros((len(rows), len(pool)), np.float32) for pool, rows in parts]
        for look in range(looks[-1]):
            draw = look if self._fresh else 0
            read = self._read(jax.random.fold_in(self._key, look), draw, clients)
            total = total + read
            asked = look + 1 in looks
            for part, (pool, rows) in enumerate(parts):
                if self._normal and not self._fresh:  # the sum says all that they say
                    if asked:
                        so_far[part] = self._rated(pool, draw, look + 1, total[rows])
                else:
                    so_far[part] = so_far[part] + self._rated(pool, draw, 1, read[rows])
                if asked:
                    found[part][look + 1] = so_far[part]
        return found

    def _rated(self, pool: Ids, draw: int, looks: int, read: jax.Array) -> Scores:
        """Returns the scores of the whole pool, some candidates at a time."""
        size = min(_CHUNK, len(pool))
        scores = np.empty((len(read), len(pool)), np.float32)
        for begin in range(0, len(pool), size):
            start = min(begin, len(pool) - size)
            chosen = slice(start, start + size)
            expected, variance, _ = self._expected(draw, tuple(pool[chosen].tolist()))
            if self._normal:
                each = scores_by_product(read, looks, expected, variance[0])
            else:
                each = scores_by_likelihood(self.law, read, expected, variance)
            scores[:, chosen] = each
        return scores

    def _read(self, key: Key, draw: int, clients: Ids) -> jax.Array:
        """Returns what leaks of these clients in one look, flat, (clients, d)."""
        ids = clients.tolist()
        recipe, people, state = self._recipe, self._population, self._state(draw)
        observation = observe_many(
            recipe, people, key, state, self._leakage, ids, participants=ids
        )
        return _flat(jax.tree.leaves(observation.gradient), lead=1)

    def _state(self, draw: int) -> ServerState:
        if self._given is not None:
            return self._given
        key = jax.random.fold_in(self._params_key, draw)

        def drawn() -> ServerState:
            params, buffers = self._model.init(key), self._model.initial_buffers(key)
            return initial_state(self._recipe, params, buffers)

        return self._cached(draw, drawn)

    def _expected(self, draw: int, clients: tuple[int, ...]) -> Expected:
        def made() -> Expected:
            ids, blank = jnp.asarray(clients, jnp.int32), self._template(draw)
            found: Expected = _expectations(self._model, blank, self._population, ids)
            return found

        return self._cached((draw, clients), made)

    def _cached(self, name: Any, make: Callable[[], Made]) -> Made:
        """Returns one of the last few that were made: memory stays flat."""
        if name not in self._kept:
            made = make()
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = made
        found: Made = self._kept[name]
        return found

    def _template(self, draw: int) -> Observation:
        """Returns an observation with the defense told, and nothing read."""

        def made() -> Observation:
            recipe, state = self._recipe, self._state(draw)
            leakage, training = self._leakage, training_of(recipe)
            blank = Observation(
                state.params, (), state.buffers, leakage=leakage, training=training
            )
            return told(blank, recipe, state)

        return self._cached(("told", draw), made)


def told(
    observation: Observation,
    defense: Defense | Recipe,
    state: ServerState | None = None,
) -> Observation:
    """Returns the observation with the defense handed over, up to where it was read.

    Without a state, its transforms are as they begin.
    """
    leakage = observation.leakage
    server = defense.server if leakage is Leakage.SERVER else ()
    updates = () if leakage is Leakage.EXAMPLE else (*defense.update, *server)
    if state is None:
        places, params = (defense.per_example, updates), observation.params
        memory, t = tuple(init_states(place, params) for place in places), 0
    else:
        sent = (*state.update, *state.server)[: len(updates)]
        memory, t = (state.per_example, sent), int(state.round)
    reads_updates = leakage is not Leakage.EXAMPLE
    known = ToldDefense(defense.per_example, updates, reads_updates, t)
    return dataclasses.replace(observation, told=known, memory=memory)


def scores_of(model: Model, observation: Observation, candidates: Population) -> Scores:
    """Returns log p of an observation for every candidate, (1, candidates).

    The defense has been `told` with it.
    """
    read = _flat(jax.tree.leaves(observation.gradient))[None]
    known = dataclasses.replace(observation, sent=())
    parts = []
    for start in range(0, candidates.clients, _CHUNK):
        ids = jnp.arange(start, min(start + _CHUNK, candidates.clients))
        expected, variance, law = _expectations(model, known, candidates, ids)
        parts.append(scores_by_likelihood(law, read, expected, variance))
    return np.concatenate(parts, axis=1)


WORST_SCALE = 1e4  # of a constructed gradient: far above any clip that is used


@dataclasses.dataclass(frozen=True)
class Constructed:
    """A network whose gradients are the corners of a centred simplex.

    The loss of the one-hot input e_i is linear in the parameters: in each of `tensors`
    tensors its gradient is e_i - 1/n, times a number that every clip cuts down. After
    the clip, n candidates are as far apart as the clip allows, which is the worst case
    of a line-up under Gaussian noise (or within a few percent of it).
    """

    tensors: int
    candidates: int

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns zeros: the gradient does not depend on the parameters."""
        del key, inputs
        blank = jnp.zeros(self.candidates, jnp.float32)
        return {"params": {f"tensor{i:03d}": blank for i in range(self.tensors)}}

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the linear loss as the only logit, (batch, 1)."""
        centred = inputs - 1 / self.candidates
        total = sum(jax.tree.leaves(variables["params"]))
        return WORST_SCALE * (centred @ total)[:, None]


def _logit_itself(logits: jax.Array, targets: jax.Array) -> jax.Array:
    del targets
    return logits[:, 0]


def worst_case(candidates: int, tensors: int) -> tuple[Model, Dataset]:
    """Returns the constructed network of so many tensors, and its candidates."""
    network = Constructed(tensors, candidates)
    model = Model("worst case", network, (candidates,), 1, example_loss=_logit_itself)
    inputs = np.eye(candidates, dtype=np.float32)
    labels = np.zeros(candidates, np.int32)
    return model, Dataset("worst case", inputs, labels, 1, "all", "")
