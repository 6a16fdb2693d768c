"""The folder of a comparison: its run directories, and the table of the trials by which settings were chosen."""

import re
from collections.abc import Sequence
from pathlib import Path

from fednlp.checked_json import no_run_directory, read_json
from fednlp.errors import RunError
from fednlp.formatting.safe_text import clean
from fednlp.reports.table import Stat, Table, TableColumn, TableRow

_TRIALS = "tuning"


def run_directories(folders: Sequence[str | Path]) -> list[Path]:
    """Return run directories, and in place of the folder of a comparison those that lie directly in it.

    Those of a comparison are in the order of their names, with numbers by value; finished or not.

    Args:
        folders: Run directories, and folders of comparisons.

    Raises:
        RunError: A folder is neither.
    """
    return [run for folder in folders for run in _runs_of(Path(folder))]


def _runs_of(folder: Path) -> list[Path]:
    if (folder / "resolved.toml").is_file():
        return [folder]
    inside = [path.parent for path in folder.glob("*/resolved.toml")]
    if inside:
        return sorted(inside, key=_by_name)
    deeper = sorted({path.parent.parent for path in folder.glob("*/*/resolved.toml")})
    comparisons = [one for one in deeper if one.name != _TRIALS]
    if comparisons:
        raise RunError(
            f"{folder} holds no run directory itself, but folders that do: give one of them, such as {comparisons[0]}"
        )
    if deeper:
        raise RunError(
            f"{folder} holds trials and no run yet: go on with the same fednlp compare command, or give {deeper[0]}"
        )
    raise no_run_directory(folder)


def _by_name(folder: Path) -> list[str | int]:
    """Return what orders names with numbers: ``fedavg-seed2`` is before ``fedavg-seed10``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", folder.name)]


def kept_trials(folders: Sequence[str | Path], out: str | Path) -> Table | None:
    """Return the table of trials that the report of a comparison has; None for other folders.

    Args:
        folders: Run directories, and folders of comparisons.
        out: The folder of the new report.

    Raises:
        RunError: The table is damaged; or there are several folders, and the new report would take the place of one
            that has such a table.
    """
    tables = [Path(folder) / "report" / f"{_TRIALS}.json" for folder in folders]
    if len(tables) == 1:
        return _read(tables[0]) if tables[0].is_file() else None
    if any(path.is_file() and path.parent.resolve() == Path(out).resolve() for path in tables):
        raise RunError(
            f"the report in {out} shows how settings were chosen, which a report on several folders does not: "
            "choose another folder with --out"
        )
    return None


def lacks_trials(folder: Path) -> bool:
    """Return whether a comparison has trials whose table is not written yet."""
    return (folder / _TRIALS).is_dir() and not (folder / "report" / f"{_TRIALS}.json").is_file()


def _read(path: Path) -> Table:
    """Read the table of trials that :func:`fednlp.reports.write_table` wrote."""
    found = read_json(path, "type the same fednlp compare command again, which writes it")
    columns = tuple(TableColumn(one["key"], clean(one["heading"]), one["kind"]) for one in found["columns"])
    rows = tuple(
        TableRow(
            clean(row["trial"]),
            row["baseline"],
            row["seeds"],
            {column.key: _stat(row.get(column.key)) for column in columns},
        )
        for row in found["rows"]
    )
    return Table(columns, rows, clean(found["caption"]), tuple(map(clean, found["notes"])), head="Trial")


def _stat(cell: dict[str, list[float | None]] | None) -> Stat | None:
    values = cell and cell["values"]
    return Stat(tuple(float("nan") if one is None else float(one) for one in values)) if values else None
