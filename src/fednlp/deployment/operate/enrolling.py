"""How a site sends messages of enrolment to its server: at once, or again and again until the server is there."""

import time
from collections.abc import Callable
from typing import Any

import grpc

from fednlp.deployment.identity.access import Access
from fednlp.deployment.identity.certificates import SERVER_NAME
from fednlp.deployment.identity.names import broker_scheme
from fednlp.deployment.identity.site_identity import Call
from fednlp.deployment.links.grpc import channel_credentials
from fednlp.deployment.links.grpc.client import enrol, probe
from fednlp.deployment.links.streams import pause
from fednlp.deployment.operate.dial import likely
from fednlp.deployment.session.driver import NotThere
from fednlp.deployment.session.probe import Probe
from fednlp.errors import RunError
from fednlp.simulation.components import Log

_ON_THE_WAY = ("name", "port", "proxy")
"""Checks of the way to a server (:mod:`fednlp.deployment.operate.dial`) that may come out otherwise after a while."""


def credentials(access: Access) -> Any:
    """Return the gRPC credentials of a site's next connection."""
    if access.balancer is None:
        return channel_credentials(access.material())
    return grpc.ssl_channel_credentials(access.balancer.roots())


def asking(access: Access) -> Call:
    """Return what sends a message of enrolment once; where that fails, its error says what is likely to be wrong.

    The error is :class:`NotThere` where the server was not reached.
    """

    def ask(message: bytes) -> bytes:
        address, name = access.address, access.server_name
        broker = bool(broker_scheme(address))
        try:
            if broker:
                from fednlp.deployment.links.mqtt import client

                return client.enrol(address, access.material(), message, server_name=SERVER_NAME)
            return enrol(address, credentials(access), message, server_name=name, prove=access.prove)
        except RunError as error:
            found = likely(address, access.shown(), name)
            if found is not None:
                kind = NotThere if found.check in _ON_THE_WAY else RunError
                raise kind(f"cannot enrol at {address}: {found.text}: {found.remedy}") from None
            if broker:
                raise
            raise NotThere(str(error)) from None  # the way is good by now: it was the server

    return ask


def carry_probe(access: Access, session: Probe) -> None:
    """Carry a probe to a site's server and back.

    Raises:
        NotThere: A broker is there, and the server is not.
        NotAnswered: The server does not know of probes.
        RunError: The probe came to nothing.
    """
    address, name = access.address, access.server_name
    if broker_scheme(address):
        from fednlp.deployment.links.mqtt import client

        client.probe(address, access.material(), session, server_name=SERVER_NAME)
    else:
        probe(address, credentials(access), session, server_name=name, prove=access.prove)


def patiently(ask: Call, log: Log, sleep: Callable[[float], object] = time.sleep) -> Call:
    """Return what sends a message of enrolment again, with growing pauses, for as long as the server is not there.

    Args:
        log: Told why the server is not reached, once for each reason.
        sleep: Waits for so many seconds.
    """

    def asked(message: bytes) -> bytes:
        failures, said = 0, ""
        while True:
            try:
                return ask(message)
            except NotThere as error:
                if str(error) != said:
                    said = str(error)
                    log(f"{said}; this site tries again until it is there")
            sleep(pause(failures))
            failures += 1

    return asked
