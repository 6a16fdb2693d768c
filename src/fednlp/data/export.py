"""A loaded data set as the original FedNLP's exchange file."""

from collections.abc import Iterator
from pathlib import Path

from fednlp.data.exchange import COLUMNS, TASKS, write_data
from fednlp.data.features import row_batches
from fednlp.data.store import Row
from fednlp.data.textdata import TextData
from fednlp.errors import DataError
from fednlp.formatting.names import did_you_mean


def export_data(data: TextData, path: Path) -> int:
    """Write a data set; the test table's rows go on from those of the training table.

    Returns:
        How many examples were written.

    Raises:
        DataError: FedNLP has no file for the task, or an example cannot be stored.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    tasks = tuple(TASKS.values())
    if data.task not in tasks:
        raise DataError(
            f"{data.name} is for {data.task}, which FedNLP's files do not have: "
            f"{did_you_mean(data.task, tasks)}they have {', '.join(tasks)}"
        )
    names = [name for name in COLUMNS[data.task] if name in data.columns]
    tables = [data.train] if data.held_out else [data.train, data.test]
    first = 0 if data.held_out else data.train.num_rows

    def rows() -> Iterator[Row]:
        for table in tables:
            own = {name: data.columns[name] for name in names if data.columns[name] in table.column_names}
            for batch in row_batches(table, own):
                yield from (tuple(row.get(name) for name in names) for row in batch)

    write_data(
        path,
        data.task,
        names,
        rows(),
        data.train_numbers,
        data.test_numbers + first,
        data.label_names or None,
    )
    return sum(table.num_rows for table in tables)
