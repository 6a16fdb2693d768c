"""What others found with other settings is left out of a union."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fednlp import config
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.changed import (
    Expected,
    settings_digest,
    unchecked,
    with_same_data,
    with_same_settings,
)
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import run_name
from fednlp.reproduction.notes import notes_of
from fednlp.reproduction.parts import FoundColumn, FoundPicture, FoundRun
from fednlp.reproduction.results import Results
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.same_data import SameData

from .made_up import pages_of, table_of

PAPER = Paper.model_validate(
    {
        "name": "mine",
        "title": "t",
        "source": "s",
        "runs": {"r": {"experiment": "small", "methods": ["a", "b"], "seeds": 2, "minutes": 1.0}},
        "entry": [
            {
                "id": "table1",
                "title": "Table 1",
                "shows": "things",
                "runs": ["r"],
                "rows": [{"name": "A", "method": "a"}, {"name": "B", "method": "b"}],
                "columns": [
                    {"name": "score"},
                    {"name": "to A", "measure": "sent to target", "target": "a"},
                ],
            }
        ],
    }
)
NAMES = {name: [run_name(PAPER.runs["r"], name.lower(), seed) for seed in (0, 1)] for name in ("A", "B")}
EVERY = [*NAMES["A"], *NAMES["B"]]


def found(settings: dict[str, str]) -> Results:
    """Return what one found who made all of the paper, whose table has a picture."""
    figures = {"A": {0: 1.0, 1: 2.0}, "B": {0: 3.0, 1: 4.0}}
    columns = [
        FoundColumn(
            name=one.name, measure=one.measure or "score", figures=figures, errors={"A": 1.0, "B": 1.0}
        )
        for one in PAPER.entries[0].columns
    ]
    table = table_of(PAPER.entries[0], EVERY, columns, pictures=[FoundPicture(name="p", caption="c")])
    runs = {name: FoundRun(finished=True, seconds=1.0, settings=settings.get(name, "")) for name in EVERY}
    return pages_of("mine", [table], runs)


DIGESTS = st.dictionaries(st.sampled_from(EVERY), st.sampled_from(["00000000", "11111111"]))


@given(DIGESTS, DIGESTS)
def test_a_figure_stays_if_no_run_behind_it_had_other_settings(
    theirs: dict[str, str], here: dict[str, str]
) -> None:
    given = found(theirs)
    kept, other = with_same_settings(given, {"mine": PAPER}, here)
    assert other == sorted(name for name in theirs.keys() & here.keys() if theirs[name] != here[name])
    if not other:
        assert kept == given
        return
    (table,) = kept.papers[0].entries
    assert [*kept.runs] == table.runs == [name for name in EVERY if name not in other]
    assert table.pictures == []
    left = {
        name: {seed: 1.0 + seed + 2 * (name == "B") for seed in (0, 1) if NAMES[name][seed] not in other}
        for name in ("A", "B")
    }
    score, to_a = table.columns
    assert score.figures == {name: values for name, values in left.items() if values}
    same = {0, 1} - {seed for seed in (0, 1) if NAMES["A"][seed] in other}
    reached = {name: {seed: values[seed] for seed in values.keys() & same} for name, values in left.items()}
    assert to_a.figures == {name: values for name, values in reached.items() if values}
    assert [column.errors.keys() for column in table.columns] == [
        score.figures.keys(),
        to_a.figures.keys(),
    ]
    assert with_same_settings(kept, {"mine": PAPER}, here) == (kept, [])


@given(st.sets(st.sampled_from(EVERY)), st.sets(st.sampled_from(EVERY)))
def test_runs_whose_data_nobody_recorded_are_named(recorded: set[str], here: set[str]) -> None:
    """They stay, and what reads them can say that their data were not compared."""
    given = found({})
    runs = {
        name: one.model_copy(update={"data": "00000000"}) if name in recorded else one
        for name, one in given.runs.items()
    }
    given = given.model_copy(update={"runs": runs})
    expected = Expected({}, dict.fromkeys(here, "files"), SameData())
    assert unchecked(given, expected) == sorted(here - recorded)
    assert with_same_data(given, {"mine": PAPER}, expected, "there") == (given, [])
    (note,) = [text for text in notes_of(given, given.papers[0].entries[0]) if "not recorded" in text] or [""]
    left = len(EVERY) - len(recorded)
    assert note.startswith(f"Data: not recorded for {left} of 4 runs") if left else not note


def test_papers_and_tables_that_are_not_here_stay() -> None:
    given = found(dict.fromkeys(EVERY, "00000000"))
    here = dict.fromkeys(EVERY, "11111111")
    columns = given.papers[0].entries[0].columns
    assert with_same_settings(given, {}, here)[0].papers[0].entries[0].columns == columns
    other = PAPER.entries[0].model_copy(update={"id": "table2"})
    papers = {"mine": PAPER.model_copy(update={"entries": [other]})}
    assert with_same_settings(given, papers, here)[0].papers[0].entries[0].columns == columns


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("client.learning_rate=0.5", True),
        ("num_rounds=3", True),
        ("seed=7", True),
        ("partition.alpha=0.25", True),
        ("evaluation.every=7", True),
        ("runtime.workers=3", False),
        ("runtime.threads=3", False),
        ('data.path="/elsewhere/data"', False),
        ('name="other"', False),
    ],
)
def test_what_decides_a_result_counts(setting: str, counts: bool) -> None:
    digests = [
        settings_digest(config.load("small", settings).resolved())
        for settings in (['data.path="/some/data"'], ['data.path="/some/data"', setting])
    ]
    assert (digests[0] != digests[1]) == counts


def test_the_place_of_a_model_does_not_count_but_what_it_was_trained_with() -> None:
    one, two, three = (
        config.load("small", [f'model.name_or_path="{place}"']).resolved()
        for place in ("/here/model", "/there/model", "/there/other")
    )
    assert settings_digest(one) == settings_digest(two) != settings_digest(three)
    assert settings_digest(one, "00000000") != settings_digest(one, "11111111")


class Said(NullCallback):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def test_a_changed_experiment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Callable[..., dict[str, Any]]
) -> None:
    """Also runs that begin with the model of a changed one; those whose settings are the same are not made."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, **changes: Any) -> None:
        changes = {"num_rounds": 1, "variants": {"x": {}, "y": {"client": {"learning_rate": 0.2}}}} | changes
        Path(f"{name}.toml").write_text(tomli_w.dumps(document({"name": name, **changes})))

    write("first")
    write("later")
    runs = {
        "first": {"experiment": "first.toml", "methods": ["x", "y"], "minutes": 0.1},
        "later": {"experiment": "later.toml", "methods": ["x"], "model_of": "first", "minutes": 0.1},
    }
    rows = [{"name": "X", "method": "x"}]
    tables = [
        {"id": f"of-{key}", "title": key, "shows": "things", "runs": [key], "rows": rows}
        | {"columns": [{"name": "here"}]}
        for key in runs
    ]
    made = {"name": "mine", "title": "t", "source": "somebody", "runs": runs, "entry": tables}
    Path("mine.toml").write_text(tomli_w.dumps(made))
    ask = Request(["mine.toml"], join=[Path("old")])
    reproduce(Request(["mine.toml"]), 3600, Path("old"))
    said = Said()
    reproduce(ask, 3600, Path("same"), said)
    assert not any("other settings" in line for line in said.lines)
    assert not Path("same/runs").exists()

    write(
        "first", variants={"x": {"client": {"learning_rate": 0.3}}, "y": {"client": {"learning_rate": 0.2}}}
    )
    reproduce(Request(["mine.toml"]), 3600, Path("alone"))
    reproduce(ask, 3600, Path("new"), said)
    (line,) = [line for line in said.lines if "other settings" in line]
    assert line.startswith(f"{Path('old/page').resolve()}: 2 runs had other settings than here")
    assert line.endswith("left out: first.toml/x-seed0, later.toml/x-seed0")
    assert {path.parent.name + "/" + path.name for path in Path("new/runs").glob("*/*")} == {
        "first/x-seed0",
        "later/x-seed0",
    }
    new, alone = (
        Results.model_validate_json(Path(out, "page/results.json").read_text()) for out in ("new", "alone")
    )
    assert [paper.entries for paper in new.papers] == [paper.entries for paper in alone.papers]
