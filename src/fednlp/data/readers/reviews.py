"""Short texts with one label in CSV without a header: Sentiment140, and the sets of Zhang, Zhao and LeCun (2015)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.data.readers.csv_files import csv_records
from fednlp.data.store import Row
from fednlp.errors import DataError

SENTIMENT140_COLUMNS = ("text", "label", "user", "date", "id")
YAHOO_COLUMNS = ("text", "label", "title", "question", "answer")
YELP_COLUMNS = ("text", "label")
NEWS_COLUMNS = ("text", "label", "title", "description")

POLARITIES = {"0": "negative", "2": "neutral", "4": "positive"}
STARS = ("1", "2", "3", "4", "5")
NEWS = ("World", "Sports", "Business", "Sci/Tech")
TOPICS = (
    "Society & Culture",
    "Science & Mathematics",
    "Health",
    "Education & Reference",
    "Computers & Internet",
    "Sports",
    "Business & Finance",
    "Entertainment & Music",
    "Family & Relationships",
    "Politics & Government",
)
"""The classes of Yahoo Answers, in the order of their numbers, from 1 on."""


def sentiment140(path: Path) -> Iterator[Row]:
    """Read Sentiment140 (Go et al., 2009): ``polarity,id,date,query,user,text``, old tweets in Latin-1.

    ``user`` is the natural client. The training file has no neutral tweets, the test file has.

    Raises:
        DataError: A record is not that.
    """
    # The published file was written without regard to quotes within a tweet.
    for number, cells in csv_records(path, 6, latin1=True, strict=False):
        polarity, key, date, _, user, text = cells
        if polarity not in POLARITIES:
            raise DataError(
                f"{path}:{number}: the polarity is {polarity[:40]!r}, where Sentiment140 has 0, 2 or 4"
            )
        yield _filled(text.strip(), path, number), POLARITIES[polarity], user, date, key


def yahoo(path: Path) -> Iterator[Row]:
    """Read Yahoo Answers: ``class,title,question,answer``; any of the three texts may be empty, not all.

    Raises:
        DataError: A record is not that.
    """
    for number, label, texts in _classes(path, TOPICS, 3):
        yield _filled(" ".join(filter(None, texts)), path, number), label, *texts


def yelp(path: Path) -> Iterator[Row]:
    """Read Yelp reviews with one to five stars: ``stars,text``.

    Raises:
        DataError: A record is not that.
    """
    for number, label, (text,) in _classes(path, STARS, 1):
        yield _filled(text, path, number), label


def news(path: Path, names: Sequence[str] = NEWS) -> Iterator[Row]:
    """Read ``class,title,description``: AG News, or with other names DBpedia, Sogou News and Amazon reviews.

    Raises:
        DataError: A record is not that.
    """
    for number, label, texts in _classes(path, names, 2):
        yield _filled(" ".join(filter(None, texts)), path, number), label, *texts


def _classes(path: Path, names: Sequence[str], texts: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each record's line, the name of its class, and its texts, in which ``\\n`` stands for a line break."""
    places = {str(number): name for number, name in enumerate(names, 1)}
    for number, (place, *cells) in csv_records(path, texts + 1):
        if place not in places:
            raise DataError(
                f"{path}:{number}: the class is {place[:40]!r}, where this data set has 1 to {len(names)}"
            )
        yield number, places[place], [cell.replace("\\n", "\n").strip() for cell in cells]


def _filled(text: str, path: Path, number: int) -> str:
    if not text:
        raise DataError(f"{path}:{number}: the text is missing: fill it in or delete the record")
    return text
