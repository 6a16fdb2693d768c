"""fednlp inspect."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fednlp.config import Experiment
    from fednlp.models.parameter_table import ParameterRow


def inspect(
    experiment: Annotated[
        str, typer.Argument(help="An experiment file, or the name of one that comes with fednlp.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, e.g. --set model.train=head; may be repeated."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="bert-tiny, minilm, smollm2, a model folder or a hub name.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="The experiment's full size, for a GPU, in place of its laptop size."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show which parameters of an experiment's model are trained and sent, and how many bytes that is."""
    from fednlp import config
    from fednlp.cli.console import Terminal
    from fednlp.models.parameter_table import total

    overrides = [*(changes or []), *([f"model.name_or_path={json.dumps(model)}"] if model else [])]
    with Terminal(again="type the command again") as terminal:
        rows, message = _counted(config.load(experiment, overrides, full).resolved(), terminal, as_json)
        if as_json:
            print(json.dumps(_document(rows, message), indent=1))
            return
        whole = total(rows)
        terminal.console.print(_table(rows))
        for state in ("tunable", "shared", "personal", "frozen"):
            terminal.console.print(f"{state:<9} {getattr(whole, state):>14,}")
        terminal.console.print(f"message   {message:>14,} bytes each way, a client and round", soft_wrap=True)


def _counted(experiment: "Experiment", terminal: Any, silent: bool) -> tuple[list["ParameterRow"], int]:
    """Build the model as a run does; return its parts, and the length in bytes of the message of its shared ones."""
    from fednlp.models import load_tokenizer, pretrained_model
    from fednlp.models.parameter_table import parameter_table
    from fednlp.models.selection import apply_selection, parse_selection
    from fednlp.simulation.build import make_task, model_source, open_data
    from fednlp.training.replica import layout_of

    wanted = experiment.model
    data = open_data(experiment)
    source = model_source(experiment, data, (lambda text: None) if silent else terminal.say)
    task = make_task(experiment.task.name or data.task, data, load_tokenizer(source), experiment.task.given())
    built = pretrained_model(
        source, task.model_class, task.settings(), wanted.config, experiment.seed, wanted.peft
    )
    selection = apply_selection(built, parse_selection(wanted.train))
    message = layout_of(built, selection.personal).message_bytes if selection.shared else 0
    return parameter_table(built, selection), message


def _document(rows: list["ParameterRow"], message: int) -> dict[str, Any]:
    from fednlp.models.parameter_table import total

    whole = total(rows)
    totals = {key: getattr(whole, key) for key in ("parameters", "tunable", "shared", "personal", "frozen")}
    groups = [{"group": row.group, "parameters": row.parameters} | asdict(row) for row in rows]
    return {"groups": groups, **totals, "bytes": whole.bytes, "message_bytes": message}


def _table(rows: list["ParameterRow"]) -> "Table":
    """Return one line a part, and the total."""
    from rich.table import Table

    from fednlp.formatting.units import DASH
    from fednlp.models.parameter_table import total

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("state")
    table.add_column("each way", justify="right")
    for row in rows:
        many = len(row.states) > 1
        said = ", ".join(f"{state} {getattr(row, state):,}" if many else state for state in row.states)
        table.add_row(row.group, f"{row.parameters:,}", said or DASH, _sent(row))
    table.add_row("total", f"{sum(row.parameters for row in rows):,}", "", _sent(total(rows)))
    return table


def _sent(row: "ParameterRow") -> str:
    from fednlp.formatting.units import DASH, human_bytes

    return human_bytes(row.bytes) if row.bytes else DASH
