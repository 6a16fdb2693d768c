"""The parts of a report, before they become HTML or Markdown."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fednlp.reports.charts import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class KeyValues:
    """Names and values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A table: first column to the left, the others are numbers unless ``words`` says otherwise.

    Attributes:
        marked: Backticks in the cells begin and end code.
        best: Cells to mark as the best, (row, column).
        folders: The run directory that each row is about, for a page to link to; empty where rows are not runs.
        links: Where each row leads to: a page of the same set by its stem, with ``#`` and a section's anchor, or both;
            empty where rows lead nowhere.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: bool = False
    marked: bool = False
    best: Collection[tuple[int, int]] = ()
    folders: Sequence[Path] = ()
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Heat:
    """A square table of counts, true labels down and predicted labels across, shaded by each row's shares."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    caption: str


@dataclass(frozen=True)
class Picture:
    """A figure; ``name`` is a word that no other picture of the document has.

    With its ``chart`` a page draws it itself, to be explored. A picture that was drawn elsewhere is shown as its
    ``png``, the bytes of a file, in place of the figure.
    """

    name: str
    caption: str
    figure: "Figure"
    chart: Chart | None = None
    png: bytes = b""


@dataclass(frozen=True)
class Code:
    """Something to copy."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Fold:
    """What only some want to read: its title, and the rest on demand."""

    title: str
    blocks: "Sequence[Block]"


def code_spans(text: str, marked: bool) -> list[tuple[str, bool]]:
    """Return the parts of a cell, each with whether it is code; what is not marked up is one part.

    >>> code_spans("say `fednlp run`", marked=True)
    [('say ', False), ('fednlp run', True)]
    >>> code_spans("a ` alone", marked=True)
    [('a ` alone', False)]
    """
    parts = text.split("`")
    if not marked or len(parts) % 2 == 0:
        return [(text, False)]
    return [(part, bool(number % 2)) for number, part in enumerate(parts) if part]


def heading_anchor(title: str) -> str:
    """Return what leads to a section of Markdown, as GitHub makes it of the heading.

    >>> heading_anchor("Table 2, tags")
    'table-2-tags'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def page_link(link: str, ending: str) -> str:
    """Return where a link of a table leads among pages with this ending.

    >>> page_link("costs#energy", ".md"), page_link("#energy", ".md")
    ('costs.md#energy', '#energy')
    """
    page, sign, anchor = link.partition("#")
    return f"{page}{ending if page else ''}{sign}{anchor}"


Block = Text | KeyValues | Grid | Heat | Picture | Code | Fold


@dataclass(frozen=True)
class ReportSection:
    """A heading and what stands under it; links of tables lead to its ``anchor``, if it has one."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""


@dataclass(frozen=True)
class Document:
    """A report: the main figures (``tiles``) in front, with whose they are and why, then its sections."""

    title: str
    lead: str
    headline: str
    tiles: Sequence[tuple[str, str]]
    sections: Sequence[ReportSection]
