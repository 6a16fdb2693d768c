"""A paper's tables and figures as data: what makes each of them here, what was published, and what is claimed."""

from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from fednlp.reproduction.agreement import Claim

Measure = Literal[
    "score",
    "first score",
    "score falls",
    "personal",
    "sent",
    "sent a round",
    "sent to target",
    "simulated time",
    "simulated time to target",
    "training time",
    "labelling time",
    "sending time",
    "rounds to target",
    "energy",
    "training energy",
    "labelling energy",
    "sending energy",
    "memory",
    "training loss",
    "engine on client",
    "divergence",
    "size spread",
    "label share",
]
"""What a cell shows.

``score`` and ``personal`` are the task's metric on the whole test set and on the clients' own, after their fine-tuning
where there is any, in points where it is a share. ``first score`` is the score of the first evaluation. ``score
falls`` is the sum of all falls from one evaluation to the next, 0 for a curve that only rises. Both are of the clients'
own scores where the entry's measure is ``personal``. ``... to target`` is what was spent when the score first reached
the column's target. ``engine on client`` is a model's score on one client's tests, or its mean over them. In a row with
an engine ``personal`` is that engine's score on the tests of the client of its name, and there is none if no client has
it. ``training``, ``labelling`` and ``sending time`` are the parts of ``simulated time``, and likewise those of
``energy``. ``divergence`` and ``size spread`` are of a partition: the clients' mean Jensen-Shannon divergence from the
prior, and the sizes' standard deviation divided by their mean. ``label share`` is the share of a client's training
examples that have a label, in points: the rows are clients and the columns labels.
"""

TO_TARGET = ("sent to target", "simulated time to target", "rounds to target")
OF_PARTITIONS = ("divergence", "size spread", "label share")
_LONGEST = 1e12
"""Minutes of a run at most."""
_LARGEST = 1e15
"""A published figure at most."""
Curves = Literal["global", "personal", "train_loss"]
CurvesBy = Literal["round", "simulated time"]
PictureName = Literal[
    "divergence_matrix", "label_heatmap", "divergence_density", "size_density", "update_norms"
]
_OF_RUNS = ("update_norms",)
"""Pictures of runs; the others are of partitions."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Runs(_Table):
    """The runs of one experiment file.

    Attributes:
        experiment: A TOML file (:meth:`Paper.experiment_of`), or the name of an experiment that comes with fednlp.
        baselines: ``centralised``, ``chained``, ``local``, ``majority``.
        seeds: Number of seeds, from the experiment's own upwards.
        set: Settings over the file's, ``"a.b=c"``.
        data: Name of the data whose folder ``--data NAME=DIR`` gives; empty where they are fetched.
        model_of: Key of the runs from whose first model these begin; empty for the file's own model.
        minutes: Expected minutes of one run, on two cores.
        measured: Whether the minutes were measured; otherwise they are an estimate.
    """

    experiment: str
    methods: list[str] = []
    baselines: list[str] = []
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    set: list[str] = []
    data: str = ""
    model_of: str = ""
    minutes: Annotated[float, Field(gt=0, le=_LONGEST, strict=False)]
    measured: bool = False

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.methods and not self.baselines:
            raise ValueError("name methods or baselines")
        return self


class Partitioned(_Table):
    """A partition of a data set, which no model is trained on.

    Attributes:
        options: Keys of ``[partition]``.
        seeds: With how many seeds it is drawn.
        data: Name of the data whose folder ``--data NAME=DIR`` gives; empty where they are fetched.
    """

    dataset: str
    options: dict[str, Any]
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    data: str = ""


class Column(_Table):
    """A column of found figures.

    Attributes:
        run: Key of the runs; empty where the rows say it.
        method: The method, in which ``{}`` stands for the row's; empty for the row's own.
        measure: What its cells show; the entry's measure if left out.
        client: For ``engine on client``: the client; the mean over clients if left out.
        target: For ``... to target``: a value of the metric, or the method whose last score with the same seed it is.
        against: The published columns that it stands beside: their mean is what its ranks are compared with.
        mean_of: Ids of entries, of whose first columns this one is the mean, by row and seed.
    """

    name: str
    run: str = ""
    method: str = ""
    measure: Measure | None = None
    client: str = ""
    target: float | str | None = None
    against: list[str] = []
    mean_of: list[str] = []


class Cell(_Table):
    """A cell whose figure is of other runs than those of its row and column."""

    run: str
    method: str


class Row(_Table):
    """A row of a table: what it is called, which run it is of, and what was published.

    Attributes:
        name: The row's name; of a partition's figures, the partition's key, or a client of the only partition.
        run: Key of the runs; empty where the columns say it.
        method: The method; empty where the columns say it, or where nothing here corresponds.
        engine: For ``engine on client`` and ``personal``: the model; the method's own, or all clients', if left out.
        cells: Cells that other runs make, by found column.
        published: The paper's figures by column.
        found: Those of the entry's benchmark, by found column.
    """

    name: str
    run: str = ""
    method: str = ""
    engine: str = ""
    cells: dict[str, Cell] = {}
    published: dict[str, Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]] = {}
    found: dict[str, Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]] = {}


class Entry(_Table):
    """One table or figure.

    Attributes:
        id: ``table2`` or ``figure4b``.
        title: As in the paper, ``Table 2``.
        here: How it is made here.
        impossible: Why it cannot be made; empty where it can.
        benchmark: The command that measured what its rows have as found, where no runs of experiments do.
        runs: Keys of the paper's runs.
        measure: What the columns show that say nothing else.
        claims: Claims that can be checked.
        curves: A learning curve to draw.
        curves_by: What it is drawn over.
        pictures: Pictures to draw of the partitions, or of the runs.
    """

    id: Annotated[str, Field(pattern=r"^[a-z]+[0-9a-z-]*$")]
    title: str
    shows: str
    here: str = ""
    impossible: str = ""
    benchmark: str = ""
    runs: list[str] = []
    partitions: dict[str, Partitioned] = {}
    measure: Measure = "score"
    columns: list[Column] = []
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: Curves | None = None
    curves_by: CurvesBy = "round"
    pictures: list[PictureName] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        elsewhere = [one for one in (self.impossible, self.benchmark) if one]
        if len(elsewhere) + bool(self.runs or self.partitions or self.mean_of) != 1:
            raise ValueError(
                "give runs, partitions or mean_of, or the command of a benchmark, or else say in impossible why there "
                "are none"
            )
        if self.mean_of and (self.runs or self.partitions or not all(one.mean_of for one in self.columns)):
            raise ValueError(
                "where a column is a mean of other entries all are, and there are no runs or partitions"
            )
        unfit = [name for name in self.pictures if (name in _OF_RUNS) == bool(self.partitions)]
        if unfit:
            of = "runs" if self.partitions else "partitions"
            raise ValueError(f"{unfit[0]} is a picture of {of}, which the entry does not have")
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        if len(set(rows)) < len(rows) or len(set(columns)) < len(columns):
            raise ValueError("two rows or two columns have the same name")
        for claim in self.claims:
            strange = [name for name in claim.rows if name not in rows]
            if claim.column and claim.column not in columns:
                strange.append(claim.column)
            if strange:
                raise ValueError(f"a claim speaks of {strange[0]}, which is no row or column")
        if any(row.found for row in self.rows) != bool(self.benchmark):
            raise ValueError("rows have figures as found where a benchmark made them, and only there")
        outside = [name for row in self.rows for name in (*row.cells, *row.found) if name not in columns]
        if outside:
            raise ValueError(f"a row has the cell {outside[0]}, which is no column")
        known = self.published_columns
        for column in self.columns:
            strange = [name for name in column.against if name not in known]
            if strange:
                raise ValueError(f"column {column.name} stands against {strange[0]}, which was not published")
        return self

    @property
    def by_runs(self) -> bool:
        """Whether its figures are read from runs or partitions of its own."""
        return bool(self.runs or self.partitions)

    @property
    def mean_of(self) -> list[str]:
        """Ids of the entries that its columns are means of."""
        return list(dict.fromkeys(name for column in self.columns for name in column.mean_of))

    @property
    def published_columns(self) -> list[str]:
        """The columns of the paper's table, in the order of their first figures."""
        return list(dict.fromkeys(name for row in self.rows for name in row.published))

    def partition_of(self, row: Row) -> str:
        """Return the key of a row's partition: the row's name, or the only one, of which the row is a client."""
        return next(iter(self.partitions)) if len(self.partitions) == 1 else row.name

    def source_of(self, row: Row, column: Column) -> tuple[str, str]:
        """Return the key of the runs of a cell and its method.

        The key is empty where neither its row nor its column says which of several, and the method where nothing here
        corresponds.
        """
        if column.name in row.cells:
            cell = row.cells[column.name]
            return cell.run, cell.method
        key = row.run or column.run or (self.runs[0] if len(self.runs) == 1 else "")
        return key, column.method.replace("{}", row.method) if column.method else row.method


class Paper(_Table):
    """A paper: its tables and figures, and the runs that make them.

    Attributes:
        number: As on the command line, ``"000"``.
        runs: Runs by key; several tables may read the same.
        entries: Tables and figures, in the paper's order.
    """

    number: Annotated[str, Field(pattern=r"^[0-9A-Za-z]*$", max_length=8)] = ""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)]
    title: str
    source: str
    runs: dict[str, Runs] = {}
    entries: list[Entry] = Field(alias="entry")
    _folder: Path = PrivateAttr(Path())

    def read_from(self, folder: Path) -> Self:
        """Return the paper with the folder of its manifest, where relative paths begin."""
        copy = self.model_copy()
        copy._folder = folder
        return copy

    def experiment_of(self, key: str) -> str:
        """Return the path or name of the experiment of a key's runs: a file is looked for beside the manifest first."""
        beside = self._folder / self.runs[key].experiment
        return str(beside) if beside.is_file() else self.runs[key].experiment

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ids = [entry.id for entry in self.entries]
        if len(set(ids)) < len(ids):
            raise ValueError("two entries have the same id")
        titles = [entry.title for entry in self.entries]
        if len(set(titles)) < len(titles):
            raise ValueError("two entries have the same title")
        named = [runs.model_of for runs in self.runs.values() if runs.model_of]
        for entry in self.entries:
            used = {row.run for row in entry.rows} | {column.run for column in entry.columns}
            used |= {cell.run for row in entry.rows for cell in row.cells.values()}
            outside = sorted(used - {"", *entry.runs})
            if outside:
                raise ValueError(f"{entry.id} reads the runs {outside[0]}, which are not among its runs")
            named += entry.runs
        unknown = [key for key in named if key not in self.runs]
        if unknown:
            raise ValueError(f"there are no runs {unknown[0]}")
        for entry in self.entries:
            self._require_known_methods(entry)
            self._require_parts(entry)
        first = {runs.model_of for runs in self.runs.values()} - {""}
        chained = sorted(key for key in first if self.runs[key].model_of)
        if chained:
            raise ValueError(
                f"the runs {chained[0]} give the first model of others, and begin with one of others themselves"
            )
        return self

    def target_of(self, entry: Entry, key: str, column: Column) -> tuple[str, str] | None:
        """Return the key and the method of the runs whose last score a column's cell is about reaching, if any.

        They are of the cell's own key, or else of the entry's first that has the method.
        """
        if not isinstance(column.target, str):
            return None
        keys = [one for one in (key, *entry.runs) if one]
        having = [
            one for one in keys if column.target in (*self.runs[one].methods, *self.runs[one].baselines)
        ]
        return (having[0], column.target) if having else None

    def runs_of(self, entry: Entry) -> list[str]:
        """Return the keys of the runs that make an entry: its own, or those of the entries that it is the mean of."""
        parts = [one for one in self.entries if one.id in entry.mean_of]
        return list(dict.fromkeys([*entry.runs, *(key for one in parts for key in one.runs)]))

    def _require_parts(self, entry: Entry) -> None:
        """Check that the entries that a column is the mean of have its rows, and its measure in their first column."""
        known = {one.id: one for one in self.entries if one.columns and one.runs}
        rows = {row.name for row in entry.rows}
        named = [(column, name) for column in entry.columns for name in column.mean_of]
        for column, name in named:
            if name not in known:
                raise ValueError(f"{entry.id} is a mean of {name}, which is no entry with runs and columns")
            part = known[name]
            if not rows <= {row.name for row in part.rows}:
                raise ValueError(f"{entry.id} is a mean of {name}, which does not have all of its rows")
            of, one = column.measure or entry.measure, part.columns[0].measure or part.measure
            if of != one:
                raise ValueError(f"{entry.id} is a mean of {name}, whose first column shows {one}, not {of}")

    def _require_known_methods(self, entry: Entry) -> None:
        """Check that the runs have the methods of rows and targets, whose cells would stay empty otherwise."""
        known = {key: [*self.runs[key].methods, *self.runs[key].baselines] for key in entry.runs}
        every = list(dict.fromkeys(chain.from_iterable(known.values())))
        for column in entry.columns:
            if isinstance(column.target, str) and column.target not in every:
                raise ValueError(_unknown(f"the target of column {column.name}", entry, column.target, every))
        for row in entry.rows if entry.columns and entry.runs else []:
            for name, cell in row.cells.items():
                if cell.method not in known[cell.run]:
                    what = f"the cell {name} of row {row.name}"
                    raise ValueError(_unknown(what, entry, cell.method, known[cell.run]))
            wanted = [entry.source_of(row, column) for column in entry.columns]
            if row.method and not any(method in known.get(key, ()) for key, method in wanted):
                raise ValueError(_unknown(f"row {row.name}", entry, row.method, every))


def _unknown(what: str, entry: Entry, method: str, known: list[str]) -> str:
    return f"{what} of {entry.id} is {method}, which its runs do not have: {', '.join(known)}"
