"""What a server has decided about the round that is under way: on its disk before it acts on it.

Two decisions are not a function of the replies that lie in the inbox. One is which updates count where more clients
were drawn than are needed: those that arrived first. The other is that a round came to nothing, so that who failed in
it is asked again. A server that is killed after a decision goes on with it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.disk import atomic, sync_folder, writing
from fednlp.errors import RunError

_REMEDY = "then start it again; nothing that was acknowledged is lost"
MOST_ATTEMPTS = 999_999
"""At one round: the number is part of the names of calls."""


class Decided(BaseModel):
    """The decisions about one round.

    Attributes:
        round: Its number; 0 before the first one.
        attempt: How often it was begun, this time included.
        delivered: For a further attempt: the calls whose updates had arrived in an earlier one, by client.
        counted: The clients whose updates count; None while that is open.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    round: int = Field(default=0, ge=0)
    attempt: int = Field(default=1, ge=1, le=MOST_ATTEMPTS)
    delivered: dict[int, str] = {}
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
        self._decided = _read(path) if path.is_file() else Decided()

    def of(self, round_number: int) -> Decided:
        """Return what is decided about a round."""
        known = self._decided
        return known if known.round == round_number else Decided(round=round_number)

    def close(self, round_number: int, clients: Iterable[int]) -> None:
        """Take note of the clients whose updates count; when this returns, it is on the disk."""
        self._put(self.of(round_number), counted=sorted(clients))

    def come_to_nothing(self, round_number: int, delivered: Mapping[int, str]) -> None:
        """Take note that a round has to be begun again; when this returns, it is on the disk.

        Args:
            round_number: The round.
            delivered: The calls whose updates arrived, by client: these are not asked for again.
        """
        known = self.of(round_number)
        self._put(known, attempt=min(known.attempt + 1, MOST_ATTEMPTS), delivered=dict(delivered))

    def _put(self, known: Decided, **changes: Any) -> None:
        self._decided = known.model_copy(update=changes)
        with atomic(self.path, _REMEDY) as file:
            file.write(self._decided.model_dump_json().encode())
        with writing(self.path.parent, _REMEDY):
            sync_folder(self.path.parent)


def attempt_name(name: str, attempt: int) -> str:
    """Return the name of the calls of a further attempt.

    >>> attempt_name("train", 1), attempt_name("train", 2)
    ('train', 'train-2')
    """
    return name if attempt == 1 else f"{name}-{attempt}"


def _read(path: Path) -> Decided:
    try:
        return Decided.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(
            f"{path} is damaged ({str(error).splitlines()[0]}): restore it from a backup"
        ) from None
