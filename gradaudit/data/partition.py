"""Partitions: which examples each client holds, as indices into one dataset.

A scheme never copies data: 10,000 clients with 500 examples each are 20 MB of
indices. Where all clients together hold more than there is, examples are shared as
evenly as the scheme allows, and `copies` says by how many clients at most: what an
example gives away through one client it gives away through each that holds it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError, at_least, positive, unknown_name
from gradaudit.text import call_with_text

Indices = NDArray[np.int32]  # (clients, examples)
Labels = NDArray[np.integer]  # (n,)
_MIXING_SWEEPS = 32


class Partition:
    """A scheme; every one guarantees the same shape, type and determinism."""

    def assign(self, seed: int, labels: Labels, clients: int, examples: int) -> Indices:
        """Returns the indices of each client's examples, (clients, examples).

        Args:
          seed: the same seed gives the same partition.
          labels: the labels of the whole dataset.
          clients: how many clients there are.
          examples: how many examples each of them holds.
        """
        _check(len(labels), clients, examples)
        return self._assigned(np.random.default_rng(seed), labels, clients, examples)

    def copies(
        self, size: int, clients: int, examples: int, class_sizes: Sequence[int] = ()
    ) -> int:
        """Returns an upper bound on the clients that can hold one example.

        Guarantee: `shared_copies(assign(seed, labels, clients, examples))` is at most
        this, for every seed and every `labels` of this size. It never exceeds
        `clients`, and needs no data.

        Args:
          size: how many examples the whole dataset has.
          clients: how many clients there are.
          examples: how many examples each of them holds.
          class_sizes: how many examples each class has, where that is known; a
            scheme that deals by class is otherwise bounded by its worst case, a
            class of one example. Classes without examples are passed over.
        """
        _check(size, clients, examples)
        if class_sizes and (min(class_sizes) < 0 or sum(class_sizes) != size):
            raise InputError(
                f"the class sizes {tuple(class_sizes)} must add up to the {size} "
                "examples"
            )
        present = [held for held in class_sizes if held]
        return min(clients, self._begun(size, clients, examples, present))

    def _assigned(
        self, rng: np.random.Generator, labels: Labels, clients: int, examples: int
    ) -> Indices:
        """Is `assign` of what has been checked."""
        raise NotImplementedError

    def _begun(
        self, size: int, clients: int, examples: int, present: Sequence[int]
    ) -> int:
        """Is `copies` by the classes that have examples; it may exceed `clients`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Iid(Partition):
    """Each client holds examples drawn at random from all of the data.

    No example is used twice before every example has been used once.
    """

    def _assigned(
        self, rng: np.random.Generator, labels: Labels, clients: int, examples: int
    ) -> Indices:
        counts = np.full((clients, 1), examples)
        return _deal(rng, np.zeros(len(labels), int), counts)

    def _begun(
        self, size: int, clients: int, examples: int, present: Sequence[int]
    ) -> int:
        """Returns how often the deck is begun when all clients draw from it."""
        return -(-clients * examples // size)


@dataclasses.dataclass(frozen=True)
class Shards(Partition):
    """Each client holds equal shards of a few classes (Wei et al., 2021, section VII).

    Every client has exactly `classes` distinct classes, and every class is held by
    the same number of clients, plus or minus one. Shards of a class are disjoint as
    long as it lasts; a shard larger than its class repeats examples.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        at_least(1, classes=self.classes)

    def _assigned(
        self, rng: np.random.Generator, labels: Labels, clients: int, examples: int
    ) -> Indices:
        present, compact = np.unique(labels, return_inverse=True)
        if not self.classes <= len(present):
            raise InputError(
                f"shards of {self.classes} classes need as many, the data has "
                f"{len(present)}"
            )
        if examples % self.classes != 0:
            raise InputError(
                f"{examples} examples per client can't be cut into {self.classes} "
                f"equal shards; choose a multiple of {self.classes}"
            )
        held = self._held_classes(rng, clients, len(present))
        counts = np.zeros((clients, len(present)), np.int64)
        np.put_along_axis(counts, held, examples // self.classes, axis=1)
        return _deal(rng, compact, counts)

    def _begun(
        self, size: int, clients: int, examples: int, present: Sequence[int]
    ) -> int:
        """Returns how often the smallest class is begun by those that hold it."""
        if not present:
            return clients
        holders = min(clients, -(-clients * self.classes // len(present)))
        dealt = holders * -(-examples // self.classes)
        return min(holders, -(-dealt // min(present)))

    def _held_classes(
        self, rng: np.random.Generator, clients: int, present: int
    ) -> NDArray[np.int64]:
        """Returns distinct classes per client, (clients, self.classes)."""
        slots = clients * self.classes
        order = rng.permutation(present)
        # Sorted by class and dealt with stride `clients`, a client never gets a class
        # twice, because no class has more than `clients` slots.
        deck = np.sort(np.arange(slots) % present)
        held = order[deck].reshape(self.classes, clients).T
        for _ in range(_MIXING_SWEEPS * self.classes):
            held = _mix(rng, held)
        return held


@dataclasses.dataclass(frozen=True)
class Dirichlet(Partition):
    """Each client's class proportions are drawn from Dirichlet(alpha).

    Small `alpha` gives clients of nearly one class, large `alpha` nearly equal
    classes (Hsu et al., 2019).
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        positive(alpha=self.alpha)

    def _assigned(
        self, rng: np.random.Generator, labels: Labels, clients: int, examples: int
    ) -> Indices:
        present, compact = np.unique(labels, return_inverse=True)
        shares = rng.dirichlet(np.full(len(present), self.alpha), clients)
        return _deal(rng, compact, rng.multinomial(examples, shares))

    def _begun(
        self, size: int, clients: int, examples: int, present: Sequence[int]
    ) -> int:
        """Returns how often the smallest class is begun if every client draws it."""
        return -(-clients * examples // min(present, default=1))


@dataclasses.dataclass(frozen=True)
class FullCopy(Partition):
    """Every client holds the same examples; with `examples` = n, a full copy.

    The rows are one row seen many times, so the memory doesn't grow with clients.
    """

    def _assigned(
        self, rng: np.random.Generator, labels: Labels, clients: int, examples: int
    ) -> Indices:
        if not examples <= len(labels):
            raise InputError(
                f"a copy of {examples} examples needs as many, the data has "
                f"{len(labels)}"
            )
        chosen = rng.permutation(len(labels))[:examples]
        return np.broadcast_to(chosen.astype(np.int32), (clients, examples))

    def _begun(
        self, size: int, clients: int, examples: int, present: Sequence[int]
    ) -> int:
        return clients


def shared_copies(assignment: Indices | Sequence[Indices]) -> int:
    """Returns how many different clients hold the example that the most hold.

    An example that one client holds twice counts once. Besides the assignment it
    needs one counter per example.

    Args:
      assignment: the indices of each client's examples, (clients, examples), or one
        array per client where they differ in length.
    """
    if not len(assignment):
        raise InputError("an assignment needs at least one client")
    if isinstance(assignment, np.ndarray) and assignment.strides[0] == 0:
        return len(assignment)  # one row seen many times
    largest = max((int(row.max()) for row in assignment if len(row)), default=-1)
    holders = np.zeros(largest + 1, np.int32)
    for row in assignment:
        holders[row] += 1  # an index that occurs twice is written once
    return int(holders.max(initial=0))


def _check(size: int, clients: int, examples: int) -> None:
    if not size > 0:
        raise InputError("there is no data to divide among the clients")
    at_least(1, clients=clients, examples=examples)


def _deal(
    rng: np.random.Generator, labels: Labels, counts: NDArray[np.int64]
) -> Indices:
    """Deals `counts` (clients, classes) examples; rows must have equal sums.

    Each class is shuffled once and dealt round and round, so its examples are used
    equally often, plus or minus one.
    """
    clients, classes = counts.shape
    kinds = np.tile(np.arange(classes, dtype=np.int32), clients)
    labels_held = np.repeat(kinds, counts.ravel()).reshape(clients, -1)
    indices = np.empty_like(labels_held)
    for label in range(classes):
        members = rng.permutation(np.flatnonzero(labels == label)).astype(np.int32)
        places = labels_held == label
        indices[places] = np.resize(members, np.count_nonzero(places))
    return rng.permuted(indices, axis=1)


def _mix(rng: np.random.Generator, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Swaps a class between random pairs of clients where all stay distinct."""
    held = rng.permuted(held, axis=1)
    half = len(held) // 2
    one, two = rng.permutation(len(held))[: 2 * half].reshape(2, half)
    given, taken = held[one, 0], held[two, 0]
    clash = (held[one, 1:] == taken[:, None]) | (held[two, 1:] == given[:, None])
    fits = ~clash.any(axis=1)
    held[one[fits], 0], held[two[fits], 0] = taken[fits], given[fits]
    return held


PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "full-copy": FullCopy,
    "iid": Iid,
    "shards": Shards,
}


def parse_partition(text: str) -> Partition:
    """Makes a scheme of its words, such as `iid`, `shards:classes=2`."""
    name, _, parameters = text.strip().partition(":")
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS)
    scheme: Partition = call_with_text(name, PARTITIONS[name], parameters)
    return scheme


@dataclasses.dataclass(frozen=True)
class Holding:
    """What each client holds in a published experiment."""

    partition: Partition
    examples: int


# Wei et al. (2021), Table I and section VII, by the dataset's name.
PUBLISHED_HOLDINGS: dict[str, Holding] = {
    "mnist": Holding(Shards(classes=2), 500),
    "cifar10": Holding(Shards(classes=2), 400),
    "lfw": Holding(Shards(classes=15), 300),
    "adult": Holding(Iid(), 300),
    "cancer": Holding(FullCopy(), 400),
}
