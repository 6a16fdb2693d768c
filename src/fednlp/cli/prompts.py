"""fednlp prompts list, fednlp prompts check, fednlp prompts search."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednlp.cli.data_options import Columns, Label, Text, own_columns
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import human_seconds

if TYPE_CHECKING:
    from fednlp.config import Experiment
    from fednlp.inference.zero_shot import PromptCheck, ZeroShotScore
    from fednlp.prompts.simulation.gold_scores import RankedPattern
    from fednlp.prompts.simulation.trigger_search import AcceptedStep, FoundPattern

_STEPS, _CANDIDATES = 30, 50
_FOUND = "found.toml"

app = typer.Typer(
    help="Patterns and words for classification with few labels.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def prompts(context: typer.Context) -> None:
    """Patterns and words for classification with few labels."""
    if context.invoked_subcommand is None:
        listed()


@app.command("list")
def listed() -> None:
    """List those that come with fednlp."""
    from rich.console import Console
    from rich.table import Table

    from fednlp.prompts.prompt_sets import load_prompts, prompt_names

    table = Table("name", "data", "patterns", "labels", "words", box=None, pad_edge=False)
    for one in map(load_prompts, prompt_names()):
        words = ", ".join(one.words[0].values())
        table.add_row(one.name, ", ".join(one.data), str(len(one.patterns)), str(len(one.words[0])), words)
    Console().print(table)


@app.command("check")
def checked(
    name: Annotated[str, typer.Argument(help="Prompts by name, or a TOML file; agnews:1 is its pattern 1.")],
    model: Annotated[str, typer.Option(help="bert-tiny, a model folder or a hub name.")] = "bert-tiny",
    data: Annotated[str | None, typer.Option(help="A known data set to try them on.")] = None,
    path: Annotated[str | None, typer.Option(help="Its own files; without --data, yours.")] = None,
    text: Text = "text",
    label: Label = "label",
    column: Columns = None,
    pattern: Annotated[int | None, typer.Option(min=0, help="Only the pattern of this number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Show how patterns read, whether words are one token, and how right a model is before any training."""
    from fednlp.data.columns import MissingColumns
    from fednlp.errors import DataError, ModelError
    from fednlp.inference.zero_shot import available_data, check_prompts
    from fednlp.prompts.prompt_sets import load_prompts, parse_choice

    choice = parse_choice(name)
    choice = choice if pattern is None else replace(choice, pattern=pattern)
    chosen = load_prompts(choice.name)
    known = data or available_data(chosen, path)
    columns = {"text": text, "label": label} | own_columns(column or [])
    try:
        with _bar("predictions") as scored:
            found = check_prompts(
                chosen,
                choice,
                model,
                known,
                path,
                text=columns.pop("text"),
                label=columns.pop("label"),
                columns=columns,
                scored=scored,
            )
    except MissingColumns as error:
        raise DataError(f"{error}; name the file's own with --text, --label and --column") from None
    if as_json:
        facts = {"name": chosen.name, "source": chosen.source, "model": model}
        print(json.dumps(facts | {"patterns": [asdict(one) for one in found]}, indent=1, ensure_ascii=False))
    else:
        print(clean(f"{chosen.name} on {model}; from {chosen.source}"))
        before: Mapping[str, str] = {}
        for one in found:
            print("\n".join(map(clean, _lines(one, again=one.words == before))))
            before = one.words
    if all(one.problem for one in found):
        raise ModelError(f"no pattern of {chosen.name} can be used with {model}: {found[0].problem}")


@app.command("search")
def searched(
    experiment: Annotated[str, typer.Argument(help="An experiment with gold labels: a TOML file or a name.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. fewshot.gold=32; may be repeated.")
    ] = None,
    triggers: Annotated[
        int | None, typer.Option(help="Find a pattern with so many tokens between the text and the mask.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help=f"With --triggers: steps at most, by default {_STEPS}.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help=f"With --triggers: tokens that a step tries, by default {_CANDIDATES}.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Where to write the best pattern and its words; with --triggers, {_FOUND}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Find a word for each label from the gold labels of an experiment, or a pattern with --triggers."""
    from fednlp import config
    from fednlp.errors import ConfigError
    from fednlp.prompts.simulation.prompt_search import require_place

    if triggers is None and (steps, candidates) != (None, None):
        raise ConfigError("--steps and --candidates are for --triggers: say --triggers 3, for example")
    asked = config.load(experiment, set_ or ())
    if out is not None:
        require_place(out)
    if triggers is None:
        _search_words(asked, out, as_json)
    else:
        counts = (
            triggers,
            _STEPS if steps is None else steps,
            _CANDIDATES if candidates is None else candidates,
        )
        _search_triggers(asked, counts, out, as_json)


def _search_words(asked: "Experiment", out: Path | None, as_json: bool) -> None:
    """Find words, print them, and write the best pattern."""
    from fednlp.prompts.simulation.prompt_search import search_words

    search = search_words(asked, _say)
    if as_json:
        print(json.dumps([asdict(one) for one in search.found], indent=1, ensure_ascii=False))
    else:
        for one in search.found:
            print(clean(one.pattern.strip()))
            print(clean(f"   words   {_assigned(one.words)}"))
            print(f"   score   {one.score:.3f}; right for {100 * one.gold_accuracy:.1f} % of the gold labels")
    for line in _ranking(search.ranked, search.held_out, search.unranked):
        print(clean(line), file=sys.stderr if as_json else sys.stdout)
    if out is not None:
        best = search.found[0]
        source = f"found by likelihood ratio from the gold labels of {asked.name}, seed {asked.seed}"
        _write(out, source, best.pattern, best.words, as_json)


def _search_triggers(
    asked: "Experiment", counts: tuple[int, int, int], out: Path | None, as_json: bool
) -> None:
    """Find a pattern, print it, and write it.

    Args:
        out: The file; None for the usual one, if that is not there yet.
        as_json: Whether to print JSON.
    """
    from fednlp.errors import ConfigError
    from fednlp.prompts.simulation.trigger_search import search_triggers

    path = Path(_FOUND) if out is None else out
    if out is None and path.exists():
        raise ConfigError(f"{path} is there already: name another file with --out, or this one to replace it")
    began, steps = 0.0, counts[1]

    def accepted(step: "AcceptedStep") -> None:
        left = (time.monotonic() - began) / step.number * (steps - step.number)
        _say(
            f"step {step.number} of {steps}: {step.triggers}, log-likelihood {step.likelihood:.3f}; "
            f"{human_seconds(left)} left at most"
        )

    with _bar("tokens tried") as moved:

        def tried(done: int, total: int) -> None:
            nonlocal began
            began = began or time.monotonic()  # the search begins when data and model are loaded
            moved(done, total)

        found = search_triggers(asked, *counts, _say, accepted=accepted, tried=tried)
    if as_json:
        print(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    else:
        print("\n".join(map(clean, _found_lines(found))))
    for line in _ranking(found.ranked, found.held_out, None):
        print(clean(line), file=sys.stderr if as_json else sys.stdout)
    source = f"found by gradients (AutoPrompt) from the gold labels of {asked.name}, seed {asked.seed}"
    _write(path, source, found.pattern, found.words, as_json)


def _write(out: Path, source: str, pattern: str, words: Mapping[str, str], as_json: bool) -> None:
    """Write a file of prompts, and say how it is used."""
    from fednlp.prompts.simulation.prompt_search import write_prompts

    write_prompts(out, source, pattern, words)
    use = json.dumps(str(out), ensure_ascii=False)
    print(clean(f"written {out}: say task.prompt = {use}"), file=sys.stderr if as_json else sys.stdout)


def _found_lines(found: "FoundPattern") -> list[str]:
    """Return the result of a search for triggers as lines."""
    before, after = (
        f"{100 * one.accuracy:.1f} % (log-likelihood {one.likelihood:.3f})"
        for one in (found.before, found.after)
    )
    return [
        found.pattern,
        f"   words     {_assigned(found.words)}{'; found' if found.words_found else ''}",
        f"   accuracy  {after} on the {found.held_out} gold labels held out; before, with masks for triggers, {before}",
    ]


def _ranking(ranked: "Sequence[RankedPattern]", held_out: int, unranked: str | None) -> list[str]:
    """Return the line on which the patterns of a prompt set are ranked; none where there are not two."""
    if unranked is not None:
        return [f"patterns are not ranked: {unranked}"]
    if not ranked:
        return []
    scores = ", ".join(f"{one.prompt} {100 * one.held_out.accuracy:.1f} %" for one in ranked)
    return [
        f"patterns with the words given, by {held_out} gold labels held out: {scores}; best {ranked[0].prompt}"
    ]


def _assigned(words: Mapping[str, str]) -> str:
    return ", ".join(f"{label} = {word}" for label, word in words.items())


def _say(line: str) -> None:
    """Print a message for people."""
    print(clean(line), file=sys.stderr)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left, where there is a terminal; yield what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", visible=False)
        yield lambda done, total: progress.update(bar, completed=done, total=total, visible=True)


def _lines(one: "PromptCheck", again: bool) -> list[str]:
    """Return the result for one pattern as lines; its words only where they differ from those of the last one."""
    words = [
        f"{label} = {word}" + (f" ({', '.join(one.pieces[label])})" if len(one.pieces[label]) != 1 else "")
        for label, word in one.words.items()
        if word
    ]
    lines = [f"{one.number}  {one.pattern.strip()}"]
    lines += [f"   reads     {one.reads}"] if one.reads else []
    lines.append(f"   length    {one.tokens} tokens without the text")
    lines += [f"   words     {', '.join(words)}"] if words and (one.problem or not again) else []
    lines += [f"   problem   {one.problem}"] if one.problem else []
    return lines + (_score_lines(one.score) if one.score else [])


def _score_lines(score: "ZeroShotScore") -> list[str]:
    taken = f", most often in place of {score.mistaken}" if score.mistaken else ""
    return [
        f"   accuracy  {100 * score.accuracy:.1f} % of {score.examples} test examples, untrained; the most frequent "
        f"label is {100 * score.majority:.1f} %",
        f"   says      {score.predicted_most} for {100 * score.predicted_share:.1f} %, "
        f"which {100 * score.true_share:.1f} % are{taken}",
    ]
