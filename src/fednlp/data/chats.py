"""Conversations: the layouts in which data sets have them, and what is wrong with one.

However a file has it, a conversation becomes one column ``messages``: JSON of ``{"role": ..., "content": ...}``. A
role is ``system``, ``user`` or ``assistant``. Options among which the last answer is stay in a column ``choices``
(:mod:`fednlp.data.choices`).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fednlp.data.choices import (
    FORMS,
    QUESTION,
    answer_fault,
    answer_form,
    options_in,
    place_of,
    question_columns,
    question_maker,
)
from fednlp.data.store import Fault, Located, Row, Rows
from fednlp.formatting.units import plural

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
}
"""What data sets call a role; the first of each is what messages have."""
_SHOWN = 40
_LOOKED_AT = 1000
"""Rows that say how a column of answers is read."""
_MOST_TURNS = 10_000

Message = dict[str, str]


@dataclass(frozen=True)
class _Layout:
    """Columns that are a conversation together.

    Attributes:
        turns: The one that holds a list of messages; empty for a prompt and its reply.
        prompt: The columns of what a user says, joined by blank lines where there are several.
        reply: The column of the answer.
    """

    turns: str = ""
    prompt: tuple[str, ...] = ()
    reply: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.turns,) if self.turns else (*self.prompt, self.reply)


_LAYOUTS = (
    *(_Layout(turns=name) for name in ("messages", "conversations", "conversation")),
    _Layout(prompt=("instruction", "input"), reply="output"),
    _Layout(prompt=("instruction", "context"), reply="response"),
    _Layout(prompt=("instruction",), reply="output"),
    _Layout(prompt=("instruction",), reply="response"),
    _Layout(prompt=("prompt",), reply="completion"),
    _Layout(prompt=("prompt",), reply="response"),
    _Layout(prompt=("question",), reply="answer"),
    _Layout(prompt=("query",), reply="response"),
)
"""In this order: OpenAI's, ShareGPT's, Alpaca's, Dolly's, T0's and OpenAI's completions, and GSM8K's."""


def chat_columns(names: Sequence[str], messages: str | None = None) -> tuple[str, ...] | None:
    """Return which columns are conversations together, as they are called; None where none are.

    Args:
        names: Those that there are.
        messages: The user's own name of the column of messages.

    >>> chat_columns(["id", "Instruction", "input", "output"])
    ('Instruction', 'input', 'output')
    >>> chat_columns(["text", "label"])
    """
    found = _layout_of(names, messages)
    return None if found is None else found.columns


def _layout_of(names: Sequence[str], messages: str | None = None) -> _Layout | None:
    if messages is not None:
        return _Layout(turns=messages) if messages in names else None
    own = {name.strip().casefold(): name for name in reversed(names)}
    layout = next((one for one in _LAYOUTS if all(name in own for name in one.columns)), None)
    if layout is None or (
        layout.reply == "answer" and "context" in own
    ):  # the span of a text, or of no use without it
        return None
    prompt = tuple(own[name] for name in layout.prompt)
    return _Layout(own.get(layout.turns, ""), prompt, own.get(layout.reply, ""))


@dataclass(frozen=True)
class Options:
    """Options beside conversations.

    Attributes:
        choices: The column of the lists of texts.
        answer: The column that says which of them is right; empty where the conversation itself does.
        form: How it says so, one of :data:`fednlp.data.choices.FORMS`.
    """

    choices: str
    answer: str = ""
    form: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that there are."""
        return tuple(filter(None, (self.choices, self.answer)))

    @property
    def note(self) -> str:
        """What it is, for people."""
        named = f"; {self.answer} names the right one {FORMS[self.form]}" if self.answer else ""
        return f"{self.choices} are the options of the last answer{named}"


def options_beside(rows: Rows, messages: str | None = None, choices: str | None = None) -> Options | None:
    """Return the options beside the conversations of some rows; None where there are none.

    Args:
        messages: The user's own name of the column of messages.
        choices: The user's own name of the column of options.

    Raises:
        DataError: The answers can be read in two ways.
    """
    names = rows.names()
    layout = _layout_of(names, messages)
    own = {name.strip().casefold(): name for name in reversed(names)}
    column = choices if choices is not None else own.get("choices")
    if layout is None or column is None or column not in names:
        return None
    answer = layout.reply or own.get("answer", "")
    if not answer:
        return Options(column)
    there, placed = rows.read({column: "choices"} | ({layout.turns: "messages"} if layout.turns else {}))
    at = there.index(column), there.index(answer)
    pairs = [
        (options, row[at[1]] or "")
        for _, row in islice(placed, _LOOKED_AT)
        if not isinstance(row, Fault) and (options := options_in(row[at[0]])) is not None
    ]
    return Options(column, answer, answer_form(rows.names_at or rows.shown, pairs))


def as_questions(rows: Rows) -> tuple[Rows, str]:
    """Return rows whose questions with options are in the columns that others are in, and a note on what these were.

    Rows without a layout of :func:`fednlp.data.choices.question_columns` stay as they are, without a note.
    """
    columns = question_columns(rows.names())
    if columns is None:
        return rows, ""
    roles = {columns[1]: "choices"} if len(columns) == len(QUESTION) else {}
    what = ("questions", json.dumps(columns))
    note = f"{', '.join(QUESTION)} are made of {', '.join(columns)}"
    return with_made_columns(rows, QUESTION, columns, roles, what, question_maker(columns)), note


def as_chats(rows: Rows, messages: str | None = None, options: Options | None = None) -> Rows:
    """Return rows whose conversations are in the column ``messages``, in place of the columns that they were in.

    A column ``system`` beside them is the system's message. Rows without a layout that is known stay as they are.

    Args:
        messages: The user's own name of the column of messages.
        options: Where the options of each question are; they are in the column ``choices`` then.
    """
    layout = _layout_of(rows.names(), messages)
    if layout is None:
        return rows
    made = ["messages", *(["choices"] if options is not None else [])]
    of = [*layout.columns, *(options.columns if options is not None else ())]
    roles = {layout.turns: "messages"} if layout.turns else {}
    roles |= {options.choices: "choices"} if options else {}
    what = ("chats", json.dumps([layout.columns, *([repr(options)] if options else [])]))
    return with_made_columns(rows, made, of, roles, what, lambda names: _converter(names, layout, options))


Maker = Callable[[Sequence[str]], Callable[[Row], Sequence[str] | Fault]]
"""Names of columns -> what makes the new values of a row, or says what is wrong with it."""


def with_made_columns(
    rows: Rows,
    made: Sequence[str],
    of: Sequence[str],
    roles: Mapping[str, str],
    what: Sequence[str],
    maker: Maker,
) -> Rows:
    """Return rows whose first columns are made of others, in place of these; messages take the system's in.

    Args:
        made: Their names.
        of: The columns that they are made of.
        roles: What these are for, by their own names.
        what: Names the way in the cache.
    """

    def new_names(there: Sequence[str]) -> list[str]:
        gone = {*of, *made, *(_system(there) if "messages" in made else [])}
        return [*made, *(name for name in there if name not in gone)]

    def read(given: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        there, placed = rows.read(
            {**{name: role for name, role in given.items() if name not in made}, **roles}
        )
        make = maker(there)
        kept = [there.index(name) for name in new_names(there)[len(made) :]]

        def row(found: Row | Fault) -> Row | Fault:
            cells = found if isinstance(found, Fault) else make(found)
            return cells if isinstance(cells, Fault) else [*cells, *(found[at] for at in kept)]  # type: ignore[index]

        return new_names(there), ((at, row(found)) for at, found in placed)

    return replace(rows, what=(*rows.what, *what), names=lambda: new_names(rows.names()), read=read)


def _system(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.strip().casefold() in ("system", "system_prompt")][:1]


def with_system(messages: list[Message], names: Sequence[str], row: Row) -> list[Message]:
    """Return messages that begin with that of the row's column ``system``, if there is one and they have none.

    Args:
        names: Of the row's columns.
    """
    opening = [row[names.index(name)] or "" for name in _system(names)]
    if opening and opening[0].strip() and not (messages and messages[0]["role"] == "system"):
        return [{"role": "system", "content": opening[0]}, *messages]
    return messages


def _converter(
    names: Sequence[str], layout: _Layout, options: Options | None
) -> Callable[[Row], list[str] | Fault]:
    """Return what makes the cells of a row: its messages, JSON, and its options where there are any."""
    places = [names.index(name) for name in layout.columns]
    chosen = None if options is None else _chosen(names, options)

    def convert(row: Row) -> list[str] | Fault:
        choices, answer = (None, None) if chosen is None else chosen(row)
        if isinstance(answer, Fault):
            return answer
        if layout.turns:
            found = turns_of(row[places[0]], layout.turns)
            if isinstance(found, Fault):
                return found
            if answer is not None:
                if (
                    found
                    and found[-1]["role"] == "assistant"
                    and found[-1]["content"].strip() != answer.strip()
                ):
                    return Fault(
                        f"the conversation ends with {found[-1]['content'][:_SHOWN]!r}, and the answer is "
                        f"{answer[:_SHOWN]!r}: write one of them"
                    )
                if not found or found[-1]["role"] != "assistant":
                    found = [*found, {"role": "assistant", "content": answer}]
        else:
            *asked, reply = (row[at] or "" for at in places)
            question = "\n\n".join(text for text in asked if text.strip())
            reply = reply if answer is None else answer
            found = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        return [
            json.dumps(with_system(found, names, row), ensure_ascii=False),
            *([] if choices is None else [choices]),
        ]

    return convert


def _chosen(names: Sequence[str], options: Options) -> Callable[[Row], tuple[str, str | Fault | None]]:
    """Return what finds a row's options, JSON, and its answer; None for an answer that is no option's."""
    at, said = (names.index(name) if name else None for name in (options.choices, options.answer))

    def choose(row: Row) -> tuple[str, str | Fault | None]:
        cell = (row[at] or "") if at is not None else ""
        texts = options_in(cell)
        if texts is None or said is None:
            return cell, None
        choices, answer = json.dumps(texts, ensure_ascii=False), row[said] or ""
        if len(texts) < 2 or not answer.strip():
            return choices, None
        place = place_of(answer, texts, options.form)
        return choices, Fault(answer_fault(answer, texts, options.form)) if place is None else texts[place]

    return choose


def turns_of(value: str | None, own: str) -> list[Message] | Fault:
    """Return the messages of a list in whatever words, or what is wrong with it."""
    wanted = f'{own!r} is no list of messages such as [{{"role": "user", "content": "..."}}]'
    try:
        found = json.loads(value or "")
    except (ValueError, RecursionError):
        return Fault(wanted)
    if not isinstance(found, list) or len(found) > _MOST_TURNS:
        return Fault(wanted)
    messages: list[Message] = []
    for number, turn in enumerate(found, 1):
        role, content = _said(turn) if isinstance(turn, dict) else (None, None)
        if isinstance(turn, dict) and (fault := _unread(turn, number, content)) is not None:
            return Fault(fault)
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        if not isinstance(role, str) or not isinstance(content, str):
            return Fault(f"{wanted}: message {number} has no role and content that are texts")
        if role.strip().casefold() not in _ROLES:
            return Fault(
                f"message {number} is of {role[:_SHOWN]!r}: a role is system, user or assistant (or human and gpt)"
            )
        messages.append({"role": _ROLES[role.strip().casefold()], "content": content})
    return messages


def _unread(turn: Mapping[str, Any], number: int, content: Any) -> str | None:
    """Return what a message has that is not read, or None: calls of tools, a weight of 0, or parts that are no text."""
    if turn.get("tool_calls") or turn.get("function_call"):
        return f"message {number} calls a tool, and only text is read"
    if turn.get("weight") in (0, "0"):
        return (
            f"message {number} has a weight of 0, and every answer is learnt: end the conversation before it"
        )
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            return f"message {number} has a part of type {str(kind)[:_SHOWN]!r}, and only text is read"
    return None


def _said(turn: Mapping[str, Any]) -> tuple[Any, Any]:
    if "role" in turn:
        return turn["role"], turn.get("content")
    return turn.get("from"), turn.get("value")


def conversation_fault(value: str) -> str | None:
    """Return what is wrong with messages, or None: user and assistant take turns, and the last word is an answer.

    Args:
        value: JSON, as :func:`as_chats` writes it.

    >>> conversation_fault('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]')
    >>> conversation_fault('[{"role": "user", "content": "Hi"}]')
    'the conversation has no message of the assistant: there is nothing to learn'
    >>> conversation_fault('[{"role": "assistant", "content": "Hello"}]')
    'message 1 is of the assistant, and a conversation begins with the user'
    """
    found = turns_of(value, "messages")
    return found.message if isinstance(found, Fault) else messages_fault(found)


def messages_fault(found: Sequence[Message]) -> str | None:
    """Return what is wrong with messages as :func:`conversation_fault` does."""
    turns = found[1:] if found and found[0]["role"] == "system" else found
    first = 1 + len(found) - len(turns)
    if turns and turns[0]["role"] == "assistant":
        return f"message {first} is of the assistant, and a conversation begins with the user"
    if not any(turn["role"] == "assistant" for turn in turns):
        return "the conversation has no message of the assistant: there is nothing to learn"
    for number, turn in enumerate(turns):
        wanted = ("user", "assistant")[number % 2]
        if turn["role"] != wanted:
            return (
                f"message {first + number} is of the {turn['role']}, where the {wanted} has its turn: user and "
                "assistant take turns, and a system's message comes first"
            )
        if not turn["content"].strip():
            return f"message {first + number}, of the {turn['role']}, is empty"
    if turns[-1]["role"] == "user":
        return f"the last of {plural(len(found), 'message')} is of the user, and has no answer"
    return None


def dialogue(value: str) -> str:
    """Return the words of messages as one text.

    >>> dialogue('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]')
    'Hi\\nHello'
    """
    return "\n".join(message["content"] for message in json.loads(value))
