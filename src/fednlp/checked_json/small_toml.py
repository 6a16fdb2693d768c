"""Small TOML files that people write, such as a device's profile: read up to a length, and quoted on one line."""

import reprlib
import tomllib
from pathlib import Path
from typing import Any

from fednlp.errors import ConfigError


def read_small_toml(path: Path, longest: int, what: str) -> dict[str, Any]:
    """Read a TOML file that may be anything.

    Args:
        path: A file that is there.
        longest: Bytes that it may have.
        what: What it is expected to be, for messages, such as ``"device profile"``.

    Raises:
        ConfigError: It cannot be read, is too long, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(longest + 1)
        table = tomllib.loads(data.decode("utf-8")) if len(data) <= longest else None
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable as TOML: {shown(str(error))}") from None
    if table is None:
        raise ConfigError(f"{path} is longer than {longest:,} bytes: it is no {what}")
    return table


def shown(text: str) -> str:
    """Return untrusted text on one short line.

    >>> shown("jetson"), shown("two\\nlines")
    ('jetson', "'two\\\\nlines'")
    """
    return text if text.isprintable() and len(text) <= 200 else reprlib.repr(text)
