"""Rows that are written to a file are read from it again, whatever separates the cells."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.records import read_records, table_writer

cells = st.text(st.sampled_from('ab,;|\t"\n '), max_size=6)
names = st.lists(cells.map(lambda name: f"c{name}c"), min_size=2, max_size=4, unique=True)


@given(st.sampled_from([None, ",", ";", "\t", "|"]), st.sampled_from([".csv", ".tsv"]), names, st.data())
@pytest.mark.whole
def test_rows_come_out_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    delimiter: str | None,
    suffix: str,
    columns: list[str],
    data: st.DataObject,
) -> None:
    path: Path = tmp_path_factory.mktemp("rows") / f"rows{suffix}"
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, cells)), min_size=1, max_size=5))
    with table_writer(path, columns, delimiter) as write:
        write(rows)
    found, records, kept = read_records(path)
    assert list(found) == columns
    assert [row for _, row in records] == rows
    assert kept == ((delimiter or ",") if suffix == ".csv" else None)
