"""Labels agreed from the sites' own: without ``data.labels`` the server asks each site that allows it for their names.

Names alone are told, no counts, and they are bounded in number and length: a column of texts that was taken for the
labels is refused at the site.
"""

import time
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fednlp import config
from fednlp.config import Experiment
from fednlp.data.labels import has_labels
from fednlp.data.textdata import in_order
from fednlp.deployment.hub import Hub
from fednlp.deployment.messages import Call
from fednlp.deployment.policy import SitePolicy
from fednlp.deployment.refusals import check_labels, refused_by
from fednlp.deployment.setup import read_experiment
from fednlp.deployment.site_data import UnfitSiteData, open_site_data
from fednlp.disk import atomic
from fednlp.errors import RunError
from fednlp.formatting.safe_text import clean
from fednlp.formulations import TASKS
from fednlp.simulation.run_dir import RunDir, remedy, saving

if TYPE_CHECKING:
    from fednlp.deployment.federation import Members

LABELS = "labels"
"""Name of the call."""
MOST_LABELS, LONGEST_LABEL = 1000, 100
NOT_TOLD = "its labels are too many or too long to be told"
FILE = "labels.json"
"""In the federation's folder on the server: what was agreed."""
_LOOK, _SAY = 1.0, 10.0
_WHEN_ALLOWED = "fednlp join tells them, and a dry run then shows the rest"
_WHEN_REFUSED = "change the site's file, or have the experiment name its labels (data.labels)"


def _label(text: str) -> str:
    name = unicodedata.normalize("NFC", text)
    if not name.isprintable() or not name.strip() or len(name) > LONGEST_LABEL:
        raise ValueError(f"a label has 1 to {LONGEST_LABEL} characters that can be printed")
    return name


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Asked(_Checked):
    experiment: dict[str, JsonValue]


class _Told(_Checked):
    labels: list[Annotated[str, Field(max_length=4 * LONGEST_LABEL), AfterValidator(_label)]] = Field(
        max_length=MOST_LABELS
    )


class _Agreed(_Checked):
    labels: list[str]


# The site's half.


def tell_labels(policy: SitePolicy, site: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a server that asks for the names of a site's labels.

    Args:
        policy: The site's.
        site: Its name.
        request: What the server asks.

    Raises:
        RunError: The policy does not allow it, or the request is not valid.
        UnfitSiteData: The data do not fit the task, or their labels are too many or too long.
    """
    experiment = _experiment(request)
    refusals = check_labels(policy, experiment)
    if refusals:
        raise RunError("; ".join(refused_by(site, refusals)))
    return _Told(labels=own_labels(policy, experiment)).model_dump()


def examine_labels(policy: SitePolicy, site: str, request: Mapping[str, Any], federation: str) -> list[str]:
    """Return the lines that tell what a server would be told of labels; it is told nothing.

    Args:
        policy: The site's.
        site: Its name.
        request: What the server asks.
        federation: The server's address, for people.
    """
    experiment = _experiment(request)
    refusals = check_labels(policy, experiment)
    told = ", ".join(own_labels(policy, experiment)) if not refusals else "nothing"
    return [
        f"{federation} asks for the names of this site's labels, before it sends the experiment {experiment.name}",
        f"tells       {clean(told)}",
        f"refused     {'; '.join(map(str, refusals)) or 'nothing: the file of this site allows it'}",
        f"nothing was sent; {_WHEN_REFUSED if refusals else _WHEN_ALLOWED}",
    ]


def own_labels(policy: SitePolicy, experiment: Experiment) -> list[str]:
    """Return the names of a site's labels, as the experiment calls them.

    Raises:
        UnfitSiteData: The data do not fit the task, or their labels are too many or too long.
    """
    data = open_site_data(policy, experiment.task.configured or "", None)
    names = data.label_names
    longest = max(map(len, names), default=0)
    if len(names) > MOST_LABELS or longest > LONGEST_LABEL:
        raise UnfitSiteData(
            f"{data.name} has {len(names):,} labels of up to {longest:,} characters, and at most {MOST_LABELS:,} of "
            f"{LONGEST_LABEL} are told: name the column of the labels (data.label)",
            NOT_TOLD,
        )
    return list(names)


def _experiment(request: Mapping[str, Any]) -> Experiment:
    try:
        asked = _Asked.model_validate(request)
    except ValidationError:
        raise RunError(
            "the server asks for labels in a way that this version of fednlp does not know"
        ) from None
    return read_experiment(asked.experiment)


# The server's half.


def with_agreed(experiment: Experiment, folder: Path) -> Experiment:
    """Return an experiment with the labels that were agreed before, if it names none and some were.

    Args:
        experiment: Resolved.
        folder: Of the federation, on the server.
    """
    path = folder / FILE
    if experiment.data.labels is not None or not path.is_file():
        return experiment
    return _with_labels(experiment, _Agreed.model_validate_json(path.read_bytes()).labels)


def lacks_labels(experiment: Experiment) -> bool:
    """Return whether an experiment's task has labels, and the experiment does not name them."""
    task = experiment.task.configured
    return task is not None and task in TASKS and has_labels(task) and experiment.data.labels is None


def agree(
    directory: RunDir,
    folder: Path,
    hub: Hub,
    members: "Members",
    look: Callable[[], Collection[int]],
    log: Callable[[str], None],
) -> Experiment:
    """Ask all sites for the names of their labels, and return the experiment with all of them, in a data set's order.

    What was agreed is in the run directory when this returns: its experiment names the labels from now on.

    Args:
        directory: Of the run.
        folder: Of the federation.
        hub: Asks the sites.
        members: Returns all sites that were ever invited.
        look: Called about once a second; returns the sites that were removed.
        log: Called with what happens.

    Raises:
        RunError: A site does not tell its labels, or there are too many or fewer than two.
    """
    experiment = directory.experiment()
    found = with_agreed(experiment, folder)
    if found.data.labels is None:
        told = _collect(experiment, hub, members, look, log)
        labels = _joined(experiment.task.configured or "", told)
        with saving(folder), atomic(folder / FILE, remedy(directory.folder)) as file:
            file.write(_Agreed(labels=labels).model_dump_json(indent=1).encode())
        log(f"the labels are agreed: {', '.join(map(clean, labels))}{_alike(labels)}")
        found = with_agreed(experiment, folder)
    with (
        saving(directory.folder),
        atomic(directory.folder / "resolved.toml", remedy(directory.folder)) as file,
    ):
        file.write(config.dump(found).encode())
    return found


def _collect(
    experiment: Experiment,
    hub: Hub,
    members: "Members",
    look: Callable[[], Collection[int]],
    log: Callable[[str], None],
) -> dict[int, list[str]]:
    """Return what each site tells, by its number."""
    request = _Asked(experiment=experiment.model_dump(exclude_none=True)).model_dump()
    told: dict[int, list[str]] = {}
    asked: set[int] = set()
    said = time.monotonic()
    while True:
        removed = look()
        present = [one for one in members() if one.client not in removed]
        missing = [one.name for one in present if one.client not in told]
        if present and not missing:
            return {client: labels for client, labels in told.items() if client not in removed}
        for one in present:
            if one.state == "enrolled" and one.client not in asked:
                hub.ask(one.client, Call(f"0.{one.client}.{LABELS}", request, {}))
                asked.add(one.client)
        reply = hub.take(_LOOK)
        if reply is not None and reply.id.endswith(f".{LABELS}"):
            name = next(one.name for one in members() if one.client == reply.client)
            told[reply.client] = _read(name, reply.answer, reply.error)
            log(f"site {name} has told its labels ({len(told)} of {len(present)})")
        elif time.monotonic() - said > _SAY:
            said = time.monotonic()
            log(f"waiting for {', '.join(missing)} to join and to tell the names of their labels")


def _read(site: str, answer: Any, error: str | None) -> list[str]:
    """Return the labels that a site tells.

    Raises:
        RunError: It does not.
    """
    allow = "have the site allow it (allow.tell_labels = true)"
    remedy = f"name all labels in data.labels, or {allow}, and start in a new --out"
    if error is not None:
        raise RunError(f"site {site} does not tell the names of its labels: {error}: {remedy}")
    try:
        return _Told.model_validate(answer).labels
    except ValidationError:
        raise RunError(f"what site {site} tells is no list of labels: {remedy}") from None


def _joined(task: str, told: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the labels of all sites, in the order in which a data set numbers them.

    Raises:
        RunError: They are too many, or fewer than two.
    """
    labels = in_order(task, {label for labels in told.values() for label in labels})
    if not 2 <= len(labels) <= MOST_LABELS:
        raise RunError(
            f"the sites have {len(labels):,} labels together, and 2 to {MOST_LABELS:,} can be agreed: name them in "
            "data.labels and start in a new --out"
        )
    return list(labels)


def _alike(labels: Sequence[str]) -> str:
    """Return a hint on labels that differ in case alone; empty where there are none.

    >>> _alike(["Sports", "arts", "sports"])
    "; 'Sports' and 'sports' differ in case alone: if they are one, say so in [labels] of the sites' files"
    """
    known: dict[str, str] = {}
    for label in labels:
        other = known.setdefault(label.casefold(), label)
        if other != label:
            one = "if they are one, say so in [labels] of the sites' files"
            return f"; {clean(other)!r} and {clean(label)!r} differ in case alone: {one}"
    return ""


def _with_labels(experiment: Experiment, labels: list[str]) -> Experiment:
    sections: dict[str, Any] = experiment.model_dump(exclude_none=True)
    sections["data"]["labels"] = labels
    return config.parse(sections, experiment.name).resolved()
