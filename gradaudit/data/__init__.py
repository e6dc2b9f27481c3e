"""Datasets: embedded ones, fetched ones, and readers for your own files."""

from gradaudit.data.catalogue import CATALOGUE, Entry, Origin, load_dataset
from gradaudit.data.dataset import Dataset
from gradaudit.data.partition import (
    PARTITIONS,
    PUBLISHED_HOLDINGS,
    Dirichlet,
    FullCopy,
    Holding,
    Iid,
    Partition,
    Shards,
    parse_partition,
    shared_copies,
)

__all__ = [
    "CATALOGUE",
    "PARTITIONS",
    "PUBLISHED_HOLDINGS",
    "Dataset",
    "Dirichlet",
    "Entry",
    "FullCopy",
    "Holding",
    "Iid",
    "Origin",
    "Partition",
    "Shards",
    "load_dataset",
    "parse_partition",
    "shared_copies",
]
