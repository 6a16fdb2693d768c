"""The clients of a server: what is asked of each, who is connected, who is refused, and who was told the end."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fednlp.deployment.session.calls import OpenCall, Presence
from fednlp.deployment.session.messages import printable

if TYPE_CHECKING:
    from fednlp.deployment.session.server_session import ServerSession


@dataclass
class KnownClient:
    """What a server knows of one client.

    Attributes:
        calls: What is asked of it and not stored yet, in the order of asking.
        withdrawn: The calls whose replies are no longer wanted.
        removed: Why it is refused; None if it is not.
        heard_the_end: Whether it was told that the run is over.
        last_call: The call that it answers before it is told so; None where there is none.
        session: Of its connection; None where there is none.
    """

    calls: dict[str, OpenCall] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    removed: str | None = None
    heard_the_end: bool = False
    last_call: str | None = None
    session: ServerSession | None = None

    def needs(self, digest: str, calls: Container[str] | None = None) -> list[OpenCall]:
        """Return the open calls that need an object.

        Args:
            digest: Of the object.
            calls: The calls to look at; all if left out.
        """
        return [
            one
            for one in self.calls.values()
            if (calls is None or one.call.id in calls)
            and any(ref.digest == digest for ref in one.call.objects.values())
        ]

    def wake(self) -> None:
        """Have the driver of its connection ask for frames again."""
        if self.session:
            self.session.wake()


class Roster:
    """The clients of a server, by number.

    Attributes:
        lock: Held while anything of them is read or changed.
        ended: Why the run is over; None while it is not.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ended: str | None = None
        self._clients: dict[int, KnownClient] = {}

    def client(self, number: int) -> KnownClient:
        """Return what is known of a client; the lock is held."""
        return self._clients.setdefault(number, KnownClient())

    def clients(self) -> list[KnownClient]:
        """Return all clients of which something is known; the lock is held."""
        return list(self._clients.values())

    def connected(self) -> dict[int, Presence]:
        """Return who is connected, by number."""
        with self.lock:
            sessions = {client: known.session for client, known in sorted(self._clients.items())}
            return {
                client: Presence(one.since, one.heard, one.bytes_in, one.bytes_out, one.doing, one.set_up)
                for client, one in sessions.items()
                if one is not None and one.welcomed
            }

    def finish(self, reason: str, last_calls: Mapping[int, str] | None = None) -> None:
        """Tell all clients, also those that come later, that the run is over.

        Args:
            reason: Why.
            last_calls: The call, already asked, that a client is to answer before it is told so, by its number.
        """
        with self.lock:
            self.ended = printable(reason)
            for client in last_calls or {}:
                self.client(client)
            for client, known in self._clients.items():
                known.last_call = (last_calls or {}).get(client)
                if known.session and self.hears_the_end(client):
                    known.session.finish(self.ended)
                known.wake()

    def last_call(self, client: int) -> str | None:
        """Return the call that a client answers before it is told that the run is over; None where there is none."""
        with self.lock:
            return self.client(client).last_call

    def heard_the_end(self) -> set[int]:
        """Return the clients that were told that the run is over."""
        with self.lock:
            return {client for client, known in self._clients.items() if known.heard_the_end}

    def remove(self, client: int, reason: str) -> None:
        """Refuse a client from now on, and end its session."""
        with self.lock:
            known = self.client(client)
            known.removed = printable(reason)
            if known.session:
                known.session.refuse(known.removed)
            known.wake()

    def readmit(self, client: int) -> None:
        """Refuse a client no longer that was removed."""
        with self.lock:
            self.client(client).removed = None

    # The sessions' side; they hold the lock.

    def join(self, session: ServerSession) -> None:
        """Take note of a new connection, which replaces an older one of the same client."""
        known = self.client(session.client)
        if known.session:
            known.session.refuse(
                f"this site, client {session.client}, has joined again from another process or machine, "
                "and this one stops: run fednlp join in one place only"
            )
            known.wake()
        known.session = session

    def leave(self, session: ServerSession) -> None:
        """Take note that the connection of a session is gone."""
        known = self.client(session.client)
        if known.session is session:
            known.session = None

    def hears_the_end(self, client: int) -> bool:
        """Return whether a client is to be told that the run is over: it is, and its last call is answered."""
        known = self.client(client)
        return self.ended is not None and known.last_call not in known.calls

    def told_the_end(self, client: int) -> None:
        """Take note that a client was told that the run is over."""
        self.client(client).heard_the_end = True

    def removed(self, client: int) -> str | None:
        """Return why a client is refused, or None if it is not."""
        return self.client(client).removed

    def open_calls(self, client: int) -> dict[str, OpenCall]:
        """Return what is asked of a client and not stored yet, in the order of asking."""
        return self.client(client).calls
