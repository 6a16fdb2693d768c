"""The register's file: one JSON document, checked when it is read and replaced as a whole under a lock."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fednlp.checked_json import damaged
from fednlp.deployment.identity.ca import REMEDY
from fednlp.deployment.identity.names import stored_name
from fednlp.disk import locked, private_folder, regular, write_private

State = Literal["invited", "enrolled", "removed"]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_T = TypeVar("_T")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Invitation(_Strict):
    """A root certificate (PEM), and the SHA-256 of the key that has used it."""

    root: str
    expires: float
    used_by: Hex | None = None


class Certificate(_Strict):
    """A certificate's SHA-256, and that of its key."""

    fingerprint: Hex
    key: Hex
    expires: float


class Entry(_Strict):
    """A site; its number is its place in the list, and no entry is ever taken out."""

    name: Annotated[str, AfterValidator(stored_name)]
    state: State
    since: float
    invitation: Invitation | None = None
    certificates: list[Certificate] = []


class File(_Strict):
    """All sites."""

    version: Literal[1] = 1
    sites: list[Entry] = []


class RegisterFile:
    """``sites.json`` of a federation; several processes and threads may use it at the same time.

    Args:
        folder: The federation's folder on the server; made if missing.

    Raises:
        RunError: The folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder, REMEDY)
        self._path = folder / "sites.json"
        self._last = (b"", File())

    def read(self) -> File:
        """Return what the file says, not to be changed; it is parsed only if it has changed.

        Raises:
            RunError: It is damaged.
        """
        try:
            content = regular(self._path).read_bytes()
            if content != self._last[0]:
                self._last = (content, File.model_validate_json(content))
        except FileNotFoundError:
            return File()
        except (ValidationError, OSError):
            error = ValueError("it is no register of sites")
            raise damaged(self._path, error, "restore it from a backup") from None
        return self._last[1]

    def change(self, change: Callable[[File], _T]) -> _T:
        """Apply a change to what the file says now, and return what the change returns.

        When this returns, the file is on the disk; when the change raises, nothing is written.

        Args:
            change: Works on a copy of its own.

        Raises:
            RunError: The file is damaged or cannot be written.
        """
        with locked(self._path.with_suffix(".lock"), REMEDY):
            before = self.read()
            file = before.model_copy(deep=True)
            result = change(file)
            if file != before:
                write_private(self._path, file.model_dump_json(indent=1).encode(), REMEDY)
            return result
