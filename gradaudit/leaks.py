"""The victims of an attack and what leaks from them, round and defense included.

Every victim is a client of one federated round: its batch is the private data, and
the adversary reads where its type says. Observations are made in fixed groups of
clients and on demand, so that neither the attack's memory nor its numbers depend on
how many victims there are or in which order they are served.
"""

import dataclasses
import functools

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Victims
from gradaudit.config import Federation
from gradaudit.data import Dataset
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError
from gradaudit.federation import (
    Population,
    Recipe,
    ServerState,
    initial_state,
    observe_many,
    run_round,
)
from gradaudit.kernels import check_batch
from gradaudit.types import Key, Leakage, Model, Observation, Victim

_GROUP = 32  # clients that are observed together


class Leaks:
    """Draws victims from a dataset, runs the round, and answers for both sides.

    The attacker's side is `victims()`; `truth(ids)` is the evaluator's.
    """

    def __init__(
        self,
        key: Key,
        model: Model,
        dataset: Dataset,
        defense: Defense,
        leakage: Leakage,
        federation: Federation,
        round_index: int = 0,
        labels_known: bool = False,  # the threat model hands the labels over
    ) -> None:
        count, each = federation.clients, federation.examples
        if count * each > len(dataset):
            raise InputError(
                f"{count} victims of {each} examples need {count * each} examples; "
                f"dataset {dataset.name!r} has {len(dataset)}: at most "
                f"{len(dataset) // each} victims"
            )
        check_batch(model, dataset.inputs[:1], dataset.labels[:1])
        params_key, order_key, self._key = jax.random.split(key, 3)
        order = np.asarray(jax.random.permutation(order_key, len(dataset)))
        drawn = order[: count * each].reshape(count, each)
        others = order[count * each :]  # all that is no victim; there may be none
        self.public_inputs = dataset.inputs[others]
        self.public_labels = dataset.labels[others]
        self.count = count
        self._leakage = leakage
        self._labels_known = labels_known
        self._recipe = Recipe.of(model, defense, federation)
        self._population = Population.of(dataset, list(drawn))
        self._state = self._reach(model.init(params_key), round_index)
        self._cached_group = functools.lru_cache(maxsize=4)(self._observe_group)

    def victims(self) -> Victims:
        """Returns the attacker's side."""
        return Victims(self.count, self.observe)

    def observe(self, ids: NDArray[np.int64]) -> Observation:
        """Returns what leaks from these victims, stacked."""
        return self._gather(ids)[0]

    def truth(self, ids: NDArray[np.int64]) -> Victim:
        """Returns the private data: for evaluators only."""
        return self._gather(ids)[1]

    def _gather(self, ids: NDArray[np.int64]) -> tuple[Observation, Victim]:
        groups = {group: self._cached_group(int(group)) for group in set(ids // _GROUP)}
        rows = [
            jax.tree.map(
                lambda leaf, row=i % _GROUP: leaf[row],
                (groups[i // _GROUP][0].gradient, groups[i // _GROUP][1]),
            )
            for i in ids
        ]
        gradient, victim = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        any_group = next(iter(groups.values()))[0]
        observation = Observation(
            params=self._state.params,
            gradient=gradient,
            labels=victim.labels if self._labels_known else None,
            leakage=any_group.leakage,
            batch_size=any_group.batch_size,
            local_steps=any_group.local_steps,
            learning_rate=any_group.learning_rate,
        )
        return observation, victim

    def _observe_group(self, group: int) -> tuple[Observation, Victim]:
        size = min(_GROUP, self.count)
        start = min(group * _GROUP, self.count - size)  # full groups: one trace
        observed = observe_many(
            self._recipe,
            self._population,
            self._key,
            self._state,
            self._leakage,
            list(range(start, start + size)),
        )
        shift = group * _GROUP - start
        leaked: tuple[Observation, Victim] = jax.tree.map(np.asarray, observed)
        if not shift:
            return leaked
        observation, victim = leaked
        gradient, victim = jax.tree.map(
            lambda leaf: leaf[shift:], (observation.gradient, victim)
        )
        return dataclasses.replace(observation, gradient=gradient), victim

    def _reach(self, params: object, round_index: int) -> ServerState:
        state = initial_state(self._recipe, params)
        everybody = np.arange(self.count)
        for _ in range(round_index):
            state, _ = run_round(
                self._recipe, self._population, self._key, state, everybody
            )
        return state
