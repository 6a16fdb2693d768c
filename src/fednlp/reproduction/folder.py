"""The folder of a reproduction: which papers it is of, where their data are, and how long its runs took.

reproduction.json   papers, folders of data, joined pages of others, and seconds by the clock and of CPU by run
runs/               run directories, by experiment
partitions/         partitions with their pictures
page/               the pages, their figures, and results.json
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from fednlp.checked_json import damaged, parse_json
from fednlp.checked_json.shapes import Shape
from fednlp.disk import atomic, locked, regular, require_inside, writing
from fednlp.errors import RunError
from fednlp.reproduction.results import Seconds

_REMEDY = "choose another folder with --out"


class Record(Shape):
    """``reproduction.json``."""

    papers: list[str] = Field(default_factory=list)
    data: dict[str, str] = Field(default_factory=dict)
    join: list[str] = Field(default_factory=list)
    seconds: dict[str, Seconds] = Field(default_factory=dict)
    cpu_seconds: dict[str, Seconds] = Field(default_factory=dict)

    def remember(self, papers: Sequence[str], data: Mapping[str, Path], join: Sequence[Path] = ()) -> None:
        """Add papers to those of the pages, and folders of data and joined pages to those of earlier calls."""
        self.papers = list(dict.fromkeys([*self.papers, *papers]))
        self.data |= {name: str(place.resolve()) for name, place in data.items()}
        self.join = list(dict.fromkeys([*self.join, *(str(place.resolve()) for place in join)]))

    def spend(self, job: str, seconds: float, cpu_seconds: float) -> None:
        """Add time to that of a job; CPU time only where that of the whole job is known."""
        if job in self.cpu_seconds or job not in self.seconds:
            self.cpu_seconds[job] = round(self.cpu_seconds.get(job, 0) + cpu_seconds, 2)
        self.seconds[job] = round(self.seconds.get(job, 0) + seconds, 2)

    def spent_at_least(self, job: str, seconds: float) -> None:
        """Correct the time of a job that was killed before it was written down; its CPU time is unknown then."""
        if seconds > self.seconds.get(job, 0):
            self.seconds[job] = round(seconds, 2)
            self.cpu_seconds.pop(job, None)


@contextmanager
def opened(out: Path) -> Iterator[Record]:
    """Hold the folder of a reproduction for the time of a block, made where it is missing, and read its record.

    Raises:
        RunError: Other files lie there, another process writes there, or it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"--out {out} is a file: {_REMEDY}")
    path = out / "reproduction.json"
    if out.is_dir() and any(out.iterdir()) and not path.is_file():
        raise RunError(f"--out {out} holds files of something else: {_REMEDY}")
    require_inside(out)
    with writing(out, _REMEDY):
        if not path.is_file():
            write(out, Record())
    taken = f"{out} is used by another fednlp reproduce: wait for it, or {_REMEDY}"
    with locked(path.with_name("lock"), _REMEDY, taken):
        try:
            record = Record.model_validate(parse_json(regular(path).read_bytes(), Record))
        except (OSError, ValueError) as error:
            raise damaged(path, error, _REMEDY) from error
        yield record


def write(out: Path, record: Record) -> None:
    """Write the record of a reproduction."""
    with atomic(out / "reproduction.json", _REMEDY) as file:
        file.write(json.dumps(record.model_dump(), indent=1).encode())
