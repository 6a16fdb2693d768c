"""A task that was found from the columns and that the labels themselves speak against."""

from dataclasses import dataclass
from statistics import median

from fednlp.data.oddity import quoted
from fednlp.data.schema import SCHEMAS
from fednlp.data.textdata import TextData
from fednlp.errors import DataError

_SAMPLE = 200
_FEWEST_ROWS = 10
_WORDS, _CHARACTERS = 6, 40


@dataclass(frozen=True)
class Misread:
    """What speaks against labels, one of them, and what to type instead."""

    said: str
    example: str
    remedy: str


def refuse_misread(data: TextData) -> None:
    """Check that labels look like labels, where the task was not given but found.

    Raises:
        DataError: They are lists, or texts; with the task that is probably meant.
    """
    fault = misread(data)
    if fault is not None:
        raise DataError(f"{data.source}: {fault.said}, such as {fault.example}: {fault.remedy}")


def misread(data: TextData) -> Misread | None:
    """Return why the labels of a data set are none; None where they may well be labels.

    They are none if all are lists in brackets (words and tags, several labels an example), or if nearly every
    example has its own and they are as long as sentences.
    """
    if SCHEMAS[data.task].kind != "class":
        return None
    names, label = data.label_names, data.columns["label"]
    if names and all(map(_is_list, names)):
        return Misread(f"the labels in {label!r} are lists", quoted(names[0]), _remedy_of_lists(data))
    rows = len(data.train_numbers) + len(data.test_numbers)
    if rows >= _FEWEST_ROWS and len(names) >= 0.9 * rows and _are_long(names):
        return Misread(
            f"the labels in {label!r} are free text, {len(names):,} different ones for {rows:,} examples",
            quoted(names[0]),
            f"for texts to be written {_instead(data, 'sequence-to-sequence', 'source', 'target')}; for classes "
            "choose another column for the label",
        )
    return None


def _remedy_of_lists(data: TextData) -> str:
    if all(map(_is_list, data.input_texts("train", data.train_numbers[:_SAMPLE]))):
        return f"for words and their tags {_instead(data, 'token-classification', 'words', 'tags')}"
    return "classification takes one label an example; put one into each row"


def _instead(data: TextData, task: str, *names: str) -> str:
    """Return what to type for another task with the same two columns; columns of its own names are found."""
    own = (data.columns["text"], data.columns["label"])
    given = ", ".join(f'{name} = "{one}"' for name, one in zip(names, own, strict=True) if name != one)
    said = f'say task.name = "{task}"' + (f" and columns = {{{given}}}" if given else "")
    return said if own == ("text", "label") else f"{said}, and leave text and label out"


def _is_list(value: str) -> bool:
    stripped = value.strip()
    return stripped.startswith("[") and stripped.endswith("]")


def _are_long(names: tuple[str, ...]) -> bool:
    sample = names[:: max(1, len(names) // _SAMPLE)]
    words, characters = median(len(name.split()) for name in sample), median(map(len, sample))
    return words >= _WORDS or characters >= _CHARACTERS
