"""The end of a federation: its server stays until the sites have the final model and have heard of the end.

A site tries again for ever until it has heard it.
"""

import time
from collections.abc import Callable

from fednlp.deployment.server.gathering import Member, Members
from fednlp.deployment.session.frames import CHUNK
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.site.final_model import DECLINED
from fednlp.simulation.components import Log

PATIENCE = 120.0
"""Seconds in which nothing goes to sites that are awaited: more than the longest pause between two tries of a site."""
_LOOK, _TOLD = 0.05, 2.0


def let_go(
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
