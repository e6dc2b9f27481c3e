"""A portfolio: several attacks, cheap ones first, one answer.

Which attack finds a victim depends on the network, its state and the defense, and an
audit must report the strongest. A portfolio asks its members in turn, each only about
victims that those before did not solve, and hands in the answer that its own criterion
prefers. The criterion is free of scale and of data: it sees what leaked, nothing else.

Rescues are asked about victims whose searches are lost. Cosine and total variation are
slow and blurred, and find what L-BFGS and Gauss-Newton don't: inputs of trained
networks, and of networks with kinks. Behind kinks, peeling takes one layer after the
other where the network says what its layers are. A batch whose labels were mistaken is
tried again with others.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.attacks.base import Attack, Member
from gradaudit.attacks.distances import Cosine, RelativeL2, TensorCosine
from gradaudit.attacks.labels import Counts, LabelStrategy
from gradaudit.attacks.likelihood import ROUNDING, TINY
from gradaudit.attacks.matching import WHOLE_RUN, Matching, Stop
from gradaudit.attacks.objective import Account, accounts, misfit
from gradaudit.attacks.optimizers import Adam
from gradaudit.attacks.peeling import Peeling
from gradaudit.attacks.priors import Prior, Smooth, TotalVariation, apart
from gradaudit.attacks.starts import Patterned, Uniform
from gradaudit.attacks.turns import Verdict
from gradaudit.errors import InputError
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.types import Knowledge, Observation, PyTree, Reconstruction

# Their own answers leave more unexplained than this: they have nothing to add to one
# that leaves less.
_LOST = 1e-4
# Who explains less than half of what leaked is lost in noise, not on rough ground.
_NOISY = 0.5
# Peeling needs nobody's answer to be near: it is only spared what is noise throughout.
_DROWNED = 0.9
# A batch with a wrong label leaves about a hundredth unexplained, found ones far less.
_MISTAKEN = 1e-5


@dataclasses.dataclass(frozen=True)
class Plausible:
    """How plausible an answer is to the attacker, in nats: -log p(what leaked, answer).

    If the noise is told, p is its law; if not, or if there is none, its variance is
    unknown and takes its likeliest value, so that the likelihood of n coordinates is
    n / 2 log of the misfit. Below `precision`, a relative misfit is rounding. Images
    are smooth a priori, as public data tell or, without such, as photographs are. What
    is judged is what is handed in: pixels within their range.
    """

    distance: RelativeL2 = RelativeL2(weight=1.0)
    prior: Prior = Smooth()
    precision: float = ROUNDING

    def __call__(
        self, looks: list[Account], found: jax.Array, rough: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the nats, and the misfit that noise explains."""
        nats, noises = rough, [self._noise(look) for look in looks]
        for look, noise in zip(looks, noises, strict=True):
            alone = look.misfit
            unknown = look.expected * jnp.log(alone + self.precision)
            nats = nats + jnp.where(noise > 0, alone / look.nat, unknown)
        return nats, jnp.sum(jnp.stack(noises))

    def _noise(self, look: Account) -> jax.Array:
        if look.known is None:
            return jnp.zeros(())
        return self.distance.noise(look.known, look.read)


@dataclasses.dataclass(frozen=True)
class LeastProduct:
    """The least of misfit x roughness: which of several prior weights was right.

    Reginska 1996: where the curve of both, in logarithms, has its corner. A rougher
    picture always explains a little more; it is believed if it explains more by a
    larger factor than it is rougher. `flat` is no roughness at all, or a blank picture
    would explain everything. What is not an image is judged by its misfit.
    """

    distance: RelativeL2 = RelativeL2(weight=1.0)
    prior: Prior = TotalVariation(1.0)
    precision: float = ROUNDING
    flat: float = 1e-2

    def __call__(
        self, looks: list[Account], found: jax.Array, rough: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the product's logarithm, and 0 for noise."""
        cost = jnp.log(found + self.precision) + jnp.log(rough + self.flat)
        return cost, jnp.zeros(())


@dataclasses.dataclass(frozen=True)
class Portfolio(Attack):
    """Attacks in the order in which they are asked.

    `criterion` compares answers. One that leaves no more than `solved` of what leaked
    unexplained needs nobody else, if it is of one example. In a batch a small misfit
    does not say that all are found: directions that matter little keep their start, and
    examples with small gradients hide behind the others. There it must be at the
    `floor` of what a search in float32 reaches, and `solved` is a share of what the
    answer's own least example adds.
    """

    members: tuple[Member, ...]
    criterion: Plausible | LeastProduct = Plausible()
    solved: float = 1e-6
    floor: float = 1e-10

    def __post_init__(self) -> None:
        if len(self.members) < 1:
            raise InputError("a portfolio needs at least one attack")
        names = [member.name for member in self.members]
        if len(set(names)) != len(names):
            raise InputError(f"two members share a name: {names}")
        for member in self.members:
            if member.continues and not member.attack.continues:
                raise InputError(
                    f"{member.name} can't go on from another attack's answer"
                )

    @property
    def needs(self) -> frozenset[Knowledge]:  # type: ignore[override]
        """What any member needs to be told."""
        return frozenset().union(*(member.attack.needs for member in self.members))

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """Whether the members explain several looks together; closed forms don't."""
        return any(member.attack.joint for member in self.members)

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """All trials that a victim may get."""
        return sum(member.attack.trials for member in self.members)

    @property
    def iterations(self) -> int:  # type: ignore[override]
        """The largest budget of a member."""
        return max(member.attack.iterations for member in self.members)

    def budgeted(self, iterations: int | None, restarts: int | None) -> "Portfolio":
        """Returns the portfolio with members of at most so many iterations."""
        if restarts is not None:
            raise InputError(
                "the attacks of a portfolio have restarts of their own: leave the "
                "option out"
            )

        def cut(member: Member) -> Member:
            own = member.attack
            if iterations is None or iterations >= own.iterations:
                return member
            return dataclasses.replace(member, attack=own.budgeted(iterations, None))

        return dataclasses.replace(self, members=tuple(map(cut, self.members)))

    def misfit(self, found: Reconstruction, gradient: PyTree) -> float | None:
        """Returns what the criterion found unexplained: a portfolio's objective."""
        return float(found.objective)

    def judge(
        self, model: Model, observation: Observation, inputs: Any, labels: Any
    ) -> Verdict:
        """Returns how plausible an answer is, and whether it needs nobody else."""
        weight = apart(self.criterion.prior, observation.public)[1]
        alone = dataclasses.replace(
            self.criterion, prior=apart(self.criterion.prior)[0]
        )
        seen = dataclasses.replace(observation, public=None)
        judged = _judged(alone, model, seen, inputs, labels, weight)
        nats, found, noise, least = map(float, judged)
        level = self.solved * least
        level = level if len(inputs) == 1 else min(level, self.floor)
        return Verdict(nats, found, noise == 0.0 and found <= level)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _judged(
    criterion: Plausible | LeastProduct,
    model: Model,
    observation: Observation,
    inputs: Any,
    labels: Any,
    weight: float,
) -> Any:
    """Returns the cost, the misfit, what of it noise explains, and `_least_share`."""
    replays, pixels = observation.training.local_steps > 1, jnp.clip(inputs, 0.0, 1.0)
    targets = one_hot(labels, model.classes)
    looks = accounts(criterion.distance, model, observation, replays, pixels, targets)
    found = misfit(looks)
    cost, noise = criterion(looks, found, weight * criterion.prior(pixels))
    cost = jnp.where(jnp.isnan(cost), jnp.inf, cost)
    return cost, found, noise, _least_share(model, observation, inputs, targets)


def _least_share(
    model: Model, observation: Observation, inputs: jax.Array, targets: jax.Array
) -> jax.Array:
    """Returns the smallest part of an example in what leaked: 1 if it is alone.

    By the answer itself, at the parameters that were received; 0 where examples have no
    gradients of their own.
    """
    count = len(inputs)
    if count == 1:
        return jnp.ones(())
    if model.coupled:
        return jnp.zeros(())
    gradients = per_example_gradients(
        model, observation.params, observation.buffers, inputs, targets
    )
    squares = jax.vmap(tree.dot)(gradients, gradients)
    read = observation.gradient
    part = jnp.min(squares) / observation.training.batch_size**2
    return jnp.minimum(part / (tree.dot(read, read) + TINY), 1.0)


def with_other_labels(search: Matching) -> Portfolio:
    """Returns a search of batches that thinks of other labels where it ends early."""
    again = dataclasses.replace(search, labels=Counts(drawn=True))
    members = [
        Member(f"other labels, {number}", again, above=_MISTAKEN)
        for number in (1, 2, 3)
    ]
    return Portfolio((Member("first", search), *members))


def rescues(labels: LabelStrategy) -> tuple[Member, ...]:
    """Returns them in turn, the cheap ones first."""
    return (
        Member("cosine, TV 0.001", _smooth(1e-3, labels), above=_LOST),
        Member("cosine, TV 0.01", _smooth(1e-2, labels), above=_LOST),
        Member(
            "peeling",
            Peeling(labels=labels),
            above=_LOST,
            below=_DROWNED,
            for_kinks=True,
        ),
        Member(
            "tensors' cosines",
            _rough(labels),
            above=_LOST,
            below=_NOISY,
            for_kinks=True,
        ),
    )


def _smooth(weight: float, labels: LabelStrategy) -> Matching:
    """Returns cosine, total variation and Adam: what finds trained networks' inputs."""
    return Matching(
        init=Patterned(2),
        labels=labels,
        distance=Cosine(),
        priors=(TotalVariation(weight),),
        optimizer=Adam(0.1),
        box=True,
        # Its rate is constant: what has not improved in 200 iterations rarely does.
        stop=Stop(iterations=1500, patience=200),
    )


def _rough(labels: LabelStrategy) -> Matching:
    """Returns what finds inputs behind pooling and rectifiers, where others get stuck.

    Every tensor counts alike: the last ones, whose gradients are the largest, say which
    units were on and little of the pixels. Several starts, because every answer is one
    of many dents; docs/threats.md has on which data it was set.
    """
    return dataclasses.replace(
        _smooth(1e-2, labels),
        init=Uniform(),
        distance=TensorCosine(),
        optimizer=Adam(0.1, decays=True),
        stop=Stop(iterations=1500, patience=WHOLE_RUN),
        restarts=24,
    )
