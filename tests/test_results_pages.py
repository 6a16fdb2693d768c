"""The pages in docs/results are what the code makes of their results.json, and have every table and figure."""

import os
import shutil
from pathlib import Path

import pytest

from fednlp.errors import RunError
from fednlp.reproduction.catalogue import shipped
from fednlp.reproduction.joining import known, unite
from fednlp.reproduction.manifest import OF_PARTITIONS, Paper
from fednlp.reproduction.naming import group_of, groups_of, partition_name
from fednlp.reproduction.preparation import Preparation
from fednlp.reproduction.results import Results
from fednlp.reproduction.stored_pages import FIGURES, RESULTS, read_results
from fednlp.reproduction.write import copy_pages, markdown_pages

from .docs_blocks import ROOT, blocks, check_command

pytestmark = pytest.mark.whole

FOLDER = ROOT / "docs/results"
TEXT = (FOLDER / RESULTS).read_text(encoding="utf-8")
FOUND = Results.model_validate_json(TEXT)


def test_no_figure_was_typed() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == markdown_pages(FOUND), (
        "write them with: python -m fednlp.reproduction docs/results docs/results"
    )
    assert FOUND.to_json() == TEXT


@pytest.mark.parametrize("paper", shipped(), ids=lambda paper: paper.name)
def test_every_table_and_figure_is_there(paper: Paper) -> None:
    """With the published figures and the claims of the manifest."""
    (found,) = [one for one in FOUND.papers if one.name == paper.name]
    assert [one.id for one in found.entries] == [entry.id for entry in paper.entries]
    for one, entry in zip(found.entries, paper.entries, strict=True):
        assert {row.name: row.published for row in one.rows} == {
            row.name: row.published for row in entry.rows
        }
        assert [(claim.says, claim.tried) for claim in one.claims] == [
            (claim.says, claim.tried) for claim in entry.claims
        ]
        assert FOUND.finished(one) or one.reason or entry.benchmark
    page = (FOLDER / f"{found.stem}.md").read_text(encoding="utf-8")
    assert all(one.title.replace("|", "") in page.replace("\\", "") for one in found.entries)


def test_a_run_has_one_figure_of_a_measure_in_all_tables() -> None:
    """Tables that share a run may have been made on machines that round differently."""
    of_each: dict[tuple[str, int], set[float]] = {}
    for column in (column for paper in FOUND.papers for one in paper.entries for column in one.columns):
        for row, cell in column.cells.items() if column.measure not in OF_PARTITIONS else ():
            for seed, value in column.figures.get(row, {}).items():
                of_each.setdefault((cell, seed), set()).add(value)
    assert of_each
    assert [cell for cell, values in of_each.items() if len(values) > 1] == []


@pytest.mark.parametrize("paper", shipped(), ids=lambda paper: paper.name)
def test_who_joins_the_pages_makes_no_run_again(paper: Paper) -> None:
    """Not even those that no cell shows. So the runs are those of the manifests as they are."""
    for entry in paper.entries:
        found = FOUND.finding(paper.name, entry.id)
        assert found is not None
        assert known(paper, entry, [FOUND]) == set(FOUND.finished(found))
        assert {group_of(name) for name in found.runs} <= groups_of(paper, entry)


def test_the_pages_joined_alone_are_what_they_were() -> None:
    """Every figure, claim and run, where nothing was made."""
    nothing = []
    for paper in FOUND.papers:
        entries = [
            one if not one.runs else one.model_copy(update={"columns": [], "curves": {}, "pictures": []})
            for one in paper.entries
        ]
        nothing.append(paper.model_copy(update={"entries": entries, "libraries": []}))
    papers = {paper.name: paper for paper in shipped()}
    assert unite(papers, Results(runs={}, papers=nothing), [FOUND]) == FOUND


def test_the_runs_had_the_settings_of_the_experiments_as_they_are(tmp_path: Path) -> None:
    """So no figure is of an experiment that was changed since.

    A key that came later changes nothing if :mod:`fednlp.config.identity` knows its default.
    """
    settings = Preparation(tmp_path, {}).settings(shipped())
    partitions = {
        partition_name(made, seed)
        for paper in shipped()
        for entry in paper.entries
        for made in entry.partitions.values()
        for seed in range(made.seeds)
    }
    assert {name: run.settings for name, run in FOUND.runs.items() if name not in partitions} == {
        name: settings[name] for name in FOUND.runs if name not in partitions
    }


def test_every_picture_is_there() -> None:
    """Their bytes depend on the version of matplotlib, so they are not compared."""
    named = {one.name for paper in FOUND.papers for entry in paper.entries for one in entry.pictures}
    assert {path.stem for path in (FOLDER / FIGURES).iterdir()} == named


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    for block in blocks(page):
        for command in block.commands:
            check_command(command)


def test_pages_are_copied_with_their_figures_and_replace_older_ones(tmp_path: Path) -> None:
    """What is not of the older pages stays."""
    (one, *_) = [paper for paper in FOUND.papers if any(entry.pictures for entry in paper.entries)]
    older = FOUND.model_copy(update={"papers": [one.model_copy(update={"name": "old", "number": ""})]})
    picture = next(picture.name for entry in one.entries for picture in entry.pictures)
    (tmp_path / FIGURES).mkdir()
    (tmp_path / RESULTS).write_text(older.to_json())
    for name in (
        "paper-old.md",
        "paper-old.html",
        "index.html",
        f"{FIGURES}/{picture}.png",
        "mine.md",
        f"{FIGURES}/mine.png",
    ):
        (tmp_path / name).write_text("x")
    copy_pages(FOLDER, tmp_path)
    copied = {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()}
    for path in copied:
        assert (tmp_path / path).read_bytes() == (FOLDER / path).read_bytes()
    left = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert left - copied == {Path("mine.md"), Path(f"{FIGURES}/mine.png")}


@pytest.mark.parametrize("lies", [None, "{}", "not JSON"])
def test_pages_are_never_copied_into_a_folder_of_other_files(lies: str | None, tmp_path: Path) -> None:
    """A ``results.json`` of another tool does not make them pages."""
    (tmp_path / "README.md").write_text("mine")
    if lies is not None:
        (tmp_path / RESULTS).write_text(lies)
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match=r"holds files but no results\.json of fednlp reproduce: choose a new"):
        copy_pages(FOLDER, tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_figures_that_are_a_link_are_left_alone(tmp_path: Path) -> None:
    target, precious = tmp_path / "target", tmp_path / "precious"
    shutil.copytree(FOLDER, target)
    (target / FIGURES).rename(precious)
    (target / FIGURES).symlink_to(precious)
    before = {path: path.read_bytes() for path in precious.iterdir()}
    with pytest.raises(RunError, match=r"is a link to .*precious, which would be changed: remove the link"):
        copy_pages(FOLDER, target)
    assert {path: path.read_bytes() for path in precious.iterdir()} == before


def test_a_folder_without_pages_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no results\.json: give the folder of the pages"):
        copy_pages(tmp_path, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_only_pictures_of_the_folder_are_copied(tmp_path: Path) -> None:
    """No link to a private file, and no pipe, which would be read for ever."""
    source, target, secret = tmp_path / "source", tmp_path / "target", tmp_path / "secret.png"
    shutil.copytree(FOLDER, source)
    linked, piped, text, *kept = sorted((source / FIGURES).iterdir())
    for path in (linked, piped, text):
        path.unlink()
    secret.write_bytes(kept[0].read_bytes())
    linked.symlink_to(secret)
    os.mkfifo(piped)
    text.write_text("no picture")
    (source / FIGURES / "other.png").write_bytes(secret.read_bytes())
    copy_pages(source, target)
    assert sorted(path.name for path in (target / FIGURES).iterdir()) == [path.name for path in kept]
    named = read_results(target)
    assert {path.stem for path in kept} == {
        one.name for paper in named.papers for entry in paper.entries for one in entry.pictures
    }


def test_every_claim_that_disagrees_says_what_was_tried() -> None:
    claims = [
        (paper.number, entry.id, claim)
        for paper in FOUND.papers
        for entry in paper.entries
        for claim in entry.claims
    ]
    assert not [(*of, claim.says) for *of, claim in claims if claim.disagrees and not claim.tried]


def test_published_figures_have_the_decimals_of_their_column() -> None:
    page = (FOLDER / "003-platform.md").read_text(encoding="utf-8")
    assert "| uniform | 61.0 | 60.9 | 69.1 | 86.9 |" in page
