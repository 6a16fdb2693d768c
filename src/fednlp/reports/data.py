"""The section "Data and model" of a report: what was learnt from, how it was read, and what is odd about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fednlp.data.profiling.statistics import Spread, columns_text, scripts_text
from fednlp.reports.document import Block, Facts, Grid
from fednlp.reports.read import Run, read_file
from fednlp.reports.words import count_words


def data_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield what runs say of their data and model; what is odd about the data, if they looked and anything is."""
    looks = [look for run in runs if (look := read_file(run.folder / "data.json"))]
    yield Facts([*_summary(runs), *_reading(looks)])
    oddities: dict[str, list[str]] = {}
    for oddity in (oddity for look in looks for oddity in look.get("oddities", ())):
        oddities.setdefault(oddity["kind"], [oddity["said"], oddity["remedy"]])
    if oddities:
        rows = list(oddities.values())
        yield Grid(["Odd about the data", "What follows"], rows, words=True)


def one_of(things: Iterable[Any], say: Callable[[Any], Any]) -> str:
    """Say something of several runs, each different answer once."""
    return "; ".join(dict.fromkeys(str(said) for thing in things if (said := say(thing))))


def _summary(runs: Sequence[Run]) -> list[tuple[str, str]]:
    def count(key: str) -> str:
        return one_of(runs, lambda run: count_words(data_fact(run, key)))

    return [
        (
            "Data set",
            one_of(runs, lambda run: data_fact(run, "name") or run.setting("data.name") or "own files"),
        ),
        (
            "Source",
            one_of(runs, lambda run: data_fact(run, "source") or run.setting("data.path") or "unknown"),
        ),
        ("Training examples", count("train")),
        ("Test examples", count("test")),
        ("Task", one_of(runs, lambda run: data_fact(run, "task") or "text-classification")),
        ("Labels", count("labels")),
        ("Model", one_of(runs, lambda run: run.setting("model.name_or_path", "unknown"))),
        ("Parameters", one_of(runs, lambda run: count_words((run.summary or {}).get("parameters")))),
    ]


def _reading(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return how the data were read, without what no run looked at."""
    said = [
        ("Columns", one_of(looks, lambda look: columns_text(look.get("columns", {})))),
        ("Rows left out", one_of(looks, lambda look: f"{look['dropped']:,}" if look.get("dropped") else "")),
        ("Tokens read of an example", one_of(looks, lambda look: _spread(look.get("tokens")))),
        ("Scripts", one_of(looks, lambda look: scripts_text(look["scripts"]) if look.get("scripts") else "")),
    ]
    names = dict.fromkeys(name for look in looks for name in look.get("words", {}))
    said += [(f"Words of {name}", one_of(looks, partial(_words, name))) for name in names]
    return [(name, value) for name, value in said if value]


def _words(name: str, look: Mapping[str, Any]) -> str:
    return _spread(look.get("words", {}).get(name))


def _spread(numbers: Mapping[str, int] | None) -> str:
    return str(Spread(numbers["median"], numbers["p95"], numbers["longest"])) if numbers else ""


def data_fact(run: Run, key: str) -> Any:
    """Return what a run knows of its data."""
    known = (run.summary or {}).get("data") or run.environment.get("data") or {}
    return known.get(key)
