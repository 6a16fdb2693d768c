"""fednlp doctor: each step of the way to a throwaway server, and what is said of this machine."""

import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.cli import main
from fednlp.deployment.identity.certificates import certificate_pem, new_key, new_root
from fednlp.deployment.identity.enrolment import store_address
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.deployment.identity.tokens import JoinToken
from fednlp.deployment.links.grpc import server_credentials
from fednlp.deployment.links.proxy import proxy_for, why_no_proxy
from fednlp.deployment.operate import dial as steps
from fednlp.deployment.operate.dial import connect, dial, resolve
from fednlp.deployment.operate.doctor import examine, target_of
from fednlp.deployment.operate.findings import (
    GOOD,
    WARNING,
    WRONG,
    Finding,
    certificate_dates,
    device,
    disk,
    token_expiry,
    versions,
)
from fednlp.deployment.session.driver import PeerIdentity
from fednlp.deployment.session.messages import CHUNK
from fednlp.deployment.session.probe import Echo
from fednlp.errors import IdentityError, RunError

from .federation import DAY, Federation, self_signed

BEGINS, ENDS = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
DATED = new_root("dated", new_key(), BEGINS, ENDS)
Serve = Callable[[Callable[[socket.socket], None]], str]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve one connection after the other by a function, at an address of its own."""
    listeners = []

    def start(answer: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                with closing(plain):
                    answer(plain)

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


class Limited(Echo):
    """What a proxy makes of a probe that lets 1 MiB of a request through."""

    def receive(self, data: bytes) -> None:
        super().receive(data)
        if self._arrived > CHUNK:
            raise RunError("the request is too large")


@pytest.fixture
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Federation, str]]:
    """A federation with a server that listens, and its address; its parameter answers probes."""
    link = importlib.import_module("fednlp.deployment.links.grpc.server")
    made, echo = Federation(tmp_path, time.time()), getattr(request, "param", Echo)

    def refuse(*arguments: object) -> None:
        raise IdentityError("nobody takes part here")

    def probe(peer: PeerIdentity, wake: object) -> Echo:
        made.admission.require_known(peer.certificate)
        return echo()

    credentials = server_credentials(made.admission.material)
    server = link.serve("127.0.0.1:0", credentials, refuse, refuse, probe=None if echo is None else probe)
    address = f"127.0.0.1:{server.port}"
    store_address(made.folder, address)
    try:
        yield made, address
    finally:
        server.stop()


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {one.check: one for one in findings}


# ---- the way to the server -----------------------------------------------------------------------------------------


def test_a_token_that_is_good_is_let_in_and_not_used_up(federation: tuple[Federation, str]) -> None:
    made, _ = federation
    token = made.invite()
    for _ in range(2):
        found = by_check(examine(target_of(str(token))))
        assert [
            found[check].state
            for check in ("name", "port", "proxy", "TLS", "clock", "site", "transfer", "token")
        ] == [GOOD] * 8, found
    site = made.site()
    site.enrol(token, made.call(site.enrolment_material(token).chain))


def test_a_token_that_was_used_is_refused(federation: tuple[Federation, str]) -> None:
    made, address = federation
    site, token = made.site(), made.invite()
    site.enrol(token, made.call(site.enrolment_material(token).chain))
    made.admission.authorise(site.material().chain)  # it has connected
    found = by_check(examine(target_of(str(token))))
    assert found["TLS"].state == GOOD
    assert found["site"].state == WRONG
    assert "was used" in found["site"].text
    assert by_check(dial(address, site.material(), time.time()))["site"].state == GOOD


@pytest.mark.parametrize(
    ("federation", "state", "words"),
    [
        (Echo, GOOD, "4.19 MB went to the server and back"),
        (Limited, WRONG, "the connection ends after"),
        (None, WARNING, "does not answer probes"),
    ],
    indirect=["federation"],
)
def test_more_than_a_handshake_is_sent_and_comes_back(
    federation: tuple[Federation, str], state: str, words: str
) -> None:
    """A proxy's limit on requests lets an enrolment through, and no update."""
    made, _ = federation
    found = by_check(examine(target_of(str(made.invite()))))["transfer"]
    assert (found.state, words in found.text) == (state, True), found.text
    assert ("client_max_body_size 0" in found.remedy) is (state == WRONG)


def test_a_probe_is_for_those_who_take_part_or_are_invited(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    site, token = made.site(), made.invite()
    invited = site.enrolment_material(token).chain
    for _ in range(2):
        made.admission.require_known(invited)
    site.enrol(token, made.call(invited))
    made.admission.require_known(site.material().chain)
    made.admission.register.remove("north")
    for shown in (invited, site.material().chain, certificate_pem(self_signed()), None):
        with pytest.raises(IdentityError):
            made.admission.require_known(shown)


def test_another_authority_is_found_out(federation: tuple[Federation, str], tmp_path: Path) -> None:
    _, address = federation
    other = Federation(tmp_path / "other", time.time())
    token = other.invite()
    wrong = JoinToken(token.site, address, token.authority, token.secret, token.expires)
    found = by_check(examine(target_of(str(wrong))))
    assert found["TLS"].state == WRONG
    assert "own token" in found["TLS"].remedy
    assert "site" not in found


def test_an_address_alone_is_looked_at(federation: tuple[Federation, str]) -> None:
    found = by_check(examine(target_of(federation[1])))
    assert (found["TLS"].state, found["clock"].state) == (WARNING, GOOD)
    assert "give the join token" in found["TLS"].remedy


def test_a_clock_that_is_wrong_is_found_although_tls_would_fail(federation: tuple[Federation, str]) -> None:
    made, address = federation
    site = made.joined()
    for now, words in ((made.time - 10 * DAY, "valid from"), (made.time + 100 * DAY, "was valid until")):
        clock = by_check(dial(address, site.material(), now))["clock"]
        assert (clock.state, words in clock.text, "set the clock" in clock.remedy) == (WRONG, True, True)


def test_a_member_is_found_by_its_name_and_by_its_folder(
    federation: tuple[Federation, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, address = federation
    monkeypatch.setenv("FEDNLP_HOME", str(tmp_path / "home"))
    folder, token = tmp_path / "home" / "trial", made.invite()
    folder.mkdir(parents=True)
    site = SiteIdentity(folder / "identity")
    site.enrol(token, made.call(site.enrolment_material(token).chain))
    for text in ("trial", str(folder)):
        target = target_of(text)
        assert (target.address, target.member) == (address, True)
        assert by_check(examine(target))["site"].state == GOOD
    with pytest.raises(RunError, match="has joined trial"):
        target_of("other")


def test_a_name_that_does_not_resolve() -> None:
    found = resolve("does-not-exist.invalid", 8443)
    assert (found.state, "spelt" in found.remedy) == (WRONG, True)
    assert list(dial("does-not-exist.invalid:8443", None, 0.0)) == [found], "nothing else is tried"


def test_a_port_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    connection, found = connect("127.0.0.1", port)
    assert connection is None
    assert (found.state, "start fednlp serve" in found.remedy) == (WRONG, True)


def test_what_speaks_no_tls(serve: Serve) -> None:
    address = serve(lambda plain: plain.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"))
    found = by_check(dial(address, None, time.time()))
    assert (found["TLS"].state, "not by TLS" in found["TLS"].text) == (WRONG, True)


def test_what_cuts_the_connection(serve: Serve) -> None:
    address = serve(lambda plain: plain.recv(1))
    assert by_check(dial(address, None, time.time()))["TLS"].state == WRONG


def test_what_says_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PATIENCE", 0.2)
    silent = threading.Event()
    address = serve(lambda plain: silent.wait(20) and None)
    assert by_check(dial(address, None, time.time()))["TLS"].state == WRONG
    silent.set()


# ---- proxies ---------------------------------------------------------------------------------------------------------


def pipe(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def connecting_proxy(asked: list[bytes], to: str) -> Callable[[socket.socket], None]:
    """A proxy that connects everybody to one address."""

    def answer(plain: socket.socket) -> None:
        asked.append(plain.recv(1 << 14))
        host, _, port = to.rpartition(":")
        with socket.create_connection((host, int(port))) as onwards:
            plain.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
            back = threading.Thread(target=pipe, args=(onwards, plain), daemon=True)
            back.start()
            pipe(plain, onwards)
            back.join()

    return answer


def test_the_way_through_a_proxy(
    federation: tuple[Federation, str], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, address = federation
    asked: list[bytes] = []
    proxy = serve(connecting_proxy(asked, address))
    monkeypatch.setenv("HTTPS_PROXY", f"http://us%40er:secret@{proxy}")
    material = made.joined().material()
    found = by_check(dial("fl.invalid:8443", material, time.time()))  # a name that only the proxy knows
    assert [found[check].state for check in ("name", "port", "proxy", "TLS", "clock", "site")] == [
        GOOD
    ] * 6, found
    assert asked[0].startswith(b"CONNECT fl.invalid:8443 HTTP/1.1\r\nHost: fl.invalid:8443\r\n")
    assert b"Proxy-Authorization: Basic dXNAZXI6c2VjcmV0\r\n" in asked[0]
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "give the login"),
        (b"HTTP/1.1 403 Forbidden\x1b[2J\r\n\r\n", "allowed there"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "compare HTTPS_PROXY"),
        (b"", "compare HTTPS_PROXY"),
    ],
)
def test_a_proxy_that_refuses(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    def refuse(plain: socket.socket) -> None:
        plain.recv(1 << 14)
        plain.sendall(answer)

    monkeypatch.setenv("HTTPS_PROXY", serve(refuse))
    found = by_check(dial("fl.invalid:8443", None, time.time()))
    assert found["proxy"].state == WRONG
    assert words in found["proxy"].remedy
    assert "\x1b" not in found["proxy"].text
    assert "TLS" not in found


def test_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.org,.lan")
    assert proxy_for("fl.example.org:8443") == "http://proxy.example.org:3128"
    for address, why in {
        "inside.example.org:8443": "NO_PROXY names the server",
        "a.lan:8443": "NO_PROXY names the server",
        "127.0.0.1:8443": "is not for 127.0.0.1, which is this machine",
        "[::1]:8443": "which is this machine",
        "localhost:1": "which is this machine",
    }.items():
        assert proxy_for(address) is None, address
        assert why in why_no_proxy(address)
    monkeypatch.delenv("HTTPS_PROXY")
    assert why_no_proxy("fl.example.org:8443") == "HTTPS_PROXY is not set"


# ---- this machine ----------------------------------------------------------------------------------------------------


@given(st.integers(-(10**8), 10**8))
def test_certificate_dates(offset: int) -> None:
    for edge in (BEGINS.timestamp(), ENDS.timestamp()):
        now = edge + offset
        right = BEGINS.timestamp() <= now <= ENDS.timestamp()
        assert certificate_dates("its", DATED, now).state == (GOOD if right else WRONG)


def test_token_expiry() -> None:
    assert [token_expiry(1000.0, now).state for now in (999.0, 1001.0, 1000.0 + 3 * DAY)] == [
        GOOD,
        WARNING,
        WRONG,
    ]


def test_versions_device_and_disk() -> None:
    assert versions({"fednlp": "1", "torch": "2"}).state == GOOD
    assert versions({"fednlp": "1", "grpcio": None}).state == WRONG
    words = "8 cores, 16 GB of memory, 8 GB of it free, no GPU that torch can use"
    assert device(8, 16 * 10**9, 8 * 10**9, []).text == words
    assert device(8, 16 * 10**9, 10**9, ["A100"]).state == WARNING
    assert device(1, None, None, ["A100"]) == Finding("device", GOOD, "1 core, A100")
    sizes = [disk("it", "/x", free, True, "X").state for free in (10**10, 10**9, 10**8)]
    assert sizes == [GOOD, WARNING, WRONG]
    assert "set X" in disk("it", "/x", 10**10, False, "X").remedy


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command(
    federation: tuple[Federation, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, _ = federation
    monkeypatch.setattr(sys, "argv", ["fednlp", "doctor", str(made.invite())])
    with pytest.raises(SystemExit) as end:
        main()
    lines = capsys.readouterr().out.splitlines()
    way = ["name", "port", "proxy", "TLS", "clock", "site", "transfer"]
    checks = [*way, "token", "versions", "device", "disk", "disk"]
    assert [line.split()[1] for line in lines] == checks
    assert end.value.code == int(any(line.startswith("wrong") for line in lines))


@pytest.mark.parametrize("text", ["fednlp1:AAAA", "fednlp9:AAAA", "no such federation", "host:port"])
def test_what_is_no_target(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDNLP_HOME", str(tmp_path))
    with pytest.raises((IdentityError, RunError)):
        target_of(text)
