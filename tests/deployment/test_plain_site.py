"""A site that was written from the page of the protocol alone joins by way of a broker, and takes part as others do."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paho.mqtt.client", reason="this needs paho-mqtt")

from fednlp.deployment.identity.enrolment import store_address
from fednlp.deployment.links.mqtt import server as listening

from .driven import MODEL, Served
from .federation import Federation
from .mosquitto import MOSQUITTO, Mosquitto
from .plain_site import GET, REPLY, UPLOAD_CHUNK, PlainSite, _hear, _say

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


class Server(Served):
    """A hub behind a broker, and the register of a federation."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        super().__init__(folder)
        self.federation = Federation(folder, time.time())
        store_address(self.federation.folder, broker.address)
        admission = self.federation.admission
        self.running = listening.serve(
            broker.address,
            admission.material,
            self.new_session,
            lambda peer, message: admission.enrol(peer.certificate, message),
            log=self.lines.append,
        )

    def new_session(self, peer: Any, wake: Callable[[], None]) -> Any:
        site = self.federation.admission.authorise(peer.certificate)
        return self.hub.session(site.client, wake, time.monotonic)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Mosquitto(tmp_path) as broker:
        server = Server(tmp_path, broker)
        yield server
        server.running.stop()
        server.hub.close()


def test_it_enrols_fetches_a_model_and_answers(server: Server, tmp_path: Path) -> None:
    site = PlainSite(str(server.federation.invite()), tmp_path / "plain")
    site.enrol()
    server.ask(f"1.{site.client}.train", site.client)

    def backwards(call_id: str, request: Any, objects: dict[str, bytes]) -> tuple[dict[str, Any], bytes]:
        return {"done": call_id}, objects["model"][::-1]

    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(site.take_part, backwards, "1.0")
        assert server.answered() == site.client
        server.hub.finish("all is done")
        assert said.result()[-1][1] == {"reason": "all is done"}


def test_a_token_is_good_for_one_key(server: Server, tmp_path: Path) -> None:
    token = str(server.federation.invite())
    PlainSite(token, tmp_path / "plain").enrol()
    with pytest.raises(AssertionError, match="was used by another machine"):
        PlainSite(token, tmp_path / "thief").enrol()


@pytest.mark.parametrize(
    ("kind", "header", "payload", "why"),
    [
        (GET, {"digest": "0" * 64, "offset": 0}, b"", "which no call has"),
        (REPLY, {"id": "1.1.train", "answer": {}}, b"", "another client's"),
        (UPLOAD_CHUNK, {"id": "1.0.train", "offset": 0}, b"x", "which was not asked for"),
        (REPLY, {"id": "1.0.train", "answer": {}, "size": len(MODEL) + 1}, b"", "which may have"),
        (99, {}, b"", "unknown kind"),
    ],
)
def test_what_the_page_forbids_closes_the_connection(
    kind: int, header: dict[str, Any], payload: bytes, why: str, server: Server, tmp_path: Path
) -> None:
    site = PlainSite(str(server.federation.invite()), tmp_path / "plain")
    site.enrol()
    server.ask("1.0.train", 0)
    with site.connect(b"S") as connection:
        _say(connection, 1, {"version": 1, "software": "1.0", "run": None})
        assert [_hear(connection)[0] for _ in range(2)] == [17, 19]
        _say(connection, kind, header, payload)
        with pytest.raises(AssertionError, match="the server has ended the connection"):
            connection.hear()
    assert any(why in line for line in server.lines)


def test_a_chunked_object_that_is_damaged_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    site = PlainSite(str(server.federation.invite()), tmp_path / "plain")
    site.enrol()
    server.ask("1.0.train", 0)
    body = MODEL[::-1]
    ref = {"digest": hashlib.sha256(body).hexdigest(), "size": len(body)}
    with site.connect(b"S") as connection:
        _say(connection, 1, {"version": 1, "software": "1.0", "run": None})
        _say(connection, REPLY, {"id": "1.0.train", "answer": {"done": "1.0.train"}} | ref)
        for sent in (b"\0" * len(body), body):
            while (heard := _hear(connection))[0] != 22:
                pass
            assert heard[1] == {"id": "1.0.train", "offset": 0}
            for start in range(0, len(sent), 1 << 20):
                chunk = {"id": "1.0.train", "offset": start}
                _say(connection, UPLOAD_CHUNK, chunk, sent[start : start + (1 << 20)])
        assert _hear(connection)[1] == {"id": "1.0.train"}
    assert server.answered() == 0
