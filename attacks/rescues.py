"""Rescues: what a portfolio asks about victims whose searches are lost.

Cosine and total variation are slow and blurred, and find what L-BFGS and Gauss-Newton
don't: inputs of trained networks, and of networks with kinks. Behind kinks, peeling
takes one layer after the other where the network says what its layers are. A batch
whose labels were mistaken is tried again with others.
"""

import dataclasses

from gradaudit.attacks.base import Member
from gradaudit.attacks.distances import Cosine, TensorCosine
from gradaudit.attacks.labels import Counts, LabelStrategy
from gradaudit.attacks.matching import WHOLE_RUN, Matching, Stop
from gradaudit.attacks.optimizers import Adam
from gradaudit.attacks.peeling import Peeling
from gradaudit.attacks.portfolio import Portfolio
from gradaudit.attacks.priors import TotalVariation
from gradaudit.attacks.starts import Patterned, Uniform

# Their own answers leave more unexplained than this: they have nothing to add to one
# that leaves less.
_LOST = 1e-4
# Who explains less than half of what leaked is lost in noise, not on rough ground.
_NOISY = 0.5
# Peeling needs nobody's answer to be near: it is only spared what is noise throughout.
_DROWNED = 0.9

# A batch with a wrong label leaves about a hundredth unexplained, found ones far less.
_MISTAKEN = 1e-5


def with_other_labels(search: Matching, times: int = 3) -> Portfolio:
    """Returns a search of batches that thinks of other labels where it ends early."""
    again = dataclasses.replace(search, labels=Counts(drawn=True))
    members = [
        Member(f"other labels, {number}", again, above=_MISTAKEN)
        for number in range(1, times + 1)
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
