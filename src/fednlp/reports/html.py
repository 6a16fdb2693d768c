"""A report as one HTML page that needs nothing else: no network, light and dark, on paper, and without scripts too."""

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from fednlp.formatting.safe_text import clean
from fednlp.reports.charts import chart_json
from fednlp.reports.document import (
    Block,
    Code,
    Document,
    Fold,
    Grid,
    Heat,
    KeyValues,
    Picture,
    ReportSection,
    Text,
    code_spans,
    page_link,
)
from fednlp.reports.style import svg

_HINT = (
    "Charts: point at a line for its values, click a name to switch a method off, drag to zoom "
    "(or Ctrl and the wheel), double-click to see everything again."
)
_DARK_CELL = 0.6
_BEST = "Bold: the best of the methods; baselines do not count."


def to_html(document: Document, folder: str | Path | None = None) -> str:
    """Return a document as one self-contained HTML page.

    Args:
        folder: Where the page will lie, so that it can link to the run directories; None for no links.
    """
    at = Path(folder).resolve() if folder is not None else None
    body = "\n".join(_section(section, at) for section in document.sections)
    title, script = _text(document.title), _asset("report.js")
    headline = f'<p class="headline">{_text(document.headline)}</p>\n' if document.headline else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="lead">{_text(document.lead)}</p>
{headline}{_tiles(document.tiles)}
<p class="hint" hidden>{_HINT}</p>
</header>
<main>
{body}
</main>
<footer>Written by fednlp from the run directories alone.</footer>
<script>{script}</script>
</body>
</html>
"""


@cache
def _asset(name: str) -> str:
    return files("fednlp.reports").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Allow this one script and nothing else, whatever a name in the data would like."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _section(section: ReportSection, at: Path | None) -> str:
    place = f' id="{_text(section.anchor)}"' if section.anchor else ""
    blocks = _blocks(section.blocks, at)
    return f"<section{place}>\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>"


def _blocks(blocks: Sequence[Block], at: Path | None) -> str:
    """Return blocks one under the other, pictures that follow each other side by side where there is room."""
    return "\n".join(_runs(blocks, at))


def _runs(blocks: Sequence[Block], at: Path | None) -> Iterator[str]:
    for pictures, some in groupby(blocks, key=lambda block: isinstance(block, Picture)):
        inside = "\n".join(_block(block, at) for block in some)
        yield f'<div class="charts">\n{inside}\n</div>' if pictures else inside


def _block(block: Block, at: Path | None) -> str:
    match block:
        case Text():
            return f"<p>{_text(block.text)}</p>"
        case KeyValues():
            return _facts(block)
        case Grid():
            return _grid(block, at)
        case Heat():
            return _heat(block)
        case Picture():
            return _picture(block)
        case Code():
            return f"<pre><code>{_lines(block.text)}</code></pre>"
        case Fold():
            inside = _blocks(block.blocks, at)
            return f"<details>\n<summary>{_text(block.title)}</summary>\n{inside}\n</details>"


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    cells = "\n".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">\n{cells}\n</dl>'


def _facts(facts: KeyValues) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in facts.pairs
    )
    return _wide(f'<table class="facts"><tbody>\n{rows}\n</tbody></table>')


def _grid(block: Grid, at: Path | None) -> str:
    rows = "\n".join(
        _row(
            [_cell(cell, block.marked) for cell in row],
            {column for line, column in block.best if line == number},
            _link(block, number, at),
        )
        for number, row in enumerate(block.rows)
    )
    kind = "words" if block.words else "numbers"
    table = f'<table class="{kind}">{_heads(block.heads)}\n<tbody>\n{rows}\n</tbody></table>'
    notes = "".join(f"<p>{_text(note)}</p>" for note in [*block.notes, *([_BEST] if block.best else [])])
    return _wide(table) + (f'\n<div class="notes">{notes}</div>' if notes else "")


def _wide(table: str) -> str:
    """Let a table scroll by itself, by keys too."""
    return f'<div class="wide" tabindex="0">{table}</div>'


def _heads(heads: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col"><span>{_text(head)}</span></th>' for head in heads)
    return f"<thead><tr>{cells}</tr></thead>"


def _cell(text: str, marked: bool) -> str:
    parts = ((_text(part), is_code) for part, is_code in code_spans(text, marked))
    return "".join(f"<code>{part}</code>" if is_code else part for part, is_code in parts)


def _row(row: Sequence[str], best: set[int], link: str | None) -> str:
    """Return a row of cells that are HTML."""
    first, *rest = row
    head = f'<a href="{link}">{first}</a>' if link else first
    cells = "".join(
        f'<td class="best">{cell}</td>' if number in best else f"<td>{cell}</td>"
        for number, cell in enumerate(rest, start=1)
    )
    return f'<tr><th scope="row">{head}</th>{cells}</tr>'


def _link(block: Grid, row: int, at: Path | None) -> str | None:
    """Return where a row leads: to another page, or to its run directory; relative, so that both can move together."""
    if block.links:
        return escape(page_link(block.links[row], ".html")) or None
    if at is None or not block.folders:
        return None
    folder = block.folders[row].resolve()
    if os.path.commonpath([folder, at]) in ("/", str(Path.home().parent)):  # it would say whose folder it is
        return None
    path = os.fsencode(os.path.relpath(folder, at))
    return escape(f"./{quote(path)}/")


def _heat(block: Heat) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{_text(label)}</th>{_heat_cells(counts, number)}</tr>'
        for number, (label, counts) in enumerate(zip(block.labels, block.counts, strict=True))
    )
    table = f'<table class="heat">{_heads(["True label", *block.labels])}\n<tbody>\n{rows}\n</tbody></table>'
    return f'{_wide(table)}\n<div class="notes"><p>{_text(block.caption)}</p></div>'


def _heat_cells(counts: Sequence[int], diagonal: int) -> str:
    total = sum(counts) or 1
    cells = []
    for number, count in enumerate(counts):
        share = min(1.0, max(0.0, count / total))
        classes = ["full"] * (share > _DARK_CELL) + ["right"] * (number == diagonal)
        kind = f' class="{" ".join(classes)}"' if classes else ""
        cells.append(f'<td{kind} style="--share:{share:.2f}">{f"{count:,}" if count else ""}</td>')
    return "".join(cells)


def _picture(picture: Picture) -> str:
    still = f'<div class="still">{_still(picture)}</div>'
    caption = f"<figcaption>{_text(picture.caption)}</figcaption>"
    if picture.chart is None:
        return f"<figure>\n{still}\n{caption}\n</figure>"
    data = f'<script type="application/json">{chart_json(picture.chart)}</script>'
    name = _text(picture.name)
    return f'<figure class="chart" data-name="{name}">\n{still}\n{caption}\n{data}\n</figure>'


def _still(picture: Picture) -> str:
    if not picture.png:
        return svg(picture.figure, picture.name, picture.caption)
    data = base64.b64encode(picture.png).decode()
    return f'<img alt="{_text(picture.caption)}" src="data:image/png;base64,{data}">'


def _text(text: str) -> str:
    return escape(clean(text))


def _lines(text: str) -> str:
    """Escape text of several lines, each on its own."""
    return "\n".join(_text(line) for line in text.rstrip("\n").split("\n"))
