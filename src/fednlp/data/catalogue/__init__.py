"""The data sets that fednlp knows by name: what they are, and how their published files are got and read."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fednlp.data.catalogue.answering import ANSWERING
from fednlp.data.catalogue.chats import CHATS
from fednlp.data.catalogue.classification import CLASSIFICATION
from fednlp.data.catalogue.entries import Entry, Hub, Opened
from fednlp.data.catalogue.generation import GENERATION
from fednlp.data.catalogue.glue import GLUE
from fednlp.data.catalogue.language import LANGUAGE
from fednlp.data.catalogue.news import NEWS
from fednlp.data.catalogue.paper_partitions import paper_partition
from fednlp.data.catalogue.tagging import TAGGING
from fednlp.data.catalogue.translation import TRANSLATION
from fednlp.data.checks import view_of
from fednlp.data.store import Rows, rows_in_cache
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.hubs.package_index import first_fault, unpacked_folder

__all__ = ["CATALOGUE", "Entry", "Opened", "data_names", "describe", "entry"]

_OPENERS = CLASSIFICATION | GLUE | TAGGING | ANSWERING | GENERATION | TRANSLATION | LANGUAGE | NEWS | CHATS


def _entries() -> Iterator[Entry]:
    """Yield the data sets of ``published.toml``, each with what opens its files."""
    published = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    for name, facts in published.items():
        counts, hub = facts.pop("counts", {}), facts.pop("hub", None)
        known = {key: counts.get(key) for key in ("labels", "train", "test")} | {"natural": None} | facts
        yield Entry(name, **known, _opener=_OPENERS[name], _hub=Hub(**hub) if hub else None)


CATALOGUE: Mapping[str, Entry] = {one.name: one for one in _entries()}


def entry(name: str) -> Entry:
    """Return a data set of the catalogue.

    Raises:
        DataError: There is none of that name; with the nearest.
    """
    if name not in CATALOGUE:
        raise DataError(
            f"unknown data set {name!r}: {did_you_mean(name, CATALOGUE)}fednlp data list shows those that are "
            f'known; a data set of the hub is named "owner/name", and your own file is given by path'
        )
    return CATALOGUE[name]


def data_names() -> tuple[str, ...]:
    """Return the names of the catalogue.

    >>> data_names()[:5]
    ('20news', 'agnews', 'sst2', 'trec', 'bbc')
    """
    return tuple(CATALOGUE)


def describe() -> tuple[Entry, ...]:
    """Return the data sets known by name: what each is, its size, source and licence, and how it is got.

    >>> [entry.name for entry in describe() if entry.task == "question-answering"]
    ['squad', 'squadshifts', 'xquad', 'mrqa']
    """
    return tuple(CATALOGUE.values())


def info(name: str) -> dict[str, Any]:
    """Return all that is known about a data set of the catalogue, and what of it is in the cache.

    Args:
        name: One of :func:`fednlp.data.data_names`.

    Returns:
        The public attributes of :class:`Entry`; ``how`` and where it is ``fetched``; ``packages`` with their
        versions; ``paper_partition``: what the papers make of it, in words, a line each;
        ``cached``: whether its pinned files lie in the cache, and ``counts`` of its examples
        there, both None where that is not known without reading it.

    Raises:
        DataError: There is none of that name; with the nearest.

    >>> about = info("mrqa")
    >>> about["natural"], about["fetched"], about["cached"]
    ('dataset', 'path', None)
    """
    one = entry(name)
    described = {field.name: getattr(one, field.name) for field in fields(one) if field.repr}
    cached = _is_cached(one) if one.archives else None
    return {
        **described,
        "how": one.how,
        "fetched": one.fetched,
        "packages": [pinned.title for pinned in one.archives],
        "paper_partition": paper_partition(name, one.natural),
        "cached": cached,
        "counts": _counts(one) if cached else None,
    }


def _is_cached(one: Entry) -> bool:
    return all(first_fault(pinned, unpacked_folder(pinned)) is None for pinned in one.archives)


def _counts(one: Entry) -> dict[str, int] | None:
    opened = one.open()
    pair: dict[str, Rows | None] = {"train": opened.train, "test": opened.test}
    counts = {
        split: rows_in_cache(rows, view_of(rows, one.task, {}, "refuse"))
        for split, rows in pair.items()
        if rows
    }
    known = {split: count for split, count in counts.items() if count is not None}
    return known if len(known) == len(counts) else None
