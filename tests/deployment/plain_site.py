"""A site of another's making: what docs/deployment/protocol.md says, and nothing of fednlp; for a federation by MQTT.

Written from the page alone, with Python's own library, paho-mqtt and cryptography. Its trainer is a function from the
bytes of the model to those of the update.
"""

import base64
import hashlib
import json
import os
import queue
import ssl
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
HELLO, GET, REPLY, UPLOAD_CHUNK, BYE = 1, 2, 3, 4, 5
WELCOME, REFUSED, CALL, WITHDRAWN, OBJECT_CHUNK, RESUME, STORED, FINISHED = range(17, 25)
CHUNK, PACKET, WINDOW = 1 << 20, 1 << 18, 32
PATIENCE = 60.0


class Token:
    """A join token."""

    def __init__(self, text: str) -> None:
        assert text.startswith("fednlp1:")
        body = base64.urlsafe_b64decode(text[8:] + "=" * (-len(text[8:]) % 4))
        assert len(body) == int.from_bytes(body[:2], "big")
        assert zlib.crc32(body[:-4]) == int.from_bytes(body[-4:], "little")
        self.expires, self.secret = int.from_bytes(body[2:10], "big"), body[10:42]
        self.site, rest = self._counted(body[42:-4])
        self.address, self.authority = self._counted(rest)
        self.federation = hashlib.sha256(self.authority).hexdigest()[:16]

    @staticmethod
    def _counted(body: bytes) -> tuple[str, bytes]:
        end = 2 + int.from_bytes(body[:2], "big")
        return body[2:end].decode(), body[end:]

    @property
    def roots(self) -> bytes:
        return x509.load_der_x509_certificate(self.authority).public_bytes(serialization.Encoding.PEM)


def name_of(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def invitation_certificate(token: Token, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The certificate of the first connection, signed by the key that the token's secret gives."""
    wide = HKDF(hashes.SHA256(), 48, None, b"fednlp invitation key, version 1").derive(token.secret)
    signer = ec.derive_private_key(int.from_bytes(wide, "big") % (ORDER - 1) + 1, ec.SECP256R1())
    public = signer.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name_of("any"))
        .issuer_name(name_of("invitation:" + hashlib.sha256(public).hexdigest()[:16]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


class Connection:
    """TLS to the server in packets by way of a broker."""

    def __init__(self, address: str, federation: str, context: ssl.SSLContext) -> None:
        self._name = os.urandom(16)
        topic = f"fednlp/{federation}"
        self._up, self._down, self._presence = (
            f"{topic}/up/{self._name.hex()}",
            f"{topic}/down/{self._name.hex()}",
            f"{topic}/server",
        )
        self._heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, self._name.hex(), protocol=paho.MQTTv311)
        client.will_set(self._up, self._packet(2, 0), qos=1)
        client.on_message = lambda _, data, message: self._heard.put((message.topic, message.payload))
        client.on_connect = lambda *arguments: client.subscribe([(self._down, 1), (self._presence, 1)])
        host, port = address.removeprefix("mqtt://").rsplit(":", 1)
        client.connect(host, int(port))
        client.loop_start()
        self._client = client
        self._sent = self._acknowledged = self._taken = 0
        self._early: dict[int, bytes] = {}
        self._server = b""
        while not self._server:
            found, payload = self._heard.get(timeout=PATIENCE)
            self._server = payload if found == self._presence else b""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="fednlp-server")
        self._until_done(self._tls.do_handshake)

    def _packet(self, kind: int, number: int, payload: bytes = b"") -> bytes:
        return self._name + struct.pack("<BQ", kind, number) + payload

    def _send(self, packet: bytes) -> None:
        self._client.publish(self._up, packet, qos=1)

    def _until_done(self, step: Callable[[], Any]) -> Any:
        """Do a step of TLS, again each time that something has arrived."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                self._arrive()
            finally:
                self._flush()

    def _flush(self) -> None:
        while self._out.pending:
            while self._sent - self._acknowledged >= WINDOW:
                self._arrive()
            self._send(self._packet(0, self._sent, self._out.read(PACKET)))
            self._sent += 1

    def _arrive(self) -> None:
        topic, data = self._heard.get(timeout=PATIENCE)
        if topic == self._presence:
            assert data == self._server, "the server is gone"
            return
        kind, number = struct.unpack_from("<BQ", data, 16)
        assert data[:16] == self._name
        assert kind != 2, "the server has ended the connection"
        if kind == 1:
            self._acknowledged = max(self._acknowledged, number)
            return
        if number >= self._taken:
            self._early[number] = data[25:]
        while self._taken in self._early:
            self._in.write(self._early.pop(self._taken))
            self._taken += 1
            if self._taken % 8 == 0:
                self._send(self._packet(1, self._taken))

    def say(self, message: bytes) -> None:
        """Send a message."""
        data = struct.pack("<I", len(message)) + message
        for start in range(0, len(data), PACKET):
            self._until_done(partial(self._tls.write, data[start : start + PACKET]))

    def hear(self) -> bytes:
        """Return the next message."""
        (length,) = struct.unpack("<I", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            data += self._until_done(partial(self._tls.read, min(count - len(data), 1 << 14)))
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.publish(self._up, self._packet(2, 0), qos=1).wait_for_publish(PATIENCE)
        self._client.disconnect()
        self._client.loop_stop()


class PlainSite:
    """A site: its key, its certificate, and what it answers.

    Args:
        token: As the server printed it.
        folder: For the key.
    """

    def __init__(self, token: str, folder: Path) -> None:
        self.token, self.folder = Token(token), folder
        folder.mkdir(exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        (folder / "key").write_bytes(
            self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        (folder / "certificate").write_bytes(invitation_certificate(self.token, self.key))
        self.client = -1

    def connect(self, purpose: bytes) -> Connection:
        """Connect, and say what for."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.token.roots.decode())
        context.load_cert_chain(self.folder / "certificate", self.folder / "key")
        connection = Connection(self.token.address, self.token.federation, context)
        connection.say(purpose)
        answer = connection.hear()
        assert answer[:1] == b"+", answer
        return connection

    def enrol(self) -> None:
        """Have the server sign the key."""
        pem = serialization.Encoding.PEM
        request = x509.CertificateSigningRequestBuilder().subject_name(name_of("any"))
        csr = request.sign(self.key, hashes.SHA256()).public_bytes(pem)
        with self.connect(b"E") as connection:
            connection.say(json.dumps({"version": 1, "csr": csr.decode()}).encode())
            said = connection.hear()
        assert said[:1] == b"+", said
        answer = json.loads(said[1:])
        assert "refused" not in answer, answer
        assert answer["federation"] == self.token.federation
        authority = x509.load_pem_x509_certificate(answer["ca"].encode())
        certificate = x509.load_pem_x509_certificate(answer["certificate"].encode())
        certificate.verify_directly_issued_by(authority)
        assert authority.public_bytes(serialization.Encoding.DER) == self.token.authority
        assert certificate.public_key() == self.key.public_key()
        self.client = answer["client"]
        (self.folder / "certificate").write_text(answer["certificate"])

    def take_part(
        self,
        answer: Callable[[str, dict[str, Any], dict[str, bytes]], tuple[dict[str, Any], bytes | None]],
        software: str,
    ) -> list[tuple[str, Any]]:
        """Answer calls until the server has no more for this site; return what it said in the end.

        Args:
            answer: (the call's id, what is asked, the objects) -> the answer and its object.
            software: The version of fednlp that this site says it has.
        """
        self.log: list[tuple[str, Any]] = []
        with self.connect(b"S") as connection:
            _say(connection, HELLO, {"version": 1, "software": software, "run": None, "open": []})
            kind, header, _ = _hear(connection)
            assert kind == WELCOME, header
            assert (header["version"], header["client"]) == (1, self.client)
            calls: dict[str, dict[str, Any]] = {}
            objects: dict[str, bytearray] = {}
            replies: dict[str, bytes] = {}
            while True:
                kind, header, payload = _hear(connection)
                self.log.append((str(kind), header))
                if kind == CALL:
                    calls[header["id"]] = header
                    for ref in header["objects"].values():
                        if ref["digest"] not in objects:
                            objects[ref["digest"]] = bytearray()
                            _say(connection, GET, {"digest": ref["digest"], "offset": 0})
                elif kind == OBJECT_CHUNK:
                    assert header["offset"] == len(objects[header["digest"]])
                    objects[header["digest"]] += payload
                elif kind == RESUME:
                    body = replies[header["id"]]
                    for start in range(header["offset"], len(body), CHUNK):
                        chunk = {"id": header["id"], "offset": start}
                        _say(connection, UPLOAD_CHUNK, chunk, body[start : start + CHUNK])
                elif kind in (FINISHED, REFUSED):
                    return self.log
                for call_id, call in list(calls.items()):
                    refs = call["objects"]
                    if all(len(objects[ref["digest"]]) == ref["size"] for ref in refs.values()):
                        found = {name: bytes(objects[ref["digest"]]) for name, ref in refs.items()}
                        for name, ref in refs.items():
                            assert hashlib.sha256(found[name]).hexdigest() == ref["digest"]
                        said, body = answer(call_id, call["request"], found)
                        reply: dict[str, Any] = {"id": call_id, "answer": said}
                        if body is not None:
                            replies[call_id] = body
                            reply |= {"digest": hashlib.sha256(body).hexdigest(), "size": len(body)}
                        _say(connection, REPLY, reply)
                        del calls[call_id]


def _say(connection: Connection, kind: int, header: dict[str, Any], payload: bytes = b"") -> None:
    text = json.dumps(header).encode()
    connection.say(struct.pack("<BI", kind, len(text)) + text + payload)


def _hear(connection: Connection) -> tuple[int, dict[str, Any], bytes]:
    frame = connection.hear()
    kind, length = struct.unpack_from("<BI", frame)
    return kind, json.loads(frame[5 : 5 + length]), frame[5 + length :]
