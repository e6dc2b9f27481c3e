"""Scenarios: where observations come from, and, apart from them, the truth.

The attacker's side is `groups()`: observations, a group for every draw of the network.
The evaluator's side is `truth(ids)`. Attack code never gets hold of the second.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Victims
from gradaudit.audit.threat import Threat, transforms_seen
from gradaudit.audit.training_plan import RecordedTraining
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.line_up import told
from gradaudit.errors import InputError
from gradaudit.federation.recipe import Population, Recipe, ServerState, initial_state
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.federation.taps import observe_many, private_data
from gradaudit.models.model import Model, check_batch
from gradaudit.types import (
    HostOrDevice,
    Key,
    Knowledge,
    Leakage,
    Observation,
    PyTree,
    Victim,
)

_CHUNK = 32  # clients that are observed together: speed and memory, no number

MOST_LOOKS = 64  # at one victim: each has a network of its own in the objective

_LEARNING_RATE = 0.05  # of a client, unless it is said

_PUBLIC = 256  # examples of the same kind that a threat may hand over

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Group:
    """The victims that share one set of parameters; ids are the scenario's."""

    ids: Ids
    victims: Victims  # observes positions in `ids`


def one_round(
    victims: int, batch_size: int, local_steps: int, rounds: int = 1
) -> Setting:
    """Returns the setting of victims who all take part, and hold what a round takes."""
    return Setting(
        clients=victims,
        clients_per_round=victims,
        local_steps=local_steps,
        batch_size=batch_size,
        rounds=rounds,
        examples=batch_size * local_steps,
        learning_rate=_LEARNING_RATE,
    )


@dataclasses.dataclass(frozen=True)
class _Round:
    """What is read of one draw of the network."""

    clients: Ids  # the victims
    everybody: Ids  # who takes part
    states: tuple[ServerState, ...]  # what the round began with, at each look


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """Victims drawn from a data set, each a client of one federated round.

    Every draw of the network has its own round, with its own clients; what is read of
    a client is addressed by round and client. Observations are made on demand, so that
    neither the attack's memory nor its numbers depend on how many victims there are.
    """

    dataset: Dataset
    recipe: Recipe
    population: Population
    key: Key
    threat: Threat
    rounds: tuple[_Round, ...]  # of each draw
    unseen: NDArray[np.float32]  # examples of the same kind that nobody trains on

    @classmethod
    def drawn(
        cls,
        key: Key,
        model: Model,
        dataset: Dataset,
        defense: Defense,
        threat: Threat,
        setting: Setting,
        round_index: int = 0,
        draws: int = 1,
        start: tuple[PyTree, PyTree] | None = None,
    ) -> Self:
        """Returns clients that are dealt the data set, after rounds of training.

        The network begins from these parameters and buffers, or is drawn.
        """
        count, each = setting.clients, setting.examples
        _check_looks(threat, setting)
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
        params_key, order_key, key = jax.random.split(key, 3)
        order = np.asarray(jax.random.permutation(order_key, len(dataset)))
        recipe = Recipe.of(model, defense, setting)
        held, others = np.split(order, [count * each])
        population = Population.of(dataset, list(held.reshape(count, each)))
        rounds = []
        for draw, clients in enumerate(np.array_split(np.arange(count), draws)):
            # The first draw is what a run of one draw has.
            own = params_key if draw == 0 else jax.random.fold_in(params_key, draw)
            params, buffers = start or (model.init(own), model.initial_buffers(own))
            states = [initial_state(recipe, params, buffers)]
            for _ in range(round_index + threat.looks - 1):
                state, _ = run_round(recipe, population, key, states[-1], clients)
                states = [*states, state][-threat.looks :]
            rounds.append(_Round(clients, clients, tuple(states)))
        unseen = dataset.inputs[others[:_PUBLIC]]
        return cls(dataset, recipe, population, key, threat, tuple(rounds), unseen)

    @classmethod
    def recorded(cls, run: RecordedTraining, threat: Threat, victims: int) -> Self:
        """Returns a round of a training that took place, read as it was run.

        The victims are the first of the clients that took part.
        """
        if not 1 <= victims <= len(run.participants):
            raise InputError(
                f"{len(run.participants)} clients took part in round {run.round}: ask "
                f"for 1..{len(run.participants)} victims, not {victims}"
            )
        everybody = np.asarray(run.participants, np.int64)
        training, unseen = run.plan.data
        return cls(
            dataset=training,
            recipe=run.training.recipe,
            population=run.training.population,
            key=run.key,
            threat=threat,
            rounds=(_Round(everybody[:victims], everybody, (run.state,)),),
            unseen=unseen.inputs[:_PUBLIC],
        )

    def under(self, model: Model) -> Self:
        """Returns the same round of another model that has these weights and buffers.

        So what batch norm learned in training mode is read in evaluation mode.
        """
        state = self.rounds[0].states[0]
        expected = jax.tree.map(np.shape, model.shapes())
        if expected != jax.tree.map(np.shape, (state.params, state.buffers)):
            raise InputError(
                f"model {model.name!r} has other tensors than what was trained as "
                f"{self.model.name!r}: leave --model out"
            )
        recipe = dataclasses.replace(self.recipe, model=model)
        return dataclasses.replace(self, recipe=recipe)

    def handing_out(self, alter: Callable[[Model, HostOrDevice], Model]) -> Self:
        """Returns the round in which a malicious server alters what it hands out.

        What the honest network has learned by then stays; transforms begin anew.
        """
        public = self.public
        if public is None:
            raise InputError(
                "a malicious server needs public examples to choose its parameters by, "
                "and every example is a victim's: take fewer victims"
            )
        model = alter(self.model, public)
        recipe = dataclasses.replace(self.recipe, model=model)
        fresh = model.init(jax.random.key(0))  # what it adds is not drawn

        def handed_out(state: ServerState) -> ServerState:
            params = {**fresh, **state.params}
            anew = initial_state(recipe, params, state.buffers)
            return dataclasses.replace(anew, round=state.round)

        rounds = tuple(
            dataclasses.replace(each, states=tuple(map(handed_out, each.states)))
            for each in self.rounds
        )
        return dataclasses.replace(self, recipe=recipe, rounds=rounds)

    @property
    def count(self) -> int:
        """How many victims there are."""
        return sum(len(each.clients) for each in self.rounds)

    @property
    def draws(self) -> list[Ids]:
        """The victims that share a draw of the network, as clients."""
        return [each.clients for each in self.rounds]

    @property
    def model(self) -> Model:
        """The model as clients receive it."""
        return self.recipe.model

    @property
    def states(self) -> tuple[ServerState, ...]:
        """What the round that is read (the last one) began with, of each draw."""
        return tuple(each.states[-1] for each in self.rounds)

    @property
    def params(self) -> PyTree:
        """The parameters of the first draw: their shapes are those of all."""
        return self.rounds[0].states[0].params

    @property
    def public(self) -> NDArray[np.float32] | None:
        """The examples of the same kind that the adversary has, if any."""
        given = Knowledge.PUBLIC_DATA in self.threat.knows and len(self.unseen)
        return self.unseen if given else None

    @property
    def content(self) -> dict[str, Any]:
        """What decides the attack's numbers beside its arguments: data and weights."""
        weights = hashlib.sha256()
        for array in [*jax.tree.leaves(self.params), *self.draws]:
            weights.update(np.asarray(array).tobytes())
        return {"dataset": self.dataset.digest, "weights": weights.hexdigest()}

    def groups(self) -> Iterator[Group]:
        """Yields the attacker's side, a group for every draw of the network."""
        positions = np.array_split(np.arange(self.count), len(self.rounds))
        for ids, each in zip(positions, self.rounds, strict=True):
            chunks = [functools.partial(self._chunk, each, at) for at in each.states]
            looks = [
                (state, functools.lru_cache(maxsize=4)(chunk))
                for state, chunk in zip(each.states, chunks, strict=True)
            ]
            observe = functools.partial(self._observe, each.clients, looks)
            yield Group(ids, Victims(len(ids), observe))

    def truth(self, ids: Ids) -> Victim:
        """Returns the private data, stacked: for evaluators only."""
        return self._private(np.concatenate(self.draws)[ids])

    def _observe(
        self,
        clients: Ids,
        looks: Sequence[tuple[ServerState, Callable[[int], Observation]]],
        positions: Ids,
    ) -> Observation:
        """Returns what is read of some clients, in each of these rounds."""
        first, *others = [self._look(*look, positions) for look in looks]
        granted = Knowledge.LABELS in self.threat.knows
        labels = self._private(clients[positions]).labels if granted else None
        return dataclasses.replace(
            first, labels=labels, public=self.public, others=tuple(others)
        )

    def _look(
        self,
        state: ServerState,
        observed: Callable[[int], Observation],
        positions: Ids,
    ) -> Observation:
        """Returns what is read of some clients in the round that begins so."""
        chunks = [observed(int(position) // _CHUNK) for position in positions]
        rows = [
            jax.tree.map(
                lambda leaf, row=row: leaf[row], (chunk.sent, chunk.sent_buffers)
            )
            for chunk, row in zip(chunks, positions % _CHUNK, strict=True)
        ]
        sent, buffers = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        seen, threat = chunks[-1], self.threat
        granted = Knowledge.DEFENSE in threat.knows
        if granted and transforms_seen(self.recipe, threat.reads):
            seen = told(seen, self.recipe, state)
        return dataclasses.replace(
            seen, params=state.params, sent=sent, sent_buffers=buffers
        )

    def _chunk(self, read: _Round, state: ServerState, chunk: int) -> Observation:
        """Observes some neighbours; the last chunk overlaps: one shape, one trace."""
        leakage, clients = self.threat.reads, read.clients
        whole_round = leakage is Leakage.SERVER and self.recipe.server_sees_round
        size = len(clients) if whole_round else min(_CHUNK, len(clients))
        start = min(chunk * _CHUNK, len(clients) - size)
        observation = observe_many(
            self.recipe,
            self.population,
            self.key,
            state,
            leakage,
            clients[start : start + size].tolist(),
            participants=read.everybody.tolist(),
        )
        shift = chunk * _CHUNK - start
        return observation.per_victim(lambda leaf: np.asarray(leaf)[shift:])

    def _private(self, clients: Ids) -> Victim:
        """Returns what these clients used in the round, in the order of use."""
        read = slice(0, 1) if self.threat.reads is Leakage.EXAMPLE else slice(None)
        state = self.rounds[0].states[0]  # of which only the round is read
        parts = []
        for start in range(0, max(len(clients), 1), _CHUNK):
            chunk = clients[start : start + _CHUNK]
            padded = jnp.asarray(np.resize(chunk, _CHUNK), jnp.int32)  # one trace
            used = private_data(self.recipe, self.population, self.key, state, padded)
            cut = (slice(len(chunk)), read)
            parts.append(
                jax.tree.map(lambda leaf, cut=cut: np.asarray(leaf)[cut], used)
            )
        joined: Victim = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return joined


def _check_looks(threat: Threat, setting: Setting) -> None:
    """Raises unless every look is at the same examples."""
    single = threat.reads is Leakage.EXAMPLE
    several = setting.local_steps != 1 or (single and setting.batch_size > 1)
    if threat.looks != 1 and several:
        words = ", and batch_size for type 2" if single else ""
        raise InputError(
            "several looks must be at the same examples, and a client that holds more "
            "than one step reads takes others in every round: leave local_steps out"
            f"{words}"
        )
