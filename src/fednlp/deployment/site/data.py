"""Opens a site's own data for an experiment of somebody else's.

What is wrong with them is said here with names and numbers; the server is told its kind alone.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from fednlp.config import Experiment
from fednlp.data import TextData, load_data
from fednlp.data.columns import MissingColumns, configured_columns, listed, there_are
from fednlp.data.label_names import label_name
from fednlp.data.labels import rename_labels, unknown_labels, with_labels, without_labels
from fednlp.data.profiling.label_issues import quoted
from fednlp.deployment.site.policy import SitePolicy
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS

LACKS_COLUMNS = "its data lack a column that the experiment needs"
UNREADABLE = "its data cannot be read as examples of the experiment's task"
UNKNOWN_LABELS = "its data have labels that the experiment does not know"
_MOST_SHOWN = 10
_OWN_KEYS = ("text", "label")
"""Columns that have a key and an option of their own."""


class UnfitSiteData(DataError):
    """A site's data do not fit an experiment.

    Args:
        message: For the site: what is wrong, with names and counts.
        for_server: For the server: nothing that the data hold.
    """

    def __init__(self, message: str, for_server: str) -> None:
        super().__init__(message)
        self.for_server = for_server


def open_site_data(
    policy: SitePolicy, task: str, labels: Sequence[str] | None, unlabelled: bool = False
) -> TextData:
    """Load a site's data, with the experiment's names and numbers of labels.

    Args:
        policy: The site's: its files and the names of its labels.
        task: The experiment's task, a name of :data:`fednlp.formulations.TASKS`; for any other the columns say what
            the data are.
        labels: The experiment's labels in the order of their ids, empty for a task without labels; None where the
            sites are asked for theirs: they are numbered as in a data set of their own.
        unlabelled: Whether an example may lack its label.

    Raises:
        UnfitSiteData: They lack a column, hold rows that are no examples, or have a label that the experiment does not
            know.
        RunError: The disk is full, or the cache cannot be written.
    """
    files = policy.data
    if files.path is None:
        raise UnfitSiteData(
            'data.path is missing: say in [data] of the site\'s file where the data lie, such as path = "notes.csv"',
            UNREADABLE,
        )
    try:
        data = load_data(**files.arguments(), task=task if task in TASKS else None, unlabelled=unlabelled)
        names = {label_name(own): label_name(name) for own, name in policy.labels.items()}
        data = without_labels(data, [own for own, name in names.items() if not name])
        renamed = _renamed(data, {own: name for own, name in names.items() if name}, labels or ())
    except MissingColumns as error:
        own = configured_columns(files.columns, files.text, files.label)
        raise UnfitSiteData(_lacking(error, task, own), LACKS_COLUMNS) from None
    except DataError as error:
        raise UnfitSiteData(str(error), UNREADABLE) from None
    if labels is None:
        return renamed
    strange = unknown_labels(renamed, labels)
    if strange:
        raise UnfitSiteData(_strange(data.name, data.task, strange, labels), UNKNOWN_LABELS)
    return with_labels(renamed, labels)


def read_own(
    policy: SitePolicy, experiment: Experiment, path: Path | None, columns: Mapping[str, str]
) -> TextData:
    """Load a site's data again, or a file beside them, with the experiment's names of labels.

    Args:
        policy: The site's: its files and the names of its labels.
        experiment: That the site took part in.
        path: The file; None for the site's data.
        columns: The file's own names of columns by the canonical ones, where they are others than the site's.

    Raises:
        UnfitSiteData: They lack a column, or hold rows that are no examples.
    """
    files = policy.data
    if path is not None:
        named = {key: columns[key] for key in _OWN_KEYS if key in columns}
        further = {**files.columns, **{key: name for key, name in columns.items() if key not in named}}
        one = {"path": str(path), "test_path": None, "test_fraction": 0.0, "columns": further}
        files = files.model_copy(update=one | named)
    unlabelled = experiment.partly_labelled and path is None
    task = experiment.task.configured or ""
    return open_site_data(policy.model_copy(update={"data": files}), task, None, unlabelled)


def _renamed(data: TextData, names: Mapping[str, str], labels: Sequence[str]) -> TextData:
    """Return data whose labels have the experiment's names.

    Forms of one text that Unicode takes for the same (NFC and NFD) are one name: programs write either.

    Args:
        names: The experiment's names by the site's own, where they differ.
        labels: The experiment's, as far as they are known.
    """
    theirs = {_composed(name): name for name in labels}
    own = {_composed(old): new for old, new in names.items()}
    found = {}
    for label in data.label_names:
        name = _composed(own.get(_composed(label), label))
        found[label] = theirs.get(name, name)
    return rename_labels(data, found or names)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _lacking(error: MissingColumns, task: str, own: Mapping[str, str]) -> str:
    """Return one line on all columns that are lacking, and what to type; on the first where the task is inferred.

    Args:
        own: The site's names of columns, by canonical ones.
    """
    if task not in TASKS:
        return str(error)
    canonical = {name: key for key, name in own.items()}
    roles = [canonical.get(name, name) for name in error.missing]
    lacks = listed([f"{name!r} ({_key(role)})" for name, role in zip(error.missing, roles, strict=True)])
    near = did_you_mean(error.missing[0], error.columns)
    typed = " ".join(map(_option, roles))
    return (
        f"{error.where}: {task} reads {listed(TASKS[task].schema.needed)}, and there is no column {lacks}: {near}"
        f"{there_are(error.columns)}; name yours in [data] of the site's file, or beside --data: {typed}"
    )


def _key(role: str) -> str:
    """Return the key of the site's file that names a column.

    >>> _key("label"), _key("source")
    ('data.label', 'data.columns.source')
    """
    return f"data.{role}" if role in _OWN_KEYS else f"data.columns.{role}"


def _option(role: str) -> str:
    """Return what names a column on the command line of ``fednlp join``.

    >>> _option("label"), _option("source")
    ('--label YOURS', '--column source=YOURS')
    """
    return f"--{role} YOURS" if role in _OWN_KEYS else f"--column {role}=YOURS"


def _strange(name: str, task: str, strange: Mapping[str, int], labels: Sequence[str]) -> str:
    """Return one line on the labels that the experiment does not know, the most frequent first, and what to type."""
    unit = "word" if TASKS[task].schema.kind == "tags" else "example"
    ordered = sorted(strange, key=lambda label: (-strange[label], label))
    shown = [f"{quoted(label)} ({plural(strange[label], unit)})" for label in ordered[:_MOST_SHOWN]]
    if len(ordered) > _MOST_SHOWN:
        shown.append(f"{len(ordered) - _MOST_SHOWN:,} more")
    return (
        f"{name} has {plural(len(ordered), 'label')} that the experiment does not know: {listed(shown)}; "
        f"{did_you_mean(ordered[0], labels)}write in [labels] of the site's file which of "
        f'{", ".join(map(repr, labels))} each is, or "" to leave its examples out'
    )
