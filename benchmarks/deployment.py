"""What a deployment costs: a section for each part.

    python benchmarks/deployment.py                          # all sections; prints JSON
    python benchmarks/deployment.py transfer --megabytes 90 --repeats 7

``transfer``: an upload over loopback, from one process to another. The bound is a plain TCP copy in Python: chunks of
1 MiB by ``sendall``, received into one buffer and written to a file. Against it stands an upload as a site sends it:
from the moment when its answer is on its own disk to the moment when the server has checked its SHA-256 and stored it,
over gRPC without TLS and with TLS on both sides (mTLS). ``fsync`` at the server is measured there, and not part of
any of the three. What the site does before, which is to hash its file and put it on the disk, is a figure of its own.
The three alternate, so that they meet the same machine. All times in seconds.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deployment"))

CHUNK = 1 << 20
BOUNDS = {"grpc": 0.70, "mtls": 0.45}


def receive_plain(port: Any, results: Any, folder: Path, size: int, repeats: int) -> None:
    """Receive ``repeats`` files over TCP, and tell when each one had arrived, and how long its ``fsync`` took."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.put(server.getsockname()[1])
        connection, _ = server.accept()
        buffer = memoryview(bytearray(CHUNK))
        for number in range(repeats):
            with (folder / f"plain-{number}").open("wb", buffering=0) as file:
                left = size
                while left:
                    count = connection.recv_into(buffer, min(CHUNK, left))
                    file.write(buffer[:count])
                    left -= count
                arrived = time.monotonic()
                os.fsync(file.fileno())
            results.put((arrived, time.monotonic() - arrived))
            (folder / f"plain-{number}").unlink()


def receive_upload(port: Any, results: Any, folder: Path, size: int, repeats: int, tls: Any) -> None:
    """Do the same as the server of a run: ask for each upload, and take it from the inbox."""
    from fednlp.deployment.hub import Hub
    from fednlp.deployment.links import grpc as link
    from fednlp.deployment.messages import Call

    synced = timed_fsync()
    hub = Hub(folder / "hub", "benchmark")
    credentials = (
        link.grpc.local_server_credentials() if tls is None else link.grpc.ssl_server_credentials(*tls)
    )
    server = link.serve(
        "127.0.0.1:0",
        credentials,
        lambda peer, wake: hub.session(0, wake, time.monotonic),
        lambda peer, data: data,
    )
    port.put(server.port)
    for number in range(1, repeats + 1):
        hub.ask(0, Call(f"{number}.0.train", {}), size)
        if hub.take(None) is None:
            raise AssertionError
        results.put((time.monotonic() - synced[0], synced[0]))
        synced[0] = 0.0
        hub.forget(number)
    hub.finish("measured")
    time.sleep(0.5)
    server.stop()


def timed_fsync() -> list[float]:
    """Have ``os.fsync`` add up its seconds in the list that is returned."""
    seconds, plain = [0.0], os.fsync

    def fsync(handle: int) -> None:
        begin = time.monotonic()
        plain(handle)
        seconds[0] += time.monotonic() - begin

    os.fsync = fsync
    return seconds


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, int, Any]:
    """Start a server in a process of its own; return the process, its port, and the queue of its results."""
    context = multiprocessing.get_context("spawn")
    port, results = context.Queue(), context.Queue()
    process = context.Process(target=target, args=(port, results, *arguments), daemon=True)
    process.start()
    return process, port.get(), results


class Plain:
    """Sends over TCP."""

    def __init__(self, folder: Path, size: int, repeats: int) -> None:
        self.data = os.urandom(size)
        self.process, port, self.results = start(receive_plain, folder, size, repeats)
        self.connection = socket.create_connection(("127.0.0.1", port))

    def once(self) -> dict[str, float]:
        """Return the seconds of one copy."""
        begin, view = time.monotonic(), memoryview(self.data)
        for at in range(0, len(view), CHUNK):
            self.connection.sendall(view[at : at + CHUNK])
        arrived, synced = self.results.get()
        return {"seconds": arrived - begin, "fsync": synced}


class Upload:
    """Sends as a site does."""

    def __init__(self, folder: Path, size: int, repeats: int, authority: Any = None) -> None:
        from fednlp.deployment.client_session import ClientSession
        from fednlp.deployment.links import grpc as link
        from fednlp.deployment.objects import ObjectCache
        from fednlp.deployment.outbox import Outbox

        self.data, self.folder = os.urandom(size), folder
        self.calls: Any = multiprocessing.get_context("spawn").SimpleQueue()
        tls = authority and ([authority.server_pair()], authority.pem, True)
        self.process, port, self.results = start(receive_upload, folder, size, repeats, tls)
        self.session = ClientSession(
            Outbox(folder / "outbox"),
            ObjectCache(folder / "objects"),
            run=None,
            software="0",
            on_ready=lambda call: self.calls.put(call.id),
        )
        credentials = authority.site("site") if authority else link.grpc.local_channel_credentials()
        name = "fednlp-server" if authority else None
        threading.Thread(
            target=link.connect,
            args=(f"127.0.0.1:{port}", credentials, self.session.begin),
            kwargs={"server_name": name},
            daemon=True,
        ).start()

    def once(self) -> dict[str, float]:
        """Return the seconds of one upload, and of what the site and the server's disk do besides."""
        call, body = self.calls.get(), self.folder / "body"
        body.write_bytes(self.data)
        begin = time.monotonic()
        self.session.answer(call, {}, body)
        sent = time.monotonic()
        arrived, synced = self.results.get()
        return {"seconds": arrived - sent, "fsync": synced, "answer": sent - begin}


def transfer(megabytes: float, repeats: int) -> dict[str, Any]:
    """Return the figures of the section ``transfer``."""
    from throwaway import Authority

    size = round(megabytes * 1e6)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        folders = {one: Path(name) / one for one in ("plain", "grpc", "mtls")}
        for folder in folders.values():
            folder.mkdir()
        runs: dict[str, Any] = {
            "plain": Plain(folders["plain"], size, repeats),
            "grpc": Upload(folders["grpc"], size, repeats),
            "mtls": Upload(folders["mtls"], size, repeats, Authority()),
        }
        times: dict[str, list[dict[str, float]]] = {one: [] for one in runs}
        for _ in range(repeats):
            for one, run in runs.items():
                times[one].append(run.once())
    figures: dict[str, Any] = {"bytes": size, "repeats": repeats, "bounds": BOUNDS}
    for one, rows in times.items():
        for key in rows[0]:
            values = [row[key] for row in rows]
            figures[f"{one}_{key}"] = {
                "min": round(min(values), 4),
                "median": round(statistics.median(values), 4),
            }
    for one, bound in BOUNDS.items():
        ratios = {
            key: round(figures["plain_seconds"][key] / figures[f"{one}_seconds"][key], 3)
            for key in ("min", "median")
        }
        figures[f"{one}_of_plain"] = ratios | {"held": ratios["median"] >= bound}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a deployment.")
    parser.add_argument("section", nargs="?", default="transfer", choices=["transfer"])
    parser.add_argument("--megabytes", type=float, default=90.0)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    figures = {"transfer": transfer(arguments.megabytes, arguments.repeats)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
