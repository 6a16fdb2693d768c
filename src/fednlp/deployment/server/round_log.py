"""What a server has decided about the round that is under way: on its disk before it acts on it.

Two decisions are not a function of the replies that lie in the inbox. One is which updates count where more clients
were drawn than are needed: those that arrived first. The other is that a round came to nothing, so that who failed in
it is asked again. A server that is killed after a decision goes on with it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fednlp.checked_json.stored import Stored, read_stored
from fednlp.disk import write_durably

_REMEDY = "then start it again; nothing that was acknowledged is lost"


class _Decided(Stored):
    """The decisions about one round.

    Attributes:
        round: Its number; 0 before the first one.
        calls: Where it was begun before: the number of each client's call, by client.
        counted: The clients whose updates count; None while that is open.
    """

    round: int = Field(default=0, ge=0)
    calls: dict[int, str] = Field(default_factory=dict)
    counted: list[int] | None = None


class RoundLog:
    """The decisions about the round that is under way, in one small file.

    Args:
        path: The file; made with the first decision.

    Raises:
        RunError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decided = (
            read_stored(path, _Decided, "it is no record of a round", "restore it from a backup")
            or _Decided()
        )

    def of(self, round_number: int) -> _Decided:
        """Return what is decided about a round."""
        known = self._decided
        return known if known.round == round_number else _Decided(round=round_number)

    def close(self, round_number: int, clients: Iterable[int]) -> None:
        """Take note of the clients whose updates count; when this returns, it is on the disk."""
        self._put(self.of(round_number), counted=sorted(clients))

    def come_to_nothing(self, round_number: int, calls: Mapping[int, str]) -> None:
        """Take note that a round has to be begun again; when this returns, it is on the disk.

        Args:
            round_number: The round.
            calls: The number of each client's next call: of a client that failed it is that of a further attempt, of
                one that has delivered, or has not answered, that of its last.
        """
        self._put(self.of(round_number), calls=dict(calls))

    def _put(self, known: _Decided, **changes: Any) -> None:
        self._decided = known.model_copy(update=changes)
        write_durably(self.path, self._decided.model_dump_json().encode(), _REMEDY)
