"""fednlp prompts list, fednlp prompts check, fednlp prompts search."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednlp.cli.data_options import Columns, Label, Text, own_columns

if TYPE_CHECKING:
    from fednlp.inference.zero_shot import PromptCheck, ZeroShotScore

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

    from fednlp.fewshot.prompt_sets import load_prompts, prompt_names

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
    from fednlp.fewshot.prompt_sets import load_prompts, parse_choice
    from fednlp.formatting.safe_text import clean
    from fednlp.inference.zero_shot import available_data, check_prompts

    choice = parse_choice(name)
    choice = choice if pattern is None else replace(choice, pattern=pattern)
    chosen = load_prompts(choice.name)
    known = data or available_data(chosen, path)
    columns = {"text": text, "label": label} | own_columns(column or [])
    try:
        with _predictions_bar() as scored:
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
    out: Annotated[Path | None, typer.Option(help="Where to write the best pattern and its words.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Find a word for each label from the gold labels of an experiment, with each pattern of its prompts."""
    from fednlp import config
    from fednlp.formatting.safe_text import clean
    from fednlp.simulation.prompt_search import search_words, write_prompts

    asked = config.load(experiment, set_ or ())
    found = search_words(asked, lambda line: print(clean(line), file=sys.stderr))
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
    else:
        for one in found:
            words = ", ".join(f"{label} = {word}" for label, word in one.words.items())
            print(clean(one.pattern.strip()))
            print(clean(f"   words   {words}"))
            print(f"   score   {one.score:.3f}; right for {100 * one.gold_accuracy:.1f} % of the gold labels")
    if out is not None:
        source = f"found by likelihood ratio from the gold labels of {asked.name}, seed {asked.seed}"
        write_prompts(out, out.stem, source, found)
        use = json.dumps(str(out), ensure_ascii=False)
        print(clean(f"written {out}: say task.prompt = {use}"), file=sys.stderr if as_json else sys.stdout)


@contextmanager
def _predictions_bar() -> Iterator[Callable[[int, int], None]]:
    """Show a bar of predictions with the time left, where there is a terminal; yield what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("predictions"),
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
