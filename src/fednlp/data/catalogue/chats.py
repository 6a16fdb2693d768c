"""Conversations, or what becomes one: a prompt and its completion."""

import json
from collections.abc import Iterator
from pathlib import Path

from fednlp.data.catalogue.entries import Opener, files
from fednlp.data.readers.json_files import json_lines, string_at
from fednlp.data.store import Row

_T0 = ("messages", "template")


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


CHATS: dict[str, Opener] = {
    "t0": Opener(files(["t0_294_templates.jsonl", "t0_294_templates.jsonl.gz"], [], _prompted, _T0)),
}
"""The data sets of conversations."""
