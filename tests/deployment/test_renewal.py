"""Certificates renew by themselves while a site runs, by clocks that tests turn; nothing of a round is lost."""

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fednlp.deployment.identity.access import Access, access_of
from fednlp.deployment.identity.certificates import load_certificate
from fednlp.deployment.identity.site_identity import EVERY
from fednlp.deployment.links import streams
from fednlp.deployment.session.client_session import ReadyCall
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Call
from fednlp.errors import IdentityError, RunError

from .driven import session_in
from .federation import DAY, NOW, Federation

SERVED = b"an update" * 1_000_000


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def waiting(
    federation: Federation, days: float, each: Callable[[], None] = lambda: None
) -> Callable[[float], bool]:
    """Return what waits by turning the clock, a day at a time, and ends after some days."""
    until = federation.time + days * DAY

    def wait(seconds: float) -> bool:
        assert seconds == EVERY
        federation.time += DAY
        each()
        return federation.time >= until

    return wait


def test_a_site_that_runs_for_two_years_has_a_certificate_on_every_day(federation: Federation) -> None:
    site, lines, seen = federation.joined(), list[str](), set[bytes]()

    def each() -> None:
        site.require_current()
        chain = site.material().chain
        assert federation.admission.authorise(chain).client == 0
        seen.add(chain)
        server = load_certificate(federation.admission.material().chain)
        assert server.not_valid_after_utc.timestamp() > federation.time

    def ask(message: bytes) -> bytes:
        return federation.call(site.material().chain)(message)

    key = site.material().key
    site.keep_renewed(ask, waiting(federation, 730, each), lines.append)
    assert lines == ["the certificate is renewed"] * len(lines)
    assert 11 <= len(lines) <= 13, "once in two months"
    assert len(seen) == len(lines) + 1
    assert site.material().key == key


def test_a_server_that_is_away_for_weeks_is_asked_until_it_is_back(federation: Federation) -> None:
    site, lines = federation.joined(), list[str]()

    def ask(message: bytes) -> bytes:
        if federation.time < NOW + 85 * DAY:
            raise RunError("nothing listens there")
        return federation.call(site.material().chain)(message)

    site.keep_renewed(ask, waiting(federation, 100), lines.append)
    assert lines[0] == "the certificate could not be renewed yet: nothing listens there"
    assert 20 < len(lines) < 30
    assert lines[-1] == "the certificate is renewed"


def test_a_removed_site_goes_on_until_its_connection_is_refused(federation: Federation) -> None:
    site, lines = federation.joined(), list[str]()
    federation.admission.register.remove("north")
    site.keep_renewed(federation.call(site.material().chain), waiting(federation, 62), lines.append)
    assert all("the server refuses: the site north was removed" in line for line in lines)
    assert lines


def test_a_certificate_that_has_expired_is_not_shown(federation: Federation, tmp_path: Path) -> None:
    federation.joined("north")
    folder = tmp_path / "site"
    folder.mkdir()
    (federation.folder.parent / "sites" / "north").rename(folder / "identity")
    access = access_of(folder, now=federation.now)
    assert access is not None
    assert access.identity is not None
    federation.time += 90 * DAY
    with pytest.raises(IdentityError, match=r"expired on 2026-05-30 .* set the clock, or ask"):
        access.material()
    with pytest.raises(IdentityError, match="expired on 2026-05-30"):
        access.identity.renew_if_due(federation.call(b""), print)


class Live:
    """A real server on loopback, and a site that runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.links = importlib.import_module("fednlp.deployment.links.grpc")
        self.server_link = importlib.import_module("fednlp.deployment.links.grpc.server")
        self.link = importlib.import_module("fednlp.deployment.links.grpc.client")
        self.folder, self.shown = folder, list[bytes]()
        self.federation = Federation(folder, time.time() - 61 * DAY)
        (folder / "site").mkdir()
        self.federation.joined("north")
        (folder / "sites" / "north").rename(folder / "site" / "identity")
        access = access_of(folder / "site", now=self.federation.now)
        assert access is not None
        self.access: Access = access
        self.port, self.lines, self.calls = 0, list[str](), list[str]()
        self.hub = Hub(folder / "hub", "run")
        self.start()
        self.session = session_in(folder, self._work)

    def start(self) -> None:
        admission = self.federation.admission

        def session(peer: Any, wake: Any) -> Any:
            self.shown.append(peer.certificate)
            return self.hub.session(admission.authorise(peer.certificate).client, wake, time.monotonic)

        self.server = self.server_link.serve(
            f"127.0.0.1:{self.port}",
            self.links.server_credentials(admission.material),
            session,
            lambda peer, message: admission.enrol(peer.certificate, message),
        )
        self.port = self.server.port

    def _work(self, call: ReadyCall) -> None:
        self.calls.append(call.id)
        body = self.folder / "body"
        body.write_bytes(SERVED)
        self.session.answer(call.id, {}, body)

    def run(self) -> None:
        connecting = self.link.connect(
            f"127.0.0.1:{self.port}",
            lambda: self.links.channel_credentials(self.access.material()),
            self.session.begin,
            on_state=self.lines.append,
            server_name=self.access.server_name,
        )
        asyncio.run(connecting)

    def enrol(self, message: bytes) -> bytes:
        credentials = self.links.channel_credentials(self.access.material())
        answer: bytes = self.link.enrol(
            f"127.0.0.1:{self.port}", credentials, message, server_name=self.access.server_name
        )
        return answer


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    pytest.importorskip("grpc", reason="gRPC is not installed")
    made = Live(tmp_path)
    monkeypatch.setattr(streams, "FIRST_WAIT", 0.02)
    yield made
    made.session.leave("the test is over")
    made.server.stop(0)
    made.hub.close()


def test_a_site_renews_between_two_updates_and_the_next_connection_shows_it(live: Live) -> None:
    """The connection stays while the certificate is renewed, and the server is stopped only afterwards."""
    import threading

    site = threading.Thread(target=live.run, daemon=True)
    site.start()
    live.hub.ask(0, Call("1.0.train", {}), len(SERVED))
    first = live.hub.take(60)
    live.federation.time += 61 * DAY
    identity = live.access.identity
    assert identity is not None
    assert identity.renewal_due()
    identity.renew_if_due(live.enrol, live.lines.append)
    live.hub.ask(0, Call("2.0.train", {}), len(SERVED))
    second = live.hub.take(60)
    assert len(live.shown) == 1, "one connection"
    live.server.stop(0)
    live.hub.ask(0, Call("3.0.train", {}), len(SERVED))
    live.start()
    third = live.hub.take(60)
    for reply in (first, second, third):
        assert reply is not None
        assert reply.path is not None
        assert reply.path.read_bytes() == SERVED
    assert live.calls == ["1.0.train", "2.0.train", "3.0.train"]
    before, after = (load_certificate(one) for one in live.shown)
    assert after.not_valid_after_utc > before.not_valid_after_utc
    assert before.public_key() == after.public_key()
    live.hub.finish("enough")
    site.join(60)
    assert not site.is_alive()
