"""A server may ask for a round's update again, and gets the same: another would tell it more than was agreed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.disk import atomic
from fednlp.errors import RunError


class Trained(BaseModel):
    """What a site was asked to train on last.

    Attributes:
        run: The run.
        round: The round.
        name: Of the call.
        asked: A digest of what was asked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str
    round: int = Field(ge=1)
    name: str
    asked: str


class LastTrained:
    """What a site was asked to train on last, in a small file.

    A further attempt at a round comes from a server whose round came to nothing. What it asks for is then the same,
    word for word and byte for byte. A server that asks under the number of a further attempt for another update, from
    another model, would get more updates than the experiment has rounds.

    Args:
        path: The file; made with the first round.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def require_same(
        self, run: str, number: int, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> None:
        """Check that a call to train asks for a new round, or once more for the same; take note of it.

        Args:
            run: The run.
            number: Of the round.
            name: Of the call.
            request: What is asked, as JSON.
            objects: The files that came with it; each is named by the digest of its bytes.

        Raises:
            RunError: It asks for another update of a round, or for one of a round before.
        """
        asked = _digest(request, objects)
        known = self._known()
        if known is not None and known.run == run:
            if number == known.round and name != known.name and asked != known.asked:
                raise RunError(
                    f"the server asks twice for the update of round {number}, and not for the same"
                )
            if number < known.round:
                raise RunError(
                    f"the server asks for round {number} again, and this site has gone on to {known.round}"
                )
        if known is None or (run, number, name, asked) != (known.run, known.round, known.name, known.asked):
            with atomic(self.path) as file:
                file.write(Trained(run=run, round=number, name=name, asked=asked).model_dump_json().encode())

    def _known(self) -> Trained | None:
        if not self.path.is_file():
            return None
        try:
            return Trained.model_validate_json(self.path.read_bytes())
        except ValidationError:
            raise RunError(f"{self.path} is damaged: remove it if the server can be trusted") from None


def _digest(request: Mapping[str, Any], objects: Mapping[str, Path]) -> str:
    try:
        text = json.dumps([request, {name: path.name for name, path in objects.items()}], sort_keys=True)
    except ValueError:  # a number of more digits than Python writes
        raise RunError("the server's request has a number in it that is too long") from None
    return hashlib.sha256(text.encode()).hexdigest()
