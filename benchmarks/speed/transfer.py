"""Section ``transfer``: an upload over loopback, from one process to another.

The bound is a plain TCP copy in Python: chunks of 1 MiB by ``sendall``, received into one buffer and written to a file;
``checked`` is the same with a SHA-256 of what arrived. Against them stands an upload as a site sends it: from the
moment when its answer is offered to the moment when the server has checked its SHA-256 and stored it, over gRPC
without TLS and with TLS on both sides (mTLS). ``stream`` is gRPC alone: the same bytes over the same link, written to a
file and not checked. ``mqtt`` is that by way of mosquitto, with TLS from end to end, where mosquitto is installed.
``fsync`` at the server is measured there, and not part of any of them. ``answer`` is what the site does meanwhile: it
puts its file on the disk. All of them alternate, so that they meet the same machine.
All times are in seconds, ``cpu`` those of the receiving process.
"""

import asyncio
import hashlib
import multiprocessing
import os
import queue
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CHUNK = 1 << 20
BOUNDS = {"stream": 0.70, "stream_mtls": 0.45, "mqtt": 0.35}


class Arrivals:
    """Tells the measuring process of each file that arrived: when, and what it took here."""

    def __init__(self, results: Any) -> None:
        self.results = results
        self.synced, self.cpu = 0.0, time.process_time()

    def fsync(self, handle: int, plain: Callable[[int], None] = os.fsync) -> None:
        """Do as ``os.fsync``, and add up the seconds."""
        begin = time.monotonic()
        plain(handle)
        self.synced += time.monotonic() - begin

    def tell(self, arrived: float) -> None:
        """Tell of a file that arrived at a time."""
        now = time.process_time()
        self.results.put({"arrived": arrived, "fsync": self.synced, "cpu": now - self.cpu})
        self.synced, self.cpu = 0.0, now


def receive_plain(port: Any, results: Any, folder: Path, size: int, repeats: int, checked: bool) -> None:
    """Receive files over TCP."""
    arrivals = Arrivals(results)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.put(server.getsockname()[1])
        connection, _ = server.accept()
        buffer = memoryview(bytearray(CHUNK))
        for _ in range(repeats):
            with (folder / "file").open("wb", buffering=0) as file:
                left, digest = size, hashlib.sha256()
                while left:
                    count = connection.recv_into(buffer, min(CHUNK, left))
                    file.write(buffer[:count])
                    left -= count
                    if checked:
                        digest.update(buffer[:count])
                arrived = time.monotonic()
                arrivals.fsync(file.fileno())
            arrivals.tell(arrived)


class Receiving:
    """The server's end of a stream without a protocol: bytes go to a file."""

    finished = False

    def __init__(self, arrivals: Arrivals, path: Path, size: int) -> None:
        self.arrivals, self.size, self.left = arrivals, size, size
        self.file = path.open("wb", buffering=0)

    def receive(self, data: bytes) -> None:
        self.file.write(data)
        self.left -= len(data)
        if not self.left:
            arrived = time.monotonic()
            self.arrivals.fsync(self.file.fileno())
            self.arrivals.tell(arrived)
            self.file.seek(0)
            self.file.truncate()
            self.left = self.size

    def next_frame(self) -> bytes | None:
        return None

    def close(self) -> None:
        self.file.close()


class Sending:
    """The client's end of a stream without a protocol."""

    finished = False

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.wake = data, len(data), lambda: None

    def begin(self, wake: Callable[[], None]) -> "Sending":
        self.wake = wake
        return self

    def send(self) -> None:
        """Send all of it once more."""
        self.at = 0
        self.wake()

    def receive(self, data: bytes) -> None: ...

    def next_frame(self) -> bytes | None:
        chunk = self.data[self.at : self.at + CHUNK]
        self.at += len(chunk)
        return chunk or None

    def close(self) -> None: ...


def listen(port: Any, new_session: Callable[..., Any], tls: Any) -> None:
    """Serve sessions over gRPC in another thread of this process."""
    from fednlp.deployment.links.grpc import server as link

    credentials = link.grpc.ssl_server_credentials(*tls) if tls else link.grpc.local_server_credentials()
    port.put(link.serve("127.0.0.1:0", credentials, new_session, lambda peer, data: data).port)


def receive_stream(port: Any, results: Any, folder: Path, size: int, repeats: int, tls: Any) -> None:
    """Receive files over gRPC alone."""
    arrivals = Arrivals(results)
    listen(port, lambda peer, wake: Receiving(arrivals, folder / "file", size), tls)
    threading.Event().wait()


def receive_by_broker(port: Any, results: Any, folder: Path, size: int, repeats: int, where: Any) -> None:
    """Receive files by way of a broker."""
    from fednlp.deployment.links.mqtt.server import serve

    (address, material), arrivals = where, Arrivals(results)
    serve(
        address,
        lambda: material,
        lambda peer, wake: Receiving(arrivals, folder / "file", size),
        lambda peer, data: data,
    )
    port.put(0)
    threading.Event().wait()


def receive_upload(port: Any, results: Any, folder: Path, size: int, repeats: int, tls: Any) -> None:
    """Receive files as the server of a run: ask for each upload, and take it from the inbox."""
    from fednlp.deployment.session.hub import Hub
    from fednlp.deployment.session.messages import Call

    arrivals = Arrivals(results)
    os.fsync = arrivals.fsync  # type: ignore[assignment]
    hub = Hub(folder / "hub", "benchmark")
    listen(port, lambda peer, wake: hub.session(0, wake, time.monotonic), tls)
    for number in range(1, repeats + 1):
        hub.ask(0, Call(f"{number}.0.train", {}), size)
        arrivals.synced = 0.0  # of the transfer alone
        hub.take(None)
        arrivals.tell(time.monotonic() - arrivals.synced)
        hub.forget(number)
    threading.Event().wait()


class Runner:
    """Sends a file once a call to a receiver in a process of its own."""

    def __init__(
        self, receive: Callable[..., None], folder: Path, size: int, repeats: int, option: Any
    ) -> None:
        folder.mkdir()
        self.folder, self.data = folder, os.urandom(size)
        context = multiprocessing.get_context("spawn")
        port, self.results = context.Queue(), context.Queue()
        arguments = (port, self.results, folder, size, repeats, option)
        context.Process(target=receive, args=arguments, daemon=True).start()
        self.port: int = port.get()

    def once(self) -> dict[str, float]:
        """Return the seconds of one transfer."""
        more = self.prepare()
        begin = time.monotonic()
        self.send()
        result: dict[str, float] = self.results.get()
        begin = more.pop("begin", begin)
        return {"seconds": result.pop("arrived") - begin, **result, **more}

    def prepare(self) -> dict[str, float]:
        """Do what comes before the transfer; return further figures."""
        return {}

    def send(self) -> None:
        """Send the file."""
        raise NotImplementedError

    def connect(self, begin: Callable[..., Any], authority: Any) -> None:
        """Drive a session in another thread."""
        from fednlp.deployment.links.grpc import client as link

        credentials = authority.site("site") if authority else link.grpc.local_channel_credentials()
        name = "fednlp-server" if authority else None
        connecting = link.connect(f"127.0.0.1:{self.port}", lambda: credentials, begin, server_name=name)
        threading.Thread(target=asyncio.run, args=(connecting,), daemon=True).start()


class Plain(Runner):
    """Sends over TCP."""

    def __init__(self, folder: Path, size: int, repeats: int, checked: bool) -> None:
        super().__init__(receive_plain, folder, size, repeats, checked)
        self.connection = socket.create_connection(("127.0.0.1", self.port))

    def send(self) -> None:
        view = memoryview(self.data)
        for at in range(0, len(view), CHUNK):
            self.connection.sendall(view[at : at + CHUNK])


class Stream(Runner):
    """Sends over gRPC alone."""

    def __init__(self, folder: Path, size: int, repeats: int, authority: Any) -> None:
        super().__init__(receive_stream, folder, size, repeats, tls_of(authority))
        self.session = Sending(self.data)
        self.connect(self.session.begin, authority)
        time.sleep(1.0)  # until it is connected

    def send(self) -> None:
        self.session.send()


class ByBroker(Runner):
    """Sends by way of a broker."""

    def __init__(self, folder: Path, size: int, repeats: int, where: Any) -> None:
        from fednlp.deployment.links.mqtt.client import connect

        address, authority = where
        server = authority.material("fednlp-server")
        super().__init__(receive_by_broker, folder, size, repeats, (address, server))
        self.session, own = Sending(self.data), authority.material("site")
        connecting = connect(address, lambda: own, self.session.begin, server_name="fednlp-server")
        threading.Thread(target=asyncio.run, args=(connecting,), daemon=True).start()
        time.sleep(2.0)  # until it is connected

    def send(self) -> None:
        self.session.send()


class Upload(Runner):
    """Sends as a site does."""

    def __init__(self, folder: Path, size: int, repeats: int, authority: Any) -> None:
        from fednlp.deployment.session.client_session import ClientSession
        from fednlp.deployment.session.objects import ObjectCache
        from fednlp.deployment.session.replies import Outbox

        super().__init__(receive_upload, folder, size, repeats, tls_of(authority))
        self.calls: Any = queue.SimpleQueue()
        self.session = ClientSession(
            Outbox(folder / "outbox"),
            ObjectCache(folder / "objects"),
            run=None,
            software="0",
            on_ready=lambda call: self.calls.put(call.id),
        )
        self.connect(self.session.begin, authority)

    def prepare(self) -> dict[str, float]:
        from fednlp.deployment.session.objects import Written, ref_of

        call, body = self.calls.get(), self.folder / "body"
        body.write_bytes(self.data)
        written = Written(body, ref_of(body))
        begin = time.monotonic()
        self.session.answer(call, {}, written)  # the transfer begins, and may end, before this returns
        return {"answer": time.monotonic() - begin, "begin": begin}

    def send(self) -> None: ...


def tls_of(authority: Any) -> Any:
    """Return the arguments of a server's credentials; None without an authority."""
    return authority and ([authority.server_pair()], authority.pem, True)


def transfer(megabytes: float, repeats: int) -> dict[str, Any]:
    """Return the figures of the section ``transfer``."""
    from tests.deployment.mosquitto import MOSQUITTO, Mosquitto
    from tests.deployment.throwaway import Authority

    size, authority = round(megabytes * 1e6), Authority()
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name,
        Mosquitto(Path(name)) if MOSQUITTO else nullcontext() as broker,
    ):
        folder = Path(name)
        runs: dict[str, Runner] = {
            "plain": Plain(folder / "plain", size, repeats, checked=False),
            "checked": Plain(folder / "checked", size, repeats, checked=True),
            "stream": Stream(folder / "stream", size, repeats, None),
            "stream_mtls": Stream(folder / "stream_mtls", size, repeats, authority),
            "upload": Upload(folder / "upload", size, repeats, None),
            "upload_mtls": Upload(folder / "upload_mtls", size, repeats, authority),
        }
        if broker is not None:
            runs["mqtt"] = ByBroker(folder / "mqtt", size, repeats, (broker.address, authority))
        times: dict[str, list[dict[str, float]]] = {one: [] for one in runs}
        for _ in range(repeats):
            for one, run in runs.items():
                times[one].append(run.once())
        for child in multiprocessing.active_children():
            child.terminate()
            child.join()
    figures: dict[str, Any] = {"bytes": size, "repeats": repeats}
    for one, rows in times.items():
        figures[one] = {key: spread([row[key] for row in rows]) for key in rows[0]}
    for one, bound in ((one, bound) for one, bound in BOUNDS.items() if one in figures):
        figures[one]["of_plain"] = ratio(figures["plain"], figures[one]) | {"bound": bound}
    for one in ("upload", "upload_mtls"):
        figures[one]["of_checked"] = ratio(figures["checked"], figures[one])
        figures[one]["of_plain"] = ratio(figures["plain"], figures[one])
    return figures


def spread(values: list[float]) -> dict[str, float]:
    """Return the least and the median of some times."""
    return {"min": round(min(values), 4), "median": round(statistics.median(values), 4)}


def ratio(bound: Any, own: Any) -> dict[str, float]:
    """Return the speed of one transfer as a part of another's."""
    return {key: round(bound["seconds"][key] / own["seconds"][key], 3) for key in ("min", "median")}
