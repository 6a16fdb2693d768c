"""The data sets that fednlp knows by name: what they are, and how their published files are got and read."""

from collections.abc import Mapping

from fednlp.data.catalogue.answering import ANSWERING
from fednlp.data.catalogue.classification import CLASSIFICATION
from fednlp.data.catalogue.domains import DOMAINS
from fednlp.data.catalogue.entries import Entry, Opened
from fednlp.data.catalogue.generation import GENERATION
from fednlp.data.catalogue.glue import GLUE
from fednlp.data.catalogue.language import LANGUAGE
from fednlp.data.catalogue.news import NEWS
from fednlp.data.catalogue.tagging import TAGGING
from fednlp.data.catalogue.translation import TRANSLATION
from fednlp.errors import DataError
from fednlp.formatting.names import did_you_mean

__all__ = ["CATALOGUE", "Entry", "Opened", "data_names", "describe", "entry"]

CATALOGUE: Mapping[str, Entry] = {
    one.name: one
    for family in (CLASSIFICATION, GLUE, TAGGING, ANSWERING, GENERATION, TRANSLATION, DOMAINS, LANGUAGE, NEWS)
    for one in family
}


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
