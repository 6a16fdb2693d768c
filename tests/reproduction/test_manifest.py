"""The manifests that come with fednlp: what they name exists, and a mistake in one is said in one line."""

from pathlib import Path
from statistics import fmean

import pytest

from fednlp import config
from fednlp.config.identity import canonical
from fednlp.data import CATALOGUE
from fednlp.errors import ConfigError
from fednlp.reproduction.agreement import judge
from fednlp.reproduction.catalogue import find_papers, read_paper, shipped
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.needs import expected_minutes, needed_data
from fednlp.simulation.run_dir import settings_hash

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPERS = shipped()
SMALL = """
name = "mine"
title = "t"
source = "s"
[runs.a]
experiment = "small"
methods = ["fedavg", "fedopt"]
minutes = 1
[[entry]]
id = "table1"
title = "Table 1"
shows = "x"
runs = ["a"]
columns = [{ name = "here", against = ["paper"] }]
rows = [{ name = "A", method = "fedavg", published = { paper = 1.0 } }, { name = "B", method = "fedopt" }]
claims = [{ says = "A is best", kind = "highest", rows = ["A", "B"] }]
"""


TWICE = "\n".join(
    f'[[entry]]\nid = "figure{number}"\ntitle = "Figure"\nshows = "x"\nruns = ["a"]' for number in (1, 2)
)


def test_the_five_papers_are_there_by_number_and_name() -> None:
    assert [paper.number for paper in PAPERS] == ["000", "001", "002", "003", "004"]
    assert find_papers(["000"]) == find_papers(["fednlp"]) == {"000": PAPERS[0]}
    assert list(find_papers(["all", "004"]).values()) == PAPERS
    assert len({paper.name for paper in PAPERS}) == 5


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_experiments_methods_and_settings_exist(paper: Paper) -> None:
    for runs in paper.runs.values():
        experiment = config.load(runs.experiment, runs.set)
        for method in [*runs.methods, *runs.baselines]:
            config.with_method(experiment, method, 0).resolved()
        assert not runs.data or runs.data in (*CATALOGUE, "domains")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_rows_and_columns_name_methods_of_their_runs(paper: Paper) -> None:
    """A cell that names a method the runs do not have would stay empty for ever."""
    for entry in paper.entries:
        for row in entry.rows:
            for column in entry.columns:
                key, method = entry.source_of(row, column)
                if key and method:
                    runs = paper.runs[key]
                    known = [*runs.methods, *runs.baselines]
                    elsewhere = any(
                        method in paper.runs[other].methods for other in entry.runs if not row.run
                    )
                    assert method in known or elsewhere, (entry.id, row.name, column.name)
        assert {entry.partition_of(row) for row in entry.rows if entry.partitions} == set(entry.partitions)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_entry_can_be_made_or_says_why_not(paper: Paper) -> None:
    for entry in paper.entries:
        minutes, _ = expected_minutes(paper, [entry])
        assert bool(entry.impossible or entry.benchmark) == (minutes == 0)
        assert set(needed_data(paper, entry)) <= {*CATALOGUE, "domains"}
        for made in entry.partitions.values():
            assert made.dataset in CATALOGUE
            config.parse({"clients_per_round": 1, "data": {"name": made.dataset}, "partition": made.options})


def test_every_number_of_the_benchmark_tables_is_the_published_one() -> None:
    """A few cells of each paper, as printed there."""
    found = {
        (paper.number, entry.id, row.name, column): value
        for paper in PAPERS
        for entry in paper.entries
        for row in entry.rows
        for column, value in row.published.items()
    }
    assert found["000", "table2-answering", "FedOpt", "MRQA, %"] == 32.8
    assert found["000", "table3", "E+L0-3", "FedOpt"] == 30.68
    assert found["001", "table3-rte", "FedAdam", "RTE"] == 72.14
    assert found["001", "table5", "FedSplitBERT", "average"] == 88.81
    assert found["002", "table6", "DP_g", "PHP"] == 13.69
    assert found["003", "table2", "beta = 5", "FedOpt"] == 70.1
    assert found["004", "table4", "FeS", "Yelp-F"] == 86.8


CONTRADICTED = {
    ("001", "table3-sst2", "With 16 bits it stays better than the three common models"),
    ("001", "table3-rte", "With 16 bits it stays better than the three common models"),
    ("001", "table3-rte-f1", "With 16 bits it stays better than the three common models"),
    (
        "001",
        "table4",
        "A middle layer (c = 8) is better than FedAvg (c = 12) and than no sharing (c = 0)",
    ),
}
"""The paper says so of all data sets or of their average; on these its own table says otherwise."""


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_the_claims_hold_of_the_published_figures(paper: Paper) -> None:
    """Wherever a claim is about rows and a column that were published, the paper's own figures bear it out."""
    for entry in paper.entries:
        beside = {column.name: column.against for column in entry.columns}
        for claim in entry.claims:
            against = beside[claim.column or entry.columns[0].name]
            means = {
                row.name: {0: fmean(row.published[name] for name in against)}
                for row in entry.rows
                if against and set(against) <= set(row.published)
            }
            holds = judge(claim, means).holds
            expected = (paper.number, entry.id, claim.says) not in CONTRADICTED
            assert holds in (None, expected), (entry.id, claim.says)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_scores_and_published_scores_are_both_in_points(paper: Paper) -> None:
    """A share of 0.5142 beside 14.2 % cannot be compared."""
    for entry in paper.entries:
        for column in entry.columns:
            if (column.measure or entry.measure) in ("score", "personal", "engine on client"):
                values = [row.published.get(name, 0.0) for row in entry.rows for name in column.against]
                assert not values or max(values) > 1, (entry.id, column.name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('rows = ["A", "B"]', 'rows = ["A", "C"]', "speaks of C, which is no row or column"),
        ('against = ["paper"]', 'against = ["other"]', "stands against other, which was not published"),
        ('runs = ["a"]', "", "give runs, partitions or mean_of"),
        (
            'runs = ["a"]',
            'runs = ["a"]\nbenchmark = "c"',
            "give runs, partitions or mean_of, or the command of",
        ),
        (
            'runs = ["a"]',
            'benchmark = "c"',
            "rows have figures as found where a benchmark made them, and only",
        ),
        ('runs = ["a"]', 'runs = ["b"]', "there are no runs b"),
        (
            'runs = ["a"]',
            'runs = ["a"]\npictures = ["size_density"]',
            "size_density is a picture of partitions, which the entry does not have",
        ),
        ("minutes = 1", "minutes = 0", "runs.a.minutes: Input should be greater than 0"),
        ('kind = "highest"', 'kind = "best"', "entry.0.claims.0.kind: Input should be"),
        ("minutes = 1", r'"a\nb" = 1', "there is no such key"),
        ("minutes = 1", "minute = 1", "runs.a.minute: there is no such key; did you mean 'minutes'"),
        ('name = "B"', 'name = "A"', "two rows or two columns have the same name"),
        ("[[entry]]", "[[entry", "is not readable as TOML"),
        ("minutes = 1", "minutes = inf", "runs.a.minutes: Input should be less than or equal to"),
        ("minutes = 1", "minutes = " + "9" * 5000, "is not readable as TOML"),
        ("minutes = 1", "minutes = " + "[" * 5000, "is not readable as TOML"),
        ("minutes = 1", 'minutes = 1\nmodel_of = "a"', "begin with one of others themselves"),
        ("paper = 1.0", "paper = nan", "published.paper: Input should be less than or equal to"),
        ("paper = 1.0", "paper = 1e300", "published.paper: Input should be less than or equal to"),
        (
            'method = "fedopt"',
            'method = "fedup"',
            "row B of table1 is fedup, which its runs do not have: fedavg",
        ),
        (
            '{ name = "here",',
            '{ name = "here", measure = "sent to target", target = "fedup",',
            "the target of column here of table1 is fedup, which its runs do not have: fedavg, fedopt",
        ),
        ('name = "B"', 'cells = { there = { run = "a", method = "fedavg" } }, name = "B"', "no column"),
        (
            'name = "B"',
            'cells = { here = { run = "a", method = "fedup" } }, name = "B"',
            "the cell here of row B of table1 is fedup, which its runs do not have: fedavg",
        ),
        ('name = "B"', 'cells = { here = { run = "b", method = "x" } }, name = "B"', "reads the runs b"),
        ('kind = "highest"', 'kind = "ratios fall"', "ratios fall is of two pairs of rows, or more"),
        (
            'kind = "highest", rows = ["A", "B"]',
            'kind = "close", rows = ["A", "B", "A"]',
            "close is of two rows",
        ),
        (SMALL[SMALL.index("[[entry]]") :], TWICE, "two entries have the same title"),
        ('name = "mine"', 'name = "../../mine"', "name: String should match pattern"),
        ('name = "mine"', 'name = "mine"\nnumber = "../0"', "number: String should match pattern"),
    ],
)
def test_a_mistake_in_a_manifest_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert read_paper(path).entries[0].published_columns == ["paper"]
    assert old in SMALL
    path.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_paper(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_papers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no paper fednl: did you mean 'fednlp'\? choose from 000"):
        find_papers(["fednl"])
    with pytest.raises(ConfigError, match=r"there is no manifest nowhere\.toml"):
        find_papers(["nowhere.toml"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', 'name = "fednlp"', 'name = "fednlp" is that of paper 000: give it one of its own'),
        ('name = "mine"', 'name = "own"\nnumber = "003"', 'number = "003" is that of paper 003: give it one'),
        ('title = "t"', 'title = "another"', 'name = "mine" is that of paper '),
    ],
)
def test_no_manifest_replaces_another_paper(tmp_path: Path, old: str, new: str, message: str) -> None:
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text(SMALL)
    other.write_text(SMALL)
    assert list(find_papers([str(mine), str(other), str(mine)])) == [str(mine)], "the same paper twice"
    other.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        find_papers([str(mine), str(other)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def settings_of(experiment: str) -> str:
    """Return what tells an experiment's settings from those of others."""
    return settings_hash(config.load(experiment).resolved())


SHARED = [
    ("platform-table2-uniform", "fedopt", "fednlp-figure5", "uniform"),
    ("platform-table2-alpha5", "fedopt", "fednlp-figure5", "alpha 5"),
    ("platform-table2-alpha10", "fedopt", "fednlp-figure5", "alpha 10"),
    ("platform-table2-beta5", "fedopt", "fednlp-figure5", "beta 5"),
    ("fewshot-bandwidth", "FedFSL at 1 MBps", "fes-table4", "FedFSL"),
    ("fewshot-bandwidth", "FedFSL-BIAS at 1 MBps", "fes-table4", "FedFSL-BIAS"),
    ("fewshot-bandwidth", "FeS at 1 MBps", "fes-table4", "FeS"),
]


@pytest.mark.parametrize(("one", "method", "other", "variant"), SHARED)
def test_runs_that_stand_in_for_others_differ_in_name_and_evaluation_alone(
    one: str, method: str, other: str, variant: str
) -> None:
    runs = [(one, method), (other, variant)]
    a, b = (canonical(config.with_method(config.load(name), of, 0).resolved()) for name, of in runs)
    assert {key for key in a | b if a.get(key) != b.get(key)} <= {"name", "variant", "evaluation"}


@pytest.mark.parametrize("name", ["fednlp", "platform"])
def test_table_2_is_made_by_the_files_of_that_table(name: str) -> None:
    """These have the paper's client optimisers. A file of the other paper may stand in for one with its settings."""
    (paper,) = find_papers([name]).values()
    tables = [entry for entry in paper.entries if entry.id.startswith("table2")]
    rows = [row for entry in tables for row in entry.rows]
    elsewhere = {cell.run for row in rows for cell in row.cells.values()} - {row.run for row in rows}
    made = {paper.runs[key].experiment for entry in tables for key in entry.runs if key not in elsewhere}
    files = {path.stem for path in EXPERIMENTS.glob(f"{name}-table2-*.toml")}
    assert {settings_of(one) for one in made} == {settings_of(one) for one in files}
