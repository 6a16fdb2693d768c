"""Examples and where they come from: known data sets, users' own files, pinned sources, and the cache."""

from fednlp.data.catalogue import CATALOGUE, Entry
from fednlp.data.load import TextData, data_names, load_data
from fednlp.data.sources import MODEL_NAMES, Source, fetch, named_model


def describe() -> tuple[Entry, ...]:
    """Return the data sets known by name, each with its title, size, source, licence and how it is got.

    >>> [entry.name for entry in describe()]
    ['20news', 'agnews', 'sst2', 'trec', 'bbc']
    """
    return tuple(CATALOGUE.values())


__all__ = [
    "MODEL_NAMES",
    "Entry",
    "Source",
    "TextData",
    "data_names",
    "describe",
    "fetch",
    "load_data",
    "named_model",
]
