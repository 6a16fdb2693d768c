"""What is done to tensors on their way: words such as ``topk:0.01`` and ``int8:64``, read and checked.

A word ``"module:function"`` is a transform of the user's own.

Torch has no part here: an experiment is checked before anything heavy is loaded.
:mod:`fednlp.federated.transforms` turns the steps into transforms.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fednlp.errors import ConfigError
from fednlp.plugins import is_own

Direction = Literal["up", "down"]

HALVES = ("float16", "bfloat16")
INTEGERS = ("int8", "int4")
QUANTISERS = (*HALVES, *INTEGERS, "sign")
SPARSIFIERS = ("topk", "randomk")
NAMES = ("clip", *SPARSIFIERS, *QUANTISERS)
_EXAMPLES = {"topk": "topk:0.01", "randomk": "randomk:0.01", "clip": "clip:1.0"}


@dataclass(frozen=True)
class Step:
    """One step of a chain.

    Attributes:
        name: One of ``NAMES``, or ``"module:function"``.
        argument: The share of ``topk`` and ``randomk``, the norm of ``clip``; None for the others.
        block: Values that share a scale in ``int8`` and ``int4``; None for one scale a tensor.
    """

    name: str
    argument: float | int | None = None
    block: int | None = None


def parse_chain(words: Sequence[str], direction: Direction) -> tuple[Step, ...]:
    """Read the words of ``exchange.up`` or ``exchange.down``.

    Raises:
        ConfigError: One line: a word is unknown or incomplete, or the steps do not go together.

    >>> parse_chain(["topk:0.01", "int8:64"], "up")
    (Step(name='topk', argument=0.01, block=None), Step(name='int8', argument=None, block=64))
    """
    try:
        steps = tuple(_parse(word) for word in words)
        _check_direction(steps, direction)
        _check_order(steps)
    except ConfigError as error:
        raise ConfigError(f"exchange.{direction}: {error}") from None
    return steps


def check_exchange(up: Sequence[str], down: Sequence[str], error_feedback: bool) -> None:
    """Check the whole exchange: both chains, and whether error feedback has something to feed back.

    Raises:
        ConfigError: One line with every mistake.
    """
    problems, steps = [], None
    try:
        steps = parse_chain(up, "up")
    except ConfigError as error:
        problems.append(str(error))
    try:
        parse_chain(down, "down")
    except ConfigError as error:
        problems.append(str(error))
    if error_feedback and steps is not None:
        names = {step.name for step in steps}
        if not names - {"clip"}:
            problems.append(
                "exchange.error_feedback = true, but nothing on the way up loses anything: leave it out, or "
                'say exchange.up = ["topk:0.01"]'
            )
        elif "clip" in names:
            problems.append(
                "exchange.error_feedback would send later what clip cuts away now: leave out one of the two"
            )
    if problems:
        raise ConfigError("; ".join(problems))


def additive(steps: Sequence[Step]) -> tuple[bool, str]:
    """Say whether encoded updates may be added up unopened, as secure aggregation does, and why not.

    >>> additive(parse_chain(["clip:1"], "up"))
    (True, '')
    >>> additive(parse_chain(["sign"], "up"))
    (False, 'every client has scales of its own in sign, so that its codes mean something else')
    """
    for step in steps:
        if step.name in SPARSIFIERS:
            return False, f"every client keeps other positions in {step.name}"
        if step.name in {*INTEGERS, "sign"}:
            own = f"every client has scales of its own in {step.name}"
            return False, f"{own}, so that its codes mean something else"
        if step.name in HALVES:
            return False, f"the codes of {step.name} are no whole numbers: they do not add up exactly"
        if step.name != "clip":
            return False, f"nothing is known of the codes of {step.name}"
    return True, ""


def _parse(word: str) -> Step:
    name, colon, text = word.partition(":")
    if name not in NAMES and is_own(word):
        return Step(word)
    if name not in NAMES:
        near = difflib.get_close_matches(name.strip().lower(), NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {_EXAMPLES.get(near[0], near[0])}?" if near else f"there are {', '.join(NAMES)}"
        raise ConfigError(f"{_quoted(word)} is unknown; {hint}")
    if name in INTEGERS:
        return Step(name, block=_block(word, text) if colon else None)
    if name in QUANTISERS:
        if colon:
            raise ConfigError(f'{_quoted(word)}: {name} takes no number: say "{name}"')
        return Step(name)
    if not text:
        raise ConfigError(f'{_quoted(word)} needs a number: say "{_EXAMPLES[name]}"')
    return Step(name, _norm(word, text) if name == "clip" else _share(word, text))


def _block(word: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= 2):
        name = word.partition(":")[0]
        raise ConfigError(
            f"{_quoted(word)}: the block is how many values share a scale, a whole number from 2 on: "
            f'say "{name}:64", or "{name}" for one scale a tensor'
        )
    return int(text)


def _share(word: str, text: str) -> float:
    share = _number(text)
    if share is None or not 0 < share < 1:
        name = word.partition(":")[0]
        raise ConfigError(
            f"{_quoted(word)}: the share of values kept lies between 0 and 1: "
            f'say "{name}:0.01" for one in a hundred'
        )
    return share


def _norm(word: str, text: str) -> float:
    norm = _number(text)
    if norm is None or norm <= 0:
        raise ConfigError(f'{_quoted(word)}: the largest norm is a number above 0: say "clip:1.0"')
    return norm


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _check_direction(steps: tuple[Step, ...], direction: Direction) -> None:
    for step in steps:
        if direction == "down" and step.name not in (*HALVES, *INTEGERS) and not is_own(step.name):
            raise ConfigError(
                f"{step.name} is for updates, and down go the weights themselves: "
                'say "float16", "bfloat16", "int8" or "int4"'
            )


def _check_order(steps: tuple[Step, ...]) -> None:
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} stands there {names.count(name)} times: say it once")
    if "clip" in names[1:]:
        rest = [name for name in names if name != "clip"]
        raise ConfigError(
            f"clip bounds the update itself, so it comes first: put it before {' and '.join(rest)}"
        )
    for kinds, does in ((QUANTISERS, "quantise"), (SPARSIFIERS, "sparsify")):
        found = [name for name in names if name in kinds]
        if len(found) > 1:
            raise ConfigError(f"{' and '.join(found)} both {does}: keep one of them")
    quantised = [name for name in names if name in QUANTISERS]
    sparse = [name for name in names if name in SPARSIFIERS]
    if quantised and sparse and names.index(sparse[0]) > names.index(quantised[0]):
        raise ConfigError(
            f"{sparse[0]} chooses among full numbers, so it comes before {quantised[0]}: swap them"
        )


def _quoted(word: str) -> str:
    return f'"{word}"' if len(word) <= 40 and word.isprintable() else f'"{ascii(word)[1:38]}..."'
