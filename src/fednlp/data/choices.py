"""Questions with options: which text is the answer, and what is wrong with options.

However a file has it, an example with options has a column ``choices``, a JSON list of texts, one of which is the last
message of its conversation.
"""

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

from fednlp.data.store import Fault, Row
from fednlp.errors import DataError
from fednlp.formatting.units import plural

MOST_OPTIONS = 26
"""So many letters there are."""
FORMS: Mapping[str, str] = {
    "number": "by its number, from 0",
    "letter": "by its letter",
    "text": "by its text",
}
"""How a column may say which option is right."""
_NUMBER = re.compile(r"(\d{1,9})(\.0+)?", re.ASCII)
QUESTION = ("question", "choices", "answer")
"""The columns of a question with options."""
_LAYOUTS = (
    ("question", "choices", "answerkey"),
    ("question_stem", "choices", "answerkey"),
    ("ctx", "endings", "label"),
)
"""Other names of these columns, in lower case: ARC's and CommonsenseQA's, OpenBookQA's, HellaSwag's."""
_SHOWN = 40
_WANTED = 'no list of texts such as ["red", "green"]'


def options_in(value: str | None) -> list[str] | None:
    """Return the options of a cell; None where it is no list of texts or whole numbers.

    >>> options_in('["red", 4]'), options_in("red, green")
    (['red', '4'], None)
    """
    try:
        found = json.loads(value or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or any(type(one) not in (str, int, float) for one in found):
        return None
    return [one if isinstance(one, str) else json.dumps(one) for one in found]


def question_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns of a question, its options and its answer, as a file has them in other words than we do.

    Options may be columns of their own, which have the names of their letters.

    >>> question_columns(["id", "question", "choices", "answerKey"])
    ('question', 'choices', 'answerKey')
    >>> question_columns(["question", "A", "B", "C", "answer"])
    ('question', 'A', 'B', 'C', 'answer')
    >>> question_columns(["question", "choices", "answer"])
    """
    own = {name.strip().casefold(): name for name in reversed(names)}
    letters: list[str] = []
    while len(letters) < MOST_OPTIONS and string.ascii_lowercase[len(letters)] in own:
        letters.append(string.ascii_lowercase[len(letters)])
    lettered = [] if len(letters) < 2 or "choices" in own else [("question", *letters, "answer")]
    found = next((layout for layout in (*_LAYOUTS, *lettered) if {*layout} <= own.keys()), None)
    return None if found is None else tuple(own[name] for name in found)


def question_maker(
    columns: Sequence[str],
) -> Callable[[Sequence[str]], Callable[[Row], tuple[str, str, str] | Fault]]:
    """Return what makes the columns :data:`QUESTION` of rows.

    Options with labels, ``{"text": ["red", "green"], "label": ["1", "2"]}``, become a list of texts, and the label of
    the right one becomes its letter.

    Args:
        columns: From :func:`question_columns`.

    >>> question_maker(["q", "A", "B", "answer"])(["q", "A", "B", "answer"])(["Colour?", "red", "green", "B"])
    ('Colour?', '["red", "green"]', 'B')
    """

    def maker(names: Sequence[str]) -> Callable[[Row], tuple[str, str, str] | Fault]:
        places = [names.index(name) for name in columns]

        def convert(row: Row) -> tuple[str, str, str] | Fault:
            question, *options, answer = (row[at] or "" for at in places)
            if len(options) > 1:
                while options and not options[-1].strip():
                    options.pop()
                return question, json.dumps(options, ensure_ascii=False), answer
            labelled = _labelled(options[0])
            if labelled is None:
                return question, options[0], answer
            texts, labels = labelled
            if answer.strip() and answer.strip() not in labels:
                wanted = ", ".join(labels)[:_SHOWN]
                return Fault(
                    f"the answer {answer.strip()[:_SHOWN]!r} is none of the options' labels, {wanted}"
                )
            letter = string.ascii_uppercase[labels.index(answer.strip())] if answer.strip() else ""
            return question, json.dumps(texts, ensure_ascii=False), letter

        return convert

    return maker


def _labelled(value: str) -> tuple[list[str], list[str]] | None:
    """Return the texts and labels of options; None where a cell does not hold both."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        found = {key: [one.get(key) for one in found] for key in ("text", "label")}
    if not isinstance(found, dict):
        return None
    texts, labels = (options_in(json.dumps(found.get(key))) for key in ("text", "label"))
    if not texts or labels is None or not len(texts) == len(labels) <= MOST_OPTIONS:
        return None
    return texts, [label.strip() for label in labels]


def place_of(answer: str, options: Sequence[str], form: str) -> int | None:
    """Return which option an answer stands for, counted from 0; None where it stands for none.

    Args:
        form: One of :data:`FORMS`.

    >>> place_of("1", ["1", "2"], "number"), place_of("1", ["1", "2"], "text"), place_of("b", ["1", "2"], "letter")
    (1, 0, 1)
    """
    said = answer.strip()
    if form == "number":
        number = _NUMBER.fullmatch(said)
        place = int(number[1]) if number else -1
    elif form == "letter":
        place = string.ascii_uppercase.find(said.upper()) if len(said) == 1 else -1
    else:
        place = next((at for at, option in enumerate(options) if option.strip() == said), -1)
    return place if 0 <= place < len(options) else None


def answer_form(where: str, rows: Iterable[tuple[Sequence[str], str]]) -> str:
    """Return how answers say which option is right: as most rows can be read.

    Args:
        where: The file, for messages.
        rows: Options and answer of some rows.

    Raises:
        DataError: They can be read in two ways that do not say the same.

    >>> answer_form("a.csv", [(["1", "2"], "0"), (["1", "2"], "1")])
    'number'
    """
    fits, places = dict.fromkeys(FORMS, 0), {form: list[int | None]() for form in FORMS}
    for options, answer in rows:
        for form in FORMS:
            place = place_of(answer, options, form)
            places[form].append(place)
            fits[form] += place is not None
    best = max(fits, key=fits.__getitem__)
    for form in FORMS:
        if fits[form] == fits[best] and places[form] != places[best]:
            raise DataError(
                f"{where}: the answers can be read in two ways, {FORMS[best]} and {FORMS[form]}, and these do not say "
                "the same: write letters, such as A for the first of the choices"
            )
    return best


def answer_fault(answer: str, options: Sequence[str], form: str) -> str:
    """Return what is wrong with an answer that stands for none of the options."""
    said = repr(answer.strip()[:_SHOWN])
    if form == "text":
        return f"the answer {said} is not among the {plural(len(options), 'choice')}: write it as it stands there"
    last = min(len(options), MOST_OPTIONS) - 1
    ends = f"0 to {len(options) - 1}" if form == "number" else f"A to {string.ascii_uppercase[last]}"
    return f"the answer {said} is outside the {plural(len(options), 'choice')}, which are {ends}"


def choices_fault(value: str | None, own: str, last: str) -> str | None:
    """Return what is wrong with the options of a conversation, or None.

    Args:
        value: JSON; empty for a conversation without options.
        own: The column's name, for messages.
        last: The last message of the conversation.

    >>> choices_fault('["red", "green"]', "choices", "red")
    >>> choices_fault('["red"]', "choices", "red")
    "there is one option in 'choices': a choice is among two or more"
    """
    if not (value or "").strip():
        return None
    options = options_in(value)
    if options is None:
        python = " (of pandas, write the table with to_json(..., lines=True))" * (value or "").startswith(
            "['"
        )
        return f"{own!r} is {_WANTED}{python}"
    if len(options) < 2:
        return f"there is {'one' if options else 'no'} option in {own!r}: a choice is among two or more"
    if len(options) > MOST_OPTIONS:
        return f"there are {len(options):,} options in {own!r}: {MOST_OPTIONS} at most have a letter"
    texts = [option.strip() for option in options]
    if "" in texts:
        return f"option {1 + texts.index('')} in {own!r} is empty"
    twice = next((text for at, text in enumerate(texts) if text in texts[:at]), None)
    if twice is not None:
        return f"the option {twice[:_SHOWN]!r} is in {own!r} twice: a text is right or wrong"
    if last.strip() not in texts:
        return f"the answer {last.strip()[:_SHOWN]!r} is not among the {plural(len(options), 'choice')} in {own!r}"
    return None
