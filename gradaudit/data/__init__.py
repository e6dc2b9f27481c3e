"""Datasets: embedded ones, fetched ones, and readers for your own files."""

from gradaudit.data.catalogue import CATALOGUE, Entry, Origin, load_dataset
from gradaudit.data.dataset import Dataset

__all__ = ["CATALOGUE", "Dataset", "Entry", "Origin", "load_dataset"]
