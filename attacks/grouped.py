"""Published attacks whose restarts have to do with each other: values of parts."""

from gradaudit.attacks.distances import Cosine
from gradaudit.attacks.ensembles import Consistency, MedianVote
from gradaudit.attacks.matching import WHOLE_RUN, Matching, Stop
from gradaudit.attacks.optimizers import Adam
from gradaudit.attacks.priors import RunningStatistics, SmallPixels, TotalVariation
from gradaudit.attacks.starts import Mixed, Normal, Uniform


def tableak(
    iterations: int = 1500, restarts: int = 30, learning_rate: float = 0.06
) -> Matching:
    """TabLeak: softmax over categories, cosine, Adam, the median and vote of restarts.

    Numbers stay in their public ranges, as the columns say.
    """
    return Matching(
        init=Uniform(),
        distance=Cosine(),
        optimizer=Adam(learning_rate),
        relaxation=Mixed(),
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
        pooling=MedianVote(),
    )


def gradinversion(
    iterations: int = 2000,
    restarts: int = 4,
    statistics: float = RunningStatistics.weight,
    variation: float = 1e-3,
    consistency: float = Consistency.weight,
) -> Matching:
    """GradInversion: batch-norm statistics, TV, restarts drawn towards their mean.

    The distance is the cosine: the paper's L2 does not find what trained networks saw.
    """
    return Matching(
        init=Normal(),
        distance=Cosine(),
        priors=(
            TotalVariation(variation),
            SmallPixels(1e-6),
            RunningStatistics(statistics),
        ),
        optimizer=Adam(0.1, decays=True),
        box=True,
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
        coupling=Consistency(consistency),
    )
