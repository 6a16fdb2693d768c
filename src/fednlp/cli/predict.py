"""fednlp evaluate, predict, export: use the model of a run."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednlp.cli.data_options import Columns, own_columns
from fednlp.cli.experiment_options import TaskToTrust
from fednlp.errors import ConfigError

if TYPE_CHECKING:
    from fednlp.cli.console import Console
    from fednlp.inference.model import Trained
    from fednlp.inference.predict import Prediction

_RUN = typer.Argument(help="A run directory, or a federation that this machine took part in, by its name.")
_CLIENT = typer.Option(help="Whose model, by number or name, where clients have models of their own.")
_OwnModel = Annotated[
    bool, typer.Option("--own", help="In a federation: the model that this site has for itself alone.")
]
_DEVICE = typer.Option(
    help="Where the model computes: cpu, cuda, cuda:1 or auto; the run's device if left out."
)


def evaluate(
    run: Annotated[Path, _RUN],
    data: Annotated[
        Path | None, typer.Option(help="A file of the task; the run's own test set if left out.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write every row with its prediction: .csv, .tsv or .jsonl."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    client: Annotated[str | None, _CLIENT] = None,
    task: TaskToTrust = None,
    device: Annotated[str | None, _DEVICE] = None,
    text: Annotated[
        str | None, typer.Option(help="The column of the file's texts; by default as in training.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of the file's labels; by default as in training.")
    ] = None,
    columns: Columns = None,
    own_model: _OwnModel = False,
) -> None:
    """Evaluate the model of a run, as a whole and by label, and write its predictions."""
    own = own_columns(columns or []) | {
        name: column for name, column in (("text", text), ("label", label)) if column is not None
    }
    if own and data is None:
        raise ConfigError("--text, --label and --column name columns of a file: give the file with --data")
    from fednlp.cli.tables import label_tables, score_table, show
    from fednlp.deployment.operate.homes import own_examples, used_folder
    from fednlp.inference.score import evaluate_run
    from fednlp.simulation.run_dir import RunDir

    run = used_folder(run)
    examples = partial(own_examples, run) if RunDir(run).is_at_site else None
    with _console(as_json) as console:
        console.begin()
        scores = evaluate_run(
            run,
            data,
            out,
            console.log,
            console.on_progress,
            client,
            task,
            device,
            own,
            own_model,
            examples,
        )
        console.close()
        if as_json:
            print(json.dumps(scores.as_json(), indent=1, ensure_ascii=False))
        else:
            show(console.output, score_table(scores.metrics, scores.interval))
            for table in label_tables(scores.labels) if scores.labels else []:
                console.output.print()
                show(console.output, table)
        if out is not None:
            console.log(f"written {out}")


def _console(aside: bool) -> "Console":
    """Return a console; with ``aside`` it writes to standard error, since standard output carries data."""

    from fednlp.cli.console import Console
    from fednlp.cli.tables import plain_console

    return Console("type the command again", plain_console(stderr=aside))


def predict(
    run: Annotated[Path, _RUN],
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, questions, sources; '-' or none: the lines of standard input."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--in", help="A file whose rows are predicted: .csv, .tsv, .jsonl, .txt.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="The column of that file with the text; by default as in training.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the rows with predictions: .csv, .tsv or .jsonl.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Give the probability of each label.")
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="Give the probabilities of so many labels, the likeliest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each text.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option("--with", help="A further column, e.g. --with context='...' for a question."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Hold a conversation with a model of chats; an empty line ends it.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="What the system tells a model of chats.")] = None,
    client: Annotated[str | None, _CLIENT] = None,
    task: TaskToTrust = None,
    device: Annotated[str | None, _DEVICE] = None,
    own_model: _OwnModel = False,
) -> None:
    """Predict with the model of a run: for typed or piped texts, or the rows of a file; or chat with it."""
    if chat and (table is not None or texts or out is not None):
        raise ConfigError("--chat asks for one message after the other: leave texts, --in and --out out")
    if table is not None and texts:
        raise ConfigError("--in and texts do not go together: leave out one of them")
    if table is None and text is not None:
        raise ConfigError("--text names a column of a file: give the file with --in")
    further = _further(columns or []) | ({} if system is None else {"system": system})
    if not chat and table is None and not texts and sys.stdin is not None and sys.stdin.isatty():
        raise ConfigError("there is no text: type one, pipe some in, or give a file with --in")
    from fednlp.deployment.operate.homes import used_folder
    from fednlp.formatting.units import plural
    from fednlp.inference.inputs import rows_of_file, rows_of_texts
    from fednlp.inference.model import open_trained
    from fednlp.inference.predict import predictions, write_predictions

    with _console(True) as console:
        trained = open_trained(used_folder(run), client, task, device, own_model)
        if chat:
            _converse(trained, system)
            return
        if table is None:
            inputs = rows_of_texts(trained, _typed(texts or ["-"]), further)
        else:
            inputs = rows_of_file(trained, table, text, further, console.log)
        with_probabilities = probabilities or top is not None
        if out is None:
            for one in predictions(trained, inputs, probabilities=with_probabilities, top=top):
                print(_json(one) if as_json else _shown(one))
            return
        console.begin()

        def done(rows: int) -> None:
            console.on_progress(rows, None, "rows")

        count = write_predictions(out, trained, inputs, probabilities=with_probabilities, top=top, done=done)
        console.close()
        console.log(f"written {out}: {plural(count, 'row')}")


def _converse(trained: "Trained", system: str | None) -> None:
    """Answer one typed message after the other, each after all that was said before."""
    from fednlp.formatting.safe_text import clean

    if not hasattr(trained.task, "replies"):
        raise ConfigError(f"--chat is for models of chats, and this one was trained for {trained.task.name}")
    messages = [] if system is None else [{"role": "system", "content": system}]
    typed = sys.stdin is not None and sys.stdin.isatty()
    while True:
        if typed:
            print("> ", end="", flush=True)
        said = next(_piped(), "") if not typed else sys.stdin.readline().strip()
        if not said:
            return
        messages.append({"role": "user", "content": said})
        [answer] = trained.replies([{"messages": json.dumps(messages)}])
        messages.append({"role": "assistant", "content": answer})
        print(clean(answer))


def _further(columns: list[str]) -> dict[str, str]:
    further = {}
    for one in columns:
        key, equals, value = one.partition("=")
        if not equals:
            raise ConfigError(f"--with {one}: write column=text, for example --with context='...'")
        further[key.strip()] = value
    return further


def _typed(texts: list[str]) -> Iterator[str]:
    """Yield texts, and in place of each ``-`` the lines of standard input that are not blank."""
    for text in texts:
        if text == "-":
            yield from _piped()
        else:
            yield text


def _piped() -> Iterator[str]:
    from fednlp.data.readers.text_io import LONGEST_LINE, decode_line, without_bom

    if sys.stdin is None:  # closed: predict RUN - <&-
        return
    where = Path("standard input")
    for number, line in enumerate(iter(lambda: sys.stdin.buffer.readline(LONGEST_LINE + 1), b""), 1):
        text = decode_line(
            without_bom(line, where) if number == 1 else line, where, number, latin1=False
        ).strip()
        if text:
            yield text


def _json(one: "Prediction") -> str:
    shares = {} if one.probabilities is None else {"probabilities": one.probabilities}
    return json.dumps({**one.row, "prediction": one.value, **shares}, ensure_ascii=False)


def _shown(one: "Prediction") -> str:
    """Return a readable line: the prediction, or the labels with their probabilities."""
    from fednlp.formatting.safe_text import clean

    if one.probabilities is None:
        return clean(one.text)
    return ", ".join(f"{clean(label)} {share:.4f}" for label, share in one.probabilities.items())


def export(
    run: Annotated[Path, _RUN],
    out: Annotated[Path, typer.Option(help="The folder to make; with --all, the folder of the folders.")],
    client: Annotated[
        str | None, typer.Option(help="Whose model, by name or number; the shared model if left out.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The models of all clients, a folder each.")] = False,
    limit: Annotated[int, typer.Option(help="With --all: refuse a run of more clients.")] = 100,
    task: TaskToTrust = None,
    own_model: _OwnModel = False,
) -> None:
    """Write a model of a run as a Hugging Face folder: the shared one, or clients' own."""
    from fednlp.cli.console import Console
    from fednlp.inference import export as exporting

    if every and (client is not None or own_model):
        raise ConfigError(f"--{'own' if own_model else 'client'} and --all do not go together: leave one out")
    from fednlp.deployment.operate.homes import used_folder

    run = used_folder(run)
    with Console(again="type the command again") as console:
        made = (
            exporting.export_clients(run, out, limit, console.log, task)
            if every
            else [exporting.export(run, out, client, task, own_model)]
        )
        for folder in made:
            console.log(f"written {folder}")
