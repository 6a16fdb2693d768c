"""The MQTT driver by way of a real mosquitto: a broker that is restarted, listens in, alters, repeats or invents."""

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fednlp.deployment.links import streams
from fednlp.errors import FednlpError, IdentityError, RunError

pytest.importorskip("paho.mqtt.client", reason="this needs paho-mqtt")

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.identity.enrolment import store_address
from fednlp.deployment.links import mqtt
from fednlp.deployment.links.mqtt import broker as carrying
from fednlp.deployment.links.mqtt import client as dialling
from fednlp.deployment.links.mqtt import packets
from fednlp.deployment.links.mqtt import server as listening
from fednlp.deployment.links.mqtt.broker import Broker
from fednlp.deployment.links.mqtt.packets import Gaps, Kind, Packet, join, new_id
from fednlp.deployment.operate import enrolling
from fednlp.deployment.operate import join as joining
from fednlp.deployment.operate.serve import Listening, serve
from fednlp.deployment.operate.shards import split_out
from fednlp.deployment.session.messages import Call, Get, from_server, pack
from fednlp.deployment.session.probe import WHOLE, Echo, Probe
from fednlp.simulation.callback import NullCallback

from .at_once import SitesAtOnce
from .driven import MODEL, SOON, Driven, Served, until
from .ends import greeting
from .federation import Federation
from .mosquitto import MOSQUITTO, Mosquitto
from .test_federation import OneAtATime, allows, quiet, rounds
from .throwaway import SERVER, Authority

pytestmark = [pytest.mark.whole, pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(mqtt, "HANDSHAKE", 5.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as running:
        yield running


class Server(Served):
    """A hub behind a broker."""

    def __init__(self, folder: Path, authority: Authority, broker: Mosquitto) -> None:
        super().__init__(folder)
        material = authority.material(SERVER)
        self.running = listening.serve(
            broker.address,
            lambda: material,
            self.new_session,
            self.enrol,
            log=self.lines.append,
            probe=lambda peer, wake: Echo(),
        )

    def stop(self) -> None:
        self.running.stop()
        self.hub.close()


@pytest.fixture
def server(tmp_path: Path, authority: Authority, broker: Mosquitto) -> Iterator[Server]:
    server = Server(tmp_path, authority, broker)
    yield server
    server.stop()


class Client(Driven):
    """A session by way of a broker."""

    def __init__(self, folder: Path, broker: Mosquitto, material: Any) -> None:
        def connect(begin: Callable[..., Any], **more: Any) -> Any:
            return dialling.connect(broker.address, lambda: material, begin, server_name=SERVER, **more)

        super().__init__(folder, connect)


class Eavesdropper:
    """What else a broker lets read and write: a client of its own that sees all topics, in a thread."""

    def __init__(self, broker: Mosquitto) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open(broker.address))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _open(self, address: str) -> None:
        self._broker = Broker(
            address,
            ["#"],
            ("x", b"", False),
            lambda topic, data: self.seen.append((topic, bytes(data))),
            lambda why: None,
        )
        await self._broker.open()

    def send(self, topic: str, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self._broker.send, topic, data)

    def say(self, topic: str, data: bytes) -> None:
        self._loop.call_soon_threadsafe(lambda: self._broker.send(topic, data, retained=True))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._broker.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def eavesdropper(broker: Mosquitto) -> Iterator[Eavesdropper]:
    one = Eavesdropper(broker)
    yield one
    one.close()


def test_objects_go_both_ways_and_the_broker_sees_none_of_it(
    broker: Mosquitto, eavesdropper: Eavesdropper, server: Server, authority: Authority, tmp_path: Path
) -> None:
    for number in (0, 1):
        server.ask(f"1.{number}.train", number)
    clients = [Client(tmp_path / f"{n}", broker, authority.material(str(n))) for n in (0, 1)]
    assert {server.answered(), server.answered()} == {0, 1}
    for client in clients:
        client.leave()
    carried = b"".join(data for _, data in eavesdropper.seen)
    assert len(carried) > 4 * len(MODEL)
    for start in range(0, len(MODEL) - 64, 1 << 16):
        assert MODEL[start : start + 64] not in carried
    assert b"1.0.train" not in carried


def test_a_broker_that_is_restarted_loses_nothing(
    broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path
) -> None:
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())
    for number in (1, 2, 3):
        broker.stop()
        server.ask(f"{number}.0.train", 0)
        broker.start()
        assert server.answered() == 0
    client.leave()


def test_a_server_that_is_gone_is_known_to_be(
    broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path
) -> None:
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())
    server.running.stop()
    until(lambda: any("no connection by way of" in line for line in client.lines))
    again = Server(tmp_path, authority, broker)
    again.ask("1.0.train", 0)
    assert again.answered() == 0
    client.leave()
    again.stop()


def test_enrolment_and_its_refusal(broker: Mosquitto, server: Server, authority: Authority) -> None:
    arguments = broker.address, authority.material("5")
    assert dialling.enrol(*arguments, b"please", server_name=SERVER) == b"5 please"
    with pytest.raises(RunError, match=r"cannot enrol by way of mqtt://127.0.0.1:\d+: this token was used"):
        dialling.enrol(*arguments, b"no", server_name=SERVER)
    until(lambda: any("this token was used" in line for line in server.lines))


def test_a_probe_goes_beside_the_connection_of_its_site(
    broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path
) -> None:
    material, probe = authority.material("0"), Probe()
    client = Client(tmp_path / "0", broker, material)
    until(lambda: server.hub.connected())
    dialling.probe(broker.address, material, probe, server_name=SERVER)
    assert (probe.finished, probe.back) == (True, WHOLE)
    server.ask("1.0.train", 0)
    assert server.answered() == 0
    assert not any("no connection" in line for line in client.lines)
    client.leave()


def test_a_site_waits_in_enrolment_until_broker_and_server_are_there(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker comes first, and the server then; a token that the server does not take ends the site at once."""
    federation, lines, running = Federation(tmp_path, time.time()), list[str](), list[Any]()
    store_address(federation.folder, broker.address)
    replaced, token = str(federation.invite()), str(federation.invite())
    broker.stop()

    def nobody(*arguments: object) -> Any:
        raise IdentityError("nobody takes part here")

    def sleep(seconds: float) -> None:
        assert not running, "it has not found the server, or waits for what does not change"
        if len(lines) == 1:
            broker.start()
            monkeypatch.setattr(mqtt, "HANDSHAKE", 0.5)
        else:
            monkeypatch.setattr(mqtt, "HANDSHAKE", SOON)
            admission = federation.admission
            running.append(
                listening.serve(
                    broker.address,
                    admission.material,
                    nobody,
                    lambda peer, message: admission.enrol(peer.certificate, message),
                )
            )

    monkeypatch.setattr(joining, "patiently", partial(enrolling.patiently, sleep=sleep))
    folder = joining.enrolled_folder(token, lines.append, tmp_path / "home")
    for line, why in zip(
        lines, ("start the broker there", "the server is not there, and the broker is"), strict=False
    ):
        assert why in line
        assert line.endswith("; this site tries again until it is there")
    assert lines[2:] == [f"joined as north; from now on: fednlp join {folder.name}"]
    for void, why in ((token, "was used by another machine"), (replaced, "TLS was")):
        with pytest.raises(FednlpError, match=why):
            joining.enrolled_folder(void, quiet, tmp_path / "elsewhere")
    running[0].stop()


def test_who_is_not_let_in_is_told(
    broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path
) -> None:
    client = Client(tmp_path / "x", broker, authority.material("stranger"))
    client.thread.join(SOON)
    assert client.error is not None
    assert "refuses this site: there is no site stranger" in str(client.error)


@pytest.mark.parametrize("stranger", ["site", "server"])
def test_a_certificate_of_another_authority_is_refused(
    stranger: str, broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path
) -> None:
    other = Authority().material("0")
    mixed = type(other)(other.key, other.chain, authority.pem) if stranger == "site" else other
    client = Client(tmp_path / "0", broker, mixed)
    until(lambda: client.lines)
    assert not server.hub.connected()
    client.leave()


def test_what_others_send_disturbs_nobody(
    broker: Mosquitto, eavesdropper: Eavesdropper, server: Server, authority: Authority, tmp_path: Path
) -> None:
    """Noise to the server, repeated packets of others, and connections that never finish their handshake."""
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())
    heard = list(eavesdropper.seen)
    for topic, data in heard:
        if "/up/" in topic:
            eavesdropper.send(topic, data)
            eavesdropper.send(topic, data[:-1] + bytes([data[-1] ^ 1]))
    topics = f"fednlp/{mqtt.channel_of(authority.material('0'))}"
    for _ in range(20):
        name = new_id()
        for data in (
            b"",
            b"noise",
            join(Packet(name, Kind.DATA, 0, b"noise")),
            join(Packet(name, Kind.END, 0)),
        ):
            eavesdropper.send(f"{topics}/up/{name.hex()}", data)
            eavesdropper.send(f"{topics}/up/x", data)
    server.ask("1.0.train", 0)
    assert server.answered() == 0
    client.leave()


def test_strangers_that_never_finish_their_handshake_keep_nobody_out(
    broker: Mosquitto,
    eavesdropper: Eavesdropper,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "_MOST_HALF_OPEN", 2)
    monkeypatch.setattr(mqtt, "HANDSHAKE", 2 * SOON)
    server = Server(tmp_path, authority, broker)
    topics = f"fednlp/{mqtt.channel_of(authority.material('0'))}"
    names = [new_id() for _ in range(5)]
    for name in names:
        eavesdropper.send(f"{topics}/up/{name.hex()}", join(Packet(name, Kind.DATA, 1, b"late")))
    ended = {f"{topics}/down/{name.hex()}" for name in names[:3]}
    until(lambda: ended <= {topic for topic, _ in eavesdropper.seen})
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())
    client.leave()
    server.stop()


@pytest.mark.parametrize("purpose", [b"", mqtt.SESSION, mqtt.ENROL])
def test_a_certificate_does_not_keep_a_place(
    purpose: bytes, broker: Mosquitto, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that were not let in are few, though they have shown a certificate; sessions are not among them."""
    monkeypatch.setattr(listening, "_MOST_HALF_OPEN", 2)
    monkeypatch.setattr(mqtt, "HANDSHAKE", 2 * SOON)
    server = Server(tmp_path, authority, broker)
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())

    async def shaken(site: str) -> Any:
        line = dialling._Line(broker.address, authority.material(site), SERVER, purpose)
        await line._broker.open()
        await line._there.wait()
        await line.stream.handshake()
        if purpose:
            await line.stream.write(purpose)
            await line.stream.read(mqtt.MOST_STATUS)
        return line

    async def run() -> None:
        lines = [await shaken(str(number)) for number in range(1, 6)]
        ended = lines[:3] if purpose != mqtt.SESSION else []
        for line in ended:
            await asyncio.to_thread(until, lambda line=line: line.stream._error)
        assert [line for line in lines if line.stream._error] == ended
        for line in lines:
            line._broker.close()

    asyncio.run(run())
    server.ask("1.0.train", 0)
    assert server.answered() == 0
    client.leave()
    server.stop()


def test_a_site_that_reads_nothing_holds_no_connection_once_it_has_another(
    broker: Mosquitto, server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packets, "WINDOW", 4)
    monkeypatch.setattr(listening, "GOODBYE", 0.1)
    server.ask("1.0.train", 0)
    own = authority.material("0")

    async def run() -> None:
        line = dialling._Line(broker.address, own, SERVER, mqtt.SESSION)
        async with line as deaf:
            await deaf.stream.write(greeting())
            said = [from_server((await deaf.frame()) or b"")[0] for _ in range(2)]
            assert isinstance(said[1], Call)
            await deaf.stream.write(pack(Get(said[1].objects["model"].digest, 0)))
            await asyncio.to_thread(until, lambda: deaf.stream._ordered.held > 2 * packets.MOST_PAYLOAD)
            client = Client(tmp_path / "0", broker, own)
            assert await asyncio.to_thread(server.answered) == 0
            await asyncio.to_thread(until, lambda: deaf.stream._error)
            client.leave()

    asyncio.run(run())


def test_a_broker_that_stands_still_holds_senders_back(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an end holds for it is bounded; whoever waited first goes on first."""
    monkeypatch.setattr(carrying, "MOST_HELD", 4 << 20)
    size, order = 1 << 18, list[int]()

    async def run() -> None:
        one = Broker(broker.address, ["y"], ("x", b"", False), lambda topic, data: None, lambda why: None)
        await one.open()
        broker.process.send_signal(signal.SIGSTOP)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 << 20:
                await asyncio.wait_for(one.turn(), 0.5)
                one.send("x", bytes(size))
                sent += size
        assert 0 < sent <= 4 << 20

        async def wait(number: int) -> None:
            await one.turn()
            order.append(number)

        waiting = [asyncio.create_task(wait(number)) for number in range(3)]
        await asyncio.sleep(0)
        broker.process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(asyncio.gather(*waiting), SOON)
        assert order == [0, 1, 2]
        one.close()

    asyncio.run(run())


def test_a_broker_that_acknowledges_nothing_is_given_up(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to strangers wait for no turn."""
    monkeypatch.setattr(carrying, "MOST_OWED", 1 << 20)
    lost: list[str] = []

    async def run() -> None:
        one = Broker(broker.address, ["y"], ("x", b"", False), lambda topic, data: None, lost.append)
        await one.open()
        broker.process.send_signal(signal.SIGSTOP)
        sent = 0
        while not lost and sent < 10_000:
            one.send("x", b"answer")
            sent += 1
        assert sent <= (1 << 20) / carrying._BESIDE + 1
        broker.process.send_signal(signal.SIGCONT)
        one.close()

    asyncio.run(run())
    assert lost == ["the broker does not acknowledge what it is sent"]


def test_packets_that_wait_for_one_before_them_are_bounded_for_all_sites_together(
    broker: Mosquitto, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "Gaps", partial(Gaps, 4 * packets.MOST_PAYLOAD))
    server = Server(tmp_path, authority, broker)

    async def admitted(site: str) -> Any:
        line = dialling._Line(broker.address, authority.material(site), SERVER, mqtt.SESSION)
        await line.__aenter__()
        return line

    async def run() -> None:
        lines = [await admitted(str(number)) for number in range(3)]
        for line in lines:
            ordered = line.stream._ordered
            for number in range(2):
                late = Packet(
                    ordered.connection, Kind.DATA, ordered._sent + 1 + number, bytes(packets.MOST_PAYLOAD)
                )
                line._broker.send(line._up, join(late))
        await asyncio.to_thread(until, lambda: any(line.stream._error for line in lines))
        assert not all(line.stream._error for line in lines)
        for line in lines:
            line._broker.close()

    asyncio.run(run())
    client = Client(tmp_path / "3", broker, authority.material("3"))
    server.ask("1.3.train", 3)
    assert server.answered() == 3
    client.leave()
    server.stop()


def test_a_presence_that_somebody_else_has_taken_back_is_said_again(
    broker: Mosquitto,
    eavesdropper: Eavesdropper,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that loses its power leaves a will, which its successor may find after it has begun."""
    monkeypatch.setattr(listening, "_TELL_AGAIN", 0.1)
    server = Server(tmp_path, authority, broker)
    presence = f"fednlp/{mqtt.channel_of(authority.material('0'))}/server"
    for payload in (b"", b"noise"):
        until(lambda: eavesdropper.seen and eavesdropper.seen[-1][1])
        before = len(eavesdropper.seen)
        eavesdropper.say(presence, payload)
        until(lambda before=before: len(eavesdropper.seen) >= before + 2)
    client = Client(tmp_path / "0", broker, authority.material("0"))
    until(lambda: server.hub.connected())
    client.leave()
    server.stop()
    until(lambda: eavesdropper.seen[-1] == (presence, b""))


RULES = """user server
topic readwrite fednlp/#
pattern write fednlp/+/up/%c
pattern read fednlp/+/down/%c
pattern read fednlp/+/server
"""
"""Of docs/deployment/operate.md."""


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="this needs mosquitto_passwd")
def test_rules_of_the_broker_keep_sites_out_of_each_others_connections(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Mosquitto(tmp_path, RULES, {"server": "secret"}) as broker:
        monkeypatch.setenv("FEDNLP_BROKER_USER", "server")
        monkeypatch.setenv("FEDNLP_BROKER_PASSWORD", "secret")
        server = Server(tmp_path, authority, broker)
        admin = Eavesdropper(broker)
        monkeypatch.delenv("FEDNLP_BROKER_USER")
        other = Eavesdropper(broker)
        client = Client(tmp_path / "0", broker, authority.material("0"))
        until(lambda: server.hub.connected())
        (up,) = {topic for topic, _ in admin.seen if "/up/" in topic}
        name = bytes.fromhex(up.rpartition("/")[2])
        other.send(up, join(Packet(name, Kind.END, 0)))
        other.send(up.replace("/up/", "/down/"), join(Packet(name, Kind.END, 0)))
        server.ask("1.0.train", 0)
        assert server.answered() == 0
        assert all("no connection" not in line for line in client.lines)
        assert {topic.rpartition("/")[2] for topic, _ in other.seen} <= {"server"}
        client.leave()
        server.stop()
        for one in (admin, other):
            one.close()


def test_the_rules_are_those_of_the_docs() -> None:
    page = Path(__file__).parents[2] / "docs/deployment/operate.md"
    assert f"```text\n{RULES}```" in page.read_text()


def test_a_broker_that_is_not_there_is_named(tmp_path: Path, authority: Authority) -> None:
    gone = Mosquitto(tmp_path)
    with pytest.raises(RunError, match=r"the broker at 127.0.0.1:\d+ is not reached: Connection refused"):
        Server(tmp_path, authority, gone)


@pytest.mark.parametrize(
    "settings",
    [
        {"exchange.up": ["int8"], "exchange.error_feedback": True},
        {"algorithm": {"name": "scaffold"}, "client.optimizer": "sgd"},
    ],
    ids=["8 bits", "scaffold"],
)
@pytest.mark.variants(1)
def test_a_federation_by_way_of_a_broker_is_the_simulation(
    settings: dict[str, Any],
    broker: Mosquitto,
    experiment: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker is restarted in the middle of each round: no site works twice, and the weights are the same."""
    monkeypatch.setattr(joining, "Site", OneAtATime)
    more = {"clients_per_round": 2, "partition.clients": 2, "task.name": "text-classification"}
    made = experiment(settings | more | {"num_rounds": 2})
    simulated = fednlp.run(made, tmp_path / "simulated")
    shards = split_out(made.resolved(), tmp_path / "shards", quiet)

    def site(name: str, token: str) -> None:
        folder = joining.enrolled_folder(token, quiet, tmp_path / name)
        joining.join(folder, allows(*shards.files(name)), quiet)

    class Restarting(NullCallback):
        def on_progress(self, done: int, of: int, what: str) -> None:
            if what == "clients" and done == 1:
                broker.stop()
                broker.start()

    where, sites = Listening(broker=broker.address), SitesAtOnce(shards.names, site)
    out = tmp_path / "server"
    deployed = serve(
        shards.experiment, out, shards.names, where, Restarting(), sites.typed.__setitem__, sites.begin
    )
    sites.end()
    assert rounds(deployed) == rounds(simulated)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (deployed, simulated)]
    assert weights[0] == weights[1]


def test_what_does_not_go_by_a_broker_is_named(tmp_path: Path, experiment: Callable[..., Experiment]) -> None:
    made = split_out(
        experiment(
            {"partition.clients": 2, "clients_per_round": 2, "task.name": "text-classification"}
        ).resolved(),
        tmp_path / "shards",
        quiet,
    ).experiment
    for where, why in (
        (Listening(broker="mqtt://127.0.0.1", behind_proxy=True), "--broker goes with join tokens"),
        (Listening(broker="127.0.0.1:1883"), "127.0.0.1:1883 does not say how: type mqtts://host:port"),
        (Listening(broker="mqtt://127.0.0.1", address="here:1"), "leave --address out"),
    ):
        with pytest.raises(FednlpError, match=why):
            serve(made, tmp_path / "server", [], where, NullCallback(), print)
