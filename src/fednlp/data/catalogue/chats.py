"""Conversations and pairs of answers, or what becomes one: a prompt and its completion, and two dialogues."""

import json
from collections.abc import Iterator
from pathlib import Path

from fednlp.data.catalogue.entries import Opener, files
from fednlp.data.preferences import PAIR, pair_maker
from fednlp.data.readers.json_files import json_lines, string_at
from fednlp.data.store import Fault, Row

_SIDES = ("chosen", "rejected")


def _prompted(path: Path) -> Iterator[Row]:
    """Read prompts and completions, each with the name of the template that they were made by.

    Raises:
        DataError: A line lacks one of the three.
    """
    for number, item in json_lines(path):
        where = f"{path}:{number}"
        roles = (("user", "prompt"), ("assistant", "completion"))
        messages = [{"role": role, "content": string_at(item, key, where)} for role, key in roles]
        yield json.dumps(messages, ensure_ascii=False), string_at(item, "template", where)


def _preferred(path: Path) -> Iterator[Row | Fault]:
    """Read pairs of dialogues.

    Raises:
        DataError: A line lacks one of the two.
    """
    make = pair_maker(_SIDES)(_SIDES)
    for number, item in json_lines(path):
        yield make([string_at(item, side, f"{path}:{number}") for side in _SIDES])


CHATS: dict[str, Opener] = {
    "t0": Opener(files(["t0_294_templates.jsonl"], [], _prompted, ("messages", "template"))),
    "hh-harmless": Opener(
        files(["train.jsonl"], ["test.jsonl", "harmless-base.test.jsonl"], _preferred, PAIR)
    ),
}
"""The data sets of conversations and preferences."""
