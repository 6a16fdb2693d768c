"""fednlp prompts list, fednlp prompts check."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fednlp.data import TextData
    from fednlp.fewshot.prompts import Choice, Prompts

app = typer.Typer(
    help="Patterns and words for classification with few labels.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
_MOST_EXAMPLES = 500
_LONGEST_TEXT = 128
_SHOWN_TOKENS = 40
_TASK = "prompt-classification"
_NO_EXAMPLE: dict[str, str | None] = {"text": "(the text)", "text_pair": "(the other text)", "label": ""}


@dataclass(frozen=True)
class Score:
    """What a model says to some examples before any training.

    Attributes:
        accuracy: Share of right ones.
        majority: Share of the most frequent label.
        examples: How many.
        said: The label that is predicted most often.
        said_share: Share of the examples for which it is predicted.
        said_true: Share of the examples whose label it is.
        mistaken: The label that is most often taken for it; None where none is.
    """

    accuracy: float
    majority: float
    examples: int
    said: str
    said_share: float
    said_true: float
    mistaken: str | None


@dataclass(frozen=True)
class Checked:
    """What is found of one pattern.

    Attributes:
        number: Of the pattern.
        pattern: Itself.
        reads: An example as the model reads it.
        tokens: Length of the pattern without any text, special tokens counted.
        words: The word of each label.
        pieces: The tokens that each label's word is.
        problem: Why the model cannot use it; None where it can.
        score: None without data, or with a problem.
    """

    number: int
    pattern: str
    reads: str
    tokens: int
    words: Mapping[str, str]
    pieces: Mapping[str, list[str]]
    problem: str | None
    score: Score | None


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

    from fednlp.fewshot.prompts import load_prompts, prompt_names

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
    pattern: Annotated[int | None, typer.Option(min=0, help="Only the pattern of this number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Show how patterns read, whether words are one token, and how right a model is before any training."""
    from fednlp.errors import ModelError
    from fednlp.fewshot.prompts import load_prompts, parse_choice
    from fednlp.formatting.units import clean

    choice = parse_choice(name)
    choice = choice if pattern is None else replace(choice, pattern=pattern)
    wanted = load_prompts(choice.name)
    found = check(wanted, choice, model, data or _at_hand(wanted, path), path)
    if as_json:
        said = {"name": wanted.name, "source": wanted.source, "model": model}
        print(json.dumps(said | {"patterns": [asdict(one) for one in found]}, indent=1, ensure_ascii=False))
    else:
        print(clean(f"{wanted.name} on {model}; from {wanted.source}"))
        before: Mapping[str, str] = {}
        for one in found:
            print("\n".join(map(clean, _lines(one, again=one.words == before))))
            before = one.words
    if all(one.problem for one in found):
        raise ModelError(f"no pattern of {wanted.name} can be used with {model}: {found[0].problem}")


def check(
    prompts: "Prompts", choice: "Choice", model: str, data: str | None = None, path: str | None = None
) -> list[Checked]:
    """Check the chosen pattern of some prompts, or all of them, on one thread.

    Args:
        prompts: Whose patterns and words.
        choice: Which pattern and words; None for all patterns, and for the first words that suit.
        model: As in ``[model] name_or_path``; it needs a masked-LM head.
        data: A known data set; its test examples are predicted, up to 500 evenly spread over them.
        path: Files of it, or of the user's own.

    Raises:
        ConfigError: There is no such pattern, or there are no such words.
        DataError: The data set cannot be had, or has no labels.
        ModelError: The model cannot be had, or has no masked-LM head.
    """
    import torch

    from fednlp.fewshot.prompts import chosen_pattern, chosen_words
    from fednlp.models import load_tokenizer, longest_text, pretrained_model, resolve_model
    from fednlp.tasks.cloze import mask_of

    numbers = range(len(prompts.patterns)) if choice.pattern is None else [choice.pattern]
    patterns = {number: chosen_pattern(prompts, number) for number in numbers}
    if choice.words is not None:
        chosen_words(prompts, choice.words)  # refused before a model is loaded
    source = resolve_model(model)
    tokenizer = load_tokenizer(source)
    mask_of(tokenizer, _TASK)
    loaded = pretrained_model(source, "AutoModelForMaskedLM", {}, {}, seed=0, require_head=True).eval()
    limit = min(_LONGEST_TEXT, longest_text(source, tokenizer))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        opened = cache(partial(_data_for, prompts, data, path))
        known = {number: opened(_own_columns(prompts, one, data)) for number, one in patterns.items()}
        return [
            _checked(prompts, number, one, choice.words, tokenizer, loaded, known[number], limit)
            for number, one in patterns.items()
        ]
    finally:
        torch.set_num_threads(threads)


def _at_hand(prompts: "Prompts", path: str | None) -> str | None:
    """Return the data set that prompts are for, where the package index gives it and no other is named."""
    from fednlp.data.catalogue import CATALOGUE

    known = (name for name in prompts.data if name in CATALOGUE)
    return next((n for n in known if path is None and CATALOGUE[n].fetched == "package index"), None)


def _own_columns(prompts: "Prompts", pattern: str, data: str | None) -> bool:
    """Whether a pattern is of pairs and the data's usual text joins them."""
    return bool(prompts.columns) and data in prompts.data and "{text_pair}" in pattern


def _data_for(prompts: "Prompts", data: str | None, path: str | None, own_columns: bool) -> "TextData | None":
    """Open the data; if asked for, with the columns that make a pair of a joined text."""
    from fednlp.data import load_data

    if data is None and path is None:
        return None
    return load_data(data, path, task=_TASK, columns=prompts.columns if own_columns else None)


def _checked(
    prompts: "Prompts",
    number: int,
    pattern: str,
    table: int | None,
    tokenizer: Any,
    model: Any,
    data: "TextData | None",
    limit: int,
) -> Checked:
    from fednlp.errors import FednlpError
    from fednlp.fewshot.prompts import words_for
    from fednlp.tasks.cloze import filled, mask_of, parts_of, plain_ids
    from fednlp.tasks.prompt_classification import PromptClassification

    parts, mask = parts_of(pattern), mask_of(tokenizer, _TASK)
    labels = list(prompts.words[table or 0]) if data is None else list(data.label_names)
    words = {label: prompts.words[table or 0].get(label, "") for label in labels}
    ids, _ = next(filled(parts, {"text": [[]]}, mask, tokenizer, 1 << 30))
    rows = [] if data is None else _rows(data)
    example = rows[0] if rows else _NO_EXAMPLE
    problem, score, reads = None, None, ""
    try:
        words = words_for(prompts, pattern, labels, tokenizer, table)
        task = PromptClassification.build(labels, tokenizer, pattern=pattern, verbalizer=words)
        shown = task.encode([example], tokenizer, min(limit, len(ids) + _SHOWN_TOKENS))[0]
        reads = tokenizer.decode(shown["input_ids"])
        score = _score(task, model, tokenizer, rows, limit) if rows else None
    except FednlpError as error:
        problem = str(error)
    lead = next(part.lead for part in parts if part.kind == "mask")
    tokens = plain_ids(tokenizer, [lead + word for word in words.values()])
    pieces = dict(zip(words, map(tokenizer.convert_ids_to_tokens, tokens), strict=True))
    return Checked(number, pattern, reads, len(ids), words, pieces, problem, score)


def _rows(data: "TextData") -> list[dict[str, str | None]]:
    """Return test examples, spread evenly over them: files are often sorted by label."""
    import numpy as np

    count = min(_MOST_EXAMPLES, len(data.test_numbers))
    chosen = data.test_numbers[np.linspace(0, len(data.test_numbers) - 1, count).round().astype(np.int64)]
    columns = data.columns_in("test")
    table = data.test.select(list(columns.values())).take(chosen)
    found: list[dict[str, str | None]] = table.rename_columns(list(columns)).to_pylist()
    return found


def _score(task: Any, model: Any, tokenizer: Any, rows: Sequence[Any], limit: int) -> Score:
    import numpy as np
    import torch

    from fednlp.data.features import Features
    from fednlp.training.batches import evaluation_batches

    features = Features.in_memory(task.encode(rows, tokenizer, limit))
    guess, truth = np.empty(len(rows), np.int64), features.values("label")
    with torch.inference_mode():
        for batch in evaluation_batches(np.arange(len(rows)), features.all_lengths, 64):
            guess[batch] = task.predict(model, features, batch, torch.device("cpu")).predictions
    many = len(task.labels)
    said = int(np.bincount(guess, minlength=many).argmax())
    wrong = np.bincount(truth[(guess == said) & (truth != said)], minlength=many)
    return Score(
        accuracy=float((guess == truth).mean()),
        majority=float(np.bincount(truth, minlength=many).max() / len(rows)),
        examples=len(rows),
        said=task.labels[said],
        said_share=float((guess == said).mean()),
        said_true=float((truth == said).mean()),
        mistaken=task.labels[int(wrong.argmax())] if wrong.any() else None,
    )


def _lines(one: Checked, again: bool) -> list[str]:
    """Return what is found of one pattern, for people; not the words again where they are those of the last one."""
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


def _score_lines(score: Score) -> list[str]:
    taken = f", most often in place of {score.mistaken}" if score.mistaken else ""
    return [
        f"   accuracy  {100 * score.accuracy:.1f} % of {score.examples} test examples, untrained; the most frequent "
        f"label is {100 * score.majority:.1f} %",
        f"   says      {score.said} for {100 * score.said_share:.1f} %, which {100 * score.said_true:.1f} % are{taken}",
    ]
