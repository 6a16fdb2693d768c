"""Pieces of Markdown that any text can go into without being taken for markup."""

import re
from collections.abc import Collection, Sequence

from fednlp.formatting.safe_text import clean

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$!&])")


def escape(text: object) -> str:
    r"""Return text on one line with every character that could start markup escaped.

    >>> escape("a_b <script>")
    'a\\_b \\<script\\>'
    """
    escaped = _SPECIAL.sub(r"\\\1", clean(text).strip())
    # What would begin a list, a rule or a heading at the start of a line.
    return re.sub(r"^([-+=]|\d+(?=[.)](\s|$)))", _stopped, escaped)


def _stopped(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """Return a table; ``numeric`` columns stand to the right.

    >>> print(table(["a", "b"], [["x", "1"]], numeric=[1]), end="")
    | a | b |
    | :-- | --: |
    | x | 1 |
    """
    rule = ["--:" if i in numeric else ":--" for i in range(len(heads))]
    lines = [[escape(head) for head in heads], rule, *([escape(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fence(text: str, language: str = "") -> str:
    """Return a block of code, fenced by more backticks than it holds.

    >>> print(fence("fednlp run", "sh"), end="")
    ```sh
    fednlp run
    ```
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text.rstrip(chr(10))}\n{ticks}\n"
