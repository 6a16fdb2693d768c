"""The end of a federation at its server, which stays until each site has the final model and has heard of the end.

It sends the shared tensors alone, by the way of all models, or nothing where it keeps them (``rounds.send_model``).
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fednlp.deployment.server.gathering import Member, Members
from fednlp.deployment.session.call_ids import attempt_name
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import CHUNK, Call, ObjectRef
from fednlp.deployment.site.final_model import DECLINED, FinalModel
from fednlp.federated.runtime import MODEL
from fednlp.simulation.components import Log
from fednlp.simulation.run_dir import RunDir

PATIENCE = 120.0
"""Seconds in which nothing goes to sites that are awaited: more than the longest pause between two tries of a site."""
_LOOK, _TOLD = 0.05, 2.0
_AFTER = 3
"""Rounds after the last one, in the numbers of calls: replies of the rounds before are forgotten."""
_MOST_ASKED = 1000


class FinalModels:
    """Asks the sites to take the final model, or to write their own alone, each until it has done so.

    Args:
        directory: Of the run, which is at its end.
        hub: What is asked of whom, and what arrived.
        members: Returns who there is.
        counted: The last round by client in which its update counted.
    """

    def __init__(self, directory: RunDir, hub: Hub, members: Members, counted: Mapping[int, int]) -> None:
        self.directory, self.hub, self.members, self.counted = directory, hub, members, counted
        self.experiment = directory.experiment()
        self._number = self.experiment.num_rounds + _AFTER

    def calls(self) -> dict[int, str]:
        """Return each enrolled site's call: the one by which it took the model, or the next one.

        There is none where the server keeps its model and no site has one of its own.
        """
        sent = self.experiment.rounds.send_model
        if not sent and not self.experiment.client.finetune_steps and not self._summary["personalised"]:
            return {}
        enrolled = (member.client for member in self.members() if member.state == "enrolled")
        return {client: self._call(client) for client in enrolled}

    def _call(self, client: int) -> str:
        for attempt in range(1, _MOST_ASKED):
            call_id = f"{self._number}.{client}.{attempt_name(MODEL, attempt)}"
            reply = self.hub.reply(call_id)
            if reply is None or reply.error is None:
                break
        return call_id

    def have_all(self) -> bool:
        """Return whether each site has taken it, of which the server's disk has the answer."""
        return all(self.hub.reply(call_id) is not None for call_id in self.calls().values())

    @property
    def _summary(self) -> dict[str, Any]:
        return self.directory.read_json("summary.json")

    def ask(self, objects: Mapping[str, ObjectRef]) -> dict[int, str]:
        """Ask the sites that have not answered yet; return the calls of all.

        Args:
            objects: The final model; nothing where the server keeps it.
        """
        calls, known = self.calls(), self.directory.read_json("environment.json")
        known = {
            key: value for key, value in known.items() if key not in ("data", "start")
        }  # no paths of the server
        for client, call_id in calls.items():
            if self.hub.reply(call_id) is None:
                counted = self.counted.get(client, 0)
                told = FinalModel(summary=self._summary, environment=known, counted=counted)
                self.hub.ask(client, Call(call_id, told.model_dump(), dict(objects)))
        return calls


def await_shutdown_acks(
    hub: Hub,
    members: Members,
    log: Log,
    seconds: float = PATIENCE,
    what: str = "the final model",
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Stay until every enrolled site has its last call behind it, and has heard that the federation has ended.

    A site that has the final model, or whose policy takes none, needs no word of the end: it ends by itself.

    Args:
        hub: That has ended.
        members: Returns who there is.
        log: Told who has the final model, who is awaited, and how to end who does not hear of the end.
        seconds: How long it stays at most while nothing goes to those who are awaited.
        what: The model that a site gets by its last call; empty where the server keeps it.
        now: The clock.
        sleep: Waits for so many seconds.

    Returns:
        The names of the sites that have not heard it.
    """
    begun = moved = now()
    told, answered, sent = False, dict[int, bool](), dict[int, int]()
    while True:
        connected = hub.connected()
        heard = hub.heard_the_end() | {client for client, taken in answered.items() if taken}
        missing = []
        for one in members():
            if one.state != "enrolled":
                continue
            if one.client not in answered and (taken := _taken(hub, one, what, log)) is not None:
                answered[one.client] = taken
            if one.client not in heard or one.client in connected:
                missing.append(one)
        if not missing:
            return []
        for one in missing:
            bytes_out = connected[one.client].bytes_out if one.client in connected else 0
            if bytes_out >= sent.get(one.client, 0) + CHUNK:
                moved = now()
            elif bytes_out >= sent.get(one.client, 0):
                continue
            sent[one.client] = bytes_out
        if now() - moved >= seconds:
            break
        if now() - begun >= _TOLD and not told:
            told = True
            log(
                f"the federation has ended: waiting for {_names(missing)} to "
                f"{_wanted(hub, missing, what) or 'hear it'}, for {seconds:.0f} s at most; Ctrl-C ends the waiting"
            )
        try:
            sleep(_LOOK)
        except KeyboardInterrupt:  # all is saved: there is nothing to go on with
            break
    if (lacking := _wanted(hub, missing, what)) is not None:
        log(
            f"{_names(missing)} did not {lacking}: start this server again while fednlp join is at work there"
        )
    else:
        log(
            f"{_names(missing)} did not hear that the federation has ended, and may go on trying: press Ctrl-C there, "
            "or start this server again while they try"
        )
    return [one.name for one in missing]


def _taken(hub: Hub, site: Member, what: str, log: Log) -> bool | None:
    """Say what came of a site's last call, and return whether it is through with it; None without an answer yet."""
    call_id = hub.last_call(site.client)
    reply = None if call_id is None else hub.reply(call_id)
    if reply is None:
        return None
    if reply.error is not None:
        outcome = (
            f"has no {what.removeprefix('the ')}: {reply.error}" if what else f"is not done: {reply.error}"
        )
    elif reply.answer == DECLINED:
        outcome = "takes no final model"
    else:
        outcome = f"has {what}" if what else "is done"
    log(f"{site.name} {outcome}")
    return reply.error is None


def _wanted(hub: Hub, missing: list[Member], what: str) -> str | None:
    """Return what sites that are awaited are asked for; None where they are only to hear of the end."""
    calls = [hub.last_call(one.client) for one in missing]
    asked = any(call_id is not None and hub.reply(call_id) is None for call_id in calls)
    return (f"take {what}" if what else "end their part") if asked else None


def _names(sites: list[Member]) -> str:
    return ", ".join(site.name for site in sites)
