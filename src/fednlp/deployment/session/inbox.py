"""Replies on disk: a file of JSON each, and beside it the object that belongs to it.

The JSON gets its name last of all, so a reply is there as a whole or not at all. Until then its object is a partial
file, which an upload goes on from.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from fednlp.deployment.session.message_types import ObjectRef, Reply
from fednlp.deployment.session.messages import header, reply_of
from fednlp.deployment.session.objects import Partial, make_folder
from fednlp.disk import atomic, sync_folder, writing
from fednlp.errors import ProtocolError, RunError

_REMEDY = "then start it again; nothing that was acknowledged is lost"


def round_of(call_id: str) -> int:
    """Return the round of a call."""
    return int(call_id.split(".")[0])


def client_of(call_id: str) -> int:
    """Return the client of a call."""
    return int(call_id.split(".")[1])


class Replies:
    """A folder of replies.

    Args:
        folder: Made if missing; what a crash left half done is removed.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder, _REMEDY)
        with writing(folder, _REMEDY):
            names = (path.name.removesuffix(".json") for path in folder.glob("[0-9]*.json"))
            self._ids = {name for name in names if name.count(".") == 2}
            for path in folder.glob(".*.json.*"):  # of a crash while it was written
                path.unlink()

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._ids))

    def read(self, call_id: str) -> Reply:
        """Return a reply that is there.

        Raises:
            RunError: Its file is damaged.
        """
        path = self.folder / f"{call_id}.json"
        try:
            return reply_of(path.read_bytes())
        except (OSError, ProtocolError) as error:
            raise RunError(
                f"{path} is damaged ({error}): remove it to have the call answered again"
            ) from None

    def body(self, call_id: str, digest: str) -> Path:
        """Return the place of the object of a reply."""
        return self.folder / f"{call_id}.{digest}"

    def commit(self, reply: Reply) -> None:
        """Put a reply on the disk; its object has to be there.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        self.write(reply)
        self.add(reply.id)

    def write(self, reply: Reply) -> None:
        """Put a reply on the disk that is not one of these before :meth:`add`; from any thread.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        with atomic(self.folder / f"{reply.id}.json", _REMEDY) as file:
            file.write(header(reply))
        with writing(self.folder, _REMEDY):
            sync_folder(self.folder)

    def add(self, call_id: str) -> None:
        """Take note of a reply that was written."""
        self._ids.add(call_id)

    def remove(self, call_id: str) -> None:
        """Remove a reply and what has arrived of its object, if there is any."""
        with writing(self.folder, _REMEDY):
            (self.folder / f"{call_id}.json").unlink(missing_ok=True)
            self._ids.discard(call_id)
            self.keep_body(call_id, None)

    def keep_body(self, call_id: str, digest: str | None) -> None:
        """Remove the objects of a call but one."""
        for path in self.folder.glob(f"{call_id}.*"):
            if path.suffix != ".json" and path.suffix != f".{digest}":
                path.unlink(missing_ok=True)


class Inbox(Replies):
    """The replies that a server has stored, and the objects that are on their way to it."""

    def partial(self, call_id: str, ref: ObjectRef) -> Partial:
        """Return what is there of an object, which is nothing if an object with other bytes was on its way."""
        with writing(self.folder, _REMEDY):
            self.keep_body(call_id, ref.digest)
        return Partial(self.body(call_id, ref.digest), ref)

    def forget(self, round_number: int) -> None:
        """Have no reply of the rounds up to this one; their files stay until :meth:`clear`."""
        self._ids = {call_id for call_id in self._ids if round_of(call_id) > round_number}

    def clear(self, round_number: int) -> None:
        """Remove the files of the rounds up to this one."""
        with writing(self.folder, _REMEDY):
            for name in os.listdir(self.folder):
                if name[:1].isdigit() and round_of(name) <= round_number:
                    (self.folder / name).unlink(missing_ok=True)
