"""Files of a run directory as a failing disk, or a stranger, may leave them: drawn by Hypothesis."""

import copy
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

ODD: list[Any] = [
    *(None, True, False, 0, -1, 3, 10**30, 1.5, 1e308, float("inf"), float("nan")),
    *("", "x", "=1", "\x1b]0;x\x07", "9" * 30, "../..", "os:system"),
    *([], [1], ["x"], [[]], [None], {}, {"x": 1}, {"x": {}}, {"x": None}),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place inside a JSON value: what holds it, and its key or number there."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value)) if value else []
    for key, one in inner[:40]:
        yield value, key
        if isinstance(one, dict | list):
            yield from places(one)


def changed(draw: Callable[[Any], Any], value: Any) -> Any:
    """Return a JSON value with one to three changes: something else in its place, or nothing."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        known = list(places(value)) if isinstance(value, dict | list) else []
        if not known:
            return copy.deepcopy(draw(st.sampled_from(ODD)))
        holder, key = draw(st.sampled_from(known))
        if draw(st.integers(0, 3)) == 0:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))  # a later change may be inside it
    return value


def damaged_bytes(draw: Callable[[Any], Any], content: bytes) -> bytes:
    """Return bytes with bits flipped, a stretch taken out, or an end cut off."""
    if not content:
        return b"\xff"
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(made) - 1)))
        kind = draw(st.sampled_from(["flip", "delete", "cut"]))
        if kind == "flip" and made:
            made[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "delete":
            del made[place : place + draw(st.integers(1, 9))]
        else:
            del made[place:]
    return bytes(made)


def damage(draw: Callable[[Any], Any], path: Path) -> None:
    """Damage one file: its bytes, or what it says, where it is JSON, JSON lines or TOML."""
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl", ".toml") or draw(st.booleans()):
        path.write_bytes(damaged_bytes(draw, content))
        return
    if path.suffix == ".toml":
        document = changed(draw, tomllib.loads(content.decode()))
        path.write_bytes(_toml(document))
    elif path.suffix == ".json":
        path.write_text(json.dumps(changed(draw, json.loads(content))))
    else:
        lines = content.splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(changed(draw, json.loads(lines[number]))).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")


def _toml(document: Any) -> bytes:
    """Return TOML, which has no null: what cannot be written is left out."""
    try:
        return tomli_w.dumps(document).encode()
    except (TypeError, AttributeError):
        return b"x = 1"
