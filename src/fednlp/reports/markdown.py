"""A report as Markdown, its figures as PNG files next to it."""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from fednlp.disk import own_folder, write
from fednlp.formatting.safe_text import clean
from fednlp.reports.document import (
    Block,
    Code,
    Document,
    Fold,
    Grid,
    Heat,
    KeyValues,
    Picture,
    Text,
    code_spans,
    page_link,
)
from fednlp.reports.style import image

REMEDY = "choose another folder with --out"


def to_markdown(document: Document, figures: str = "figures") -> str:
    """Return a document as Markdown that shows ``figures/<name>.png``."""
    parts = [f"# {escape(document.title)}\n", f"{escape(document.lead)}\n"]
    if document.headline:
        parts.append(f"{escape(document.headline)}\n")
    parts.append(markdown_table(["", ""], document.tiles))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}\n")
        parts.extend(_block(block, figures) for block in section.blocks)
    return "\n".join(parts)


def save_figures(document: Document, folder: str | Path, forms: Sequence[str] = ("png",)) -> list[Path]:
    """Write every figure of a document as ``<name>.png``, and in other forms, into a folder (made if missing)."""
    folder = own_folder(Path(folder), REMEDY)
    pictures = [picture for section in document.sections for picture in _pictures(section.blocks)]
    written = []
    for picture in pictures:
        for form in dict.fromkeys(forms):
            written.append(folder / f"{picture.name}.{form}")
            write(written[-1], image(picture.figure, form), REMEDY)
    return written


def _pictures(blocks: Sequence[Block]) -> Iterator[Picture]:
    for block in blocks:
        if isinstance(block, Picture):
            yield block
        elif isinstance(block, Fold):
            yield from _pictures(block.blocks)


def _block(block: Block, figures: str) -> str:
    match block:
        case Text():
            return f"{escape(block.text)}\n"
        case KeyValues():
            return markdown_table(["", ""], block.pairs)
        case Grid():
            numeric: Sequence[int] = () if block.words else range(1, len(block.heads))
            notes = "".join(f"- {escape(note)}\n" for note in block.notes)
            table = markdown_table(block.heads, block.rows, numeric, block.links, block.marked)
            return table + (f"\n{notes}" if notes else "")
        case Picture():
            caption = escape(block.caption)
            return f"![{caption}]({figures}/{block.name}.png)\n\n*{caption}*\n"
        case Code():
            return fence(block.text, block.language)
        case Heat():
            rows = [
                [label, *map(str, counts)] for label, counts in zip(block.labels, block.counts, strict=True)
            ]
            heads = ["True label", *block.labels]
            return f"{markdown_table(heads, rows, range(1, len(heads)))}\n- {escape(block.caption)}\n"
        case Fold():
            inside = "\n".join(_block(one, figures) for one in block.blocks)
            return f"{escape(block.title)}:\n\n{inside}"


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


def markdown_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Collection[int] = (),
    links: Sequence[str] = (),
    marked: bool = False,
) -> str:
    """Return a table; ``numeric`` columns stand to the right, first cells lead to ``links``.

    In ``marked`` cells, backticks begin and end code.

    >>> print(markdown_table(["a", "b"], [["x", "1"]], numeric=[1]), end="")
    | a | b |
    | :-- | --: |
    | x | 1 |
    """
    rule = ["--:" if i in numeric else ":--" for i in range(len(heads))]
    cells = [[_cell(cell, marked) for cell in row] for row in rows]
    for row, link in zip(cells, links, strict=False):
        row[0] = f"[{row[0]}]({page_link(link, '.md')})" if link else row[0]
    lines = [[escape(head) for head in heads], rule, *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: object, marked: bool) -> str:
    found = code_spans(str(text), marked)
    if len(found) == 1 and not found[0][1]:
        return escape(text)
    return "".join(_code(part) if is_code else _SPECIAL.sub(r"\\\1", clean(part)) for part, is_code in found)


def _code(text: str) -> str:
    """Return code of a cell, in which nothing is markup but the bar between cells."""
    barred = clean(text).replace("|", r"\|")
    return f"`{barred}`"


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
