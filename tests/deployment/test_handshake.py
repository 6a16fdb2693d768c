"""Identities in real TLS connections: Python's ssl (OpenSSL), and gRPC (BoringSSL), over loopback."""

import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fednlp.deployment.certificates import Material, certificate_pem, key_pem, load_certificate, new_key
from fednlp.deployment.credentials import (
    FIXED_NAME,
    channel_credentials,
    peer_certificate,
    server_credentials,
)
from fednlp.deployment.identity import SiteIdentity
from fednlp.errors import IdentityError

from .federation import DAY, Federation, enrol_message, refusal, request_pem, self_signed
from .tls import handshake

grpc = pytest.importorskip("grpc", reason="gRPC is not installed")


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


@contextmanager
def serving(federation: Federation) -> Iterator[int]:
    """A gRPC server with one call, Enrol, and one, Who, that says which site its peer is."""

    def peer(handler: Callable[[bytes, bytes], bytes]) -> "grpc.RpcMethodHandler":
        return grpc.unary_unary_rpc_method_handler(
            lambda message, call: handler(peer_certificate(call.auth_context()), message)
        )

    def who(certificate: bytes, message: bytes) -> bytes:
        try:
            return federation.admission.authorise(certificate).name.encode()
        except IdentityError as error:
            return str(error).encode()

    methods = {
        "Enrol": peer(lambda shown, message: federation.admission.enrol(shown, message)),
        "Who": peer(who),
    }
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("fednlp.v1", methods)])
        port = server.add_secure_port(
            "127.0.0.1:0", server_credentials(lambda: federation.admission.material())
        )
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def call(port: int, material: Material, method: str, message: bytes = b"") -> bytes:
    """One call on a connection of its own."""
    options = [FIXED_NAME, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"127.0.0.1:{port}", channel_credentials(material), options) as channel:
        return bytes(channel.unary_unary(f"/fednlp.v1/{method}")(message, timeout=30))


def refused(port: int, material: Material) -> bool:
    """Whether TLS lets nobody in."""
    with pytest.raises(grpc.RpcError) as caught:
        call(port, material, "Who")
    return bool(caught.value.code() is grpc.StatusCode.UNAVAILABLE)


def test_grpc_from_the_token_to_the_removal(federation: Federation, tmp_path: Path) -> None:
    """One server all the time: what it trusts changes with every handshake."""
    with serving(federation) as port:
        token, site = federation.invite(), federation.site()
        invited = site.enrolment_material(token)
        assert b"not one of the federation's" in call(port, invited, "Who")
        site.enrol(token, lambda message: call(port, invited, "Enrol", message))
        assert call(port, site.material(), "Who") == b"north"
        assert refused(port, invited)

        site.renew(lambda message: call(port, site.material(), "Enrol", message))
        assert call(port, site.material(), "Who") == b"north"
        other = enrol_message(request_pem(new_key()))
        assert "another key" in refusal(call(port, site.material(), "Enrol", other))

        replaced, token = federation.invite("south"), federation.invite("south")
        assert refused(port, federation.site("south").enrolment_material(replaced))
        south = federation.site("south")
        south.enrol(token, lambda message: call(port, south.enrolment_material(token), "Enrol", message))
        assert call(port, south.material(), "Who") == b"south"

        federation.admission.register.remove("north")
        assert b"the site north was removed" in call(port, site.material(), "Who")
        assert call(port, south.material(), "Who") == b"south"


def test_grpc_refuses_strangers(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other", federation.time)
    site, stranger = federation.joined(), other.joined()
    with serving(federation) as port:
        here = federation.admission.material()
        key = new_key()
        assert refused(port, stranger.material()), "the site does not trust the server"
        assert refused(port, stranger.material()._replace(roots=here.roots))
        assert refused(port, Material(key_pem(key), certificate_pem(self_signed(key=key)), here.roots))
        assert refused(port, Material(here.key, here.chain, here.roots)), (
            "a server's certificate is no site's"
        )
        assert call(port, site.material(), "Who") == b"north"
        federation.time -= 100 * DAY
        expired = federation.joined("late").material()
        federation.time += 100 * DAY
        assert refused(port, expired)


def test_a_server_goes_on_with_a_new_certificate(tmp_path: Path) -> None:
    """Its certificate is replaced between two handshakes; sites see nothing of it."""
    federation = Federation(tmp_path, time.time() - 61 * DAY)
    site = federation.joined()
    with serving(federation) as port:
        assert call(port, site.material(), "Who") == b"north"
        before = federation.admission.material().chain
        federation.time += 61 * DAY
        assert call(port, site.material(), "Who") == b"north"
        assert load_certificate(federation.admission.material().chain) != load_certificate(before)


@pytest.mark.parametrize(
    "auth",
    [
        {},
        {"transport_security_type": [b"ssl"]},
        {"x509_pem_cert": [b"x"], "transport_security_type": [b"local"]},
        {"x509_pem_cert": [b"x", b"y"], "transport_security_type": [b"ssl"]},
    ],
)
def test_a_call_without_mutual_tls_has_no_peer(auth: dict[str, list[bytes]]) -> None:
    with pytest.raises(IdentityError, match="not mutual TLS"):
        peer_certificate(auth)


def test_the_enrolled_site_needs_no_token_again(federation: Federation) -> None:
    federation.joined()
    again = SiteIdentity(federation.folder.parent / "sites" / "north", federation.now)
    assert handshake(federation.admission.material(), again.material()) == "site-0"
