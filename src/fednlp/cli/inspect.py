"""fednlp inspect."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednlp.cli.experiment_options import Changes, ExperimentName, Full, Model

if TYPE_CHECKING:
    from rich.table import Table

    from fednlp.models.parameter_table import ParameterRow


def inspect(
    experiment: ExperimentName,
    changes: Changes = None,
    model: Model = None,
    full: Full = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show which parameters of an experiment's model are trained and sent, and how many bytes that is."""
    from fednlp import config
    from fednlp.cli.console import Console
    from fednlp.models.parameter_table import total
    from fednlp.simulation.inspect import inspect_model

    overrides = [*(changes or []), *([f"model.name_or_path={json.dumps(model)}"] if model else [])]
    with Console(again="type the command again") as console:
        rows, message = inspect_model(
            config.load(experiment, overrides, full).resolved(),
            (lambda text: None) if as_json else console.log,
        )
        if as_json:
            print(json.dumps(_document(rows, message), indent=1))
            return
        whole = total(rows)
        console.output.print(_table(rows))
        for state in ("tunable", "shared", "personal", "frozen"):
            console.output.print(f"{state:<9} {getattr(whole, state):>14,}")
        console.output.print(f"message   {message:>14,} bytes each way, a client and round", soft_wrap=True)


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
        states = ", ".join(f"{state} {getattr(row, state):,}" if many else state for state in row.states)
        table.add_row(row.group, f"{row.parameters:,}", states or DASH, _sent(row))
    table.add_row("total", f"{sum(row.parameters for row in rows):,}", "", _sent(total(rows)))
    return table


def _sent(row: "ParameterRow") -> str:
    from fednlp.formatting.units import DASH, human_bytes

    return human_bytes(row.bytes) if row.bytes else DASH
