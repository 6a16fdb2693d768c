"""Replies on disk: a file of JSON each, and beside it the object that belongs to it.

The JSON gets its name last of all, so a reply is there as a whole or not at all. Until then its object is a partial
file, which an upload goes on from.
The server's inbox has those that it has stored, and a client's outbox those that the server has not stored yet.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from fednlp.deployment.session.call_ids import round_of
from fednlp.deployment.session.messages import ObjectRef, Reply, header, reply_of
from fednlp.deployment.session.objects import Partial, make_folder, ref_of
from fednlp.disk import atomic, sync_again, sync_folder, writing
from fednlp.errors import ProtocolError, RunError

_SITE_REMEDY = "then run fednlp join again; no work is lost"
_REMEDY = "then start it again; nothing that was acknowledged is lost"


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


class Outbox:
    """A folder with a folder for each run: a client may have taken part in several.

    Args:
        folder: Made if missing.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder, _SITE_REMEDY)

    def of(self, run: str) -> "RunOutbox":
        """Return the part of one run."""
        return RunOutbox(self.folder / run)


class RunOutbox(Replies):
    """The replies of one run, and the ids of the calls that are done with.

    A reply may be sent before it is on the disk: the server soon has it on its own. A process that is killed meanwhile
    loses nothing, and a machine that loses its power does the work again, as if the power were lost a moment before.
    """

    def __init__(self, folder: Path) -> None:
        self._held: dict[str, Reply] = {}
        self._lock, self._there = threading.RLock(), threading.Event()
        super().__init__(folder)
        self._log = folder / "done"
        with writing(folder, _SITE_REMEDY):
            text = self._log.read_text() if self._log.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # of a crash while a line was written
                os.truncate(self._log, len(whole))
        self.done = set(whole.split())
        with writing(folder, _SITE_REMEDY):
            self._found()
        for call_id in self.done & self._ids:
            self.remove(call_id)
        for path in folder.glob("[0-9]*.*.*.*"):  # of a crash before its reply was written
            if path.name.rpartition(".")[0] not in self._ids:
                path.unlink()

    def hold(self, reply: Reply, body: Path | None) -> None:
        """Take a reply, which may be sent from now on, and which the next process finds.

        It is not on the disk before :meth:`keep`: a loss of power may take it.

        Args:
            body: The file of its object, which is moved here.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        with self._lock:
            if body is not None:
                with writing(self.folder, _SITE_REMEDY):
                    shutil.move(body, self.body(reply.id, str(reply.digest)))
            with writing(self.folder, _SITE_REMEDY):
                self._place(reply.id).write_bytes(header(reply))
            self._held[reply.id] = reply
            self._there.clear()

    def settled_within(self, seconds: float) -> None:
        """Wait until the server has all replies that are held, or wants them no longer, but not for long.

        Args:
            seconds: Which it takes at most.
        """
        self._there.wait(seconds)

    def keep(self, call_id: str) -> None:
        """Put a reply on the disk that is held, unless the server has it or no longer wants it.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        with self._lock, writing(self.folder, _SITE_REMEDY):
            reply = self._held.get(call_id)
            if reply is None:
                return
            body = None if reply.digest is None else os.open(self.body(call_id, reply.digest), os.O_RDONLY)
        if body is not None:
            try:
                with writing(self.folder, _SITE_REMEDY):
                    os.fsync(body)  # takes its time: the reply may be sent meanwhile
            finally:
                os.close(body)
        with self._lock:
            if self._held.get(call_id) is reply:
                self.commit(reply)
                self._let_go(call_id)

    def put(self, reply: Reply, body: Path | None) -> None:
        """Put a reply on the disk; see :meth:`hold`."""
        self.hold(reply, body)
        self.keep(reply.id)

    def settle(self, call_id: str) -> None:
        """Remove a reply that the server has stored, and remember that its call is done with."""
        with self._lock:
            if call_id not in self.done:
                with writing(self.folder, _SITE_REMEDY):
                    with self._log.open("a") as file:
                        file.write(f"{call_id}\n")
                        file.flush()
                        os.fsync(file.fileno())
                    sync_folder(self.folder)
                self.done.add(call_id)
            self.remove(call_id)

    def remove(self, call_id: str) -> None:
        """Remove a reply and its object, if there is any."""
        with self._lock:
            self._let_go(call_id)
            super().remove(call_id)

    def _let_go(self, call_id: str) -> None:
        """Hold a reply no longer."""
        if self._held.pop(call_id, None) is not None:
            self._place(call_id).unlink(missing_ok=True)
        if not self._held:
            self._there.set()

    def _place(self, call_id: str) -> Path:
        """Return the file of a reply that is held: its last part is no digest."""
        return self.folder / f"{call_id}.held.json"

    def _found(self) -> None:
        """Keep what an earlier process held, as far as it is whole: the power may have been lost meanwhile."""
        for path in self.folder.glob("[0-9]*.held.json"):
            call_id = path.name.removesuffix(".held.json")
            try:
                reply = reply_of(path.read_bytes())
                body = None if reply.digest is None else self.body(reply.id, reply.digest)
                whole = body is None or ref_of(body) == ObjectRef(str(reply.digest), reply.size)
            except (OSError, ProtocolError):
                whole = False
            if whole and reply.id == call_id and call_id not in self.done:
                if body is not None:
                    with body.open("r+b") as file:
                        sync_again(file.fileno())
                self.commit(reply)
            path.unlink()

    def read(self, call_id: str) -> Reply:
        """Return a reply that is there.

        Raises:
            RunError: Its file is damaged.
        """
        held = self._held.get(call_id)
        return super().read(call_id) if held is None else held

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._held or super().__contains__(call_id)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*super().__iter__(), *self._held}))
