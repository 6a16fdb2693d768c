"""Columns beside texts that look like labels, and texts that look like rows of a table: a question before training.

A file that no other task fits is read for a language model. That is wrong where its labels only have another name.
"""

import re
from collections.abc import Sequence

from fednlp.data.columns import TaskUnknown, listed, pair_of
from fednlp.data.readers.csv_files import delimiter_name
from fednlp.data.textdata import TextData
from fednlp.formatting.units import plural

# fmt: off
_FACTS = frozenset((
    "annotator", "author", "channel", "city", "client", "client_id", "country", "created_at", "date",
    "dialect", "doc", "document", "domain", "editor", "file", "filename", "genre", "hospital", "id", "index",
    "lang", "language", "license", "licence", "name", "office", "organisation", "page", "part", "place",
    "play", "publisher", "region", "role", "scene", "silo", "silo_part", "site", "source", "speaker", "split",
    "subset", "team", "time", "timestamp", "title", "updated_at", "url", "user", "user_id", "username",
    "version", "week", "year",
))
# fmt: on
"""What a text is of, by whom and from where, which may tell clients apart, and is no label."""

_ROWS = 20_000
_FEWEST_LINES = 8
_MOST_LABELS = 100
_LONGEST_LABEL = 40
_MOST_WORDS = 4
_ONE_HOT = {"0", "1", "0.0", "1.0", "true", "false", "True", "False", ""}
_MARKED = re.compile(
    r"<([A-Z][A-Z_]+)( [^<>]*)?>[^<>]+</\1>|\[[^\[\]]+\]\([A-Za-z_:]+\)|\[[^\[\]\s][^\[\]]* [A-Z][A-Z_]+\]"
)
"""Spans within a text: ``<PER>Anna</PER>``, ``[Anna](person)``, ``[Anna PER]``."""
_ONES = {"1", "1.0", "true", "True"}


def check_unread(data: TextData) -> str:
    """Refuse a language model's data whose other columns, or parts of whose lines, look like labels.

    Args:
        data: A data set whose task was inferred from its columns.

    Returns:
        What to type if a column is the label whose name says rather what a text is of; empty where there is none.

    Raises:
        TaskUnknown: It looks so; the message says what to type.
    """
    if data.schema.kind != "none":
        return _unread_partner(data)
    text = data.columns["text"]
    head = data.train.slice(0, _ROWS)
    values = {
        name: ["" if one is None else one for one in head.column(name).to_pylist()]
        for name in head.column_names
        if name != text
    }
    others = [name for name in values if name.lower() not in _FACTS]
    ones = [name for name in others if set(values[name]) <= _ONE_HOT and set(values[name]) & _ONES]
    if len(ones) > 1:
        sums = {
            sum(one in _ONES for one in row) for row in zip(*(values[name] for name in ones), strict=True)
        }
        exact = (
            "sum to 1: one-hot labels" if sums == {1} else "may be several at once: an example has one label"
        )
        raise TaskUnknown(
            f"{data.source}: {listed([repr(name) for name in ones])} are 0 or 1 and {exact}; write the name of the "
            'label into one column, or say task.name = "causal-lm" to leave them unread'
        )
    lists = [name for name in others if _are_lists(values[name])]
    if lists:
        raise TaskUnknown(
            f"{data.source}: {lists[0]!r} holds lists: if they are the tags of words, write the words as lists too and "
            f'say columns = {{words = "WORDS", tags = "{lists[0]}"}}; if they are labels, an example has one; or say '
            'task.name = "causal-lm" to read the texts alone'
        )
    found = [name for name in others if _are_labels(values[name])]
    if found:
        shown = listed(sorted(set(values[found[0]]))[:2])
        more = f" (so may {listed([repr(name) for name in found[1:]])})" if len(found) > 1 else ""
        raise TaskUnknown(
            f"{data.source}: no column 'label', but {found[0]!r} may be one{more}: "
            f"{plural(len(set(values[found[0]])), 'short value')} such as {shown}; say data.label = "
            f'"{found[0]}", or task.name = "causal-lm" to read the texts alone'
        )
    if len(data.train.column_names) == 1:
        _check_lines(data, head.column(text).to_pylist())
    fact = next((name for name in values if name not in others and _are_labels(values[name])), None)
    if fact is None:
        return ""
    count = plural(len(set(values[fact]) - {""}), "short value")
    return f'{fact!r} has {count} and is not read: if it is the label, say data.label = "{fact}"'


def _unread_partner(data: TextData) -> str:
    """Return what to type where the other text of a well-known pair is not read; empty where there is none."""
    text, pair = data.columns.get("text"), data.columns.get("text_pair")
    partners = pair_of(data.train.column_names, text) if text is not None and pair is None else None
    if partners is None:
        return ""
    other = partners[text == partners[0]]
    return f'{other!r} is not read: if it is a pair with {text!r}, say columns = {{text_pair = "{other}"}}'


def _are_lists(values: Sequence[str]) -> bool:
    """Say whether values are lists, not all of them empty."""
    filled = {value for value in values if value}
    return bool(filled - {"[]"}) and all(value.startswith("[") and value.endswith("]") for value in filled)


def _check_lines(data: TextData, lines: Sequence[str]) -> None:
    """Refuse lines of text each of which has a delimiter and a label on one side of it."""
    if len(lines) < _FEWEST_LINES:
        return
    lines = [line.strip() for line in lines]
    marked = [found[0] for line in lines if (found := _MARKED.search(line))]
    if 2 * len(marked) >= len(lines):
        raise TaskUnknown(
            f"{data.source}: most lines have marked words such as {marked[0][:40]!r}: if they are to be predicted, "
            "write a word and its tag on each line of a .conll file, or spans beside the text (an annotation tool's "
            'JSON); else say task.name = "causal-lm"'
        )
    for delimiter in "\t;|, ":
        if not all(delimiter in line for line in lines):
            continue
        sides = (
            [line.rsplit(delimiter, 1)[1].strip() for line in lines],
            [line.split(delimiter, 1)[0].strip() for line in lines],
        )
        alike = len({line.count(delimiter) for line in lines}) == 1
        sure = alike or delimiter != " "
        labels = next(
            (side for side in sides if _are_labels(side) and (sure or all(map(_is_code, side)))), None
        )
        if labels is None and (delimiter != "\t" or not alike):
            continue
        what = "a blank" if delimiter == " " else f"a {delimiter_name(delimiter)}"
        if labels is not None:
            what += f", with one of {len(set(labels))} short values such as {labels[-1]!r} beside it"
        raise TaskUnknown(
            f"{data.source}: a text a line for a language model, but every line has {what}: if it is a table, call it "
            ".csv and give it a first line of column names; "
            + ("if these are words and their tags, call it .conll; " if alike and delimiter in "\t " else "")
            + 'else say task.name = "causal-lm"'
        )


def _is_code(word: str) -> bool:
    """Say whether a word is rather a label than the beginning of a sentence or its end, or the name of a speaker."""
    return any(map(str.isalnum, word)) and not word.isalpha() and word[-1].isalnum()


def _are_labels(values: Sequence[str]) -> bool:
    """Say whether values are short and few, each in several rows."""
    names = set(values) - {""}
    if not 2 <= len(names) <= min(_MOST_LABELS, max(2, len(values) // 4)) or len(values) < 4:
        return False
    return all(
        len(name) <= _LONGEST_LABEL and len(name.split()) <= _MOST_WORDS for name in names
    ) and not any(name.startswith(("{", "[")) for name in names)
