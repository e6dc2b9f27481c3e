"""The papers' federations by dataset (Wei et al. 2021, Table I)."""

from gradaudit.config import Federation
from gradaudit.errors import unknown_name

_IMAGES = Federation()  # the MNIST column
PAPER_FEDERATIONS = {
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "cifar10": Federation(examples=400, batch_size=4),
    "lfw": Federation(examples=300, batch_size=3, rounds=60),
    "adult": Federation(examples=300, batch_size=3, rounds=10),
    "cancer": Federation(examples=400, batch_size=4, rounds=3),
}


def paper_federation(dataset: str) -> Federation:
    """Returns N = 1,000 clients, 100 per round, and the dataset's own settings."""
    if dataset not in PAPER_FEDERATIONS:
        raise unknown_name("published setting", dataset, PAPER_FEDERATIONS)
    return PAPER_FEDERATIONS[dataset]
