"""Which column of a file is what: from what the user says, from a task's schema, and from the names there are."""

from collections.abc import Iterable, Mapping, Sequence

from fednlp.data.schema import SCHEMAS
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean

CANONICAL: tuple[str, ...] = tuple(
    dict.fromkeys(name for schema in SCHEMAS.values() for name in (*schema.needed, *schema.optional))
)
"""Every canonical name, of whatever task."""

_NEEDED = frozenset(name for schema in SCHEMAS.values() for name in schema.needed)

TARGETS: tuple[str, ...] = tuple(
    dict.fromkeys(schema.target for schema in SCHEMAS.values() if schema.target is not None)
)
"""The canonical names of what is to be predicted."""

LISTS = frozenset({"words", "tags", "answers", "references"})
"""The canonical names of what holds JSON; any other column holds text or a number."""

# In this order; a task that reads the columns of another is never guessed.
_GUESSED = (
    "text-classification",
    "text-regression",
    "token-classification",
    "question-answering",
    "sequence-to-sequence",
)
_LONGEST_NAME = 40


def wanted_columns(columns: Mapping[str, str], text: str = "text", label: str = "label") -> dict[str, str]:
    """Return what the user says about columns: the column's own name by the canonical one.

    Args:
        columns: Own names by canonical ones.
        text: Short for ``columns["text"]``.
        label: Short for ``columns["label"]``.

    Raises:
        DataError: A name is not canonical, or two say different things.

    >>> wanted_columns({"source": "dialogue"}, label="topic")
    {'source': 'dialogue', 'label': 'topic'}
    """
    found = dict(columns)
    for name in found:
        if name not in CANONICAL:
            raise DataError(
                f"columns: unknown name {name!r}: {did_you_mean(name, CANONICAL)}it is one of {', '.join(CANONICAL)}"
            )
    for name, own in (("text", text), ("label", label)):
        if found.get(name, own) != own and own != name:
            raise DataError(f"{name} is {own!r}, and columns say {found[name]!r}: say it once")
        if own != name:
            found[name] = own
    return found


def check_columns(where: str, columns: Sequence[str], *wanted: str) -> None:
    """Refuse columns that lack a wanted one, with the nearest there is.

    Raises:
        DataError: A column is missing or stands there twice.
    """
    for name in wanted:
        if name not in columns:
            raise DataError(
                f"{where}: no column {name!r}: {did_you_mean(name, columns)}{_there_are(columns)}"
            )
    twice = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
    if twice is not None:
        raise DataError(f"{where}: the column {twice!r} stands there twice: rename one")


def infer_task(where: str, names: Sequence[str], wanted: Mapping[str, str]) -> str:
    """Return the one task that the columns of a file fit, a language model's where there are texts alone.

    Args:
        where: The file, for messages.
        names: Its columns.
        wanted: As :func:`wanted_columns` gives it; a task that has no use for one of these does not fit.

    Raises:
        DataError: No task fits, or more than one, or a column that the user names is missing.

    >>> infer_task("a.csv", ["id", "dialogue", "target"], {"source": "dialogue"})
    'sequence-to-sequence'
    """
    if wanted:
        check_columns(where, names, *(own for name, own in wanted.items() if name in _NEEDED))
    fitting = [task for task in _GUESSED if _fits(task, names, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DataError(
            f"{where}: the columns fit {' and '.join(fitting)} alike: say which, such as "
            f'task.name = "{fitting[0]}"'
        )
    if _fits("causal-lm", names, wanted):
        others = [name for name in names if name != wanted.get("text", "text")]
        near = [name for name in ("label", "score") if did_you_mean(name, others)]
        if not near:
            return "causal-lm"
        check_columns(where, names, near[0])
    needs = "; ".join(f"{task} needs {_listed(SCHEMAS[task].needed)}" for task in (*_GUESSED, "causal-lm"))
    raise DataError(
        f"{where}: no task fits, {_there_are(names)}: {needs}; say which is which, such as "
        f'columns = {{source = "dialogue", target = "summary"}}'
    )


def columns_of(where: str, names: Sequence[str], task: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return a task's columns that a file has: its own names by the canonical ones, in the schema's order.

    Raises:
        DataError: One that the task needs, or that the user names, is missing; or the task has no use for it.
    """
    schema = SCHEMAS[task]
    known = (*schema.needed, *schema.optional)
    for name in wanted:
        if name not in known:
            raise DataError(
                f"{task} has no column {name!r}: {did_you_mean(name, known)}it reads {', '.join(known)}"
            )
    check_columns(where, names, *(wanted.get(name, name) for name in schema.needed))
    check_columns(where, names, *wanted.values())
    found = {name: own for name in known if (own := wanted.get(name, name)) in names}
    for name, own in found.items():
        other = next(one for one in found if found[one] == own)
        if other != name:
            raise DataError(f"{other} and {name} are both the column {own!r}: name two columns")
    return found


def _fits(task: str, names: Iterable[str], wanted: Mapping[str, str]) -> bool:
    schema = SCHEMAS[task]
    return all(wanted.get(name, name) in names for name in schema.needed) and all(
        name in (*schema.needed, *schema.optional) for name in wanted
    )


def _there_are(names: Sequence[str]) -> str:
    return f"the columns are {', '.join(repr(_shortened(name)) for name in names)}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shortened(name: str) -> str:
    """Return the beginning of what may be a whole text, where a file lacks its line of column names."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
