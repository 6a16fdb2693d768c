"""What a site keeps of its secure sums: on its own disk, for nobody else to read, until the round is over."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, JsonValue

from fednlp.disk import atomic, private_folder, sync_folder, write_private, writing
from fednlp.errors import SecureAbort
from fednlp.federated.upload import Residues
from fednlp.secure.deployment.session.terms import MOST_ROUNDS, RoundTerms
from fednlp.secure.lightsecagg import WORD

_REMEDY = "then run fednlp join again; no work is lost"
_OVER, _STATE, _PIECE, _PIECES = "over.json", "session.json", "own-piece", "pieces"


class Done(BaseModel):
    """A step that was taken.

    Attributes:
        asked: Digest of what was asked.
        answer: JSON.
        body: Whether a file belongs to the answer.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    asked: str
    answer: dict[str, JsonValue]
    body: bool = False


class Session(BaseModel):
    """One round's session between two steps.

    Attributes:
        terms: Of the round.
        client: The state machine's state; None before the first step, and where there will be no other.
        done: The steps that were taken, by name.
        refused: Why there will be no other step.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    terms: RoundTerms
    client: dict[str, JsonValue] | None = None
    done: dict[str, Done] = {}
    refused: str | None = None


class KeptSessions:
    """A folder with a folder for each round that is not over.

    Args:
        folder: The site's own; made if missing.
        sites: How many sites there are: from the first session on another number would draw other cohorts.

    Raises:
        RunError: It cannot be made.
    """

    def __init__(self, folder: Path, run: str, sites: int) -> None:
        self.folder, self.run, self.sites = folder, run, sites
        private_folder(folder, _REMEDY)

    def __contains__(self, round_number: int) -> bool:
        return (self._place(round_number) / _STATE).is_file()

    def begin(self, terms: RoundTerms) -> Session:
        """Return a new session, of which nothing is on the disk yet; those of earlier rounds are removed.

        Raises:
            SecureAbort: The site has taken part in this round or a later one, in another run, or in one of
                another number of sites.
        """
        latest = max([self._over(), *(number for number in self._rounds() if number in self)])
        if terms.round <= latest:
            raise SecureAbort(
                f"the server begins a secure sum in round {terms.round}, and this site is done with round {latest}"
            )
        self.over(terms.round)
        private_folder(self._place(terms.round), _REMEDY)
        return Session(terms=terms)

    def load(self, round_number: int) -> Session:
        """Return the session of a round.

        Raises:
            SecureAbort: There is none, or it was refused.
        """
        if round_number not in self:
            raise SecureAbort(
                f"the server goes on with a secure sum in round {round_number} that did not begin here"
            )
        session = Session.model_validate_json((self._place(round_number) / _STATE).read_bytes())
        if session.refused is not None:
            raise SecureAbort(f"this site has left the secure sum of round {round_number}: {session.refused}")
        return session

    def save(self, session: Session) -> None:
        """Put a session on the disk."""
        path = self._place(session.terms.round) / _STATE
        write_private(path, session.model_dump_json().encode(), _REMEDY)

    def refuse(self, session: Session, reason: str) -> None:
        """End a session: its secrets are removed, and the round is not begun again."""
        session.client, session.refused = None, reason
        self.save(session)
        self.drop_pieces(session)

    def over(self, round_number: int) -> None:
        """Remove all that is kept of the rounds before this one, which are not begun again.

        Raises:
            SecureAbort: The site has taken part in another run, or in one of another number of sites.
        """
        if round_number - 1 > self._over() or not (self.folder / _OVER).is_file():
            known = {"run": self.run, "sites": self.sites, "over": round_number - 1}
            write_private(self.folder / _OVER, json.dumps(known).encode(), _REMEDY)
        with writing(self.folder, _REMEDY):
            for number in self._rounds():
                if number < round_number:
                    shutil.rmtree(self._place(number))

    def end(self) -> None:
        """Remove all that is kept; the run has no other round.

        Raises:
            SecureAbort: The site has taken part in another run, or in one of another number of sites.
        """
        self.over(MOST_ROUNDS)

    def write_body(self, session: Session, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Put the file of a step's answer on the disk."""
        with atomic(self._body(session, name), _REMEDY, mode=0o600) as file:
            for part in parts:
                file.write(part)

    def said(self, session: Session, name: str) -> tuple[dict[str, Any], Path | None]:
        """Return what was answered in a step, and its file, which may be moved away; None where it has none."""
        done = session.done[name]
        if not done.body:
            return done.answer, None
        path = self._body(session, name)
        return done.answer, self._linked(path, path.with_name(path.name + ".out"))

    def keep_pieces(self, session: Session, path: Path) -> memoryview:
        """Keep the file of the pieces that were delivered, and return its bytes, mapped."""
        self._linked(path, self._place(session.terms.round) / _PIECES)
        return self.pieces(session)

    def pieces(self, session: Session) -> memoryview:
        """Return the file of the pieces that were delivered, mapped."""
        return np.memmap(self._place(session.terms.round) / _PIECES, np.uint8, "r").data

    def keep_piece(self, session: Session, piece: Residues) -> None:
        """Keep the own coded piece of the own mask."""
        path = self._place(session.terms.round) / _PIECE
        write_private(path, piece.astype(WORD).tobytes(), _REMEDY)

    def piece(self, session: Session) -> Residues:
        """Return the own coded piece of the own mask; empty where there is none."""
        path = self._place(session.terms.round) / _PIECE
        if not path.is_file():
            return np.empty(0, dtype=np.uint32)
        return np.fromfile(path, WORD).astype(np.uint32)

    def drop_pieces(self, session: Session) -> None:
        """Remove all pieces: they are of no use any more."""
        with writing(self._place(session.terms.round), _REMEDY):
            for name in (_PIECE, _PIECES):
                (self._place(session.terms.round) / name).unlink(missing_ok=True)

    def _linked(self, path: Path, link: Path) -> Path:
        with writing(link.parent, _REMEDY):
            link.unlink(missing_ok=True)
            os.link(path, link)
            sync_folder(link.parent)
        return link

    def _body(self, session: Session, name: str) -> Path:
        return self._place(session.terms.round) / f"{name}.bin"

    def _place(self, round_number: int) -> Path:
        return self.folder / str(round_number)

    def _rounds(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]

    def _over(self) -> int:
        """Return the last round that is over; 0 for none."""
        path = self.folder / _OVER
        if not path.is_file():
            return 0
        known = json.loads(path.read_text())
        if known["run"] != self.run:
            raise SecureAbort(
                "this site has taken part in another run of the federation: it has to join again"
            )
        if (before := known.get("sites", self.sites)) != self.sites:
            raise SecureAbort(f"the server names {self.sites} sites, and this run began with {before}")
        return int(known["over"])
