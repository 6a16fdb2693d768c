"""Identities in real TLS connections: Python's ssl (OpenSSL), and gRPC (BoringSSL), over loopback."""

import asyncio
import importlib
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fednlp.deployment.identity.certificates import (
    SERVER_NAME,
    Material,
    certificate_pem,
    key_pem,
    load_certificate,
    new_key,
)
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.errors import RunError

from .federation import DAY, Federation, enrol_message, refusal, request_pem, self_signed
from .tls import handshake

pytest.importorskip("grpc", reason="gRPC is not installed")
links = importlib.import_module("fednlp.deployment.links.grpc")
listening = importlib.import_module("fednlp.deployment.links.grpc.server")
dialling = importlib.import_module("fednlp.deployment.links.grpc.client")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, time.time())


def test_ssl_takes_an_invitation_and_then_the_certificate(federation: Federation) -> None:
    site, token = federation.site(), federation.invite()
    material = site.enrolment_material(token)
    assert handshake(federation.admission.material(), material) == "site"
    site.enrol(token, federation.call(material.chain))
    assert handshake(federation.admission.material(), material) == "site", "until it has connected"
    assert handshake(federation.admission.material(), site.material()) == "site-0"
    federation.admission.authorise(site.material().chain)
    with pytest.raises(ssl.SSLError, match="unable to get local issuer"):
        handshake(federation.admission.material(), material)
    assert handshake(federation.admission.material(), site.material()) == "site-0"


def test_ssl_refuses_other_authorities_on_both_sides(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other", federation.time)
    site, stranger = federation.joined(), other.joined()
    here, there = federation.admission.material(), other.admission.material()
    with pytest.raises(ssl.SSLError, match="unable to get local issuer"):
        handshake(here, stranger.material()._replace(roots=here.roots))
    with pytest.raises(ssl.SSLError, match=r"unknown ca|UNKNOWN_CA"):
        handshake(there, site.material())
    key = new_key()
    own = Material(key_pem(key), certificate_pem(self_signed(key=key)), here.roots)
    with pytest.raises(ssl.SSLError, match="self-signed"):
        handshake(here, own)


def test_ssl_refuses_what_has_expired(tmp_path: Path) -> None:
    past = Federation(tmp_path, time.time() - 100 * DAY)
    site = past.joined()
    old = past.admission.material()
    past.time += 100 * DAY
    with pytest.raises(ssl.SSLError, match="certificate has expired"):
        handshake(past.admission.material(), site.material())
    with pytest.raises(ssl.SSLError, match=r"expired|EXPIRED"):
        handshake(old, past.joined("south").material())


def test_ssl_refuses_a_certificate_for_another_purpose(federation: Federation) -> None:
    """A site's certificate does not make a server, nor a server's a site."""
    site, server = federation.joined().material(), federation.admission.material()
    with pytest.raises(ssl.SSLError, match="certificate"):
        handshake(site._replace(roots=server.roots), site)
    with pytest.raises(ssl.SSLError, match=r"unsupported certificate purpose|unsuitable certificate purpose"):
        handshake(server, server)


class Greeting:
    """A session in which the server sends one frame, and that is all; without one it is the client's half."""

    def __init__(self, frame: bytes | None = None) -> None:
        self._frame, self.heard, self.finished = frame, b"", False

    def receive(self, data: bytes) -> None:
        self.heard, self.finished = data, True

    def next_frame(self) -> bytes | None:
        frame, self._frame = self._frame, None
        self.finished = self.finished or frame is not None
        return frame

    def close(self) -> None:
        pass


@contextmanager
def serving(federation: Federation) -> Iterator[str]:
    """A server that greets every site by its name; gives its address."""
    running = listening.serve(
        "127.0.0.1:0",
        links.server_credentials(lambda: federation.admission.material()),
        lambda peer, wake: Greeting(federation.admission.authorise(peer.certificate).name.encode()),
        lambda peer, message: federation.admission.enrol(peer.certificate, message),
    )
    try:
        yield f"127.0.0.1:{running.port}"
    finally:
        running.stop(0)


def who(address: str, material: Material) -> bytes:
    """The name by which the server greets."""
    greeting = Greeting()
    connecting = dialling.connect(
        address, lambda: links.channel_credentials(material), lambda wake: greeting, server_name=SERVER_NAME
    )
    asyncio.run(connecting)
    return greeting.heard


def enrol(address: str, material: Material, message: bytes = b"") -> bytes:
    return dialling.enrol(address, links.channel_credentials(material), message, server_name=SERVER_NAME)


def refused(address: str, material: Material) -> bool:
    """Whether TLS lets nobody in."""
    with pytest.raises(RunError, match=r"cannot enrol at .*(Socket closed|handshake failed)"):
        enrol(address, material)
    return True


def test_grpc_from_the_token_to_the_removal(federation: Federation, tmp_path: Path) -> None:
    """One server all the time: what it trusts changes with every handshake."""
    with serving(federation) as address:
        token, site = federation.invite(), federation.site()
        invited = site.enrolment_material(token)
        with pytest.raises(
            RunError, match="refuses this site: this certificate is not one of the federation's"
        ):
            who(address, invited)
        site.enrol(token, lambda message: enrol(address, invited, message))
        assert who(address, site.material()) == b"north"
        assert refused(address, invited)

        site.renew(lambda message: enrol(address, site.material(), message))
        assert who(address, site.material()) == b"north"
        other = enrol_message(request_pem(new_key()))
        assert "another key" in refusal(enrol(address, site.material(), other))

        replaced, token = federation.invite("south"), federation.invite("south")
        assert refused(address, federation.site("south").enrolment_material(replaced))
        south = federation.site("south")
        south.enrol(token, lambda message: enrol(address, south.enrolment_material(token), message))
        assert who(address, south.material()) == b"south"

        federation.admission.register.remove("north")
        with pytest.raises(RunError, match="refuses this site: the site north was removed"):
            who(address, site.material())
        assert who(address, south.material()) == b"south"


def test_grpc_refuses_strangers(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other", federation.time)
    site, stranger = federation.joined(), other.joined()
    with serving(federation) as address:
        here = federation.admission.material()
        key = new_key()
        assert refused(address, stranger.material()), "the site does not trust the server"
        assert refused(address, stranger.material()._replace(roots=here.roots))
        assert refused(address, Material(key_pem(key), certificate_pem(self_signed(key=key)), here.roots))
        assert refused(address, Material(here.key, here.chain, here.roots)), (
            "a server's certificate is no site's"
        )
        assert who(address, site.material()) == b"north"
        federation.time -= 100 * DAY
        expired = federation.joined("late").material()
        federation.time += 100 * DAY
        assert refused(address, expired)


def test_a_server_goes_on_with_a_new_certificate(tmp_path: Path) -> None:
    """Its certificate is replaced between two handshakes; sites see nothing of it."""
    federation = Federation(tmp_path, time.time() - 61 * DAY)
    site = federation.joined()
    with serving(federation) as address:
        assert who(address, site.material()) == b"north"
        before = federation.admission.material().chain
        federation.time += 61 * DAY
        assert who(address, site.material()) == b"north"
        assert load_certificate(federation.admission.material().chain) != load_certificate(before)


def test_the_enrolled_site_needs_no_token_again(federation: Federation) -> None:
    federation.joined()
    again = SiteIdentity(federation.folder.parent / "sites" / "north", federation.now)
    assert handshake(federation.admission.material(), again.material()) == "site-0"
