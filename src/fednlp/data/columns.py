"""The roles of the columns of a file, from the user's settings, a task's schema and the names in the file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fednlp.data.chats import chat_columns
from fednlp.data.choices import question_columns
from fednlp.data.preferences import PAIR, pair_columns
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formulations import TASKS

if TYPE_CHECKING:
    from fednlp.data.store import Rows

_SCHEMAS = [task.schema for task in TASKS.values()]
_CANONICAL: tuple[str, ...] = tuple(
    dict.fromkeys(name for schema in _SCHEMAS for name in (*schema.needed, *schema.optional))
)
"""Every canonical name, of whatever task."""

_NEEDED = frozenset(name for schema in _SCHEMAS for name in schema.needed)

TARGETS: tuple[str, ...] = tuple(
    dict.fromkeys(schema.target for schema in _SCHEMAS if schema.target is not None)
)
"""The canonical names of what is to be predicted."""

LISTS = frozenset({"words", "tags", "answers", "references", "messages", "choices"})
"""The canonical names of what holds JSON; any other column holds text or a number."""

# In this order; a task that reads the columns of another is never guessed.
_GUESSED = (
    "text-classification",
    "text-regression",
    "token-classification",
    "question-answering",
    "sequence-to-sequence",
)
_LONGEST_NAME, _MOST_WORDS = 40, 5
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("sentence_1", "sentence_2"),
    ("s1", "s2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
    ("claim", "evidence"),
    ("headline", "body"),
    ("context", "hypothesis"),
)
"""Names of two texts of which the one says something of the other."""
_SCORES = ("score", "similarity", "similarity_score", "relatedness_score")
_LABELS = (
    "label",
    "labels",
    "gold_label",
    "is_duplicate",
    *_SCORES,
    "quality",
    "class",
    "entailment",
    "stance",
    "answer",
)
"""Names that a column of labels or scores has beside a pair."""


class MissingColumns(DataError):
    """A file lacks columns.

    Args:
        where: The file, for messages.
        missing: The columns that it lacks, at least one; the message names the first.
        columns: Those that it has.
    """

    def __init__(self, where: str, missing: Sequence[str], columns: Sequence[str]) -> None:
        super().__init__(
            f"{where}: no column {missing[0]!r}: {did_you_mean(missing[0], columns)}{there_are(columns)}"
        )
        self.where, self.missing, self.columns = where, tuple(missing), tuple(columns)


class TaskUnknown(DataError):
    """It cannot be told from the columns which task is meant.

    Attributes:
        rows: The rows that have these columns, where they are at hand.
    """

    rows: "Rows | None" = None


def configured_columns(
    columns: Mapping[str, str | int], text: str = "text", label: str = "label"
) -> dict[str, str]:
    """Return the columns that the user configured: own names by canonical ones.

    Args:
        columns: Own names by canonical ones; or numbers, of the columns of a file of words and tags.
        text: Short for ``columns["text"]``.
        label: Short for ``columns["label"]``.

    Raises:
        DataError: A name is not canonical, or two settings contradict each other.

    >>> configured_columns({"source": "dialogue"}, label="topic")
    {'source': 'dialogue', 'label': 'topic'}
    """
    found = {name: str(own) for name, own in columns.items()}
    for name in found:
        if name not in _CANONICAL:
            raise DataError(
                f"data.columns: unknown name {name!r}: {did_you_mean(name, _CANONICAL)}it is one of "
                f"{', '.join(_CANONICAL)}"
            )
    for name, own in (("text", text), ("label", label)):
        if found.get(name, own) != own and own != name:
            raise DataError(f"data.{name} is {own!r}, and data.columns says {found[name]!r}: say it once")
        if own != name:
            found[name] = own
    return found


def check_columns(where: str, columns: Sequence[str], *required: str) -> None:
    """Refuse columns that lack a required one; the message names the nearest one.

    Raises:
        MissingColumns: A column is missing.
        DataError: A column occurs twice.
    """
    missing = [name for name in required if name not in columns]
    if missing:
        raise MissingColumns(where, missing, columns)
    twice = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
    if twice is not None:
        raise DataError(f"{where}: the column {twice!r} stands there twice: rename one")


def infer_task(where: str, names: Sequence[str], configured: Mapping[str, str]) -> str:
    """Return the one task that the columns of a file fit, a language model's where there are texts alone.

    Args:
        where: The file, for messages.
        configured: The result of :func:`configured_columns`; a task that does not use one of these does not fit.

    Raises:
        DataError: No task fits, or more than one, or a column that the user names is missing.

    >>> infer_task("a.csv", ["id", "dialogue", "target"], {"source": "dialogue"})
    'sequence-to-sequence'
    """
    if configured:
        check_columns(where, names, *(own for name, own in configured.items() if name in _NEEDED))
    fitting = [task for task in _GUESSED if _fits(task, names, configured)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise TaskUnknown(
            f"{where}: the columns fit {' and '.join(fitting)} alike: say which, such as "
            f'task.name = "{fitting[0]}"'
        )
    if pair_columns(names, configured) is not None and not configured.keys() - {*PAIR}:
        return "preference"
    chats = chat_columns(names, configured.get("messages"))
    if (
        chats is not None
        and not configured.keys() - {"messages", "choices"}
        and not {*_LABELS} & {*_lower(names)} - {"answer"}
    ):
        return "chat"
    if question_columns(names) is not None and not configured:
        return "chat"
    if (advice := _known_layout(names, configured)) is not None:
        raise TaskUnknown(f"{where}: {advice}")
    if _fits("causal-lm", names, configured):
        near = [name for name in ("label", "score") if get_close_matches(name, _lower(names), cutoff=_NEAR)]
        if not near:
            return "causal-lm"
        check_columns(where, names, near[0])
    needs = "; ".join(
        f"{task} needs {listed(TASKS[task].schema.needed)}" for task in (*_GUESSED, "causal-lm")
    )
    needs += "; chat needs messages, or columns called such as question and answer"
    raise TaskUnknown(
        f"{where}: no task fits, {there_are(names)}: {needs}; say which is which in [data], such as "
        'text = "body" and label = "team", or columns = {source = "dialogue", target = "summary"} (--text, --label and '
        "--column of a command)"
    )


_NEAR = 0.75
_ROWS_OF_WORDS = (
    "a table with a word in each row: write words and tags as columns of a .conll file, with a blank line between "
    "sentences"
)
_ANSWERS = (
    "a text, a question and its answer: write the answer into a column answers, as a JSON list with its position in "
    'the text, [{"text": "1912", "start": 3}]'
)
_LAYOUTS: tuple[tuple[frozenset[str], str], ...] = (
    *(
        (frozenset({number, word, tag}), _ROWS_OF_WORDS)
        for number in ("sentence #", "sentence", "sentence_id", "sentence_idx", "sent_id")
        for word, tag in (
            ("word", "tag"),
            ("words", "labels"),
            ("words", "tags"),
            ("token", "label"),
            ("word", "label"),
        )
    ),
    *(
        (frozenset({"context", "question", answer}), _ANSWERS)
        for answer in ("answer", "answer_text", "answer_start")
    ),
    *(
        (frozenset(pair), f'words and tags: say columns = {{words = "{pair[0]}", tags = "{pair[1]}"}}')
        for pair in (
            ("tokens", "ner_tags"),
            ("tokens", "pos_tags"),
            ("tokens", "tags"),
            ("tokens", "labels"),
            ("words", "ner_tags"),
            ("words", "ner"),
            ("words", "labels"),
        )
    ),
    (
        frozenset({"translation"}),
        "texts in two languages within one column: write each language into a column of its own, source and target",
    ),
)
"""Column names of well-known data that no task reads as they are, and what to do."""


def _known_layout(names: Sequence[str], configured: Mapping[str, str]) -> str | None:
    """Return what columns of these names are, and what to type; None where they are not known.

    Args:
        names: Those in the file.
        configured: The user's own names of columns, by the canonical ones.
    """
    lower = {name.strip().casefold(): name for name in reversed(names)}
    for needed in (TASKS[task].schema.needed for task in _GUESSED):
        own = {name: lower[name] for name in needed if name in lower}
        if len(own) == len(needed) and any(name != one for name, one in own.items()):
            said = ", ".join(f'{name} = "{one}"' for name, one in own.items() if name != one)
            return f"{there_are(names)}: call them {listed(needed)}, or say columns = {{{said}}}"
    if (value := _value_among(names)) is not None:
        return no_names(value, names)
    if (pair := pair_of(names, configured.get("text"))) is not None and not configured.keys() - {
        "text",
        "label",
    }:
        label = configured.get("label") or next((lower[one] for one in _LABELS if one in lower), "LABEL")
        role = "score" if label.lower() in _SCORES else "label"
        return (
            f'pairs of texts: say columns = {{text = "{pair[0]}", text_pair = "{pair[1]}", {role} = "{label}"}}'
            + (" (score in place of label where it is a number on a scale)" if role == "label" else "")
        )
    return next((advice for known, advice in _LAYOUTS if known <= lower.keys()), None)


def pair_of(names: Sequence[str], text: str | None = None) -> tuple[str, str] | None:
    """Return the two columns of well-known names that are a pair of texts, of which ``text`` may be one.

    >>> pair_of(["id", "Premise", "hypothesis"]), pair_of(["premise", "hypothesis"], "note")
    (('Premise', 'hypothesis'), None)
    """
    lower = {name.strip().casefold(): name for name in reversed(names)}
    found = next((pair for pair in _PAIRS if lower.keys() >= {*pair}), None)
    if found is None or (text is not None and text not in (lower[found[0]], lower[found[1]])):
        return None
    return lower[found[0]], lower[found[1]]


def no_names(value: str, names: Sequence[str]) -> str:
    """Return the advice for a table that lacks its line of column names, where a value stands in its place."""
    many = f"{len(names)} column names" if len(names) != 2 else "column names, such as text,label"
    known = ""
    if len(names) == 6 and "NO_QUERY" in names:
        known = ' (of Sentiment140: label,id,date,query,user,text; or say data.name = "sentiment140")'
    return (
        f"{_shortened(value)!r} stands where the name of a column should: begin the file with a line of {many}{known}; "
        "of JSON, write objects with these names"
    )


def _value_among(names: Sequence[str]) -> str | None:
    """Return the first of some names that is rather a text, or a number beside other names."""
    numbers = [name for name in names if _NUMBER.fullmatch(name.strip())]
    texts = [
        name
        for name in names
        if len(name) > _LONGEST_NAME
        or len(name.split()) > _MOST_WORDS
        or (len(name.split()) > 1 and name.rstrip().endswith((".", "!", "?")))
    ]
    return next(iter(texts), numbers[0] if numbers and len(numbers) < len(names) else None)


def _lower(names: Sequence[str]) -> list[str]:
    return [name.casefold() for name in names]


def columns_of(where: str, names: Sequence[str], task: str, configured: Mapping[str, str]) -> dict[str, str]:
    """Return a task's columns that a file has: its own names by the canonical ones, in the schema's order.

    Raises:
        DataError: One that the task needs, or that the user names, is missing; or the task does not use it.
    """
    schema = TASKS[task].schema
    known = (*schema.needed, *schema.optional)
    for name in configured:
        if name not in known:
            raise DataError(
                f"{task} has no column {name!r}: {did_you_mean(name, known)}it reads {', '.join(known)}"
            )
    check_columns(where, names, *(configured.get(name, name) for name in schema.needed))
    check_columns(where, names, *configured.values())
    found = {name: own for name in known if (own := configured.get(name, name)) in names}
    for name, own in found.items():
        other = next(one for one in found if found[one] == own)
        if other != name:
            raise DataError(f"{other} and {name} are both the column {own!r}: name two columns")
    return found


def _fits(task: str, names: Iterable[str], configured: Mapping[str, str]) -> bool:
    schema = TASKS[task].schema
    return all(configured.get(name, name) in names for name in schema.needed) and all(
        name in (*schema.needed, *schema.optional) for name in configured
    )


def there_are(names: Sequence[str]) -> str:
    """Return a message about the columns that there are."""
    return f"the columns are {', '.join(repr(_shortened(name)) for name in names)}"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shortened(name: str) -> str:
    """Return the beginning of what may be a whole text, where a file lacks its line of column names."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
