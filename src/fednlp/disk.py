"""Files on disk: atomic writes, locks between processes, and error messages with advice.

All files are written through this module. What another user packed into a folder may be a link to a file elsewhere.
So a file is written beside its place and renamed over it, and a folder or a growing file that is a link is refused.
"""

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fednlp.errors import RunError

POINTER = b"version https://git-lfs.github.com/spec/"
"""How a small text of git-lfs begins, which stands in the place of a file."""
POINTED = (
    "a placeholder of git-lfs and not the file itself: run git lfs pull in the clone, or download the file"
)
ELSEWHERE = "set FEDNLP_CACHE to a folder elsewhere"
_PIECE = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def home() -> Path:
    """Return the folder of what this machine keeps of its own, such as the federations that it has joined.

    It is ``FEDNLP_HOME``, or in the user's state.
    """
    named = os.environ.get("FEDNLP_HOME")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fednlp"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with the user's home in place of ``~``; where there is no such user, the path as it is."""
    return Path(os.path.expanduser(path))


def regular(path: Path, most: int | None = None) -> Path:
    """Return the path, after checking that reading it cannot block forever.

    Args:
        path: The file.
        most: Bytes that it may have; None where it is not read as a whole.

    Raises:
        OSError: There is no such file, it is a pipe, a socket or a device, or it is longer.
    """
    found = path.stat()
    mode = found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder raises a clear error by itself
        raise OSError(errno.EINVAL, "a pipe or a device, no file: write what it gives to a file", str(path))
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and may have {most:,}", str(path))
    return path


def read_whole(path: Path, most: int) -> bytes:
    """Return all bytes of a file that may be anything.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        OSError: As for :func:`regular`; or there are more bytes in it than its size says.
    """
    with regular(path, most).open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:  # the system makes some files as they are read, whose size is said to be 0
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return found


def cannot_write(folder: Path, reason: str, remedy: str = ELSEWHERE) -> RunError:
    """Return the error for a folder that cannot be written, with a message of one line.

    Args:
        folder: The folder.
        reason: Why it cannot be written.
        remedy: Advice for the end of the message: what helps, or, from "then", what to do once that is mended.
    """
    first = "mend that, " if remedy.startswith("then") else ""
    return RunError(f"cannot write in {folder} ({reason}): {first}{remedy}")


def disk_full(folder: Path, remedy: str = ELSEWHERE) -> RunError:
    """Return the error for a full disk, with a message of one line that ends with ``remedy``.

    Args:
        folder: On that disk.
        remedy: What else helps, or, from "then", what to do once there is space.

    >>> disk_full(Path("runs"), "then start it again").args[0]
    'no space left on the disk that holds runs: free some, then start it again'
    """
    joint = "" if remedy.startswith("then") else "or "
    return RunError(f"no space left on the disk that holds {folder}: free some, {joint}{remedy}")


@contextmanager
def writing(folder: Path, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Turn the system's errors about a folder that cannot be written into one line.

    Args:
        folder: The folder of the files; created if missing.
        remedy: Advice for the end of the message.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(folder, remedy) from None
        raise cannot_write(folder, error.strerror or str(error), remedy) from None


@contextmanager
def writing_tensors() -> Iterator[None]:
    """Turn the errors of safetensors, which hide the system's number, into those of the system.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = errno.ENOSPC if "os error 28" in str(error) or "code: 28" in str(error) else errno.EIO
        raise OSError(number, str(error)) from None


@contextmanager
def atomic(path: Path, remedy: str = ELSEWHERE, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only when it is complete and on the disk.

    A reader sees the old file or the new one at any time; when the block raises, no file remains.

    Args:
        path: The file. A link is replaced, and what it leads to stays as it is.
        remedy: Advice for the end of an error message.
        mode: Who may read and write it; the user's umask takes away from this.

    Raises:
        RunError: The disk is full, the folder cannot be written, or the path is a pipe or a device.
    """
    with writing(path.parent, remedy):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise _no_file(path)
        # Not a private temporary file: a cache may be shared, so the user's own umask decides who reads it.
        name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise


def write(path: Path, content: bytes, remedy: str = ELSEWHERE) -> None:
    """Write a file as :func:`atomic` does.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    with atomic(path, remedy) as file:
        file.write(content)


def write_durably(path: Path, content: bytes, remedy: str = ELSEWHERE, mode: int = 0o666) -> None:
    """Write a file as :func:`atomic` does; when this returns, file and name are on the disk.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    with atomic(path, remedy, mode) as file:
        file.write(content)
    with writing(path.parent, remedy):
        sync_folder(path.parent)


@contextmanager
def appending(path: Path, remedy: str = ELSEWHERE) -> Iterator[BinaryIO]:
    """Open a file that grows, made if missing; when the block ends, it is on the disk.

    Raises:
        RunError: The disk is full, the file cannot be written, or is a link.
    """
    with (
        writing(path.parent, remedy),
        os.fdopen(open_in_place(path, os.O_WRONLY | os.O_APPEND), "ab") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


def open_in_place(path: Path, flags: int = os.O_RDWR, mode: int = 0o666) -> int:
    """Open a file that is changed where it lies, made if missing; return its handle.

    A pipe would block, and what is written to a file of two names changes the other one too.

    Args:
        path: The file.
        flags: As for ``os.open``.
        mode: Who may read and write it, if it is made.

    Raises:
        RunError: The file is a link, a pipe or a device, or has another name.
        OSError: It cannot be opened.
    """
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags | safe, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise _no_file(path) from None
        raise
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    if not stat.S_ISREG(found.st_mode):
        raise _no_file(path)
    raise RunError(
        f"{path} has another name (a hard link), whose file would be changed: put a copy in its place"
    )


def own_folder(folder: Path, remedy: str = ELSEWHERE, mode: int = 0o777) -> Path:
    """Return a folder, made if missing with those above it, after checking that it is no link to another.

    Args:
        folder: Whose files are written.
        remedy: Advice for the end of an error message.
        mode: Who may enter it, if it is made; the user's umask takes away from this.

    Raises:
        RunError: It is a link, or cannot be made.
    """
    require_no_link(folder)
    with writing(folder.parent, remedy):
        folder.mkdir(mode, exist_ok=True)
    return folder


def require_no_link(path: Path) -> None:
    """Check that a path is no link.

    Raises:
        RunError: It is one.
    """
    if path.is_symlink():
        raise _link(path)


def require_inside(folder: Path) -> None:
    """Check that no link in a folder leads out of it, so that work in it changes nothing elsewhere.

    Raises:
        RunError: There is such a link.
    """
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise _link(path)


def _no_file(path: Path) -> RunError:
    return RunError(f"{path} is a pipe or a device: name a file")


def _link(path: Path) -> RunError:
    return RunError(f"{path} is a link to {os.readlink(path)}, which would be changed: remove the link")


@contextmanager
def folder_made_whole(folder: Path, remedy: str = ELSEWHERE) -> Iterator[Path]:
    """Yield an empty folder, which takes the other's name and place when the block ends.

    A block that raises leaves everything as it was. A link of that name is replaced, and what it leads to stays. What a
    process that was killed had made of the folder is removed.

    Args:
        remedy: Advice for the end of an error message.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    with writing(folder.parent, remedy):
        for unfinished in folder.parent.glob(f".{glob.escape(folder.name)}.{'[0-9a-f]' * 16}"):
            shutil.rmtree(unfinished, ignore_errors=True)
        made, old = (folder.with_name(f".{folder.name}.{secrets.token_hex(8)}") for _ in range(2))
        made.mkdir()
        try:
            yield made
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                folder.rename(old)
            made.rename(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Put the bytes of a file on the disk."""
    _sync(path, os.O_RDONLY)


def sync_again(handle: int) -> None:
    """Put the bytes of a file on the disk where an earlier attempt may have failed.

    After an attempt that failed, Linux takes the bytes for written, and another attempt alone does nothing: see
    fsync(2), and Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020). So they are written
    once more.

    Args:
        handle: Of the file, open for reading and writing.
    """
    for at in range(0, os.fstat(handle).st_size, _PIECE):
        os.pwrite(handle, os.pread(handle, _PIECE, at), at)
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk, so that a power cut does not take back a new file."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_all(folder: Path) -> None:
    """Put a folder on the disk with all that is in it, names and bytes."""
    for path in folder.iterdir():
        (sync_all if path.is_dir() else sync_file)(path)
    sync_folder(folder)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, content: bytes, remedy: str = ELSEWHERE) -> None:
    """Write a file that only its owner may read; when this returns, file and name are on the disk.

    Args:
        path: The file; a folder that is made for it is its owner's alone too.
        content: All of its bytes.
        remedy: Advice for the end of an error message.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    private_folder(path.parent, remedy)
    write_durably(path, content, remedy, mode=0o600)


def private_folder(folder: Path, remedy: str = ELSEWHERE) -> None:
    """Make a folder, if it is missing, that only its owner may enter.

    Raises:
        RunError: It cannot be made, or is a link.
    """
    own_folder(folder, remedy, 0o700)


@contextmanager
def locked(path: Path, remedy: str = ELSEWHERE, taken: str | None = None) -> Iterator[None]:
    """Hold an exclusive lock between processes for the time of the block; it ends with the process at the latest.

    Args:
        path: The lock file; made if missing.
        remedy: Advice for the error message where it cannot be made.
        taken: Error message if another process holds the lock; None to wait for it.

    Raises:
        RunError: The lock file cannot be made, the file system has no locks, or the lock is taken.
    """
    with writing(path.parent, remedy):
        handle = open_in_place(path, mode=0o644)
    try:
        with writing(path.parent, remedy):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if taken else 0))
            except BlockingIOError:
                raise RunError(str(taken)) from None
        yield
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
