"""The exceptions that fednlp raises on purpose.

Each has one message for the user: what was wrong, where, and what to type instead.
The command line prints only this message.

    FednlpError
    ├── ConfigError        a key, value or combination in an experiment
    ├── DataError          a data set, file, row or column
    ├── PartitionError     a partition that cannot be made as configured
    ├── ModelError         a model that cannot be found, loaded or used for the task
    ├── FetchError         a package-index file that cannot be downloaded, or is not the pinned one
    ├── RunError           a run directory, a resume, a worker, a full disk
    │   ├── DamagedError   a file that is cut short, or does not hold what it should
    │   └── TooFewClients  a round below min_clients; the rounds before are saved
    ├── SecureAbort        a step of secure aggregation that a party refuses
    ├── ProtocolError      a frame or message of the other side that is not valid
    ├── IdentityError      a join token, certificate or site that is not accepted
    └── MissingDependency  an optional library; the message names the command that installs it
"""

import json
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

DIVERGED = "training ended in NaN, infinity or a number beyond 2^20"
"""The reason that a client gives, and a run, whose numbers are none any more."""


NEXT_RELEASE = "the old name is an error in the next release"
"""The end of a warning of what was renamed."""


class FednlpError(Exception):
    """The base class of all exceptions that fednlp raises on purpose."""


class ConfigError(FednlpError):
    """An experiment has invalid settings; all mistakes are listed at once.

    Args:
        message: The message for the user.
        problems: The mistakes one by one; only the message if left out.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems) or [message]


class DataError(FednlpError):
    """A data set, file, row or column is missing or not valid."""


class PartitionError(FednlpError):
    """The examples cannot be partitioned as configured."""


class ModelError(FednlpError):
    """A model cannot be found, loaded, or used for the task."""


class FetchError(FednlpError):
    """A file of the package index cannot be downloaded, or is not the pinned one."""


class RunError(FednlpError):
    """A run cannot start, continue, or be read."""


class DamagedError(RunError):
    """A file is cut short, or does not hold what it should.

    Attributes:
        what: The file, and what is wrong with it, without the advice of the message.
    """

    what: str = ""


class TooFewClients(RunError):
    """Fewer clients than ``min_clients`` completed a round."""


class SecureAbort(FednlpError):
    """A party of secure aggregation aborts: too few parties are left, or a message is not valid."""


class ProtocolError(FednlpError):
    """The other side of a connection sent what is not valid; the connection is closed."""


class IdentityError(FednlpError):
    """A join token, certificate, signing request or site is not accepted."""


class MissingDependency(FednlpError):
    """An optional library is not installed."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of fednlp from where fednlp came: its clone, or its wheel.

    Its name alone installs nothing: it is on no package index.

    Args:
        extra: One of ``[project.optional-dependencies]``.

    >>> install_command("lora").partition(" -m ")[2].split()[:2]
    ['pip', 'install']
    """
    place, editable = _installed_from()
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if place is None:
        return f"{pip} -c constraints.txt -e '.[{extra}]' in a clone of fednlp"
    if place.is_dir():
        edit = "-e " if editable else ""
        return (
            f"{pip} -c {shlex.quote(str(place / 'constraints.txt'))} {edit}{shlex.quote(f'{place}[{extra}]')}"
        )
    return f"{pip} {shlex.quote(f'{place}[{extra}]')}"


def _installed_from() -> tuple[Path | None, bool]:
    """Return the clone or the wheel that fednlp came from, None if unknown, and whether it is used in place."""
    try:
        said = json.loads(distribution("fednlp").read_text("direct_url.json") or "{}")
        parts = urlsplit(said.get("url", ""))
        path = Path(unquote(parts.path)) if parts.scheme == "file" else None
        return path, bool(said.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, AttributeError):
        return None, False
