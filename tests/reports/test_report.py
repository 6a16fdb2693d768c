"""Reports: one page that stands alone and the same as Markdown; hostile names stay text."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.reports import write_report
from fednlp.reports.charts import Chart, Line, draw
from fednlp.reports.document import Code, Document, Fold, Grid, Heat, KeyValues, Picture, ReportSection, Text
from fednlp.reports.html import to_html
from fednlp.reports.markdown import to_markdown

pytestmark = pytest.mark.whole

NewRun = Callable[..., Path]

SCRIPT = files("fednlp.reports").joinpath("report.js").read_text(encoding="utf-8")
VOID = {"meta", "br", "img", "link", "input", "hr"}
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)></style></title>'&amp; $x$ `|` \u202e[a](http://b)"


class Page(HTMLParser):
    """Collects what a page holds, and refuses one whose elements do not close in order."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text.append(data)


def check_alone(page: Page) -> None:
    """Refuse whatever would run, other than the page's own script, or come from elsewhere."""
    *data, script = (attributes for tag, attributes in page.tags if tag == "script")
    assert all(attributes == {"type": "application/json"} for attributes in data)
    assert script == {}
    assert page.scripts[-1] == SCRIPT
    assert len(page.scripts) == len(data) + 1
    for text in page.scripts[:-1]:
        assert not set("<>&\u2028\u2029") & set(text)
        json.loads(text)
    (policy,) = (a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; ")
    for tag, attributes in page.tags:
        assert tag not in {"iframe", "object", "embed", "link", "base", "form"}
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key in {"src", "href", "xlink:href", "action", "data"}:
                assert value is not None
                assert value.startswith(("#", "data:image/png;base64,") if tag != "a" else "./")
            if key != "aria-label":
                assert "://" not in (value or "")


@pytest.fixture
def folders(new_run: NewRun) -> list[Path]:
    return [
        new_run(f"{a}-{s}", algorithm=a, seed=s, rounds=1 if a == "local" else 4)
        for a in ("fedavg", "fedprox", "fedopt", "centralised", "local")
        for s in range(2)
    ]


def test_a_comparison_is_one_page_that_stands_alone(folders: list[Path], tmp_path: Path) -> None:
    paths = write_report(folders, tmp_path / "out")
    assert all(path.is_file() for path in paths)
    assert len(set(paths)) == len(paths)
    markup = paths[0].read_text(encoding="utf-8")
    page = Page(markup)
    check_alone(page)
    assert "http" not in markup.replace("http-equiv", "")
    assert re.search(r"@import|url\((?!#)", markup) is None
    text = " ".join(page.text)
    for expected in (
        "FedAvg",
        "FedProx",
        "FedOpt",
        "Centralised",
        "Local only",
        "20news",
        "label shift",
        "What differs",
    ):
        assert expected in text
    for title in ("Results", "Learning curves", "Clients", "Bytes and time", "Partition", "Configuration"):
        assert title in page.text
    for folder in folders:
        assert f"fednlp run {folder.name}/resolved.toml --out {folder.name}-again" in text
    ids = re.findall(r' id="([^"]*)"', markup)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in markup
    assert "@media print" in markup


def test_the_same_runs_give_the_same_bytes(folders: list[Path], tmp_path: Path) -> None:
    one, two = (write_report(folders[:3], tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_runs_on_other_texts_under_the_same_settings_are_named(new_run: NewRun, tmp_path: Path) -> None:
    """Runs of another data set, and of before digests were kept, are nobody's business."""
    data = [
        ({"name": "20news"}, "a"),
        ({"name": "20news"}, "b"),
        ({"name": "bbc"}, "c"),
        ({"name": "20news"}, None),
    ]
    folders = [
        new_run(f"run{seed}", seed=seed, config={"data": named}, environment={"data": {"content": content}})
        for seed, (named, content) in enumerate(data)
    ]
    page = write_report(folders, tmp_path / "out")[1].read_text(encoding="utf-8")
    said = [line for line in page.splitlines() if "has other texts than" in line]
    assert len(said) == 1
    assert said[0].index(folders[1].name) < said[0].index("than") < said[0].rindex(folders[0].name)


def test_a_report_of_one_run_shows_every_metric_and_its_clients(new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run(rounds=3, clients=30, environment={"platform": "Linux-test"})
    paths = write_report([folder], tmp_path / "out")
    text = " ".join(Page(paths[0].read_text(encoding="utf-8")).text)
    for expected in ("Global test macro F1", "Global test MCC", "Linux-test", "0.0005", "4,388,756", "AdamW"):
        assert expected in text
    assert re.search(r"Global test macro F1\s+[\d.]+ %", text)
    assert re.search(r"Global test MCC\s+0\.\d+\s(?!%)", text)
    names = {path.name for path in paths}
    assert {
        "report.html",
        "report.md",
        "table.csv",
        "clients-histogram.png",
        "partition-label-heatmap.png",
    } <= names


@pytest.mark.usefixtures("undrawn")
def test_a_page_links_to_each_run_directory_wherever_it_lies(new_run: NewRun, tmp_path: Path) -> None:
    names = ("a b", "javascript:alert(1)", 'x" onclick="y', "100%", "ü#?")
    runs = [new_run(name, seed=seed) for seed, name in enumerate(names)]
    page = Page(write_report(runs, tmp_path / "deep" / "out")[0].read_text(encoding="utf-8"))
    check_alone(page)
    links = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    assert [unquote(link) for link in links] == [f"./../../{name}/" for name in names]


@pytest.mark.usefixtures("undrawn")
def test_the_same_curve_is_drawn_once(new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run()
    alike = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in alike:
        line["evaluation"]["personal"]["accuracy"] = line["evaluation"]["global"]["accuracy"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in alike))
    names = {path.stem for path in write_report([folder], tmp_path / "out")}
    assert {"curve-global", "curve-loss", "cost-bytes", "cost-time"} <= names
    assert not {"curve-personal", "cost-bytes-personal", "cost-time-personal"} & names


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_the_headline_says_which_method_is_shown_and_why(folders: list[Path], tmp_path: Path) -> None:
    markup = write_report(folders, tmp_path / "out")[0].read_text(encoding="utf-8")
    (headline,) = re.findall(r'<p class="headline">(.*?)</p>', markup)
    assert re.fullmatch(
        r"Fed\w+: best of 3 methods by global test accuracy after the last round, mean over 2 seeds.*\.",
        headline,
    )
    alone = write_report(folders[:2], tmp_path / "alone")[0].read_text(encoding="utf-8")
    assert 'class="headline"' not in alone
    assert 'class="best"' in markup
    assert 'class="best"' not in alone


def test_a_chart_whose_names_are_hostile_is_data(tmp_path: Path) -> None:
    name = f"</script><!--{HOSTILE}\u2028"
    look = {"color": "#0072b2", "marker": "o", "linewidth": 2.0}
    lines = [Line(name, look, (0.5, float("nan")), (1, 2), (1, 2)), Line("b", look, (1.0,))]
    chart = Chart(name, name, lines)
    section = ReportSection("s", [Picture("p", name, draw(chart), chart)])
    page = Page(to_html(Document("t", "l", "", [], [section])))
    check_alone(page)
    data = json.loads(page.scripts[0])
    assert data["lines"][0]["label"].startswith("</script><!--")
    assert data["lines"][0]["y"] == [0.5, None]


@pytest.mark.usefixtures("undrawn")
def test_markdown_shows_figures_that_are_there(folders: list[Path], tmp_path: Path) -> None:
    paths = write_report(folders[:4], tmp_path / "out")
    shown = re.findall(r"!\[.*?\]\((.*?)\)", paths[1].read_text(encoding="utf-8"))
    assert shown
    assert {tmp_path / "out" / name for name in shown} == {path for path in paths if path.suffix == ".png"}


def test_hostile_names_stay_text(new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run(
        clients=3,
        labels=(HOSTILE, "b", "c" * 300),
        names=(HOSTILE, HOSTILE, "z"),
        config={
            "name": HOSTILE,
            "data": {"name": HOSTILE},
            "algorithm": {"name": HOSTILE},
            "partition": {"method": HOSTILE, "field": HOSTILE},
            HOSTILE: {HOSTILE: HOSTILE},
        },
        summary={
            "note": HOSTILE,
            "stopped": HOSTILE,
            "model": HOSTILE,
            "data": {"name": HOSTILE, "source": HOSTILE},
        },
        environment={HOSTILE: HOSTILE},
    )
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 7, "dropped": [{"client": 1, "reason": "<script>\\ud800</script>"}]}\n')
    by_label = {"labels": [HOSTILE, "b"], "support": [1, 2], "confusion": [[1, 0], [0, 2]]}
    by_label |= {key: [0.5, 1.0] for key in ("precision", "recall", "f1")}
    (folder / "by_label.json").write_text(json.dumps(by_label), encoding="utf-8")
    paths = write_report([folder], tmp_path / "out")
    page = Page(paths[0].read_text(encoding="utf-8"))
    check_alone(page)
    assert sum("<script>alert(1)</script>" in text for text in page.text) > 8
    assert "\u202e" not in "".join(page.text)
    markdown = re.sub(r"```.*?```", "", paths[1].read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.search(r"(?<!\\)<", markdown) is None
    assert re.search(r"(?<!\\)\]\(http", markdown) is None


def test_a_run_under_way_and_one_that_has_not_begun(new_run: NewRun, tmp_path: Path) -> None:
    begun = new_run("begun", finished=False, rounds=3)
    fresh = new_run("fresh", algorithm="fedavg", finished=False)
    for path in fresh.iterdir():
        if path.name != "resolved.toml":
            path.unlink()
    text = " ".join(Page(write_report([begun, fresh], tmp_path / "out")[0].read_text(encoding="utf-8")).text)
    assert "FedOpt: seed 0 is unfinished, 3 of 3 rounds" in text
    assert "FedAvg: seed 0 is unfinished, 0 of 6 rounds" in text
    alone = write_report([fresh], tmp_path / "alone")
    assert "unfinished" in alone[0].read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_dropped_clients_are_listed_up_to_a_limit(new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run(rounds=1)
    drops = ", ".join(f'{{"client": {i}, "reason": "loss is NaN"}}' for i in range(30))
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(f'{{"round": 2, "dropped": [{drops}]}}\n')
    text = " ".join(Page(write_report([folder], tmp_path / "out")[0].read_text(encoding="utf-8")).text)
    assert "because they failed: 30." in text
    assert text.count("loss is NaN") == 20
    assert "and 10 more, in rounds.jsonl" in text


def test_a_damaged_partition_is_named(new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run()
    whole = (folder / "partition.npz").read_bytes()
    (folder / "partition.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match=r"partition\.npz is damaged"):
        write_report([folder], tmp_path / "out")
    np.savez(folder / "partition.npz", train_offsets=np.array([0]), test_offsets=np.array([0]))
    with pytest.raises(RunError, match=r"partition\.npz is damaged"):
        write_report([folder], tmp_path / "out")


def test_no_run_and_no_run_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one run directory"):
        write_report([], tmp_path / "out")
    with pytest.raises(RunError, match="is no run directory"):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _document(names: Sequence[str]) -> Document:
    a, b, c = names
    blocks = (
        Text(a),
        KeyValues([(a, b), (c, a)]),
        Grid([a, b], [[b, c], [c, a]], [c]),
        Grid([a, b], [[b, c]], words=True, best=[(0, 1)]),
        Heat([a, b], [[1, 2], [3, 0]], c),
        Fold(c, [Code(f"{a}\n{b}", "toml")]),
    )
    return Document(a, b, f"{c}.", [(b, c)], [ReportSection(c, blocks)])


names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=3, max_size=3)


@settings(deadline=None)
@given(names)
def test_any_text_leaves_the_page_balanced_and_keeps_its_elements(texts: list[str]) -> None:
    page = Page(to_html(_document(texts)))
    plain = Page(to_html(_document(["a", "b", "c"])))
    assert page.tags == plain.tags


@settings(deadline=None)
@given(names.filter(lambda texts: all(text.strip() for text in texts)))
@example(["- a", "1. b", "===", "    code"][1:])
@example(["- a", "> b", "***"])
def test_any_text_leaves_the_markdown_lines_in_place(texts: list[str]) -> None:
    from markdown_it import MarkdownIt

    def shape(document: Document) -> list[str]:
        tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(to_markdown(document))
        return [token.type for token in tokens]

    assert shape(_document(texts)) == shape(_document(["a", "b", "c"]))


LOOK = {
    "columns": {"text": "text", "label": "topic"},
    "dropped": 3,
    "tokens": {"median": 40, "p95": 128, "longest": 1128},
    "words": {"text": {"median": 30, "p95": 100, "longest": 900}},
    "scripts": {"Latin": 0.9, "Han": 0.1},
    "oddities": [{"kind": "empty-texts", "said": "2 of 9 texts are empty", "remedy": "fill them in"}],
}


@pytest.mark.usefixtures("undrawn")
def test_how_the_data_were_read(new_run: NewRun, tmp_path: Path) -> None:
    """Each different answer once; of what is odd, each kind once; nothing of runs that did not look."""
    folders = [new_run(f"run{seed}", seed=seed) for seed in range(3)]
    for number, folder in enumerate(folders[:2]):
        (folder / "data.json").write_text(json.dumps(LOOK | {"dropped": 3 * number}), encoding="utf-8")
    write_report(folders, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    section = text[text.index("## Data and model") :].partition("\n## ")[0]
    for name, value in {
        "Columns": "text, label = 'topic'",
        "Rows left out": "3",
        "Tokens read of an example": "median 40, 95 % 128, longest 1,128",
        "Words of text": "median 30, 95 % 100, longest 900",
        "Scripts": "Latin 90 %, Han 10 %",
        "2 of 9 texts are empty": "fill them in",
    }.items():
        assert section.count(name) == 1
        assert any(name in line and value in line for line in section.splitlines()), (name, section)
    write_report(folders[2:], tmp_path / "old")
    assert "Columns" not in (tmp_path / "old/report.md").read_text(encoding="utf-8")
