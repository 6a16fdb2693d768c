"""All there is to say about a data set that is known by name."""

from dataclasses import fields
from typing import Any

from fednlp.data.catalogue import Entry, entry
from fednlp.data.load import view_of
from fednlp.data.store import Rows, rows_in_cache
from fednlp.hubs.cache import cache_dir
from fednlp.hubs.package_index import first_fault


def info(name: str) -> dict[str, Any]:
    """Return what the catalogue says about a data set, and what of it lies in the cache.

    Args:
        name: One of :func:`fednlp.data.data_names`.

    Returns:
        The public attributes of :class:`Entry`; ``how`` and where it is ``fetched``; ``packages`` with their
        versions; ``cached``: whether its pinned files lie in the cache, and ``counts`` of its examples there,
        both None where that is not known without reading it.

    Raises:
        DataError: There is none of that name; with the nearest.

    >>> about = info("mrqa")
    >>> about["natural"], about["fetched"], about["cached"]
    ('dataset', 'path', None)
    """
    one = entry(name)
    said = {field.name: getattr(one, field.name) for field in fields(one) if field.repr}
    cached = _is_cached(one) if one.sources else None
    return {
        **said,
        "how": one.how,
        "fetched": one.fetched,
        "packages": [source.title for source in one.sources],
        "cached": cached,
        "counts": _counts(one) if cached else None,
    }


def _is_cached(one: Entry) -> bool:
    return all(first_fault(source, cache_dir() / "sources" / source.folder) is None for source in one.sources)


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
