"""Scenarios: where observations come from, and, apart from them, the truth.

The attacker's side is `groups()`: observations, a group for every draw of the network.
The evaluator's side is `truth(ids)`. Attack code never gets hold of the second.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.attacks.base import Victims
from gradaudit.audit.training_plan import RecordedTraining
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense, ToldDefense
from gradaudit.errors import InputError
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, ServerState, initial_state
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.federation.taps import observe_many, private_data
from gradaudit.models.model import Model, check_batch
from gradaudit.types import HostOrDevice, Key, Leakage, Observation, PyTree, Victim

_CHUNK = 32  # clients that are observed together: speed and memory, no number

MOST_LOOKS = 64  # at one victim: each has a network of its own in the objective

_PUBLIC = 256  # examples of the same kind that a threat may hand over

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Group:
    """The victims that share one set of parameters; ids are the scenario's."""

    ids: Ids
    victims: Victims  # observes positions in `ids`


class Scenario(Protocol):
    """Where victims come from: simulated, recorded, or captured in files."""

    count: int
    draws: list[Ids]  # victims that share a draw of the network

    @property
    def dataset(self) -> Dataset:
        """The private data's set: for evaluators only."""

    @property
    def params(self) -> PyTree:
        """The parameters of the first victims: their shapes are those of all."""

    @property
    def states(self) -> tuple[ServerState, ...]:
        """What the round began with, of each draw; nothing if it was not ours."""

    def groups(self) -> Iterator[Group]:
        """Yields the attacker's side, a group for each set of parameters."""

    def truth(self, ids: Ids) -> Victim:
        """Returns the private data, stacked: for evaluators only."""


class Simulated:
    """Victims drawn from a data set, each a client of one federated round.

    Every draw of the network has its own round, with its own clients; what is read of
    a client is addressed by round and client. Observations are made on demand, so that
    neither the attack's memory nor its numbers depend on how many victims there are.
    """

    def __init__(
        self,
        key: Key,
        model: Model,
        dataset: Dataset,
        defense: Defense,
        leakage: Leakage,
        setting: Setting,
        round_index: int = 0,
        draws: int = 1,
        labels_known: bool = False,
        defense_known: bool = False,
        public_known: bool = False,
        looks: int = 1,
        start: tuple[PyTree, PyTree] | None = None,
    ) -> None:
        count, each = setting.clients, setting.examples
        _check_looks(looks, leakage, setting)
        if count * each > len(dataset):
            raise InputError(
                f"{count} victims of {each} examples need {count * each} examples; "
                f"dataset {dataset.name!r} has {len(dataset)}: at most "
                f"{len(dataset) // each} victims"
            )
        if not 1 <= draws <= count:
            raise InputError(
                f"draws must lie in 1..{count}, the number of victims, got {draws}"
            )
        check_batch(model, dataset.inputs[:1], dataset.labels[:1])
        params_key, order_key, self._key = jax.random.split(key, 3)
        order = np.asarray(jax.random.permutation(order_key, len(dataset)))
        drawn = order[: count * each].reshape(count, each)
        self.dataset, self.count = dataset, count
        self._leakage, self._labels_known = leakage, labels_known
        self._defense_known = defense_known
        others = order[count * each :][:_PUBLIC]  # whom nobody attacks
        self._public = _public(dataset.inputs[others]) if public_known else None
        self._recipe = Recipe.of(model, defense, setting)
        self._population = Population.of(dataset, list(drawn))
        self.draws = np.array_split(np.arange(count), draws)
        self._participants = self.draws
        self._states = [
            self._reach(_draw_key(params_key, draw), ids, round_index, start)
            for draw, ids in enumerate(self.draws)
        ]
        # What the rounds of the later looks began with, of each draw.
        self._later = [
            self._onward(state, ids, looks - 1)
            for state, ids in zip(self._states, self.draws, strict=True)
        ]

    @classmethod
    def recorded(
        cls,
        run: RecordedTraining,
        leakage: Leakage,
        victims: int,
        labels_known: bool = False,
        defense_known: bool = False,
        public_known: bool = False,
    ) -> Self:
        """Returns a round of a training that took place, read as it was run.

        The victims are the first of the clients that took part.
        """
        if not 1 <= victims <= len(run.participants):
            raise InputError(
                f"{len(run.participants)} clients took part in round {run.round}: ask "
                f"for 1..{len(run.participants)} victims, not {victims}"
            )
        made = cls.__new__(cls)
        everybody = np.asarray(run.participants, np.int64)
        made.dataset, made.count = run.plan.data[0], victims
        made._key, made._leakage, made._labels_known = run.key, leakage, labels_known
        made._defense_known = defense_known
        unseen = run.plan.data[1].inputs[:_PUBLIC]  # what nobody trains on
        made._public = _public(unseen) if public_known else None
        made._recipe = run.training.recipe
        made._population = run.training.population
        made.draws, made._participants = [everybody[:victims]], [everybody]
        made._states, made._later = [run.state], [[]]
        return made

    def under(self, model: Model) -> Self:
        """Returns the same round of another model that has these weights and buffers.

        So what batch norm learned in training mode is read in evaluation mode.
        """
        key, state = jax.random.key(0), self._states[0]
        made = [jax.eval_shape(m, key) for m in (model.init, model.initial_buffers)]
        expected, found = (
            dict(
                zip(tree.names(each), map(np.shape, jax.tree.leaves(each)), strict=True)
            )
            for each in (made, [state.params, state.buffers])
        )
        if expected != found:
            raise InputError(
                f"model {model.name!r} has other tensors than what was trained as "
                f"{self.model.name!r}: leave --model out"
            )
        again = copy.copy(self)
        again._recipe = dataclasses.replace(self._recipe, model=model)
        return again

    def handing_out(self, alter: Callable[[Model, HostOrDevice], Model]) -> Self:
        """Returns the round in which a malicious server alters what it hands out.

        What the honest network has learned by then stays; transforms begin anew.
        """
        public = self._public
        if public is None:
            raise InputError(
                "a malicious server needs public examples to choose its parameters by, "
                "and every example is a victim's: take fewer victims"
            )
        model = alter(self.model, public)
        recipe = dataclasses.replace(self._recipe, model=model)
        fresh = model.init(jax.random.key(0))  # what it adds is not drawn

        def handed_out(state: ServerState) -> ServerState:
            params = {**fresh, **state.params}
            anew = initial_state(recipe, params, state.buffers)
            return dataclasses.replace(anew, round=state.round)

        made = copy.copy(self)
        made._recipe, made._states = recipe, [handed_out(s) for s in self._states]
        return made

    def groups(self) -> Iterator[Group]:
        """Yields the attacker's side, a group for every draw of the network."""
        for clients, everybody, state, later in zip(
            self.draws, self._participants, self._states, self._later, strict=True
        ):
            readers = [
                (at, functools.lru_cache(maxsize=4)(
                    functools.partial(self._chunk, clients, everybody, at)
                ))
                for at in (state, *later)
            ]  # fmt: skip
            observe = functools.partial(self._observe, clients, readers)
            yield Group(self._positions(clients), Victims(len(clients), observe))

    def truth(self, ids: Ids) -> Victim:
        """Returns the private data, stacked: for evaluators only."""
        clients = np.concatenate(self.draws)[ids]
        parts = []
        for start in range(0, max(len(clients), 1), _CHUNK):
            chunk = clients[start : start + _CHUNK]
            padded = np.resize(chunk, _CHUNK)  # one shape, one trace
            private = self._private(padded)
            count = len(chunk)
            parts.append(jax.tree.map(lambda leaf, n=count: leaf[:n], private))
        joined: Victim = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return joined

    @property
    def model(self) -> Model:
        """The model as clients receive it."""
        return self._recipe.model

    @property
    def states(self) -> tuple[ServerState, ...]:
        """What the round that is read (the last one) began with, of each draw."""
        begun = zip(self._states, self._later, strict=True)
        return tuple([first, *later][-1] for first, later in begun)

    @property
    def params(self) -> PyTree:
        """The parameters of the first draw: their shapes are those of all."""
        return self._states[0].params

    def _positions(self, clients: Ids) -> Ids:
        everybody = np.concatenate(self.draws)
        return np.flatnonzero(np.isin(everybody, clients))

    def _observe(
        self,
        clients: Ids,
        readers: Sequence[tuple[ServerState, Callable[[int], Observation]]],
        positions: Ids,
    ) -> Observation:
        first, *others = [self._look(*reader, positions) for reader in readers]
        labels = None
        if self._labels_known:
            labels = self._private(np.resize(clients[positions], _CHUNK)).labels
            labels = labels[: len(positions)]
        return dataclasses.replace(
            first, labels=labels, public=self._public, others=tuple(others)
        )

    def _look(
        self,
        state: ServerState,
        observed: Callable[[int], Observation],
        positions: Ids,
    ) -> Observation:
        """Returns what is read of some clients in the round that begins so."""
        sent, buffers = _rows(positions, lambda chunk: _sent(observed(chunk)))
        template = observed(int(positions[-1]) // _CHUNK)
        told = self._told(state)
        return dataclasses.replace(
            template,
            params=state.params,
            sent=sent,
            sent_buffers=buffers,
            told=told,
            memory=() if told is None else _memory(state, len(told.at_updates)),
        )

    def _told(self, state: ServerState) -> ToldDefense | None:
        """Returns the defense up to where the adversary reads, if it is told."""
        recipe, leakage = self._recipe, self._leakage
        server = recipe.server if leakage is Leakage.SERVER else ()
        updates = () if leakage is Leakage.EXAMPLE else (*recipe.update, *server)
        if not self._defense_known or not (recipe.per_example or updates):
            return None
        reads_updates = leakage is not Leakage.EXAMPLE
        return ToldDefense(recipe.per_example, updates, reads_updates, int(state.round))

    def _chunk(
        self, clients: Ids, everybody: Ids, state: ServerState, chunk: int
    ) -> Observation:
        """Observes some neighbours; the last chunk overlaps: one shape, one trace."""
        whole_round = self._leakage is Leakage.SERVER and self._recipe.server_sees_round
        size = len(clients) if whole_round else min(_CHUNK, len(clients))
        start = min(chunk * _CHUNK, len(clients) - size)
        observation = observe_many(
            self._recipe,
            self._population,
            self._key,
            state,
            self._leakage,
            clients[start : start + size].tolist(),
            participants=everybody.tolist(),
        )
        shift = chunk * _CHUNK - start
        return observation.per_victim(lambda leaf: np.asarray(leaf)[shift:])

    def _private(self, clients: Ids) -> Victim:
        """Returns what these clients used in the round, in the order of use."""
        used = private_data(
            self._recipe,
            self._population,
            self._key,
            self._states[0],  # of which only the round is read: equal for all draws
            jnp.asarray(clients, jnp.int32),
        )
        read = slice(0, 1) if self._leakage is Leakage.EXAMPLE else slice(None)
        cut: Victim = jax.tree.map(lambda leaf: np.asarray(leaf)[:, read], used)
        return cut

    def _reach(
        self,
        key: Key,
        clients: Ids,
        round_index: int,
        start: tuple[PyTree, PyTree] | None,
    ) -> ServerState:
        """Trains up to a round, from these parameters and buffers or from a draw."""
        model = self._recipe.model
        params, buffers = start or (model.init(key), model.initial_buffers(key))
        state = initial_state(self._recipe, params, buffers)
        return [state, *self._onward(state, clients, round_index)][-1]

    def _onward(
        self, state: ServerState, clients: Ids, rounds: int
    ) -> list[ServerState]:
        """Returns what each of the next rounds begins with."""
        states = []
        for _ in range(rounds):
            state, _ = run_round(
                self._recipe, self._population, self._key, state, clients
            )
            states.append(state)
        return states


def _check_looks(looks: int, leakage: Leakage, setting: Setting) -> None:
    """Raises unless every look is at the same examples."""
    alone = leakage is Leakage.EXAMPLE and setting.batch_size > 1
    if looks != 1 and (setting.local_steps != 1 or alone):
        raise InputError(
            "several looks must be at the same examples, and a client that holds more "
            "than one step reads takes others in every round: leave local_steps out"
            + ", and batch_size for type 2"
            * (leakage is Leakage.EXAMPLE)
        )


def _sent(observation: Observation) -> tuple[PyTree, PyTree]:
    return observation.sent, observation.sent_buffers


def _public(examples: NDArray[np.float32]) -> NDArray[np.float32] | None:
    return examples if len(examples) else None


def _memory(state: ServerState, transforms: int) -> PyTree:
    """Returns the states of what was told: at the examples, and at the update."""
    return state.per_example, (*state.update, *state.server)[:transforms]


def _draw_key(key: Key, draw: int) -> Key:
    """The first draw is what a run of one draw has."""
    return key if draw == 0 else jax.random.fold_in(key, draw)


def _rows(ids: Ids, of_chunk: Callable[[int], Any]) -> Any:
    """Gathers victims out of their chunks."""
    rows = [
        jax.tree.map(lambda leaf, row=i % _CHUNK: leaf[row], of_chunk(int(i) // _CHUNK))
        for i in ids
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
