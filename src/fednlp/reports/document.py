"""The parts of a report, before they become HTML or Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A table: first column to the left, the others are numbers unless ``words`` says otherwise."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure; ``name`` is a word that no other picture of the document has."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Code:
    """Something to copy; under a fold where ``fold`` names it."""

    text: str
    language: str = ""
    fold: str | None = None


Block = Text | Facts | Grid | Picture | Code


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A report: the main figures in front, then its sections."""

    title: str
    lead: str
    tiles: Sequence[tuple[str, str]]
    sections: Sequence[Section]
