"""Labels agreed from the sites' own: without ``data.labels`` the server asks each site for the names of its labels."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fednlp import config
from fednlp.checked_json.stored import Stored, read_stored
from fednlp.config import Experiment
from fednlp.data.labels import has_labels
from fednlp.data.textdata import in_order
from fednlp.deployment.server.gathering import Member, Members
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Call
from fednlp.deployment.session.setup import sections_for_sites
from fednlp.deployment.site.label_telling import LABELS, MOST_LABELS, AskedLabels, ToldLabels
from fednlp.disk import atomic
from fednlp.errors import RunError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS
from fednlp.simulation.run_dir import RunDir, remedy, saving

FILE = "labels.json"
"""In the federation's folder on the server: what was agreed."""
_LOOK, _SAY = 1.0, 10.0


class _Agreed(Stored):
    labels: list[str]


def with_agreed(experiment: Experiment, folder: Path) -> Experiment:
    """Return an experiment with the labels that were agreed before, if it names none and some were.

    Args:
        experiment: Resolved.
        folder: Of the federation, on the server.

    Raises:
        RunError: The file that names them is damaged.
    """
    path = folder / FILE
    if experiment.data.labels is not None:
        return experiment
    agreed = read_stored(path, _Agreed, "it names no labels", "start in a new --out")
    return experiment if agreed is None else _with_labels(experiment, agreed.labels)


def lacks_labels(experiment: Experiment) -> bool:
    """Return whether an experiment's task has labels, and the experiment does not name them."""
    task = experiment.task.configured
    return task is not None and task in TASKS and has_labels(task) and experiment.data.labels is None


def agree(
    directory: RunDir,
    folder: Path,
    hub: Hub,
    members: Members,
    look: Callable[[], Collection[int]],
    log: Callable[[str], None],
) -> Experiment:
    """Ask all sites for the names of their labels, and return the experiment with all of them, in a data set's order.

    What was agreed is in the run directory when this returns: its experiment names the labels from now on.

    Args:
        members: Returns all sites that were ever invited.
        look: Called about once a second; returns the sites that were removed.
        log: Called with what happens.

    Raises:
        RunError: There are too many labels, or fewer than two.
    """
    experiment = directory.experiment()
    found = with_agreed(experiment, folder)
    if found.data.labels is None:
        told = _collect(directory.folder, experiment, hub, members, look, log)
        labels = _joined(experiment.task.configured or "", told)
        with saving(folder), atomic(folder / FILE, remedy(directory.folder)) as file:
            file.write(_Agreed(labels=labels).model_dump_json(indent=1).encode())
        log(f"the labels are agreed: {', '.join(map(clean, labels))}{_alike(labels)}")
        found = with_agreed(experiment, folder)
    directory.write_experiment(found)
    return found


def _collect(
    directory: Path,
    experiment: Experiment,
    hub: Hub,
    members: Members,
    look: Callable[[], Collection[int]],
    log: Callable[[str], None],
) -> dict[int, list[str]]:
    """Return what each site tells, by its number; one that refuses is asked again once it is back."""
    request = AskedLabels(experiment=sections_for_sites(experiment)).model_dump()
    told: dict[int, list[str]] = {}
    asked: dict[int, int] = {}
    refused: dict[int, float | None] = {}
    said = time.monotonic()
    while True:
        removed, connected = look(), hub.connected()
        present = [one for one in members() if one.client not in removed]
        missing = [one for one in present if one.client not in told]
        if present and not missing:
            return {client: labels for client, labels in told.items() if client not in removed}
        for one in missing:
            client = one.client
            back = client in refused and client in connected and connected[client].since != refused[client]
            if back or (one.state == "enrolled" and client not in asked):
                refused.pop(client, None)
                asked[client] = asked[client] + 1 if back else _answered(hub, client)
                hub.ask(client, Call(_call_id(client, asked[client]), request, {}))
        reply = hub.take(_LOOK)
        if reply is not None and reply.id == _call_id(reply.client, asked.get(reply.client, 0)):
            name = next(one.name for one in present if one.client == reply.client)
            try:
                told[reply.client] = _read(name, reply.answer, reply.error)
                log(f"site {name} has told its labels ({len(told)} of {len(present)})")
            except RunError as error:
                there = connected.get(reply.client)
                refused[reply.client] = None if there is None else there.since
                log(str(error))
        elif time.monotonic() - said > _SAY:
            said = time.monotonic()
            log(
                f"waiting for {', '.join(_state(one, refused, connected) for one in missing)}, for the names of "
                f"their labels: join there, or go on without a site by: fednlp sites remove {directory} NAME"
            )


def _state(member: Member, refused: Collection[int], connected: Collection[int]) -> str:
    """Return a site's name, and why it has told nothing yet."""
    if member.client in refused:
        return f"{member.name} (has refused)"
    if member.client in connected:
        return f"{member.name} (at work)"
    return (
        f"{member.name} ({'not connected' if member.state == 'enrolled' else 'invited, and has not joined'})"
    )


def _call_id(client: int, attempt: int) -> str:
    return f"0.{client}.{LABELS}" + (f"-{attempt}" if attempt > 1 else "")


def _answered(hub: Hub, client: int) -> int:
    """Return the number of the call that a site has answered last, before this server was started; 1 for none."""
    attempt = 1
    while _call_id(client, attempt + 1) in hub.inbox:
        attempt += 1
    return attempt


def _read(site: str, answer: Any, error: str | None) -> list[str]:
    """Return the labels that a site tells.

    Raises:
        RunError: It does not.
    """
    others = "or remove it (fednlp sites remove); or name all labels in data.labels, in a new --out"
    if error is not None:
        refused = "allow.tell_labels" in error
        mended = "allow.tell_labels = true in the site's file" if refused else "let the site mend that"
        raise RunError(
            f"site {site} does not tell the names of its labels: {error}: {mended}, and fednlp join again; {others}"
        )
    try:
        return ToldLabels.model_validate(answer).labels
    except ValidationError:
        raise RunError(
            f"what site {site} tells is no list of labels: let it mend that, and fednlp join again; {others}"
        ) from None


def _joined(task: str, told: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the labels of all sites, in the order in which a data set numbers them.

    Raises:
        RunError: They are too many, or fewer than two.
    """
    labels = in_order(task, {label for labels in told.values() for label in labels})
    if not 2 <= len(labels) <= MOST_LABELS:
        raise RunError(
            f"the sites have {plural(len(labels), 'label')} together, and 2 to {MOST_LABELS:,} can be agreed: name "
            "them in data.labels and start in a new --out"
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
