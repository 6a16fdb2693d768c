"""How figures look and become files: quiet axes, colours for every eye, SVG that follows the page."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fednlp.formatting.figures import new_figure
from fednlp.formatting.safe_text import clean
from fednlp.reports.groups import group_baseline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#5f6a74", "#e1e5e9", "#fefefe"
# Okabe and Ito (2008), without the yellow and black that vanish on white and on black.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = {
    "centralised": (0, (6, 3)),
    "chained": (0, (6, 2, 2, 2)),
    "local": (0, (2, 2)),
    "majority": (0, (1, 3)),
}
_MARKERS = "osD^vP"
# In a page the colours are variables, so that they can follow light and dark.
THEME = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    colour: f"--s{i}" for i, colour in enumerate(SERIES)
}
_WIDTH = 7.2
_WIDEST, _THINNEST = 4.0, 1.6
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with these settings: no mathematics in names, text that stays text, the same bytes every time."""
    import matplotlib as mpl
    from cycler import cycler

    settings: dict[str, Any] = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "fednlp",
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 11,
        "axes.prop_cycle": cycler(color=SERIES),
        "xtick.color": MUTED,
        "ytick.color": MUTED,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A name in a script that the font lacks shows boxes in a PNG; a page has fonts of its own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_axes(title: str, xlabel: str, size: tuple[float, float] = (_WIDTH, 4.2)) -> "tuple[Figure, Axes]":
    """Return a figure with one quiet pair of axes; the title says what the y axis shows."""
    figure = new_figure(size)
    axes = figure.add_subplot()
    quiet(axes, title, xlabel)
    return figure, axes


def quiet(axes: "Axes", title: str, xlabel: str) -> None:
    """Take from axes all that says nothing; the title says what the y axis shows."""
    axes.set_title(title, loc="left", color=INK, pad=12)
    axes.set_xlabel(xlabel)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=7)


def looks(groups: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Return how each group is drawn: one colour and marker an algorithm, baselines dashed in grey."""
    drawn: dict[str, dict[str, Any]] = {}
    count = 0
    methods = sum(not group_baseline(runs) for runs in groups.values())
    for label, runs in groups.items():
        baseline = group_baseline(runs)
        if baseline:
            dashes = _DASHES.get(baseline, (0, (4, 2)))
            drawn[label] = {"color": MUTED, "linestyle": dashes, "linewidth": 1.6}
        else:
            marker = _MARKERS[(count + count // len(SERIES)) % len(_MARKERS)]
            # Each is thinner than the one under it, so that of two that coincide both are seen.
            width = max(_THINNEST, _WIDEST - 0.8 * count) if methods > 1 else 2.0
            drawn[label] = {"color": SERIES[count % len(SERIES)], "marker": marker, "linewidth": width}
            count += 1
    return drawn


def legend(figure: "Figure", axes: "Axes") -> None:
    """Put the legend under the axes, where it covers nothing; one line alone needs none."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    columns = max(1, min(len(labels), 90 // (max(map(len, labels)) + 6)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, handlelength=2.4)


def image(figure: "Figure", form: str = "png", dpi: int = 160) -> bytes:
    """Return a figure on white as a file, the same bytes each time.

    Args:
        form: ``"png"``, ``"pdf"`` or ``"svg"``.
        dpi: Points an inch of a PNG.
    """
    content = BytesIO()
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with drawing():
        figure.savefig(content, format=form, dpi=dpi, facecolor="white", metadata=dates.get(form))
    return content.getvalue()


def svg(figure: "Figure", name: str, title: str) -> str:
    """Return a figure as an ``<svg>`` to put into an HTML page.

    Args:
        name: A word that no other figure of the page has; ids in the SVG begin with it.
        title: What the figure shows, for those who do not see it.
    """
    text = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with drawing():
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(_xml_safe(text.getvalue()))
    _drop(root, {"metadata", "style"})
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = {
            _plain(key): _themed(_local(value, key, name)) for key, value in element.attrib.items()
        }
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    # As wide as it is drawn next to the others, so that letters are of one size on the page.
    width = f"max-width: {figure.get_figwidth() / _WIDTH:.0%}"
    root.attrib |= {"role": "img", "aria-label": clean(title), "style": width}
    return ElementTree.tostring(root, encoding="unicode")


def _drop(element: ElementTree.Element, names: set[str]) -> None:
    for child in list(element):
        if child.tag.removeprefix(_SVG) in names:
            element.remove(child)
        else:
            _drop(child, names)


def _plain(key: str) -> str:
    return key.removeprefix(_XLINK)


def _themed(value: str) -> str:
    return re.sub("|".join(THEME), lambda found: f"var({THEME[found[0]]}, {found[0]})", value)


def _local(value: str, key: str, name: str) -> str:
    """Begin every id, and every reference to one, with the figure's name."""
    if key == "id":
        return f"{name}-{value}"
    if key == f"{_XLINK}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return re.sub(r"url\(#", f"url(#{name}-", value)


def _xml_safe(text: str) -> str:
    """Take out what XML 1.0 does not allow in a document at all."""
    return re.sub(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
