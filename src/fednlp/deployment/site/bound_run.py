"""The one run that a join token is for, as the site has taken note of it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fednlp.checked_json import damaged
from fednlp.disk import write_private

_FILE = "run.json"


class _Bound(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    invitation: str


class BoundRun:
    """Takes note of the first run that a site is set up for with a token; another run takes another token.

    A server has one run for each authority, so a second name comes from one that has lost its own, or that wants a site
    to forget what it has answered. Certificates of an organisation are for any run of theirs.

    Args:
        folder: Of this site and federation.
        invitation: Name of the invitation that the site enrolled with last; None without a token.
    """

    def __init__(self, folder: Path, invitation: str | None) -> None:
        self._path, self._invitation = folder / _FILE, invitation

    def read(self) -> str | None:
        """Return the run's name; None where the site may be set up for any.

        Raises:
            RunError: The file is damaged.
        """
        if self._invitation is None or not self._path.is_file():
            return None
        try:
            found = _Bound.model_validate_json(self._path.read_bytes())
        except ValidationError:
            error = ValueError("it names no run")
            raise damaged(self._path, error, "delete it if the server can be trusted") from None
        return found.run if found.invitation == self._invitation else None

    def write(self, run: str) -> None:
        """Take note of the run that the site is set up for, unless it has one.

        Raises:
            RunError: The folder cannot be written, or the file is damaged.
        """
        if self._invitation is not None and self.read() is None:
            note = _Bound(run=run, invitation=self._invitation)
            write_private(self._path, note.model_dump_json().encode(), "then run fednlp join again")
