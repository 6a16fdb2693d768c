"""The gRPC driver over loopback: TLS on both sides, lost servers, dead networks, proxies, and many idle clients."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fednlp.deployment.identity.admission.balancer import Challenges
from fednlp.deployment.links import streams
from fednlp.deployment.links.limited_log import MOST_OF_ONE
from fednlp.deployment.session.messages import Call, Stored, pack
from fednlp.errors import RunError

grpc = pytest.importorskip("grpc", reason="a deployment needs grpcio")

from fednlp.deployment.links.grpc import client as dialling  # noqa: E402
from fednlp.deployment.links.grpc import server as listening  # noqa: E402

from .driven import MODEL, SOON, Driven, Served, session_in, until  # noqa: E402
from .throwaway import SERVER, Authority  # noqa: E402

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little between attempts, and for no proxy of the machine's."""
    monkeypatch.setattr(streams, "FIRST_WAIT", 0.02)
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Server(Served):
    """A hub that listens."""

    def __init__(self, folder: Path, authority: Authority, port: int = 0, **settings: Any) -> None:
        super().__init__(folder)
        self.running = listening.serve(
            f"127.0.0.1:{port}",
            authority.server(),
            self.new_session,
            self.enrol,
            log=self.lines.append,
            **settings,
        )
        self.address = f"127.0.0.1:{self.running.port}"

    def stop(self) -> None:
        self.running.stop(0)
        self.hub.close()


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[Server]:
    server = Server(tmp_path, authority)
    yield server
    server.stop()


class Client(Driven):
    """A session over gRPC."""

    def __init__(self, folder: Path, address: str, credentials: Any, **settings: Any) -> None:
        given = {"server_name": SERVER} | settings

        def connect(begin: Callable[..., Any], **more: Any) -> Any:
            return dialling.connect(address, lambda: credentials, begin, **given, **more)

        super().__init__(folder, connect)


def test_objects_go_both_ways_over_mutual_tls(server: Server, authority: Authority, tmp_path: Path) -> None:
    for number in (0, 1):
        server.ask(f"1.{number}.train", number)
    clients = [Client(tmp_path / f"{n}", server.address, authority.site(str(n))) for n in (0, 1)]
    for _ in clients:
        assert server.answered() in (0, 1)
    assert server.hub.connected()[1].bytes_in > len(MODEL)
    server.hub.finish("it is done")
    for client in clients:
        client.thread.join(SOON)
        assert client.session.reason == "it is done"
        assert not any("it is done" in line for line in client.lines)  # who waits for the session says it
    assert not server.lines


def test_a_connection_without_a_stream_is_ended(authority: Authority, tmp_path: Path) -> None:
    """A site that begins one after the other, and ends none, would hold all files that a server may have open."""
    server, states = Server(tmp_path, authority, keepalive=0.2), list[Any]()
    settings = (("grpc.ssl_target_name_override", SERVER),)
    with grpc.secure_channel(server.address, authority.site("0"), settings) as channel:
        channel.subscribe(states.append)
        channel.unary_unary(f"/{listening.SERVICE}/{listening.ENROL}")(b"please", timeout=SOON)
        until(lambda: grpc.ChannelConnectivity.READY in states)
        until(lambda: states[-1] is grpc.ChannelConnectivity.IDLE)
    server.stop()


def test_a_certificate_of_another_authority_is_refused(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    other = Authority()
    key, certificate = other._pair("0")
    strangers = [
        Client(tmp_path / "a", server.address, grpc.ssl_channel_credentials(authority.pem, key, certificate)),
        Client(tmp_path / "b", server.address, grpc.ssl_channel_credentials(authority.pem)),
        Client(tmp_path / "c", server.address, other.site("0")),
        Client(tmp_path / "d", server.address, authority.site("0"), server_name="elsewhere"),
    ]
    for stranger in strangers:
        until(lambda stranger=stranger: len(stranger.lines) >= 2)
        assert f"no connection to {server.address} (" in stranger.lines[0]
        stranger.leave()
        assert not any("connected" in line for line in stranger.lines)
    assert server.hub.connected() == {}


def test_who_is_not_let_in_is_told_why(server: Server, authority: Authority, tmp_path: Path) -> None:
    client = Client(tmp_path / "a", server.address, authority.site("mallory"))
    client.thread.join(SOON)
    assert str(client.error) == f"{server.address} refuses this site: there is no site mallory"
    assert server.lines[0].endswith("there is no site mallory")


def test_a_client_comes_back_when_the_server_does(tmp_path: Path, authority: Authority) -> None:
    first = Server(tmp_path, authority)
    client = Client(tmp_path / "a", first.address, authority.site("0"))
    until(lambda: first.hub.connected())
    first.stop()
    until(lambda: any("next try" in line for line in client.lines))
    second = Server(tmp_path, authority, first.running.port)
    second.ask("1.0.train", 0)
    assert second.answered() == 0
    client.leave()
    until(lambda: not second.hub.connected())
    second.stop()


def test_a_frame_that_is_not_valid_ends_the_connection_with_the_reason(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    class Rude:
        finished = False
        frames: ClassVar[list[bytes]] = [pack(Stored("1.0.train"))]

        def next_frame(self) -> bytes | None:
            return self.frames.pop() if self.frames else None

        def receive(self, data: bytes) -> None: ...

        def close(self) -> None: ...

    lines: list[str] = []

    async def once() -> None:
        task = asyncio.create_task(
            dialling.connect(
                server.address,
                lambda: authority.site("0"),
                lambda wake: Rude(),
                on_state=lines.append,
                server_name=SERVER,
            )
        )
        while not lines:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(once(), SOON))
    assert "a frame of an unknown kind: 23" in lines[0]
    assert server.lines[0].endswith("a frame of an unknown kind: 23")


def test_enrolment_is_one_call(server: Server, authority: Authority) -> None:
    def enrol(request: bytes) -> bytes:
        answer: bytes = dialling.enrol(server.address, authority.site("ward-3"), request, server_name=SERVER)
        return answer

    assert enrol(b"please") == b"ward-3 please"
    with pytest.raises(RunError, match=r"cannot enrol at .*: this token was used"):
        enrol(b"no")
    with pytest.raises(RunError, match="longer than 16384"):
        enrol(b"x" * 20_000)


def test_nobody_fills_the_log(server: Server, authority: Authority) -> None:
    site = authority.site("0")
    for _ in range(2 * MOST_OF_ONE):
        with pytest.raises(RunError, match="this token was used"):
            dialling.enrol(server.address, site, b"no", server_name=SERVER)
    assert len(server.lines) == MOST_OF_ONE


def test_strangers_who_keep_enrolments_open_do_not_keep_a_site_out(
    server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has waited longest makes room."""
    monkeypatch.setattr(listening, "MOST_ENROLLING", 2)
    monkeypatch.setattr(listening, "_PATIENCE", 10 * SOON)

    async def silent() -> None:
        channel = grpc.aio.secure_channel(
            server.address, authority.site("1"), options=[("grpc.ssl_target_name_override", SERVER)]
        )
        async with channel:
            calls = [channel.stream_unary("/fednlp.v1/Enrol")() for _ in range(3)]
            for call in calls:
                with suppress(grpc.aio.AioRpcError):  # it may have been ended by the last one already
                    await call.wait_for_connection()
            codes = {asyncio.ensure_future(call.code()) for call in calls}
            over, _ = await asyncio.wait(codes, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
            assert [one.result() for one in over] == [grpc.StatusCode.DEADLINE_EXCEEDED]
            arguments = server.address, authority.site("0"), b"please"
            answer = await asyncio.to_thread(dialling.enrol, *arguments, server_name=SERVER)
            assert answer == b"0 please"
            over, held = await asyncio.wait(codes - over, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
            assert (len(over), len(held)) == (1, 1), "no more than was needed"
            assert sum(call.cancel() for call in calls) == 1

    asyncio.run(silent())


def test_a_stream_behind_a_balancer_lets_little_in_before_its_proof(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, authority, challenges=Challenges())
    middle, looking, go = Middle(server.running.port), threading.Event(), threading.Event()

    def slowly(context: Any, *arguments: Any) -> Any:
        looking.set()
        go.wait(SOON)
        raise RunError("a stranger")

    monkeypatch.setattr(listening, "_proven", slowly)

    async def flood() -> None:
        channel = grpc.aio.secure_channel(
            middle.address, authority.site("1"), options=[("grpc.ssl_target_name_override", SERVER)]
        )
        async with channel:
            call = channel.stream_stream("/fednlp.v1/Session")()
            with suppress(TimeoutError):
                for _ in range(16):
                    await asyncio.wait_for(call.write(bytes(1 << 20)), 0.5)
            assert await asyncio.to_thread(looking.wait, SOON)
            forwarded = middle.forwarded
            go.set()
            assert forwarded < 1 << 19

    asyncio.run(flood())
    middle.close()
    server.stop()


def test_a_port_in_use_is_named(server: Server, authority: Authority) -> None:
    with pytest.raises(RunError, match=rf"cannot listen at {server.address} .*--listen"):
        listening.serve(server.address, authority.server(), server.new_session, server.enrol)


def test_two_hundred_clients_wait_at_once(server: Server, authority: Authority, tmp_path: Path) -> None:
    sessions = [
        session_in(tmp_path / f"{n}", lambda call, n=n: sessions[n].answer(call.id, {"n": n}, None))
        for n in range(200)
    ]

    async def all_of_them() -> None:
        await asyncio.gather(
            *(
                dialling.connect(
                    server.address, lambda n=n: authority.site(str(n)), one.begin, server_name=SERVER
                )
                for n, one in enumerate(sessions)
            )
        )

    before = threading.active_count()
    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True)
    thread.start()
    until(lambda: len(server.hub.connected()) == 200)
    assert threading.active_count() - before < 20
    for n in range(200):
        server.hub.ask(n, Call(f"1.{n}.keys", {}))
    found: set[int] = set()
    while len(found) < 200:
        reply = server.hub.take(SOON)
        assert reply is not None
        found.add(reply.client)
    server.hub.finish("enough")
    thread.join(SOON)
    assert {session.reason for session in sessions} == {"enough"}


class Middle:
    """A box between client and server that forwards bytes, until it swallows them; or an HTTP proxy."""

    def __init__(self, port: int, http: bool = False) -> None:
        self.port, self.http, self.frozen = port, http, threading.Event()
        self.lines: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self.forwarded = 0
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(near)
            if self.frozen.is_set():
                continue
            if self.http:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += near.recv(1)
                self.lines.append(head.split(b"\r\n")[0])
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            far = socket.create_connection(("127.0.0.1", self.port))
            self.open.append(far)
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(a, b), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if not self.frozen.is_set():
                    sink.sendall(data)
                    self.forwarded += len(data)
            if not self.frozen.is_set():
                sink.close()
        except OSError:
            return

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # which wakes whoever accepts
        self.accepting.join()
        self.listener.close()
        for one in self.open:
            one.close()


def test_a_connection_that_is_dead_without_a_word_is_found_at_both_ends(
    tmp_path: Path, authority: Authority
) -> None:
    server = Server(tmp_path, authority, keepalive=0.3)
    middle = Middle(server.running.port)
    client = Client(tmp_path / "a", middle.address, authority.site("0"), keepalive=0.3)
    until(lambda: server.hub.connected())
    middle.frozen.set()
    until(lambda: not server.hub.connected())
    until(lambda: any("next try" in line for line in client.lines))
    client.leave()
    middle.close()
    server.stop()


def test_a_proxy_of_the_environment_is_used(
    server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = Middle(server.running.port, http=True)
    monkeypatch.setenv("HTTPS_PROXY", f"http://{middle.address}")
    client = Client(tmp_path / "a", "hospital.invalid:8443", authority.site("0"))
    until(lambda: server.hub.connected())
    assert middle.lines[0].startswith(b"CONNECT hospital.invalid:8443 HTTP/1.")
    client.leave()
    middle.close()


def test_connections_that_are_cut_again_and_again_are_explained(
    server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a proxy with a time limit; each is cut as soon as it is there, and this test takes that for a limit."""
    from fednlp.deployment.links import proxy

    monkeypatch.setattr(proxy, "_SHORTEST", 0.0)
    monkeypatch.setattr(proxy, "_SPREAD", 1.0)
    middle = Middle(server.running.port)
    client = Client(tmp_path / "a", middle.address, authority.site("0"))
    for number in range(1, proxy.CUTS + 1):
        until(lambda number=number: sum(line.startswith("connected") for line in client.lines) == number)
        for one in list(middle.open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
    until(lambda: any("a proxy or firewall does: have connections to" in line for line in client.lines))
    client.leave()
    middle.close()


def test_an_error_that_nobody_foresaw_is_said_in_a_line_at_the_server(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC says it in its own log alone, which does not reach a terminal."""

    def fails(self: Any, peer: Any, wake: Any) -> Any:
        raise OSError(5, "Input/output\nerror")

    monkeypatch.setattr(Server, "new_session", fails)
    monkeypatch.setattr(Server, "enrol", fails)
    server = Server(tmp_path, authority)
    client = Client(tmp_path / "a", server.address, authority.site("0"))
    with pytest.raises(RunError):
        dialling.enrol(server.address, authority.site("1"), b"please", server_name=SERVER)
    until(lambda: len(server.lines) >= 2)
    client.leave()
    server.stop()
    assert all("OSError(5, 'Input/output\\nerror')" in line and "\n" not in line for line in server.lines)


def test_a_server_that_stops_prints_no_traceback(
    tmp_path: Path, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    """gRPC's own tasks print one if they are cancelled, as those of streams that have just come."""
    came = threading.Event()

    class Expecting(Server):
        def new_session(self, peer: Any, wake: Callable[[], None]) -> Any:
            came.set()
            return super().new_session(peer, wake)

    async def come(address: str) -> None:
        options = [("grpc.ssl_target_name_override", SERVER)]
        async with grpc.aio.secure_channel(address, authority.site("1"), options=options) as channel:
            calls = [channel.stream_stream("/fednlp.v1/Session")() for _ in range(50)]
            await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)

    for attempt in range(10):
        came.clear()
        server = Expecting(tmp_path / f"{attempt}", authority)
        thread = threading.Thread(target=lambda server=server: asyncio.run(come(server.address)))
        thread.start()
        assert came.wait(SOON)
        server.stop()
        thread.join()
    assert "Traceback" not in capfd.readouterr().err
