"""The victims of an attack and what leaks from them, round and defense included.

Every victim is a client of one federated round: its batch is the private data, and
the adversary reads where its type says. Observations are made in fixed groups of
clients and on demand, so that neither the attack's memory nor its numbers depend on
how many victims there are or in which order they are served.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Victims
from gradaudit.data import Dataset
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, ServerState, initial_state
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.federation.taps import observe_many
from gradaudit.models.gradients import check_batch
from gradaudit.models.model import Model
from gradaudit.types import Key, Leakage, Observation, Victim

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
        setting: Setting,
        round_index: int = 0,
        labels_known: bool = False,  # the threat model hands the labels over
    ) -> None:
        count, each = setting.clients, setting.examples
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
        self._recipe = Recipe.of(model, defense, setting)
        self._population = Population.of(dataset, list(drawn))
        self._state = self._reach(model.init(params_key), round_index)
        self._observed = functools.lru_cache(maxsize=4)(self._leak)
        self._private: dict[int, Victim] = {}  # by group

    def victims(self) -> Victims:
        """Returns the attacker's side."""
        return Victims(self.count, self.observe)

    def observe(self, ids: NDArray[np.int64]) -> Observation:
        """Returns what leaks from these victims, stacked."""
        gradient = _rows(ids, lambda group: self._observed(group).gradient)
        return dataclasses.replace(
            self._observed(int(ids[-1]) // _GROUP),
            params=self._state.params,
            gradient=gradient,
            labels=self.truth(ids).labels if self._labels_known else None,
        )

    def truth(self, ids: NDArray[np.int64]) -> Victim:
        """Returns the private data: for evaluators only."""
        private: Victim = _rows(ids, self._private_data)
        return private

    def _private_data(self, group: int) -> Victim:
        """Returns a group's private data; gradients are large and not kept."""
        if group not in self._private:
            self._observed(group)
        return self._private[group]

    def _leak(self, group: int) -> Observation:
        """Observes a group; takes note of whom it belongs to."""
        size = min(_GROUP, self.count)
        start = min(group * _GROUP, self.count - size)  # full groups: one trace
        observation, victims = observe_many(
            self._recipe,
            self._population,
            self._key,
            self._state,
            self._leakage,
            list(range(start, start + size)),
        )
        shift = group * _GROUP - start
        gradient, self._private[group] = jax.tree.map(
            lambda leaf: np.asarray(leaf)[shift:], (observation.gradient, victims)
        )
        return dataclasses.replace(observation, gradient=gradient)

    def _reach(self, params: object, round_index: int) -> ServerState:
        state = initial_state(self._recipe, params)
        everybody = np.arange(self.count)
        for _ in range(round_index):
            state, _ = run_round(
                self._recipe, self._population, self._key, state, everybody
            )
        return state


def _rows(ids: NDArray[np.int64], of_group: Callable[[int], Any]) -> Any:
    """Gathers victims out of their groups."""
    rows = [
        jax.tree.map(lambda leaf, row=i % _GROUP: leaf[row], of_group(int(i) // _GROUP))
        for i in ids
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
