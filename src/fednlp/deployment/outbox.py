"""What a client has answered: replies that the server has not stored yet, and the ids of those that it has."""

import os
import shutil
from pathlib import Path

from fednlp.deployment.inbox import Replies
from fednlp.deployment.messages import Reply
from fednlp.deployment.objects import make_folder
from fednlp.disk import sync_file, sync_folder, writing

_REMEDY = "then run fednlp join again; no work is lost"


class Outbox:
    """A folder with a folder for each run: a client may have taken part in several.

    Args:
        folder: Made if missing.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder, _REMEDY)

    def of(self, run: str) -> "RunOutbox":
        """Return the part of one run."""
        return RunOutbox(self.folder / run)


class RunOutbox(Replies):
    """The replies of one run, and the ids of the calls that are done with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._log = folder / "done"
        with writing(folder, _REMEDY):
            text = self._log.read_text() if self._log.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # of a crash while a line was written
                os.truncate(self._log, len(whole))
        self.done = set(whole.split())
        for call_id in self.done & self._ids:
            self.remove(call_id)
        for path in folder.glob("[0-9]*.*.*.*"):  # of a crash before its reply was written
            if path.name.rpartition(".")[0] not in self._ids:
                path.unlink()

    def put(self, reply: Reply, body: Path | None) -> None:
        """Put a reply on the disk.

        Args:
            reply: The reply.
            body: The file of its object, which is moved here.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        if body is not None:
            with writing(self.folder, _REMEDY):
                place = self.body(reply.id, str(reply.digest))
                shutil.move(body, place)
                sync_file(place)
        self.commit(reply)

    def settle(self, call_id: str) -> None:
        """Remove a reply that the server has stored, and remember that its call is done with."""
        if call_id not in self.done:
            with writing(self.folder, _REMEDY):
                with self._log.open("a") as file:
                    file.write(f"{call_id}\n")
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(self.folder)
            self.done.add(call_id)
        self.remove(call_id)
