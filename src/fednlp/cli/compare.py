"""fednlp compare."""

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednlp.cli.experiment_options import Full, Jobs, Model
from fednlp.errors import ConfigError

if TYPE_CHECKING:
    from fednlp.config import Experiment
    from fednlp.reports.groups import Groups
    from fednlp.reports.read import Run
    from fednlp.simulation.callback import Callback
    from fednlp.studies.hyperparameters import SearchResult
    from fednlp.studies.same_data import SameData

_SET = typer.Option(
    "--set",
    help="Change a setting, e.g. --set client.learning_rate=3e-4; may be repeated. For one of several experiments: "
    "--set tagging:data.path=DIR",
)
_TUNE = typer.Option(
    help="Choose settings of each method by trials on a part of the training examples, e.g. "
    "--tune client.learning_rate=1e-4,1e-3,server.learning_rate=0.1,1; may be repeated. For one method: "
    "--tune fedprox:algorithm.mu=0.01,0.1"
)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|.', re.DOTALL)
"""A quoted text, or one character."""
_KEY = re.compile(r"\s*(?:[^=]+:)?[A-Za-z_]+(?:\.[\w-]+)+\s*")
"""A dotted key, with or without a method before it."""


def compare(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiment files, or names of some that come with fednlp, or patterns such as 'fednlp-table2-*'; "
            "quickstart if left out."
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Names, or variants of the file, with commas between; all variants, or "
            "fedavg,fedprox,fedopt, if left out."
        ),
    ] = None,
    baselines: Annotated[
        str, typer.Option(help="Of centralised, chained, local, majority, with commas between.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from the experiment's own upwards.")] = 1,
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison.")] = None,
    model: Model = None,
    full: Full = False,
    jobs: Jobs = 1,
    tune: Annotated[list[str] | None, _TUNE] = None,
    trials: Annotated[int | None, typer.Option(help="With --tune: the most trials of each method.")] = None,
    tune_rounds: Annotated[
        int | None,
        typer.Option(help="With --tune: the most rounds of a trial; the experiment's if left out."),
    ] = None,
    tune_from: Annotated[
        int | None,
        typer.Option(
            help="With --tune: the fewest rounds after which trials are compared; if left out, as few as halving needs."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="A line a round, and the name of every file that is written.")
    ] = False,
) -> None:
    """Compare algorithms and baselines over seeds; finished runs are not repeated.

    Several experiments, of one task or of several, give a table each and one of all.
    """
    from fednlp import config
    from fednlp.cli.tables import show_written
    from fednlp.config.experiment_paths import matching

    overrides = [*(changes or []), *([f"model.name_or_path={json.dumps(model)}"] if model else [])]
    named = matching(experiments or ["experiments/quickstart.toml"])
    own = [_own_overrides(one, named, overrides) for one in named]
    loaded = [config.load(one, given, full) for one, given in zip(named, own, strict=True)]
    _require_different([one.name for one in loaded])
    comparisons = [
        _Comparison(
            one, given, _methods(one, algorithms), _names(baselines), seeds, out, len(loaded), jobs, verbose
        )
        for one, given in zip(loaded, own, strict=True)
    ]
    search = _search_options(tune, trials, tune_rounds, tune_from)
    for comparison in comparisons:  # all mistakes before the first run
        _check(comparison, search)
    for comparison in comparisons:
        _say_what_is_kept(comparison)
    found: dict[str, Groups] = {}
    pages: list[list[Path]] = []
    for comparison in comparisons:
        found[comparison.experiment.name], written = _compared(comparison, search)
        pages.append(written)
    pages.append(_across(found, out or Path("runs")))
    for paths in filter(None, pages):
        show_written(paths, verbose)


@dataclass(frozen=True)
class _Comparison:
    """What is run of one experiment, and where.

    Attributes:
        overrides: Those of the command line among them, ``"a.b=c"``.
        algorithms: Names of algorithms or variants.
        seeds: Number of seeds.
        out: The folder that the user names, if any.
        experiments: Number of experiments that are compared by the command; of several, each has a folder in ``out``.
        jobs: Runs that are done at once.
        verbose: Whether each round has a line.
    """

    experiment: "Experiment"
    overrides: list[str]
    algorithms: list[str]
    baselines: list[str]
    seeds: int
    out: Path | None
    experiments: int
    jobs: int
    verbose: bool

    @property
    def folder(self) -> Path:
        """The folder of the report and of the trials."""
        if self.out is None:
            return Path("runs") / f"compare-{self.experiment.name}"
        return self.out if self.experiments == 1 else self.out / self.experiment.name

    @property
    def run_folder(self) -> Path | None:
        """The folder of the runs, if the user names one."""
        return None if self.out is None else self.folder


def _check(comparison: _Comparison, search: dict[str, Any]) -> None:
    """Report all mistakes of a comparison and of its search for settings."""
    from fednlp.studies.compare import plan
    from fednlp.studies.trial_plan import plan_searches

    experiment, algorithms, baselines = comparison.experiment, comparison.algorithms, comparison.baselines
    plan(experiment, algorithms, baselines, comparison.seeds, None if search else comparison.run_folder)
    if search:
        methods = list(dict.fromkeys([*algorithms, *baselines]))
        plan_searches(experiment, methods, folder=comparison.folder, **search)


def _say_what_is_kept(comparison: _Comparison) -> None:
    """Name the settings for all methods that a variant replaces by its own; tables are laid over one another."""
    from fednlp.config.tables import lookup

    keys = [override.partition("=")[0].strip() for override in comparison.overrides]
    now = comparison.experiment.model_dump()
    given = {key: lookup(now, key) for key in keys}
    for name in comparison.algorithms:
        own = comparison.experiment.variants.get(name, {})
        for key, value in given.items():
            kept = lookup(own, key)
            if kept in (None, value) or isinstance(kept, dict) or f"variants.{name}.{key}" in keys:
                continue
            change = f"add --set {shlex.quote(f'variants.{name}.{key}=...')}"
            print(
                f"the variant {name} keeps its own {key} = {json.dumps(kept)}; to change it, "
                f"{'edit the file' if '.' in name else change}",
                file=sys.stderr,
            )


def _compared(comparison: _Comparison, search: dict[str, Any]) -> "tuple[Groups, list[Path]]":
    """Make the runs of one experiment; print and write its tables, and return its runs by method and the files."""
    from fednlp.cli.console import Console, show_table
    from fednlp.reports import compare_table, read_run, write_report
    from fednlp.reports.groups import algorithm_title
    from fednlp.reports.sections.clients import clients_table
    from fednlp.studies.compare import compare as compare_runs
    from fednlp.studies.hyperparameters import tuning_table
    from fednlp.studies.same_data import SameData

    experiment, algorithms, baselines = comparison.experiment, comparison.algorithms, comparison.baselines
    with Console(again="run the same command again", verbose=comparison.verbose) as console:
        same_data = SameData()
        tuned = _tuned(comparison, search, console, same_data)
        chosen = {method: result.chosen for method, result in tuned.items()}
        runs = compare_runs(
            experiment,
            algorithms,
            baselines,
            comparison.seeds,
            comparison.run_folder,
            console,
            chosen,
            same_data,
            comparison.jobs,
        )
    groups: dict[str, list[Run]] = {}
    for planned in runs:
        groups.setdefault(algorithm_title(planned.method), []).append(read_run(planned.folder))
    report, trials = comparison.folder / "report", tuning_table(tuned) if tuned else None
    if trials is not None:
        show_table(trials, str(report / "tuning.txt"))
    show_table(compare_table(groups), str(report / "table.txt"))
    pages = write_report([planned.folder for planned in runs], report, tuning=trials)
    by_client = clients_table(groups) if comparison.verbose else None
    if by_client is not None:
        show_table(by_client, str(report / "clients.txt"))
    return groups, pages


def _across(found: "dict[str, Groups]", folder: Path) -> list[Path]:
    """Print and write a table of several experiments for each part of the evaluation; return the files."""
    from fednlp.cli.console import show_table
    from fednlp.reports import across_table, write_table

    pages: list[Path] = []
    if len(found) < 2:
        return pages
    for part in ("global", "personal", "finetuned"):
        table = across_table(found, part)
        if any(cell for row in table.rows for cell in row.cells.values()):
            show_table(table, str(folder / f"across-{part}.txt"))
            pages += write_table(table, folder, f"across-{part}")
    return pages


def _search_options(
    tune: list[str] | None, trials: int | None, rounds: int | None, least: int | None
) -> dict[str, Any]:
    """Return the arguments of a search for settings; none without ``--tune``."""
    if not tune:
        given = (("--trials", trials), ("--tune-rounds", rounds), ("--tune-from", least))
        for option, value in given:
            if value is not None:
                raise ConfigError(
                    f"{option} goes with --tune, which says what is chosen: add it, or leave {option} out"
                )
        return {}
    return {"grid": parse_grid(tune), "trials": trials, "rounds": rounds, "least": least}


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values to choose from, by dotted key.

    Args:
        texts: Such as ``"client.learning_rate=1e-4,1e-3"``, or ``"fedprox:algorithm.mu=0.01,0.1"`` for one method. In
            a text, a comma and a dotted key with ``=`` begin the next setting. Values are read as TOML, else as text.

    Raises:
        ConfigError: A text has no key or no value, or a key is given twice.

    >>> parse_grid(["client.optimizer=sgd,adamw,server.learning_rate=0.1,1", "fedprox:algorithm.mu=0.01,0.1"])
    {'client.optimizer': ['sgd', 'adamw'], 'server.learning_rate': [0.1, 1], 'fedprox:algorithm.mu': [0.01, 0.1]}
    """
    given: dict[str, str] = {}
    for text in (one for option in texts for one in _settings(option)):
        key, _, values = (part.strip() for part in text.partition("="))
        if not all(key.split(":")) or not values:
            raise ConfigError(
                f"--tune {text}: write key=value,value, for example --tune client.learning_rate=1e-4,1e-3"
            )
        if key in given:
            raise ConfigError(
                f"--tune {key} is given twice: say it once, --tune {key}={given[key]},{values}, or leave one out"
            )
        given[key] = values
    return {
        key: [_value(one.strip()) for one in _pieces(values) if one.strip()] for key, values in given.items()
    }


def _settings(option: str) -> list[str]:
    """Return the settings of an option, each with its values.

    >>> _settings("client.learning_rate=1e-3,3e-3,model.train=[1,2],'a,b.c=d',fedprox:algorithm.mu=0.1,1")
    ['client.learning_rate=1e-3,3e-3', "model.train=[1,2],'a,b.c=d'", 'fedprox:algorithm.mu=0.1,1']
    """
    first, *others = _pieces(option)
    found = [first]
    for piece in others:
        key, equals, _ = piece.partition("=")
        if equals and _KEY.fullmatch(key):
            found.append(piece)
        else:
            found[-1] += f",{piece}"
    return found


def _pieces(text: str) -> list[str]:
    """Return what stands between the commas that are neither in quotes nor in brackets."""
    pieces, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += token
    return pieces


def _value(text: str) -> Any:
    """Return a value as TOML reads it, or else as text.

    >>> _value("1e-3"), _value("[1, 2]"), _value("sgd")
    (0.001, [1, 2], 'sgd')
    """
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # a number of too many digits among them
        return text
    return found["value"] if {*found} == {"value"} else text  # it may go on with a key of its own


def _tuned(
    comparison: _Comparison, search: dict[str, Any], callback: "Callback", same_data: "SameData"
) -> "dict[str, SearchResult]":
    """Choose the settings of each method, if that is asked for."""
    from fednlp.studies.hyperparameters import tune

    if not search:
        return {}
    methods = [*comparison.algorithms, *comparison.baselines]
    folder = comparison.folder / "tuning"
    return tune(
        comparison.experiment,
        methods,
        folder=folder,
        callback=callback,
        same_data=same_data,
        jobs=comparison.jobs,
        **search,
    )


def _methods(experiment: "Experiment", algorithms: str | None) -> list[str]:
    """Return the methods to compare: those given, or the file's variants, or the algorithms of FedNLP's Table 2."""
    if algorithms is not None:
        return _names(algorithms)
    return list(experiment.variants) or ["fedavg", "fedprox", "fedopt"]


def _own_overrides(name: str, named: list[str], overrides: list[str]) -> list[str]:
    """Return the settings for one experiment: those for all, and those that begin with its name and a colon.

    Raises:
        ConfigError: A setting is for an experiment that is not compared.
    """
    found = []
    for override in overrides:
        only, colon, _ = override.partition("=")[0].rpartition(":")
        stems = {Path(one).stem for one in named}
        if colon and only not in stems:
            raise ConfigError(
                f"--set {override}: {only} is not compared; choose from {', '.join(sorted(stems))}"
            )
        if not colon or only == Path(name).stem:
            found.append(override[len(only) + len(colon) :])
    return found


def _require_different(names: list[str]) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ConfigError(f"two experiments are named {twice}: give one another name in its file")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
