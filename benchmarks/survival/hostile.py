"""Parts ``hostile`` and ``crowd``: whatever is sent, and however many connect."""

import asyncio
import multiprocessing
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from survival.server_faults import resident

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
_BATCH = 2000
_HANGS = 120
"""Seconds after which a batch of frames counts as hanging."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_UPLOAD = 8 << 20


def hostile(folder: Path, frames: int, seed: int) -> dict[str, Any]:
    """Send mutated frames and messages, in and out of turn, to sessions of the server and of a client.

    Args:
        folder: For the sessions' files; one in memory is faster.
        frames: How many.
        seed: Of all that is sent.

    Raises:
        ProtocolError: Never; nor anything else: each frame is taken, or refused by one printable line.
    """
    from tests.deployment.fuzzer import Fuzzer

    os.fsync = lambda handle: None  # the disk of this part need not be safe
    fuzzer = Fuzzer(folder / "fuzz", seed)
    begun, before = time.monotonic(), 0
    signal.signal(signal.SIGALRM, _hangs)
    while (done := fuzzer.taken + fuzzer.refused) < frames:
        signal.alarm(_HANGS)
        fuzzer.run(min(_BATCH, frames - done))
        before = before or resident(os.getpid())
    signal.alarm(0)
    return {
        "frames": done,
        "taken": fuzzer.taken,
        "refused": fuzzer.refused,
        "memory_grew_by": resident(os.getpid()) - before,
        "seconds": round(time.monotonic() - begun, 1),
    }


def mutated(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Mutate tokens, renewals, invitations, certificates and files of an organisation, and sites' files.

    Args:
        folder: For a federation's files; one in memory is faster.
        count: How many mutations.
        seed: Of all of them.

    Raises:
        Exception: Something was raised that is no declared error.
    """
    from tests.deployment.mutations import Mutations

    os.fsync = lambda handle: None  # the disk of this part need not be safe
    made, done, begun, before = Mutations(folder / "mutated", seed), 0, time.monotonic(), 0
    while done < count:
        made.run(step := min(_BATCH, count - done))
        done += step
        before = before or resident(os.getpid())
    return {
        "read": dict(made.read),
        "refused": dict(made.refused),
        "memory_grew_by": resident(os.getpid()) - before,
        "seconds": round(time.monotonic() - begun, 1),
    }


def _hangs(number: int, frame: Any) -> None:
    raise TimeoutError(f"{_BATCH} frames took more than {_HANGS} seconds")


def _serve(port: Any, results: Any, folder: Path, pair: Any, root: bytes) -> None:
    """Be the server of a crowd: ask one client for an upload, and say when it is there."""
    from fednlp.deployment.links.grpc import server as link
    from fednlp.deployment.session.hub import Hub
    from fednlp.deployment.session.messages import Call

    hub = Hub(folder / "hub", "crowd")
    credentials = link.grpc.ssl_server_credentials([pair], root, True)
    number = 0

    def session(peer: Any, wake: Callable[[], None]) -> Any:
        return hub.session(0, wake, time.monotonic)

    port.put(link.serve("127.0.0.1:0", credentials, session, lambda peer, data: data).port)
    while True:
        number += 1
        hub.ask(0, Call(f"{number}.0.train", {}), _UPLOAD)
        hub.take(None)
        results.put(number)
        hub.forget(number)


def crowd(folder: Path, connections: int) -> dict[str, Any]:
    """Hold many connections open that say nothing, or speak slowly, or say nothing after a TLS handshake.

    A client uploads before they come, and while they are there.

    Args:
        folder: New or empty.
        connections: How many.
    """
    from fednlp.deployment.links.system import allow_many_files
    from tests.deployment.throwaway import Authority

    allow_many_files()
    authority, context = Authority(), multiprocessing.get_context("spawn")
    port, results = context.Queue(), context.Queue()
    arguments = (port, results, folder, authority.server_pair(), authority.pem)
    server = context.Process(target=_serve, args=arguments, daemon=True)
    server.start()
    number = port.get(timeout=120)
    try:
        honest = _Honest(folder, f"127.0.0.1:{number}", authority.site("0"))
        alone = honest.upload(results)
        before, files = resident(server.pid or 0), _open_files(server.pid or 0)
        with ExitStack() as stack:
            tls = _context(authority)
            crowd = [stack.enter_context(_stranger(number, kind % 3, tls)) for kind in range(connections)]
            time.sleep(1.0)
            among = honest.upload(results)
            grown, opened = resident(server.pid or 0) - before, _open_files(server.pid or 0) - files
        left = _until(lambda: _open_files(server.pid or 0) <= files + 8)
        after = honest.upload(results)
        honest.leave()
    finally:
        server.kill()
        server.join()
    return {
        "connections": len(crowd),
        "open_at_the_server": opened,
        "upload_seconds": {"alone": alone, "among_them": among, "after": after},
        "memory_grew_by": grown,
        "all_closed_after": left,
    }


class _Honest:
    """A client that answers each call by the same upload."""

    def __init__(self, folder: Path, address: str, credentials: Any) -> None:
        from fednlp.deployment.links.grpc import client as link
        from fednlp.deployment.session.client_session import ClientSession
        from fednlp.deployment.session.objects import ObjectCache
        from fednlp.deployment.session.replies import Outbox

        self.folder, self.data = folder, os.urandom(_UPLOAD)
        self.go = threading.Event()
        self.calls: list[str] = []
        self.session = ClientSession(
            Outbox(folder / "outbox"),
            ObjectCache(folder / "objects"),
            run=None,
            software="1.0",
            on_ready=lambda call: self.calls.append(call.id),
        )
        connecting = link.connect(
            address, lambda: credentials, self.session.begin, server_name="fednlp-server"
        )
        threading.Thread(target=asyncio.run, args=(connecting,), daemon=True).start()

    def upload(self, results: Any) -> float:
        """Answer the next call, and return the seconds until the server has the upload."""
        if not _until(lambda: bool(self.calls)):
            raise RuntimeError("the server does not ask")
        body = self.folder / "body"
        body.write_bytes(self.data)
        begun = time.monotonic()
        self.session.answer(self.calls.pop(), {}, body)
        results.get(timeout=120)
        return round(time.monotonic() - begun, 3)

    def leave(self) -> None:
        """Say goodbye."""
        self.session.leave("it is over")


def _context(authority: Any) -> ssl.SSLContext:
    """Return what a TLS handshake of a site needs."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.set_alpn_protocols(["h2"])
    made.load_verify_locations(cadata=authority.pem.decode())
    key, certificate = authority._pair("1")
    with tempfile.TemporaryDirectory() as name:
        paths = Path(name) / "key", Path(name) / "certificate"
        for path, content in zip(paths, (key, certificate), strict=True):
            path.write_bytes(content)
        made.load_cert_chain(paths[1], paths[0])
    return made


def _stranger(port: int, kind: int, tls: ssl.SSLContext) -> socket.socket:
    """Return a connection that says nothing (0), a part of a TLS greeting (1), or nothing after the greetings (2)."""
    plain = socket.create_connection(("127.0.0.1", port), 30)
    if kind == 1:
        plain.sendall(b"\x16\x03\x01\x02\x00\x01")
    if kind != 2:
        return plain
    secured = tls.wrap_socket(plain, server_hostname="fednlp-server")
    secured.sendall(_PREFACE)
    return secured


def _open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
