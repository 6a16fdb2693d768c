"""fednlp partition."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fednlp.config import Experiment
from fednlp.cli.data_options import (
    TYPED,
    Columns,
    Delimiter,
    Json,
    Label,
    OnInvalidRow,
    PublishedFiles,
    Set,
    Sources,
    Task,
    TestFraction,
    TestPath,
    Text,
    data_section,
    given,
    naming_options,
)
from fednlp.formatting.safe_text import clean, clean_lines

_Method = Annotated[
    str,
    typer.Option(
        help="uniform, label, quantity, label+quantity, cluster, natural, silos, proportions or file; auto is silos "
        "where the files are a client each, else uniform."
    ),
]
_Clients = Annotated[int | None, typer.Option(help="How many clients.")]
_Alpha = Annotated[float | None, typer.Option(help="Label shift: small is skewed, large is IID.")]
_Beta = Annotated[float | None, typer.Option(help="Quantity shift: small is skewed, large is equal.")]
_Entity = Annotated[
    str | None, typer.Option(help="Label shift of tagged texts: majority or rarest entity type.")
]
_Field = Annotated[str | None, typer.Option(help="Natural: the column that names the client.")]
_Proportions = Annotated[str | None, typer.Option(help="A CSV or JSON table of label shares.")]
_Clusters = Annotated[int | None, typer.Option(help="Cluster shift: how many clusters.")]
_Encoder = Annotated[str | None, typer.Option(help="Cluster shift: minilm, a folder or hub name.")]
_File = Annotated[str | None, typer.Option(help="File: a partition.npz, or a FedNLP _partition.h5.")]
_Part = Annotated[str | None, typer.Option(help="File: the partition's name in it.")]
_Seed = Annotated[int, typer.Option(help="Decides every draw.")]
_Out = Annotated[Path | None, typer.Option(help="Where to write part.npz, or part.h5 as FedNLP has it.")]
_Plots = Annotated[Path | None, typer.Option(help="Folder for the four plots.")]
_SplitOut = Annotated[
    Path | None,
    typer.Option(help="New folder for a folder of files of each client, as its site would hold them."),
]


def partition(
    sources: Sources,
    method: _Method = "auto",
    clients: _Clients = None,
    alpha: _Alpha = None,
    beta: _Beta = None,
    entity: _Entity = None,
    field: _Field = None,
    proportions: _Proportions = None,
    clusters: _Clusters = None,
    encoder: _Encoder = None,
    file: _File = None,
    part: _Part = None,
    seed: _Seed = 0,
    out: _Out = None,
    plots: _Plots = None,
    split_out: _SplitOut = None,
    as_json: Json = False,
    path: PublishedFiles = None,
    text: Text = "text",
    label: Label = "label",
    columns: Columns = None,
    test_path: TestPath = None,
    test_fraction: TestFraction = 0.2,
    delimiter: Delimiter = None,
    on_invalid_row: OnInvalidRow = "refuse",
    task: Task = None,
    set_: Set = None,
) -> None:
    """Partition the examples of a data set over clients, and show how unlike the clients are."""
    from fednlp import config
    from fednlp.simulation.partitioning import describe, partition_source

    options = {
        "method": method,
        "clients": clients,
        "alpha": alpha,
        "beta": beta,
        "entity": entity,
        "field": field,
        "proportions": proportions,
        "clusters": clusters,
        "encoder": encoder,
        "file": file,
        "part": part,
        "seed": seed,
    }
    document: dict[str, Any] = {
        "seed": seed,
        "data": data_section(
            sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row
        ),
        "task": given({"name": task}),
        "partition": given(options),
    }

    def log(line: str) -> None:
        print(clean(line), file=sys.stderr)

    with naming_options(TYPED | {f"partition.{key}": f"--{key}" for key in options}):
        settings = config.parse(document, "fednlp partition", set_ or ())
        report = partition_source(settings, out, plots, log)
        if split_out is not None:
            _split(settings, split_out, log)
    print(json.dumps(report, indent=1) if as_json else clean_lines(describe(report)))


def _split(settings: "Experiment", folder: Path, log: Callable[[str], None]) -> None:
    """Write each client's examples into a folder of its own, and say so."""
    from fednlp.deployment.operate.shards import FEDERATION, split_out
    from fednlp.formatting.units import plural

    shards = split_out(settings.resolved(), folder, log)
    log(f"written {plural(len(shards.names), 'folder')} to {folder}, and {FEDERATION} for fednlp serve")
