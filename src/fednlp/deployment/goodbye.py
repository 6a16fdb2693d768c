"""The end of a federation: its server stays until the sites have heard of it, since a site tries again for ever."""

import time
from collections.abc import Callable

from fednlp.deployment.gathering import Members
from fednlp.deployment.hub import Hub
from fednlp.simulation.components import Log

PATIENCE = 120.0
"""Seconds that sites get to hear it: more than the longest pause between two tries of a site."""
_LOOK, _TOLD = 0.05, 2.0


def let_go(
    hub: Hub,
    members: Members,
    log: Log,
    seconds: float = PATIENCE,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Stay until every enrolled site has heard that the federation has ended; return the names of those that have not.

    Args:
        hub: That has ended.
        members: Returns who there is.
        log: Told who has not heard yet, and how to end who does not hear it.
        seconds: How long it stays at most.
        now: The clock.
        sleep: Waits for so many seconds.
    """
    begun, told = now(), False
    while True:
        heard = hub.heard_the_end() - hub.connected().keys()
        missing = [one.name for one in members() if one.state == "enrolled" and one.client not in heard]
        waited = now() - begun
        if not missing:
            return []
        if waited >= seconds:
            break
        if waited >= _TOLD and not told:
            told = True
            log(
                f"the federation has ended: waiting for {', '.join(missing)} to hear it, for {seconds:.0f} s at most; "
                "Ctrl-C ends the waiting"
            )
        try:
            sleep(_LOOK)
        except KeyboardInterrupt:  # all is saved: there is nothing to go on with
            break
    log(
        f"{', '.join(missing)} did not hear that the federation has ended, and may go on trying: press Ctrl-C there, "
        "or start this server again while they try"
    )
    return missing
