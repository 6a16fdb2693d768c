"""Text of data and run directories, made harmless for where it is shown: a terminal, a page, a spreadsheet."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_JOINERS = "\u200c\u200d"
"""Letters of Persian and Hindi, and emoji, are joined or kept apart by these: they move nothing."""


def clean(text: object) -> str:
    """Return text on one line with every control, surrogate or direction-changing character replaced.

    >>> clean("two\\nlines")
    'two lines'
    """
    return "".join(
        c if c.isprintable() or c in _JOINERS else " " if c.isspace() else "\ufffd" for c in str(text)
    )


def clean_lines(text: str) -> str:
    """Return text with every line made harmless by :func:`clean`.

    >>> clean_lines("two\\nlines\\x1b[2J")
    'two\\nlines\ufffd[2J'
    """
    return "\n".join(clean(line) for line in text.split("\n"))


def bare_names(text: str, *roots: str) -> str:
    """Return text with the last parts of the paths in it alone: folders are those of one machine.

    Args:
        roots: Folders whose names may have blanks, which a pattern cannot tell from the words around a path.

    >>> bare_names("cannot read '/home/A B/start/x.json' (~/y/z is full), 7/12 of hf://a/b", "/home/A B")
    "cannot read 'x.json' (z is full), 7/12 of hf://a/b"
    """
    for root in roots:
        text = text.replace(f"{root}/", "/-/")
    return _FOLDERS.sub("", text)


_FOLDERS = re.compile(r"""(?<![\w.:/~-])(?:~|\.{1,2})?/(?:[^\s/'"()]+/)+""")


def csv_text(text: str) -> str:
    """Return text for a cell of a CSV file: what a spreadsheet would take for a formula gets an apostrophe.

    :func:`text_of_csv` takes it away again.

    >>> csv_text("=1+1"), csv_text("news")
    ("'=1+1", 'news')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def text_of_csv(cell: str) -> str:
    """Return the text that :func:`csv_text` made a cell of.

    >>> text_of_csv("'=1+1"), text_of_csv("news"), text_of_csv("'tis")
    ('=1+1', 'news', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
