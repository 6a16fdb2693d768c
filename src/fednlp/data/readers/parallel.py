"""Two languages, line by line or id by id: OPUS Moses pairs, Multi30k, WMT, and documentation in JSON."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from fednlp.data.readers.json_files import json_document
from fednlp.data.readers.text_io import numbered_lines
from fednlp.data.store import Row
from fednlp.errors import DataError
from fednlp.formatting.units import plural

COLUMNS = ("source", "target")


def parallel(path: Path, target: Path, keep_blank: bool = False) -> Iterator[Row]:
    """Read two files whose lines belong together, each plain or gzipped.

    Blank lines count, so that what follows stays aligned. The lines lose the blanks around them.

    Args:
        target: What it becomes: a translation, a summary, a reply.
        keep_blank: Whether to keep pairs of which a side is blank.

    Raises:
        DataError: The files have not the same number of lines; when the shorter is through.
    """
    for left, right in zip_longest(numbered_lines(path), numbered_lines(target)):
        if left is None or right is None:
            raise DataError(_unequal(path, target))
        pair = left[1].strip(), right[1].strip()
        if keep_blank or all(pair):
            yield pair


def _unequal(path: Path, target: Path) -> str:
    counts = [sum(1 for _ in numbered_lines(one)) for one in (path, target)]
    return (
        f"{path} has {plural(counts[0], 'line')} and {target} {counts[1]:,}: line n of one must belong to line n of "
        f"the other; take both files from the same place"
    )


def documentation(path: Path, target: Path) -> Iterator[Row]:
    """Read the JSON of Hashimoto et al. (2019): ``{"text": {id: text}}`` a language, with XML tags in the texts.

    The order is that of the source; pairs of which a side is blank are left out.
    Source: github.com/salesforce/localization-xml-mt.

    Raises:
        DataError: A file is not as it should be, or the two do not hold the same ids.
    """
    sources, targets = _texts(path), _texts(target)
    if sources.keys() != targets.keys():
        lacking = next(iter(sources.keys() ^ targets.keys()))
        which = target if lacking in sources else path
        raise DataError(
            f"{which}: no text {lacking[:80]!r}, which the other language has: take both from one place"
        )
    for key, source in sources.items():
        if source.strip() and targets[key].strip():
            yield source, targets[key], key


def _texts(path: Path) -> dict[str, str]:
    document = json_document(path)
    texts = document.get("text") if isinstance(document, dict) else None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise DataError(f'{path}: not {{"text": {{id: text}}}}: is this a file of this format?')
    return texts
