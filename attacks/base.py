"""What every attack shares: what it needs, what it hands in, what it can check."""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self, final

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.attacks import lanes
from gradaudit.attacks.lanes import Problem
from gradaudit.attacks.search import Ended, Ids, Watcher, search_all
from gradaudit.attacks.turns import Verdict, joined, take_turns
from gradaudit.errors import InputError
from gradaudit.models.gradients import has_kinks
from gradaudit.models.model import Model
from gradaudit.types import (
    HostOrDevice,
    Key,
    Knowledge,
    Observation,
    PyTree,
    Reconstruction,
    Status,
)


@dataclasses.dataclass(frozen=True)
class Victims:
    """The observations of some victims, stacked, on demand.

    `observe(ids)` returns an Observation whose `sent` (and labels, if known) have a
    leading axis of len(ids); parameters and buffers are shared by all. The loop asks;
    an attack's own code only ever receives arrays.
    """

    count: int
    observe: Callable[[Ids], Observation]

    @classmethod
    def single(cls, observation: Observation) -> Self:
        """Returns the one victim of one observation."""
        stacked = observation.per_victim(lambda leaf: np.asarray(leaf)[None])
        return cls(1, lambda ids: stacked)


class Attack:
    """An attack: a frozen dataclass; closed-form and iterative ones share this.

    An iterative attack describes its `problem`, and the loop runs it for hundreds of
    victims at once; another one overrides `reconstruct`, and victims come one by one.
    """

    restarts: int = 1
    iterations: int = 0  # its budget; a closed form has none

    @property
    def trials(self) -> int:
        """How many of a victim's restarts the loop runs apart, the best handed in."""
        return self.restarts

    # What its threat must hand over beside the model, its parameters and the sizes.
    needs: ClassVar[frozenset[Knowledge]] = frozenset()
    # Whether it inverts an exact gradient in closed form.
    exact: ClassVar[bool] = False
    # Whether it can go on from what another attack handed in: see `run`.
    continues: ClassVar[bool] = False
    # Whether it explains several looks at a victim together.
    joint: ClassVar[bool] = False
    # The attacks that it consists of, if it is a portfolio of them.
    members: "tuple[Member, ...]" = ()

    def budgeted(self, iterations: int | None, restarts: int | None) -> "Attack":
        """Returns the attack with another budget; None leaves it as it is."""
        if iterations is None and restarts is None:
            return self
        raise InputError(
            f"{type(self).__name__} has no iterations and no restarts: leave the "
            "options out"
        )

    def misfit(self, found: Reconstruction, gradient: PyTree) -> float | None:
        """Returns the share of what leaked that one answer leaves unexplained.

        By the attack's own objective, without its priors; None if it can't say.
        """
        return None

    def unfit(self, model: Model, observation: Observation) -> str:
        """Returns in words why it can't attack such observations; "" if it can."""
        return ""

    def altered(self, model: Model, public: HostOrDevice) -> Model:
        """Returns the model that the server hands out, if the threat lets it choose.

        `public` are examples (n, *input_shape) of the same kind as the clients'.
        """
        return model

    def judge(
        self, model: Model, observation: Observation, inputs: Any, labels: Any
    ) -> Verdict:
        """Returns what a portfolio thinks of an answer of one of its members."""
        raise NotImplementedError

    def problem(self, model: Model, observation: Observation) -> Problem | None:
        """Returns what is run for observations like this one; None: `reconstruct`."""
        return None

    def shared(self, observation: Observation) -> PyTree:
        """Returns what the problem is told of the model: the same for all victims."""
        return observation.params, observation.buffers

    def own(self, observation: Observation) -> tuple[PyTree, ...]:
        """Returns what the problem is told of victims: arrays with their axis."""
        return observation.gradient, observation.labels

    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns what the attacker hands in for one observation."""
        if type(self).problem is Attack.problem and not self.members:
            raise TypeError(f"{type(self).__name__} defines no problem or reconstruct")
        check_observation(model, observation)
        return run(self, key, model, Victims.single(observation)).take(0)

    @final
    def reconstruct_many(
        self,
        key: Key,
        model: Model,
        victims: Victims,
        slots: int | None = None,
        watcher: Watcher | None = None,
    ) -> Reconstruction:
        """Returns what the attacker hands in for each victim, stacked: see `run`."""
        return run(self, key, model, victims, slots, watcher)


class ClosedForm(Attack, abc.ABC):
    """An attack that needs no loop: `solve` is given only what it fits."""

    exact: ClassVar[bool] = True

    @abc.abstractmethod
    def solve(self, key: Key, model: Model, observation: Observation) -> Reconstruction:
        """Returns what the attacker hands in for one observation that was checked."""

    @final
    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns the solution, or raises in words why there can be none."""
        why = self.unfit(model, observation)
        if why:
            raise InputError(why)
        check_observation(model, observation)
        return self.solve(key, model, observation)


def handed_in(
    inputs: NDArray[np.float32],
    labels: NDArray[np.int32],
    objective: float,
    status: Status,
    evaluations: int = 0,
) -> Reconstruction:
    """Returns what a closed form hands in for one observation."""
    return Reconstruction(
        inputs=inputs,
        labels=labels,
        objective=np.asarray(objective, np.float32),
        iterations=np.asarray(0, np.int32),
        evaluations=np.asarray(evaluations, np.int32),
        status=np.asarray(status, np.int32),
    )


@dataclasses.dataclass(frozen=True)
class Member:
    """An attack of a portfolio; `continues`: from the best answer of those before.

    It is asked about victims only of whom a share of what leaked is left unexplained
    that is larger than `above` and no larger than `below`; if `for_kinks`, only behind
    networks that have some.
    """

    name: str
    attack: Attack
    continues: bool = False
    above: float = 0.0
    below: float = math.inf
    for_kinks: bool = False


def run(
    attack: Attack,
    key: Key,
    model: Model,
    victims: Victims,
    slots: int | None = None,
    watcher: Watcher | None = None,
    only: Ids | None = None,
    ended: Ended | None = None,
    begun: Reconstruction | None = None,
) -> Reconstruction:
    """Runs an attack on many victims; returns what is handed in, stacked.

    The victims stay here: the attack's own code gets keys, the model and observations
    (plain arrays), nothing that leads back to where they come from. `only` says which
    of the victims are attacked, with the numbers that they would have among all;
    `ended` is told who is done.

    `begun` is what another attack handed in for all of the victims: the search starts
    from its inputs and labels in place of its own (a victim whose inputs are not finite
    keeps its own), and its cost is not counted here. This is how one attack finishes
    what another one started; an attack that can do it says so (`continues`).
    """
    if not (begun is None or attack.continues):
        raise InputError(
            f"{type(attack).__name__} can't go on from what another attack handed in"
        )
    first = victims.observe(np.zeros(1, np.int64))
    everybody = np.arange(victims.count) if only is None else only
    if attack.members:
        return _in_turn(attack, key, model, victims, slots, watcher, everybody, ended)
    problem = attack.problem(model, first)
    if problem is None:
        return _one_by_one(attack, key, model, victims, everybody, ended)

    def own(ids: Ids) -> PyTree:
        seen = victims.observe(ids)
        mine = attack.own(seen)
        if not attack.continues:
            return mine
        # Also where nothing is begun: a search and what continues it are one program.
        examples = len(ids), seen.training.examples
        inputs = np.full((*examples, *model.input_shape), np.nan, np.float32)
        labels = np.full(examples, -1, np.int32)
        if begun is not None:
            there = begun.take(ids)
            inputs, labels = np.asarray(there.inputs), np.asarray(there.labels)
        return *mine, (inputs, labels)

    return search_all(
        key,
        problem,
        attack.shared(first),
        own,
        everybody,
        attack.trials,
        slots,
        watcher,
        ended,
    )


def _in_turn(
    portfolio: Attack,
    key: Key,
    model: Model,
    victims: Victims,
    slots: int | None,
    watcher: Watcher | None,
    everybody: Ids,
    ended: Ended | None,
) -> Reconstruction:
    """Lets the members of a portfolio take turns: see `take_turns`."""
    members, first = portfolio.members, victims.observe(np.zeros(1, np.int64))
    unfit = [member.attack.unfit(model, first) for member in members]
    if any(member.for_kinks for member in members):
        one = first.first()
        smooth = "" if has_kinks(model, one.params, one.buffers) else "it has no kinks"
        pairs = zip(unfit, members, strict=True)
        unfit = [why or (smooth if member.for_kinks else "") for why, member in pairs]
    if all(unfit):
        raise InputError("; ".join(unfit))
    opener = unfit.index("")

    def ask(
        index: int,
        ids: Ids,
        watch: Watcher | None,
        begun: Reconstruction | None,
    ) -> Reconstruction:
        # The numbers of who opens are those that it has alone.
        own_key, width = key, slots
        if index != opener:
            own_key = jax.random.fold_in(key, index)
            # Few are left for those that follow: one width, one compiled program.
            width = lanes.default_lanes(slots or 256, model.alone)
        attack = members[index].attack
        return run(attack, own_key, model, victims, width, watch, ids, begun=begun)

    def judge(ids: Ids, found: Reconstruction) -> list[Verdict]:
        verdicts = []
        for row, victim in enumerate(ids.tolist()):
            one = victims.observe(np.asarray([victim])).first()
            answer = found.take(row)
            verdicts.append(portfolio.judge(model, one, answer.inputs, answer.labels))
        return verdicts

    fits = [not why for why in unfit]
    return take_turns(
        members, fits, ask, judge, everybody, victims.count, watcher, ended
    )


def _one_by_one(
    attack: Attack,
    key: Key,
    model: Model,
    victims: Victims,
    everybody: Ids,
    ended: Ended | None,
) -> Reconstruction:
    rebuilt = []
    for victim in everybody.tolist():
        stacked = victims.observe(np.asarray([victim]))
        own = jax.random.fold_in(key, victim)
        found = attack.reconstruct(own, model, stacked.first())
        found = dataclasses.replace(found, trial=np.zeros((), np.int64), members=None)
        rebuilt.append(jax.tree.map(lambda leaf: np.asarray(leaf)[None], found))
        if ended is not None:
            ended(np.asarray([victim]), rebuilt[-1])
    return joined(rebuilt)


def check_observation(model: Model, observation: Observation) -> None:
    """Raises in words when no attack could work on what leaked (host side)."""
    for other in observation.others:
        check_observation(model, other)
    structures = map(jax.tree.structure, (observation.params, observation.sent))
    if len(set(structures)) > 1:
        raise InputError(
            "the leaked gradient does not have the structure of the parameters: "
            f"expected tensors {', '.join(tree.names(observation.params))}, "
            f"got {', '.join(tree.names(observation.sent)) or 'none'}"
        )
    for name, parameter, leaf in zip(
        tree.names(observation.params),
        jax.tree.leaves(observation.params),
        jax.tree.leaves(observation.sent),
        strict=True,
    ):
        if parameter.shape != leaf.shape:
            raise InputError(
                f"the leaked gradient of {name} must have shape {parameter.shape}, "
                f"got {leaf.shape}"
            )
        if not np.isfinite(np.asarray(leaf)).all():
            raise InputError(
                f"the leaked gradient of {name} holds NaN or infinity: nothing can be "
                "rebuilt from it; check the training step that produced it"
            )
    if not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(observation.sent)):
        raise InputError(
            "the leaked gradient is zero everywhere: it holds no information"
        )
    if observation.labels is None:
        return
    known, count = np.asarray(observation.labels), observation.training.examples
    if known.shape != (count,):
        raise InputError(f"{count} known labels were expected, got shape {known.shape}")
    outside = (known < 0) | (known >= model.classes)
    if outside.any():
        value = int(known[np.argmax(outside)])
        raise InputError(f"known label {value} is outside [0, {model.classes})")
