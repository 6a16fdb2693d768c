"""A report as one HTML page that needs nothing else: no script, no network, light and dark, on paper too."""

from collections.abc import Sequence
from html import escape

from fednlp.reports.document import Block, Code, Document, Facts, Grid, Picture, Section, Text
from fednlp.reports.style import svg
from fednlp.reports.units import clean

# Nothing may be loaded or run, whatever a name in the data would like.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_LIGHT = """--page:#ffffff; --card:#f5f7f9; --ink:#1b1f24; --muted:#5f6a74; --grid:#e1e5e9; --paper:#fefefe;
--s0:#0072b2; --s1:#d55e00; --s2:#009e73; --s3:#cc79a7; --s4:#e69f00; --s5:#56b4e9;"""
_DARK = """--page:#14171a; --card:#1d2226; --ink:#e6e9ec; --muted:#9aa5af; --grid:#2f363c; --paper:#14171a;
--s0:#4ba3e3; --s1:#f0803c; --s2:#2cc295; --s3:#e29cc4; --s4:#f0b73e; --s5:#8cd0f5;"""
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.25rem; margin: 3rem 0 1rem; padding-top: 1rem; border-top: 1px solid var(--grid); }}
p {{ margin: .5rem 0 1rem; max-width: 46rem; overflow-wrap: anywhere; }}
.lead, figcaption, .notes, footer {{ color: var(--muted); }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0; }}
.tiles div {{ background: var(--card); border-radius: .5rem; padding: .8rem 1rem; }}
.tiles dt {{ font-size: .8rem; line-height: 1.3; color: var(--muted); }}
.tiles dd {{ margin: .25rem 0 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }}
.wide {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }}
.wide > table {{ min-width: 60%; }}
th, td {{ padding: .4rem .9rem .4rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--grid); }}
thead th {{ color: var(--muted); font-weight: 500; vertical-align: bottom; line-height: 1.3; }}
tbody th {{ font-weight: 500; }}
.numbers td, .numbers thead th + th {{ text-align: right; white-space: nowrap; }}
.numbers thead th {{ white-space: normal; min-width: 4.5rem; }}
.facts th {{ color: var(--muted); white-space: nowrap; width: 1%; padding-right: 2rem; }}
.facts td {{ overflow-wrap: anywhere; }}
figure {{ margin: 1.25rem 0 2rem; max-width: 46rem; }}
figure svg {{ display: block; width: 100%; height: auto; }}
figure svg text {{ font-family: inherit !important; }}
figure svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
figcaption, .notes {{ font-size: .875rem; margin-top: .5rem; }}
.notes p {{ margin: .25rem 0; }}
pre {{ background: var(--card); border-radius: .5rem; padding: .9rem 1rem; overflow-x: auto;
  font: .8125rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
summary {{ cursor: pointer; color: var(--muted); }}
footer {{ margin-top: 3rem; font-size: .8125rem; }}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10.5pt; }}
  h2 {{ break-after: avoid; }}
  figure, .tiles div, tr {{ break-inside: avoid; }}
  pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
  .wide {{ overflow: visible; }}
  .tiles div, pre {{ border: 1px solid var(--grid); }}
}}
"""


def to_html(document: Document) -> str:
    """Return a document as one self-contained HTML page."""
    body = "\n".join(_section(section) for section in document.sections)
    title = _text(document.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="lead">{_text(document.lead)}</p>
{_tiles(document.tiles)}
</header>
<main>
{body}
</main>
<footer>Written by fednlp from the run directories alone.</footer>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f"<section>\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>"


def _block(block: Block) -> str:
    match block:
        case Text():
            return f"<p>{_text(block.text)}</p>"
        case Facts():
            return _facts(block)
        case Grid():
            return _grid(block)
        case Picture():
            return _picture(block)
        case Code():
            code = f"<pre><code>{_lines(block.text)}</code></pre>"
            return code if block.fold is None else _fold(block.fold, code)


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    cells = "\n".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">\n{cells}\n</dl>'


def _facts(facts: Facts) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in facts.pairs
    )
    return f'<div class="wide"><table class="facts"><tbody>\n{rows}\n</tbody></table></div>'


def _grid(block: Grid) -> str:
    heads = "".join(f'<th scope="col">{_text(head)}</th>' for head in block.heads)
    rows = "\n".join(_row(row) for row in block.rows)
    kind = "words" if block.words else "numbers"
    table = f'<table class="{kind}"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
    notes = "".join(f"<p>{_text(note)}</p>" for note in block.notes)
    return f'<div class="wide">{table}</div>' + (f'\n<div class="notes">{notes}</div>' if notes else "")


def _row(row: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f"<td>{_text(cell)}</td>" for cell in rest)
    return f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>'


def _picture(picture: Picture) -> str:
    drawn = svg(picture.figure, picture.name, picture.caption)
    return f"<figure>\n{drawn}\n<figcaption>{_text(picture.caption)}</figcaption>\n</figure>"


def _fold(name: str, inside: str) -> str:
    return f"<details>\n<summary>{_text(name)}</summary>\n{inside}\n</details>"


def _text(text: str) -> str:
    return escape(clean(text))


def _lines(text: str) -> str:
    """Escape text of several lines, each on its own."""
    return "\n".join(_text(line) for line in text.rstrip("\n").split("\n"))
