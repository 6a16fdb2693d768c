"""A report as Markdown, its figures as PNG files beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.reports.document import Block, Code, Document, Facts, Fold, Grid, Heat, Picture, Text
from fednlp.reports.markdown_text import escape, fence, table
from fednlp.reports.style import save_png


def to_markdown(document: Document, figures: str = "figures") -> str:
    """Return a document as Markdown that shows ``figures/<name>.png``."""
    parts = [f"# {escape(document.title)}\n", f"{escape(document.lead)}\n"]
    if document.headline:
        parts.append(f"{escape(document.headline)}\n")
    parts.append(table(["", ""], document.tiles))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}\n")
        parts.extend(_block(block, figures) for block in section.blocks)
    return "\n".join(parts)


def save_figures(document: Document, folder: str | Path) -> list[Path]:
    """Write every figure of a document as ``<name>.png`` into a folder (made where it is missing)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [picture for section in document.sections for picture in _pictures(section.blocks)]
    return [save_png(picture.figure, folder / f"{picture.name}.png") for picture in pictures]


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
        case Facts():
            return table(["", ""], block.pairs)
        case Grid():
            numeric: Sequence[int] = () if block.words else range(1, len(block.heads))
            notes = "".join(f"- {escape(note)}\n" for note in block.notes)
            return table(block.heads, block.rows, numeric) + (f"\n{notes}" if notes else "")
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
            return f"{table(heads, rows, range(1, len(heads)))}\n- {escape(block.caption)}\n"
        case Fold():
            inside = "\n".join(_block(one, figures) for one in block.blocks)
            return f"{escape(block.title)}:\n\n{inside}"
