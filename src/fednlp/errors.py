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

from collections.abc import Sequence

DIVERGED = "training ended in NaN, infinity or a number beyond 2^20"
"""The reason that a client gives, and a run, whose numbers are none any more."""


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
