"""Figures that a notebook shows as pictures."""

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of a size in inches, which a notebook shows as a picture without a set-up of its own."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that is a picture wherever a value is displayed."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=110)
            return content.getvalue()

    return Picture(figsize=size, layout="constrained")
