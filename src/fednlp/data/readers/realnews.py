"""RealNews: articles of news sites, with the site that each is from."""

from collections.abc import Iterator
from pathlib import Path

from fednlp.data.readers.json_files import json_lines, string_at
from fednlp.data.store import Row

COLUMNS = ("text", "title", "domain", "publish_date")


def realnews(path: Path, split: str = "") -> Iterator[Row]:
    """Read RealNews (Zellers et al., 2019): JSON lines with ``text``, ``domain`` and more.

    Args:
        path: The file.
        split: ``"train"`` for the articles of that split, ``"test"`` for all others, "" for all.

    Raises:
        DataError: A line is no article.
    """
    for number, article in json_lines(path):
        where = f"{path}:{number}"
        if split and (string_at(article, "split", where) == "train") != (split == "train"):
            continue
        title, date = (article.get(key) for key in ("title", "publish_date"))
        yield (
            string_at(article, "text", where).strip(),
            title if isinstance(title, str) else None,
            string_at(article, "domain", where),
            date if isinstance(date, str) else None,
        )
