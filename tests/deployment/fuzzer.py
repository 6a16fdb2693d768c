"""Mutated frames and sequences of them, against a server's session or a client's: from a seed, any number."""

import hashlib
import json
import re
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from fednlp.deployment.session.client_session import ClientSession
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import (
    Bye,
    Call,
    Finished,
    Get,
    Hello,
    ObjectChunk,
    ObjectRef,
    Refused,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
    pack,
)
from fednlp.deployment.session.objects import ObjectCache
from fednlp.deployment.session.replies import Outbox
from fednlp.errors import ProtocolError

MODEL = Random(1).randbytes(300)
IDS = ("1.0.train", "1.0.keys", "2.0.train", "1.1.train", "9.0.unknown", "0.0.setup")
RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
"""Names that a server may give to its run, whose answers have a folder of that name."""
ODD = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**40 + 1,
    1e308,
    "",
    "\x00",
    "..",
    "../../../etc/passwd",
    "1.0.train/../../x",
    "CON",
    "a" * 70_000,
    [],
    {},
    [[[[[[]]]]]],
    {"a": {"b": {"c": {}}}},
)


class Fuzzer:
    """Feeds sessions, and counts what they refuse.

    Args:
        folder: For the sessions' files.
        seed: Of all that is sent.

    Attributes:
        refused: Frames that raised a ProtocolError.
        taken: Frames that did not.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.refused = self.taken = 0
        self._number = 0
        self.folder.mkdir()
        (folder / "model").write_bytes(MODEL)
        self.answers = [MODEL[:100], MODEL[:1], b""]

    def run(self, frames: int) -> None:
        """Send this many frames."""
        until = self.refused + self.taken + frames
        while self.refused + self.taken < until:
            self._number += 1
            place = self.folder / str(self._number)
            place.mkdir()
            (self._server if self.random.random() < 0.5 else self._client)(place)
            self._check(place)
            shutil.rmtree(place)

    def _server(self, place: Path) -> None:
        hub = Hub(place / "hub", "run")
        ref = hub.add_object(self.folder / "model")
        for call_id in IDS[:3]:
            hub.ask(0, Call(call_id, {"a": 1}, {"model": ref}), 200)
        hub.ask(1, Call("1.1.train", {}), 200)
        session = hub.session(0, lambda: None, lambda: 0.0)
        if self.random.random() < 0.9:
            session.receive(pack(Hello(1, "1.0", None)))
        self._feed(session, [self._from_client(ref) for _ in range(self.random.randrange(1, 40))])
        while (reply := hub.take(0)) is not None:
            assert reply.client == 0
            assert reply.path is None or reply.path.read_bytes() in self.answers
        hub.close()

    def _client(self, place: Path) -> None:
        ready: dict[str, Any] = {}

        def take_up(call: Any) -> None:
            ready[call.id] = call

        session = ClientSession(
            Outbox(place / "outbox"),
            ObjectCache(place / "objects"),
            run=None,
            software="1",
            on_ready=take_up,
            on_withdrawn=ready.pop,
        )
        session.begin(lambda: None)
        if self.random.random() < 0.9:
            session.receive(pack(Welcome(1, "1.0", "run", 0)))
        for _ in range(self.random.randrange(1, 5)):
            self._feed(session, [self._from_server() for _ in range(self.random.randrange(1, 10))])
            while ready:
                _, call = ready.popitem()
                assert all(path.read_bytes() in (MODEL, b"") for path in call.objects.values())
                body = place / "body"
                body.write_bytes(MODEL)
                session.answer(call.id, {}, body)
        session.close()

    def _feed(self, session: Any, frames: list[bytes]) -> None:
        random = self.random
        for frame in frames:
            try:
                session.receive(self._mutated(frame) if random.random() < 0.4 else frame)
                self.taken += 1
            except ProtocolError as error:
                self._said(str(error))
                self.refused += 1
                if random.random() < 0.2:  # a driver would end here; a session has to stand more
                    session.close()
                    return
            for _ in range(random.randrange(3)):
                session.next_frame()
        for _ in range(200):
            if session.next_frame() is None:
                break

    def _from_client(self, ref: ObjectRef) -> bytes:
        random = self.random
        answer = random.choice(self.answers)
        digest = random.choice([_digest(answer), ref.digest, "0" * 64])
        offset = random.choice([0, 0, 0, 1, 50, 100, 200, 2**30])
        call_id = random.choice(IDS)
        message, payload = random.choice(
            [
                (Hello(1, "1.0", "run", [call_id]), b""),
                (Get(digest if random.random() < 0.2 else ref.digest, offset), b""),
                (Reply(call_id, {"loss": 1.0}, digest, len(answer)), b""),
                (Reply(call_id, {"loss": 1.0}, digest, offset), b""),
                (Reply(call_id, None, error="failed"), b""),
                (UploadChunk(call_id, 0), answer or b"x"),
                (UploadChunk(call_id, offset), random.randbytes(random.randrange(1, 120))),
                (Bye("later"), b"") if random.random() < 0.1 else (Get(ref.digest, 0), b""),
            ]
        )
        return pack(message, payload)

    def _from_server(self) -> bytes:
        random = self.random
        digest, size = random.choice(
            [(_digest(MODEL), 300), ("0" * 64, 300), (_digest(b""), 0), ("1" * 64, 2**39)]
        )
        call_id, offset = random.choice(IDS), random.choice([0, 0, 0, 1, 50, 299, 300, 2**30])
        ref = ObjectRef(digest, size)
        message, payload = random.choice(
            [
                (Welcome(1, "1.0", "run", 0), b""),
                (Call(call_id, {}, {"model": ref}), b""),
                (Call(call_id, {}, {"model": ref}), b""),
                (Call(call_id, {}, {}), b""),
                (Withdrawn(call_id), b""),
                (ObjectChunk(digest, 0), MODEL),
                (ObjectChunk(digest, offset), random.randbytes(random.randrange(1, 301))),
                (Resume(call_id, offset), b""),
                (Stored(call_id), b""),
                (random.choice([Finished, Refused])("over"), b"")
                if random.random() < 0.1
                else (Stored(call_id), b""),
            ]
        )
        return pack(message, payload)

    def _mutated(self, frame: bytes) -> bytes:
        random = self.random
        draw = random.randrange(6)
        if draw == 0:
            data = bytearray(frame)
            for _ in range(random.randrange(1, 9)):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(data)
        if draw == 1:
            return frame[: random.randrange(len(frame))]
        if draw == 2:
            return frame + random.randbytes(random.randrange(1, 50))
        if draw == 3:
            return random.randbytes(random.randrange(50))
        kind, length = struct.unpack_from("<BI", frame)
        if draw == 4:
            kind, length = random.choice([*range(26), kind]), random.choice([0, length, 2**32 - 1])
            return struct.pack("<BI", kind, length) + frame[5:]
        value = json.loads(frame[5 : 5 + length])
        key = random.choice(list(value))
        if random.random() < 0.2:
            del value[key]
        else:
            value[key if random.random() < 0.8 else "other"] = random.choice(ODD)
        text = json.dumps(value).encode()
        return struct.pack("<BI", kind, len(text)) + text + frame[5 + length :]

    @staticmethod
    def _said(line: str) -> None:
        """Errors are lines for people, whatever has been sent."""
        assert line.isprintable()
        assert len(line) < 500

    def _check(self, place: Path) -> None:
        """No file is where none belongs, and none is larger than what was promised."""
        kinds = {"inbox", "outbox", "objects", "hub", "run", "body"}
        for path in place.rglob("*"):
            known = path.name in kinds or path.name == "done" or path.name[0] in "0123456789abcdef."
            assert known or (path.parent.name == "outbox" and RUN.fullmatch(path.name)), path
            assert path.is_dir() or path.stat().st_size <= 2000, path


def _digest(data: bytes) -> str:

    return hashlib.sha256(data).hexdigest()
