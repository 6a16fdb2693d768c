"""One odd thing about a data set, in a sentence."""

from dataclasses import dataclass

LONGEST_EXAMPLE = 40
"""Characters of a text or label that a sentence shows."""


@dataclass(frozen=True)
class Oddity:
    """One thing about the data that is seldom meant.

    Attributes:
        kind: What it is, in a word for programs.
        count: How many labels, texts or examples there are of it.
        said: What is odd, for people, with the number.
        example: One of them, quoted, a text cut short.
        remedy: What follows from it, and what to do.
        minor: Whether it touches so few examples that results hardly change: published data sets often have it.
    """

    kind: str
    count: int
    said: str
    example: str
    remedy: str
    minor: bool = False

    def __str__(self) -> str:
        such = f", such as {self.example}" if self.example else ""
        return f"{'note' if self.minor else 'warning'}: {self.said}{such}: {self.remedy}"


def quoted(name: str) -> str:
    """Return a label as it is typed, so that blanks show; its beginning where it is long."""
    return repr(name if len(name) <= LONGEST_EXAMPLE else f"{name[:LONGEST_EXAMPLE]}…")


def number(count: int, what: str) -> str:
    """Return a number with its noun.

    >>> number(1, "text"), number(1200, "text")
    ('1 text', '1,200 texts')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.0123), percent(0.5)
    ('1.2 %', '50 %')
    """
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
