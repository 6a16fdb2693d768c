"""The pages of a reproduction, made of ``results.json`` alone: an overview, and a page for each paper."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from fednlp.formatting.units import DASH, human_bytes, human_seconds, plural
from fednlp.reports.document import (
    Block,
    Code,
    Document,
    Grid,
    KeyValues,
    Picture,
    ReportSection,
    Text,
    heading_anchor,
)
from fednlp.reproduction import claims
from fednlp.reproduction.agreement import Values
from fednlp.reproduction.curves import is_of_curves, seeds_in
from fednlp.reproduction.manifest import OF_PARTITIONS, Measure
from fednlp.reproduction.naming import group_of
from fednlp.reproduction.results import (
    Finding,
    FoundColumn,
    FoundData,
    FoundPicture,
    PaperResults,
    Ran,
    Results,
)
from fednlp.tasks.intervals import of_mean

OVERVIEW = "index"
"""The stem of the overview."""

_TITLE = "Tables and figures of papers"
_LEAD = (
    "Tables and figures of papers at laptop size, beside the published figures. Models, data and rounds are smaller "
    "than the papers', so the figures differ. What can agree is their direction. Each figure found here was read from "
    "run directories, which the commands below make."
)
_READING = (
    ("figures", "(paper) is published, (here) was found; the mean over seeds ± half of its 95 % interval"),
    (
        "not reached; n = 1 of 3",
        "no seed reached the target of the column, or one of three; a seed that did not reach it counts as later than "
        "all others, and the claim is judged by the median over seeds in place of the mean",
    ),
    ("claim agrees", "it holds for the means over seeds; the text says where there is one seed only"),
    (
        "clearly",
        "there are several seeds, and the differences are larger than their uncertainty: all of them where a claim "
        "agrees, and one that contradicts it where it disagrees",
    ),
    (
        "counted as agreeing",
        "the bounds of a ratio or a difference that were set here; found is that of the means over seeds",
    ),
    (
        "within the uncertainty of the seeds",
        "the 95 % interval of the differences, seed by seed, includes zero",
    ),
    (
        "not decided by one seed",
        "there is one seed, and the accuracies differ by less than their 95 % interval on so many test examples "
        "(1.96 standard errors of the difference, the errors taken as independent); this holds for claims that the "
        "figures are for and for those that they are against, and counts as neither; other measures than accuracy "
        "and exact match have no such interval here",
    ),
    (
        "rank correlation",
        "Spearman's, between the rows of a column and the published ones, from three rows on",
    ),
    ("what was tried", "why a claim disagrees here, as far as runs or the cost model show it"),
    (
        "time",
        "measured by the clock for all runs of a table, so it is longer on a machine that had other work; CPU time is "
        "that of all processes of the runs; tables that share runs share their time",
    ),
)
_BYTES: tuple[Measure, ...] = ("sent", "sent a round", "sent to target", "memory")
_STATES = {"made": "made", "in part": "made in part", "not made": "not made", "impossible": "nothing to make"}


def pages(results: Results, drawn: Mapping[str, Picture]) -> dict[str, Document]:
    """Return the pages by the stems of their files."""
    made = {paper.stem: _paper_page(results, paper, drawn) for paper in results.papers}
    return {OVERVIEW: _overview(results)} | made


# ------------------------------------------------------------------------------------------- the overview


def _overview(results: Results) -> Document:
    entries = [entry for paper in results.papers for entry in paper.entries]
    ran = results.ran(*results.papers)
    against = claims.against(results)
    sections = [
        ReportSection("Papers", [_papers(results), Code(_commands(results), "sh")]),
        ReportSection(
            "Claims", [claims.standings(results)] if any(entry.claims for entry in entries) else []
        ),
        ReportSection("Claims that disagree", [against] if against.rows else []),
        ReportSection("Machines", [Text(f"{_machine_name(*machine)}.") for machine in ran.machines]),
        ReportSection("How to read the pages", [KeyValues(_READING)]),
    ]
    return _document(_TITLE, _LEAD, _tiles(entries, ran.seconds), sections)


def _document(
    title: str, lead: str, tiles: Sequence[tuple[str, str]], sections: Sequence[ReportSection]
) -> Document:
    """Return a page of the sections that hold something."""
    return Document(title, lead, "", tiles, [section for section in sections if section.blocks])


def _tiles(entries: Sequence[Finding], seconds: float) -> list[tuple[str, str]]:
    counts = {text: sum(entry.state == state for entry in entries) for state, text in _STATES.items()}
    return [
        ("tables and figures", str(len(entries))),
        *((text, str(count)) for text, count in counts.items() if count),
        *claims.counts(entries),
        ("time of all runs, measured", human_seconds(seconds) if seconds else DASH),
    ]


def _papers(results: Results) -> Grid:
    heads = ["Paper", "Title", "Made", "Made in part", "Not made", "Claims that agree", "Time"]
    rows = []
    for paper in results.papers:
        states = [entry.state for entry in paper.entries]
        counts = [str(states.count(state)) for state in ("made", "in part", "not made")]
        seconds = results.ran(paper).seconds
        time = human_seconds(seconds) if seconds else DASH
        rows.append([claims.word_of(paper), paper.title, *counts, claims.agreeing(paper.entries), time])
    notes = ["Drawings and descriptions, of which nothing can be made, are not counted."]
    return Grid(heads, rows, notes, words=True, links=[paper.stem for paper in results.papers])


def _commands(results: Results) -> str:
    return "\n".join(paper.command for paper in results.papers)


# -------------------------------------------------------------------------------------------- a paper


def _paper_page(results: Results, paper: PaperResults, drawn: Mapping[str, Picture]) -> Document:
    found = [entry for entry in paper.entries if entry.state in ("made", "in part")]
    ran = results.ran(paper)
    missing = [entry for entry in paper.entries if entry.reason and entry.state != "impossible"]
    others = [[one.title, one.shows, one.reason] for one in paper.entries if one.state == "impossible"]
    begun = _entries(results, found) if found else Text("Nothing of it has been made yet.")
    sections = [
        ReportSection("Overview", [begun, Text("All of it is made by:"), Code(paper.command, "sh")]),
        *(
            ReportSection(one.title, list(_blocks(results, one, drawn)), heading_anchor(one.title))
            for one in found
        ),
        ReportSection("Not finished", [_unfinished(missing)] if missing else []),
        ReportSection(
            "Nothing to make",
            [Grid(["Table or figure", "Shows", "Why"], others, words=True, marked=True)] if others else [],
        ),
        ReportSection("Machines", [KeyValues(_machines(ran, paper))] if ran.machines else []),
    ]
    tiles = _tiles(paper.entries, ran.seconds)
    return _document(f"{claims.word_of(paper)}: {paper.title}", f"{paper.source}.", tiles, sections)


def _entries(results: Results, found: Sequence[Finding]) -> Grid:
    heads = ["Table or figure", "Shows", "Made", "Seeds", "Claims that agree", "Rank correlation", "Time"]
    rows = [
        [
            entry.title,
            entry.shows,
            "yes" if entry.state == "made" else "in part",
            _seeds_of(entry),
            claims.agreeing([entry]),
            ", ".join(f"{column.spearman:.2f}" for column in entry.columns if column.spearman is not None)
            or DASH,
            human_seconds(results.ran(entry).seconds) if entry.runs else DASH,
        ]
        for entry in found
    ]
    return Grid(heads, rows, words=True, links=[f"#{heading_anchor(entry.title)}" for entry in found])


def _unfinished(missing: Sequence[Finding]) -> Grid:
    rows = []
    for entry in missing:
        how = "measured" if entry.measured else "estimated"
        expected = f"{human_seconds(entry.expected)} ({how})" if entry.expected else DASH
        rows.append([entry.title, entry.shows, entry.reason, expected, f"`{entry.command}`"])
    notes = [
        "Expected time: of all seeds, as the manifest of the paper has it. What is left is scaled by how much longer "
        "finished runs took here than expected."
    ]
    heads = ["Table or figure", "Shows", "Why", "Expected time", "Command"]
    return Grid(heads, rows, notes, words=True, marked=True)


def _machines(ran: Ran, paper: PaperResults) -> list[tuple[str, str]]:
    machines = [(_machine_name(*machine), plural(count, "run")) for machine, count in ran.machines.items()]
    return [*machines, *(("libraries", text) for text in paper.libraries)]


def _blocks(results: Results, entry: Finding, drawn: Mapping[str, Picture]) -> Iterator[Block]:
    yield Text(f"{entry.shows}.")
    if entry.here:
        yield Text(f"Here: {entry.here}")
    yield Code(entry.command, "sh")
    notes = list(_notes_of(results, entry))
    if entry.rows:
        yield _table(entry, notes)
    else:
        yield from map(Text, notes)
    if entry.claims:
        yield claims.of_entry(entry)
    shown = [picture for picture in entry.pictures if picture.name in drawn]
    yield from (drawn[picture.name] for picture in shown)
    yield from map(Text, seeds_left_out(results, entry, shown))


def _table(entry: Finding, notes: Sequence[str]) -> Grid:
    """Return the rows with the published figures first, then those found."""
    heads = [
        "",
        *(f"{name} (paper)" for name in entry.published),
        *(f"{column.name} (here)" for column in entry.columns),
    ]
    mixed = len(_seed_counts(entry)) > 1
    texts_of = {name: _published(entry, name) for name in entry.published}
    rows = [
        [
            row.name,
            *(texts.get(row.name, DASH) for texts in texts_of.values()),
            *(_cell(column, row.name, mixed) for column in entry.columns),
        ]
        for row in entry.rows
    ]
    return Grid(heads, rows, notes)


def _cell(column: FoundColumn, row: str, mixed: bool) -> str:
    values, never = column.figures.get(row, {}), column.unreached.get(row, [])
    if not values:
        return "not reached" if never else DASH
    of = f" of {len(values) + len(never)}" if never else ""
    return _text_of(column.measure, values) + (f" (n = {len(values)}{of})" if mixed or never else "")


def _text_of(measure: Measure, values: Values) -> str:
    """Return a figure for people: the mean over seeds ± half of its 95 % interval.

    >>> _text_of("score", {0: 50.0, 1: 52.0}), _text_of("sent", {0: 2e9, 1: 2e9})
    ('51.0 ± 12.7', '2 GB')
    """
    mean, half = of_mean(list(values.values()))
    show = _format(measure)
    return f"{show(mean)} ± {show(half)}" if half else show(mean)


def _format(measure: Measure) -> Callable[[float], str]:
    if measure in _BYTES:
        return human_bytes
    if "time" in measure:
        return human_seconds
    if measure in ("training loss", "divergence", "size spread"):
        return "{:.3f}".format
    if "energy" in measure or measure == "rounds to target":
        return "{:,.0f}".format
    return "{:.1f}".format


def _published(entry: Finding, name: str) -> dict[str, str]:
    """Return a published column by row, all of it with the same number of decimals."""
    values = {row.name: row.published[name] for row in entry.rows if name in row.published}
    decimals = max(len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in values.values())
    return {row: f"{value:,.{decimals}f}" for row, value in values.items()}


# ------------------------------------------------------------------------------------- the notes below a table


def _notes_of(results: Results, entry: Finding) -> Iterator[str]:
    """Yield what is said of a table: its runs, its data, how its ranks agree, and why it is not finished."""
    if _seed_counts(entry) and not entry.runs:
        yield "Measured once by the command above: no run of an experiment is behind it."
        return
    ran, finished = results.ran(entry), len(results.finished(entry))
    what = "partition" if any(column.measure in OF_PARTITIONS for column in entry.columns) else "run"
    of = "" if finished == len(entry.runs) else f"{finished} of "
    seeds = f", {_seeds_of(entry)}" if _seed_counts(entry) else ""
    mixed = " (n)" if len(_seed_counts(entry)) > 1 else ""
    computed = f"; CPU time {human_seconds(ran.cpu_seconds)}" if ran.cpu_seconds else ""
    measured = f"{human_seconds(ran.seconds)} (measured{computed})"
    yield f"{of}{plural(len(entry.runs), what)} done in {measured}{seeds}{mixed}."
    if len(ran.machines) > 1:
        counts = (f"{_machine_name(*of)} ({plural(count, 'run')})" for of, count in ran.machines.items())
        yield f"Computed on: {'; '.join(counts)}."
    yield from map(_used, entry.data)
    unknown = sum(not results.runs[name].data for name in results.finished(entry))
    if unknown:
        yield (
            f"Data: not recorded for {unknown} of {plural(finished, what)}, so whether they were the same cannot be "
            "checked."
        )
    for column in entry.columns:
        if column.spearman is not None:
            rank = f"over {column.ranked} rows is {column.spearman:.2f}"
            yield f"{column.name}: Spearman's rank correlation with the paper {rank}."
    for column in entry.columns:
        if column.error is not None:
            yield f"{column.name}: one standard error on the test examples is at most {column.error:.1f} points."
    if entry.reason:
        yield f"Not finished: {entry.reason.replace('`', '')}."


def _machine_name(processor: str, cores: int) -> str:
    """Return a processor and its cores in words."""
    return f"{processor}, {plural(cores, 'core')}"


def _used(data: FoundData) -> str:
    """Return in words how many examples of a data set were used, and how many were published."""
    own = " (split off the clients' own)" if data.own_tests else ""
    published = _examples(data.published_train, data.published_test)
    beside = f"; published: {published}" if published else ""
    return f"Data: {data.name}, {_examples(data.train, data.test) or 'size not known'}{own}{beside}."


def _examples(train: int | None, test: int | None) -> str:
    counts = [f"{count:,} {split}" for split, count in (("training", train), ("test", test)) if count]
    return f"{' and '.join(counts)} examples" if counts else ""


def _seed_counts(entry: Finding) -> list[int]:
    """Return the numbers of seeds of the figures found, each once, from the fewest.

    Seeds that never reached a target count too.
    """
    found = (
        len(column.figures.get(row.name, {})) + len(column.unreached.get(row.name, []))
        for column in entry.columns
        for row in entry.rows
    )
    return sorted({*found} - {0})


def _seeds_of(entry: Finding) -> str:
    """Return the number of seeds of a table in words."""
    counts = _seed_counts(entry)
    if not counts or not entry.runs:
        return DASH
    least, most = counts[0], counts[-1]
    return f"{least} to {most} seeds" if least < most else "one seed" if most == 1 else f"{most} seeds"


def seeds_left_out(results: Results, entry: Finding, pictures: Sequence[FoundPicture]) -> Iterator[str]:
    """Yield what is said below pictures of learning curves of which some have fewer seeds than were run."""
    drawn = [seeds_in(picture.caption) for picture in pictures if is_of_curves(picture.name)]
    counts = Counter(map(group_of, results.finished(entry))).values()
    ran = (min(counts) + max(counts)) / 2 if counts else 0.0
    if any(seeds is not None and seeds < ran for seeds in drawn):
        yield (
            f"These curves are of fewer seeds than were run ({max(counts)}): the points of the others were not kept. "
            "In a new folder the command above draws all of them."
        )
