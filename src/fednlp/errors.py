"""Every exception that fednlp raises on purpose.

Each carries one message for a person: what was wrong, where, and what to type instead.
The command line prints the message and nothing else.

    FednlpError
    ├── ConfigError        a key, value or combination in an experiment
    ├── DataError          a data set, file, row or column
    ├── PartitionError     a partition that cannot be made as asked
    ├── ModelError         a model that cannot be found, loaded or used for the task
    ├── FetchError         a package-index file that cannot be had, or is not the pinned one
    ├── RunError           a run directory, a resume, a worker, a full disk
    │   └── TooFewClients  a round below min_clients; the rounds before are saved
    ├── SecureAbort        a step of secure aggregation that a party refuses
    └── MissingDependency  an optional library; the message names the command that installs it
"""

from collections.abc import Sequence


class FednlpError(Exception):
    """The root of everything fednlp raises on purpose."""


class ConfigError(FednlpError):
    """An experiment says something that cannot be; lists every mistake at once.

    Args:
        message: For a person.
        problems: The mistakes one by one; the message alone if left out.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems) or [message]


class DataError(FednlpError):
    """A data set, file, row or column is not what it should be."""


class PartitionError(FednlpError):
    """The examples cannot be shared out as asked."""


class ModelError(FednlpError):
    """A model cannot be found, loaded, or used for the task."""


class FetchError(FednlpError):
    """A file of the package index cannot be had, or is not the pinned one."""


class RunError(FednlpError):
    """A run cannot start, go on, or be read."""


class TooFewClients(RunError):
    """Fewer clients than ``min_clients`` came through a round."""


class SecureAbort(FednlpError):
    """A party of secure aggregation goes no further: too few are left, or a message is not what it must be."""


class MissingDependency(FednlpError):
    """An optional library is not installed."""
