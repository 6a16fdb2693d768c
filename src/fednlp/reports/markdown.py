"""A report as Markdown, its figures as PNG files beside it."""

from collections.abc import Sequence
from pathlib import Path

from fednlp.reports.document import Block, Code, Document, Facts, Grid, Picture, Text
from fednlp.reports.markdown_text import escape, fence, table
from fednlp.reports.style import save_png


def to_markdown(document: Document, figures: str = "figures") -> str:
    """Return a document as Markdown that shows ``figures/<name>.png``."""
    parts = [f"# {escape(document.title)}\n", f"{escape(document.lead)}\n"]
    parts.append(table(["", ""], document.tiles))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}\n")
        parts.extend(_block(block, figures) for block in section.blocks)
    return "\n".join(parts)


def save_figures(document: Document, folder: str | Path) -> list[Path]:
    """Write every figure of a document as ``<name>.png`` into a folder (made where it is missing)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [
        block for section in document.sections for block in section.blocks if isinstance(block, Picture)
    ]
    return [save_png(picture.figure, folder / f"{picture.name}.png") for picture in pictures]


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
            title = f"{escape(block.fold)}:\n\n" if block.fold else ""
            return title + fence(block.text, block.language)
