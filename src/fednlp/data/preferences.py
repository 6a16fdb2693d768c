"""Preferences: the layouts in which data sets have pairs of answers, and what is wrong with a pair.

However a file has it, a pair becomes three columns: ``messages``, the prompt as messages, JSON; and the texts of the
answers ``chosen`` and ``rejected``.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from fednlp.data.chats import Maker, Message, messages_fault, turns_of, with_made_columns, with_system
from fednlp.data.store import Fault, Row, Rows

PAIR = ("messages", "chosen", "rejected")
"""The columns of a pair."""
_PROMPTS: tuple[tuple[str, ...], ...] = (
    ("prompt",),
    ("instruction", "input"),
    ("instruction", "context"),
    *((name,) for name in ("instruction", "question", "query", "input")),
    *((name,) for name in ("messages", "conversations", "conversation")),
)
"""Names of the columns with the prompt, where the answers stand apart from it; two are joined by a blank line."""
_SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
_SHOWN = 40


def pair_columns(names: Sequence[str], own: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return which columns are pairs together, as they are called; None where none are.

    Args:
        names: Those that there are.
        own: The user's own names of ``messages`` (the prompt), ``chosen`` and ``rejected``.

    Returns:
        The two sides, after the columns of the prompt where there are any.

    >>> pair_columns(["id", "Prompt", "chosen", "rejected"]), pair_columns(["chosen", "rejected"])
    (('Prompt', 'chosen', 'rejected'), ('chosen', 'rejected'))
    >>> pair_columns(["prompt", "completion"])
    """
    own, there = own or {}, {name.strip().casefold(): name for name in reversed(names)}
    sides = [own.get(name) or there.get(name) for name in PAIR[1:]]
    known = next((one for one in _PROMPTS if {*one} <= there.keys()), ())
    prompt = [own["messages"]] if "messages" in own else [there[name] for name in known]
    found = tuple(name for name in (*prompt, *sides) if name is not None)
    return found if None not in sides and {*found} <= {*names} else None


def as_pairs(rows: Rows, columns: Sequence[str]) -> Rows:
    """Return rows of pairs in the three columns; a column ``system`` beside them is the system's message.

    Args:
        columns: From :func:`pair_columns`.
    """
    roles = dict.fromkeys(columns, "messages")  # texts, or lists
    return with_made_columns(
        rows, PAIR, columns, roles, ("pairs", json.dumps([columns])), pair_maker(columns)
    )


def pairs_note(columns: Sequence[str]) -> str:
    """Return what pairs are made of, for people.

    >>> pairs_note(["prompt", "chosen", "rejected"])
    "pairs are made of 'chosen' and 'rejected', which are answers to 'prompt'"
    """
    *prompt, chosen, rejected = columns
    what = (
        f"answers to {' and '.join(map(repr, prompt))}"
        if prompt
        else "dialogues: the beginning that they share is the prompt"
    )
    return f"pairs are made of {chosen!r} and {rejected!r}, which are {what}"


def pair_maker(columns: Sequence[str]) -> Maker:
    """Return what makes the three values of a pair of the columns, or says what is wrong with it."""
    *asked, chosen, rejected = columns

    def maker(names: Sequence[str]) -> Callable[[Row], Sequence[str] | Fault]:
        places = {name: names.index(name) for name in columns}

        def convert(row: Row) -> Sequence[str] | Fault:
            said = "\n\n".join(text for name in asked if (text := row[places[name]] or "").strip())
            prompt = _prompt(said, asked[0]) if asked else None
            if isinstance(prompt, Fault):
                return prompt
            spoken = _SPEAKER.match(said.strip()) is not None
            sides: list[list[Message]] = []
            for name in (chosen, rejected):
                side = _side(row[places[name]] or "", name, prompt, spoken)
                if isinstance(side, Fault):
                    return side
                side = with_system(side, names, row)
                if (fault := messages_fault(side)) is not None:
                    return Fault(f"{name!r}: {fault}")
                sides.append(side)
            if (fault := _difference(sides, (chosen, rejected))) is not None:
                return Fault(fault)
            answers = [side[-1]["content"] for side in sides]
            return [json.dumps(sides[0][:-1], ensure_ascii=False), *answers]

        return convert

    return maker


def _difference(sides: Sequence[list[Message]], names: Sequence[str]) -> str | None:
    """Return why two dialogues are no pair: their prompts differ, or their answers do not."""
    one, other = (side[:-1] for side in sides)
    for number in range(max(len(one), len(other))):
        if one[number : number + 1] != other[number : number + 1]:
            shown = [
                f"{prompt[number]['content'][:_SHOWN]!r} in {name!r}"
                if number < len(prompt)
                else f"the answer in {name!r}"
                for prompt, name in zip((one, other), names, strict=True)
            ]
            return (
                f"the prompts of the two sides differ: message {number + 1} is {shown[0]} and {shown[1]}; a pair has "
                "one prompt, and two answers to it"
            )
    if sides[0][-1]["content"].strip() == sides[1][-1]["content"].strip():
        return f"{names[0]!r} and {names[1]!r} are equal: there is nothing to prefer"
    return None


def _prompt(value: str, own: str) -> list[Message] | Fault:
    """Return the messages of a prompt, of which the last is the user's."""
    found = _dialogue(value, own)
    if isinstance(found, Fault):
        return found
    if found is None:
        return (
            [{"role": "user", "content": value}] if value.strip() else Fault(f"{own!r} is empty: fill it in")
        )
    if found and found[-1]["role"] == "assistant" and not found[-1]["content"]:
        found.pop()  # "Assistant:" at the end asks for an answer
    if not found or found[-1]["role"] != "user":
        return Fault(f"{own!r} does not end with a message of the user, to which the two sides are answers")
    return found


def _side(value: str, own: str, prompt: list[Message] | None, spoken: bool) -> list[Message] | Fault:
    """Return a side as a dialogue: it is one, or an answer to the prompt.

    Args:
        spoken: Whether the prompt is written with speakers.
    """
    if not value.strip():
        return Fault(f"{own!r} is empty: fill it in")
    found = _dialogue(value, own)
    if isinstance(found, Fault):
        return found
    if found == []:
        return Fault(f"{own!r} has no message of the assistant")
    if prompt is None:
        wanted = "\\n\\nHuman: ...\\n\\nAssistant: ..."
        return found or Fault(
            f'{own!r} is no dialogue, and no column holds its prompt: write "{wanted}" or a list of messages, or the '
            "prompt into a column prompt"
        )
    if found is not None and [message["role"] for message in found] == ["assistant"]:
        return [*prompt, found[0]]
    if found is not None:
        opening = found[:1] if found[0]["role"] == "system" != prompt[0]["role"] else []
        asked = found[len(opening) : len(opening) + len(prompt)]
        if [_stripped(message) for message in asked] == [_stripped(message) for message in prompt]:
            return found
        if spoken or value.strip().startswith("["):
            return Fault(f"{own!r} is a dialogue that does not begin with the prompt of its row")
    return [*prompt, {"role": "assistant", "content": value.strip() if spoken else value}]


def _dialogue(value: str, own: str) -> list[Message] | Fault | None:
    """Return the messages of a list of them, or of a text with speakers; None for any other text.

    >>> _dialogue("\\n\\nHuman: Hi\\n\\nAssistant: Hello", "chosen")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    >>> _dialogue("Hello", "chosen")
    """
    text = value.strip()
    if text.startswith(("[", "{")) and (listed := _turns_in(text)) is not None:
        return turns_of(listed, own)
    first, *turns = _SPEAKER.split(text)
    if first or not turns:
        return None
    return [
        {"role": _ROLES[speaker], "content": said.strip()}
        for speaker, said in zip(turns[::2], turns[1::2], strict=True)
    ]


def _turns_in(text: str) -> str | None:
    """Return the JSON list that a text is, if its items are objects, or that of the one message that it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        return (
            f"[{text}]" if found.keys() >= {"role", "content"} or found.keys() >= {"from", "value"} else None
        )
    return text if all(isinstance(turn, dict) for turn in found) else None


def _stripped(message: Message) -> tuple[str, str]:
    return message["role"], message["content"].strip()
