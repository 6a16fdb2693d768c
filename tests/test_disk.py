"""Files are read only where they are regular files, and written whole or not at all."""

import ast
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import fednlp
from fednlp.disk import appending, atomic, folder_made_whole, locked, read_whole, regular, sha256_of
from fednlp.errors import RunError


def test_pipes_sockets_and_devices_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("pipe", "socket", os.devnull):
        with pytest.raises(OSError, match="a pipe or a device, no file"):
            regular(Path(name))
    with pytest.raises(FileNotFoundError):
        regular(Path("absent"))


def test_files_and_links_to_them_are(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert regular(tmp_path / "link") == tmp_path / "link"


def test_a_file_that_is_longer_than_it_says_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_whole(tmp_path / "file", 5) == b"12345"
    for path, said in (
        (tmp_path / "file", "it has 5 bytes, and"),
        (Path("/proc/self/status"), "more than 4"),
    ):
        with pytest.raises(OSError, match=said):
            read_whole(path, 4)


def test_atomic_makes_its_folder_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with atomic(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["b"]


def test_who_may_read_is_the_umask_of_the_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic(tmp_path / "b") as file:
            file.write(b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o640


def test_atomic_keeps_the_old_file_when_the_block_raises(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with atomic(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["b"]


def test_full_disk_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError) as caught, atomic(tmp_path / "b") as file:
        file.write(b"new")
    assert str(caught.value) == (
        f"no space left on the disk that holds {tmp_path}: free some, or set FEDNLP_CACHE to a folder elsewhere"
    )
    assert os.listdir(tmp_path) == []


def test_unwritable_folder_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    expected = r"cannot write in .*file/cache \(Not a directory\): use another disk$"
    with (
        pytest.raises(RunError, match=expected),
        atomic(tmp_path / "file" / "cache" / "b", "use another disk"),
    ):
        pass


def test_lock_is_exclusive_between_processes(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    script = (
        "import sys, pathlib\nfrom fednlp.disk import locked\n"
        "print('started', flush=True)\n"
        "with locked(pathlib.Path(sys.argv[1])), open(sys.argv[2], 'a') as log: log.write('other\\n')\n"
    )
    command = [sys.executable, "-c", script, str(lock), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        with locked(lock):
            assert other.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.3)
            log.write_text("first\n")
    assert other.returncode == 0
    assert log.read_text() == "first\nother\n"


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(tmp_path / "abc") == expected


OPENING = {
    "data/features.py": "a folder that the process has just made",
    "deployment/identity/certificates.py": "a temporary folder",
    "hubs/archives.py": "a temporary folder",
    "hubs/package_index.py": "a folder that the process has just made",
    "models/adapters.py": "the folder of a model, which is made anew",
    "models/pretrained.py": "the folder of a model, which is made anew",
    "deployment/operate/shards.py": "the folder of a rehearsal, which was empty",
    "runtime/shared.py": "a temporary folder",
    "runtime/mpi.py": "/dev/null",
    "simulation/train.py": "a run directory without links that lead out",
    "simulation/workers.py": "a temporary folder",
    "training/activation_store.py": "the cache",
} | dict.fromkeys(
    [
        "deployment/server/arrivals.py",
        "deployment/session/objects.py",
        "deployment/session/replies.py",
        "deployment/operate/rehearse.py",
        "secure/deployment/server/sums.py",
        "deployment/site/worker.py",
    ],
    "a run directory without links that lead out, or the folder of a site, which its owner alone can enter",
)
"""Modules that open files for writing by themselves, and where these lie."""


def _writes(call: ast.AST) -> bool:
    """Tell whether a call opens a file by its name, and for writing."""
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    text = ast.unparse(call)
    if name == "open":
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes) or (
            any(flag in text for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "_APPEND"))
        )
    if name in ("save", "savez", "savez_compressed", "savefig"):
        numpy = text.startswith(("np.save", "numpy.save")) or name == "savefig"
        return numpy and not text.split("(")[1].startswith(("file", "content", "data", "text"))
    return name in ("write_text", "write_bytes", "touch", "to_csv", "to_parquet", "copyfile")


def test_files_are_opened_for_writing_by_one_module() -> None:
    """What others open by its name must lie where no link of a stranger can be."""
    root = Path(fednlp.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(_writes(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found - {"disk.py", "data/readers/h5.py"} == set(OPENING)


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="a pipe or a device"), atomic(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda to, _: os.mkfifo(to), "a pipe or a device"),
        (lambda to, other: to.hardlink_to(other), "another name"),
    ],
)
def test_nothing_is_added_to_a_pipe_or_to_a_file_of_another_name(
    make: Callable[[Path, Path], None], said: str, tmp_path: Path
) -> None:
    other, path = tmp_path / "other", tmp_path / "rounds.jsonl"
    other.write_bytes(b"mine")
    make(path, other)
    with pytest.raises(RunError, match=said), appending(path) as file:
        file.write(b"more")
    assert other.read_bytes() == b"mine"


def test_a_folder_takes_its_place_whole_and_leaves_nothing_of_those_that_were_not(tmp_path: Path) -> None:
    """A process that is killed cannot remove what it has made; the next one does."""
    folder = tmp_path / "model"
    for name in ("model", f".model.{'0a' * 8}", ".model.notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").touch()
    with suppress(ValueError), folder_made_whole(folder) as made:
        (made / "new").touch()
        raise ValueError("half")
    assert [one.name for one in folder.iterdir()] == ["old"]
    with folder_made_whole(folder) as made:
        (made / "new").touch()
    assert [one.name for one in folder.iterdir()] == ["new"]
    assert {one.name for one in tmp_path.iterdir()} == {"model", ".model.notes"}
