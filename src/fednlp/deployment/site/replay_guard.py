"""A server may ask again for what it asked of a round: something else would tell it more than was agreed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.disk import write_private
from fednlp.errors import RunError


class Asked(BaseModel):
    """What a site was asked for last, of one kind of call.

    Attributes:
        round: The round.
        asked: A digest of what was asked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    round: int = Field(ge=1)
    asked: str


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    last: dict[str, Asked] = {}


class ReplayGuard:
    """What a site was asked for last, by the kind of the call, in a small file.

    A further attempt at a round comes from a server whose round came to nothing, and a call comes twice from one that
    has withdrawn it or was started again. What it asks for is then the same, word for word and byte for byte. A server
    that asks for another update or score of the same round, from another model, would get more of them than the
    experiment has rounds.

    Args:
        path: The file; made with the first call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def require_same(
        self, run: str, number: int, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> None:
        """Check that a call asks for a new round, or once more for the same; take note of it.

        Args:
            number: Of the round.
            name: Of the call; what follows a hyphen is the number of an attempt.
            request: What is asked, as JSON.
            objects: The files that came with it; each is named by the digest of its bytes.

        Raises:
            RunError: It asks for something else of a round, or for a round before.
        """
        kind, asked = name.partition("-")[0], _digest(request, objects)
        known = self._known(run)
        last = known.last.get(kind)
        if last is not None and number == last.round and asked != last.asked:
            raise RunError(f"the server asks twice to {kind} in round {number}, and not for the same")
        if last is not None and number < last.round:
            raise RunError(
                f"the server asks to {kind} in round {number} again, and this site has gone on to {last.round}"
            )
        if last is None or number > last.round:
            known.last[kind] = Asked(round=number, asked=asked)
            write_private(self.path, known.model_dump_json().encode(), "join again once that is mended")

    def _known(self, run: str) -> _Known:
        if not self.path.is_file():
            return _Known(run=run)
        try:
            known = _Known.model_validate_json(self.path.read_bytes())
        except ValidationError:
            raise RunError(f"{self.path} is damaged: remove it if the server can be trusted") from None
        return known if known.run == run else _Known(run=run)


def _digest(request: Mapping[str, Any], objects: Mapping[str, Path]) -> str:
    try:
        text = json.dumps([request, {name: path.name for name, path in objects.items()}], sort_keys=True)
    except ValueError:  # a number of more digits than Python writes
        raise RunError("the server's request has a number in it that is too long") from None
    return hashlib.sha256(text.encode()).hexdigest()
