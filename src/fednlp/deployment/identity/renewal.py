"""A site's certificate is renewed while the site runs; connections that are open go on, and the next one shows it."""

from collections.abc import Callable

from fednlp.deployment.identity.ca import Clock
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.errors import FednlpError, RunError

EVERY = 3600.0
"""Seconds from one look at the certificate to the next."""


def renew_if_due(
    identity: SiteIdentity, ask: Callable[[bytes], bytes], now: float, log: Callable[[str], None]
) -> None:
    """Renew a site's certificate if it is time; a server that is not there is asked the next time.

    Args:
        identity: Of the site.
        ask: Sends a message of enrolment with the present certificate.
        now: Seconds since 1970.
        log: Called with what happens.

    Raises:
        IdentityError: The server refuses, or gives an answer that is not valid; or the certificate has expired.
    """
    if not identity.renewal_due(now):
        return
    identity.require_current()
    try:
        identity.renew(ask)
    except RunError as error:
        log(f"the certificate could not be renewed yet: {error}")
    else:
        log("the certificate is renewed")


def keep_renewed(
    identity: SiteIdentity,
    ask: Callable[[bytes], bytes],
    wait: Callable[[float], bool],
    now: Clock,
    log: Callable[[str], None],
) -> None:
    """Renew a site's certificate each time that it is due: the work of a thread.

    Args:
        identity: Of the site.
        ask: Sends a message of enrolment with the present certificate.
        wait: Waits for so many seconds, and returns whether this is to end.
        now: The clock.
        log: Called with what happens.
    """
    while not wait(EVERY):
        try:
            renew_if_due(identity, ask, now(), log)
        except FednlpError as error:  # the connection goes on while it may
            log(f"the certificate could not be renewed: {error}")
