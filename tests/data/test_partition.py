"""Every partition is valid, deterministic and small; each keeps its own promise."""

import json
import tracemalloc

import numpy as np
import pytest

from gradaudit import spec
from gradaudit.data import (
    CATALOGUE,
    PARTITIONS,
    PUBLISHED_HOLDINGS,
    Dirichlet,
    FullCopy,
    Iid,
    Shards,
    parse_partition,
    shared_copies,
)
from gradaudit.errors import InputError

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)
SCHEMES = [Iid(), Shards(2), Shards(5), Dirichlet(0.1), Dirichlet(10.0), FullCopy()]
SIZES = [(1, 10), (7, 20), (100, 50), (500, 100)]  # the last two share examples


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
@pytest.mark.parametrize(("clients", "examples"), SIZES)
def test_every_partition_is_valid_and_deterministic(scheme, clients, examples):
    indices = scheme.assign(3, LABELS, clients, examples)
    assert indices.shape == (clients, examples)
    assert indices.dtype == np.int32
    assert indices.min() >= 0 and indices.max() < len(LABELS)
    assert np.array_equal(indices, scheme.assign(3, LABELS, clients, examples))
    assert not np.array_equal(indices, scheme.assign(4, LABELS, clients, examples))


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_no_client_holds_an_example_twice(scheme):
    for row in scheme.assign(0, LABELS, 50, 100):
        assert len(np.unique(row)) == 100


@pytest.mark.parametrize("scheme", [Iid(), Shards(2), Shards(5)], ids=repr)
def test_clients_are_disjoint_while_the_data_lasts(scheme):
    indices = scheme.assign(0, LABELS, 60, 100)
    assert len(np.unique(indices)) == 6000


@pytest.mark.parametrize("scheme", [Iid(), Shards(2), Shards(5)], ids=repr)
def test_shared_examples_are_used_equally_often(scheme):
    indices = scheme.assign(0, LABELS, 250, 100)
    uses = np.bincount(indices.ravel(), minlength=len(LABELS))
    assert uses.max() - uses.min() <= 1


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("clients", [1, 2, 7, 100, 1000])
def test_shards_hold_exactly_their_classes_in_equal_parts(classes, clients):
    examples = 10 * classes
    indices = Shards(classes).assign(1, LABELS, clients, examples)
    holders = np.zeros(10, int)
    for row in indices:
        present, counts = np.unique(LABELS[row], return_counts=True)
        assert len(present) == classes
        assert set(counts) == {10}
        holders[present] += 1
    assert holders.max() - holders.min() <= 1


def test_shards_mix_all_pairs_of_classes():
    indices = Shards(2).assign(0, LABELS, 1000, 20)
    pairs = {tuple(np.unique(LABELS[row])) for row in indices}
    assert len(pairs) == 45


def test_shards_cope_with_unbalanced_and_missing_classes():
    labels = np.repeat([0, 3, 7], [5, 500, 1000])
    indices = Shards(2).assign(0, labels, 30, 40)
    assert all(len(np.unique(labels[row])) == 2 for row in indices)


def test_iid_clients_look_like_the_data():
    indices = Iid().assign(0, LABELS, 10, 600)
    shares = np.stack([np.bincount(LABELS[row], minlength=10) for row in indices])
    assert abs(shares / 600 - 0.1).max() < 0.05


def test_small_alpha_makes_clients_less_alike():
    def largest_share(alpha):
        rows = Dirichlet(alpha).assign(0, LABELS, 200, 100)
        return np.mean([np.bincount(LABELS[row]).max() for row in rows]) / 100

    assert largest_share(0.01) > 0.9
    assert largest_share(0.5) > largest_share(5.0)
    assert largest_share(1000.0) < 0.2


def test_a_full_copy_is_everything_for_everyone_and_costs_one_row():
    indices = FullCopy().assign(0, LABELS, 10_000, len(LABELS))
    assert np.array_equal(np.sort(indices[0]), np.arange(len(LABELS)))
    assert np.array_equal(indices[0], indices[-1])
    assert indices.strides[0] == 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_ten_thousand_clients_fit_in_little_memory(scheme):
    labels = np.arange(60_000) % 10
    tracemalloc.start()
    indices = scheme.assign(0, labels, 10_000, 500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert indices.shape == (10_000, 500)
    assert peak < 100e6  # the pixels alone, copied to the clients, would be 16 GB


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Shards(0), "classes must be at least 1, got 0"),
        (lambda: Dirichlet(0.0), "alpha must be positive and finite, got 0.0"),
        (lambda: Shards(2).assign(0, LABELS, 5, 11), "multiple of 2"),
        (lambda: Shards(11).assign(0, LABELS, 5, 11), "the data has 10"),
        (lambda: FullCopy().assign(0, LABELS, 5, 6001), "the data has 6000"),
        (lambda: Iid().assign(0, LABELS, 0, 5), "clients must be at least 1, got 0"),
        (lambda: Iid().assign(0, LABELS, 5, -1), "examples must be at least 1, got -1"),
        (lambda: Iid().assign(0, LABELS[:0], 5, 1), "no data"),
    ],
)
def test_what_can_not_be_divided_is_refused_in_words(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_every_named_scheme_can_be_made():
    assert {type(scheme) for scheme in SCHEMES} == set(PARTITIONS.values())


def test_the_published_sizes():
    """Wei et al. (2021), Table I, data/client."""
    sizes = {name: holding.examples for name, holding in PUBLISHED_HOLDINGS.items()}
    assert sizes == {
        "mnist": 500,
        "cifar10": 400,
        "lfw": 300,
        "adult": 300,
        "cancer": 400,
    }
    labels = np.arange(2267) % 62
    for holding in PUBLISHED_HOLDINGS.values():
        assert holding.partition.assign(0, labels, 10, holding.examples).shape[0] == 10


UNEVEN = np.repeat([0, 1, 2, 5], [3, 40, 257, 300])  # a class of three, two of none
GRID = [(1, 20), (2, 20), (7, 20), (30, 60), (200, 20), (90, 120)]


def measured(indices) -> int:
    """The definition, one example at a time."""
    holders: dict[int, set[int]] = {}
    for client, row in enumerate(indices):
        for example in row.tolist():
            holders.setdefault(example, set()).add(client)
    return max(map(len, holders.values()))


@pytest.mark.parametrize("labels", [LABELS[:600], UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("scheme", [*SCHEMES, Shards(1), Dirichlet(1e-3)], ids=repr)
def test_no_example_is_held_by_more_clients_than_the_scheme_promises(scheme, labels):
    if getattr(scheme, "classes", 0) == 5 and labels is UNEVEN:
        scheme = Shards(4)
    class_sizes = np.bincount(labels).tolist()
    for clients, examples in GRID:
        for seed in range(3):
            held = scheme.assign(seed, labels, clients, examples)
            found = shared_copies(held)
            assert found == measured(held)
            tight = scheme.copies(len(labels), clients, examples, class_sizes)
            assert found <= tight <= scheme.copies(len(labels), clients, examples)


@pytest.mark.parametrize("scheme", [Iid(), Shards(2), Shards(5)], ids=repr)
def test_the_promise_is_tight_where_the_dealing_is_even(scheme):
    for clients, examples in [(6, 100), (60, 100), (61, 100), (250, 100)]:
        found = shared_copies(scheme.assign(0, LABELS, clients, examples))
        assert found == scheme.copies(6000, clients, examples, [600] * 10)


def test_the_published_mnist_shards_share_an_example_among_ten_clients():
    """1,000 clients hold 500,000 of 60,000; the smallest class has 5,421 examples."""
    sizes = CATALOGUE["mnist"].class_sizes("train")
    assert sum(sizes) == 60_000
    assert Shards(2).copies(60_000, 1000, 500, sizes) == 10
    assert Iid().copies(60_000, 1000, 500) == 9
    assert Shards(2).copies(60_000, 1000, 500) == 1000  # for all that is known


def test_a_holder_counts_once_however_often_it_holds_an_example():
    twice = [np.array([0, 0, 0, 1]), np.array([1, 2]), np.array([], int)]
    assert shared_copies(twice) == 2
    assert shared_copies(np.zeros((1, 9), np.int32)) == 1


@pytest.mark.parametrize("scheme", [Shards(2), FullCopy()], ids=repr)
def test_counting_ten_thousand_clients_needs_one_counter_per_example(scheme):
    held = scheme.assign(0, np.arange(60_000) % 10, 10_000, 500)
    tracemalloc.start()
    shared_copies(held)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_every_scheme_is_plain_data(scheme):
    described = json.loads(json.dumps(spec.describe(scheme)))
    assert spec.rebuild(described) == scheme


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("iid", Iid()),
        ("full-copy", FullCopy()),
        ("shards", Shards()),
        ("shards:classes=5", Shards(5)),
        ("dirichlet:alpha=0.1", Dirichlet(0.1)),
        (" dirichlet: alpha = 10 ", Dirichlet(10.0)),
    ],
)
def test_every_scheme_has_words(text, scheme):
    assert parse_partition(text) == scheme


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown partition ''"),
        ("shard", "did you mean 'shards'"),
        ("shards:classes=two", "classes must be a whole number, got 'two'"),
        ("shards:classes=0", "classes must be at least 1, got 0"),
        ("shards:kinds=2", "unknown parameter of shards 'kinds'"),
        ("shards:2", "write key=value, got '2'"),
        ("dirichlet:alpha=nan", "alpha must be positive and finite, got nan"),
        ("dirichlet:alpha=inf", "alpha must be positive and finite, got inf"),
        ("iid:classes=2", "unknown parameter of iid 'classes'"),
        ("full-copy:=", "unknown parameter"),
    ],
)
def test_wrong_words_are_answered_in_words(text, says):
    with pytest.raises(InputError, match=says):
        parse_partition(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 5, 5), "no data"),
        ((10, 0, 5), "clients must be at least 1, got 0"),
        ((10, 5, 0), "examples must be at least 1, got 0"),
        ((10, 5, 5, [3, 3]), "must add up to the 10 examples"),
    ],
)
def test_what_can_not_be_counted_is_refused_in_words(arguments, says):
    with pytest.raises(InputError, match=says):
        Shards(2).copies(*arguments)
