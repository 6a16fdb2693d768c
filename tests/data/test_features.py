"""What is read once from a mapped file is let go, and nothing is lost by it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fednlp.data.features import open_features, release_pages, row_batches, write_features


def mapped(path: Path, batches: int) -> Any:
    """Write a table of 0.5 MB a batch, and map it."""
    schema = pa.schema([("text", pa.string()), ("label", pa.string())])
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in range(batches):
            texts = pa.array([f"{batch} {number} " + "word " * 24 for number in range(4096)])
            writer.write_batch(pa.record_batch([texts, pa.array(["x"] * 4096)], schema=schema))
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def held_of_files() -> int:
    """Return the bytes of mapped files that are in this process's memory."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssFile"))


def test_rows_that_are_read_are_let_go(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("what a process holds is read from /proc/self/status, which only Linux has")
    table = mapped(tmp_path / "t.arrow", 100)
    before, most, rows = held_of_files(), 0, 0
    for batch in row_batches(table, {"text": "text"}):
        rows += len(batch)
        most = max(most, held_of_files())
    assert rows == table.num_rows
    assert most - before < 10e6, "of the 50 MB of texts"


def test_nothing_is_lost(tmp_path: Path) -> None:
    table = mapped(tmp_path / "t.arrow", 2)
    own = pa.table({"text": ["é", None, "long " * 9000] * 50})
    for found in (table, own, table.slice(7, 3), own.take([1, 2, 0])):
        expected = found.to_pydict()
        release_pages(
            buffer for column in found.columns for chunk in column.chunks for buffer in chunk.buffers()
        )
        assert found.to_pydict() == expected
        assert [row for batch in row_batches(found, {"t": "text"}) for row in batch] == [
            {"t": text} for text in expected["text"]
        ]


@pytest.mark.parametrize(
    "meta", ["", "[]", '"x"', "{}", '{"version": %d}', '{"version": %d, "bytes": []}', "[" * 9999]
)
def test_features_that_cannot_be_read_are_made_anew(meta: str, tmp_path: Path) -> None:
    def rows() -> list[list[dict[str, Any]]]:
        return [[{"input_ids": [1, 2, 3], "label": 0}, {"input_ids": [4], "label": 1}]]

    folder = tmp_path / "made"
    write_features(folder, rows())
    version = json.loads((folder / "meta.json").read_text())["version"]
    (folder / "meta.json").write_text(meta.replace("%d", str(version)))
    assert open_features(folder) is None
    found = write_features(folder, rows())
    assert found.ragged("input_ids", 0).tolist() == [1, 2, 3]
