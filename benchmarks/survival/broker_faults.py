"""Parts ``broker`` and ``stranger``: a broker that is restarted or killed, and one that lets somebody else speak."""

import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from survival.server_faults import resident
from survival.trial import SERVER, prepared

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
_KEPT = 200
"""Messages that the stranger remembers."""
_ID = 16
"""Bytes of a connection's name, which its packets begin with."""
_AT_ONCE = 50
"""Messages after which the stranger lets the others speak, for :data:`_REST` seconds."""
_REST = 0.02


@contextmanager
def mosquitto(folder: Path) -> Iterator[Any]:
    """Run a broker for the time of a block.

    Raises:
        RuntimeError: mosquitto is not installed.
    """
    from tests.deployment.mosquitto import MOSQUITTO, Mosquitto

    if MOSQUITTO is None:
        raise RuntimeError("this needs a broker: install mosquitto")
    with Mosquitto(folder) as broker:
        yield broker


def restarts(experiment: Any, folder: Path, broker: Any, limit: float = 600.0) -> dict[str, Any]:
    """End the broker in the middle of each round, when an update has arrived and others have not, and start it again.

    In odd rounds it is killed (kill -9), in even ones it may say goodbye.

    Args:
        experiment: Of a simulation with two clients at least.
        folder: New or empty.
        broker: That runs.
        limit: Seconds that the federation may take.
    """
    simulated, trial = prepared(experiment, folder, broker=broker)
    inbox, begun = trial.server / "federation" / "inbox", time.monotonic()
    end, met = begun + limit, 0
    with trial.running():
        for number in range(1, experiment.num_rounds + 1):
            met += trial.wait(lambda number=number: any(inbox.glob(f"{number}.*.train.json")), end)
            broker.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
            trial.lasting(0.2, end)
            broker.start()
        trial.finish(end)
    told = trial.log_of(SERVER).read_text()
    return {
        **trial.compared(simulated),
        "restarted": met,
        "connections_to_it_lost": told.count("the connection to the broker was lost"),
        "seconds": round(time.monotonic() - begun, 1),
    }


def stranger(
    experiment: Any, folder: Path, broker: Any, messages: int, seed: int, limit: float = 600.0
) -> dict[str, Any]:
    """Let somebody read all that goes by the broker, and alter, repeat and invent messages, while rounds go on.

    Args:
        experiment: Of a simulation.
        folder: New or empty.
        broker: That runs, and lets everybody read and write everything.
        messages: That the stranger sends, from the first round on, as long as rounds go on; then the others are left in
            peace.
        seed: Of what it sends.
        limit: Seconds that the federation may take.
    """
    simulated, trial = prepared(experiment, folder, broker=broker)
    begun, found = time.monotonic(), Stranger(broker.port, seed)
    end, grown = begun + limit, 0
    with trial.running():
        trial.wait(lambda: any((trial.server / "federation" / "inbox").glob("1.*")), end)
        server, before, ended = None, 0, False
        while found.sent < messages and not ended and time.monotonic() < end:
            for _ in range(min(_AT_ONCE, messages - found.sent)):
                found.speak()
            trial.lasting(_REST, end)
            ended = trial.tend()  # all rounds may be done before all is sent
            process = trial.processes.get(SERVER)
            if ended or process is None or process.exitcode is not None:
                continue  # a server that the broker left alone ends with an error, and is started again
            if process is not server:
                server, before = process, resident(process.pid)
            grown = max(grown, resident(process.pid) - before)
        in_round = trial.done() + 1
        found.leave()
        trial.finish(end)
    told = trial.log_of(SERVER).read_text()
    return {
        **trial.compared(simulated),
        "messages": found.sent,
        "heard": found.heard,
        "until_round": in_round,
        "ended_first": "the federation" if ended else "the stranger",
        "server_started_again": trial.retried[SERVER],
        "memory_grew_by": grown,
        "tracebacks": told.count("Traceback"),
        "seconds": round(time.monotonic() - begun, 1),
    }


class Stranger:
    """A client of the broker that belongs to nobody.

    Args:
        port: Of the broker on this machine.
        seed: Of what it says.
    """

    def __init__(self, port: int, seed: int) -> None:
        import paho.mqtt.client as paho

        self._random, self._kept = Random(seed), deque[tuple[str, bytes]](maxlen=_KEPT)
        self.sent = self.heard = 0
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.on_message = self._listen
        self._client.on_connect = lambda client, *rest: client.subscribe("fednlp/#")
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _listen(self, client: Any, data: Any, message: Any) -> None:
        self.heard += 1
        self._kept.append((message.topic, bytes(message.payload)))

    def speak(self) -> None:
        """Send a message: one that was heard, altered or as it is, or one that was never sent."""
        rng, kept = self._random, list(self._kept)
        if not kept:
            return
        (topic, payload), (other, _) = rng.choice(kept), rng.choice(kept)
        kind = rng.randrange(7)
        if kind == 0:  # again, perhaps in the other direction
            topic = rng.choice([topic, topic.replace("/up/", "/down/")])
        elif kind == 1:
            payload = _flipped(payload, rng)
        elif kind == 2:
            payload = payload[: rng.randrange(len(payload) + 1)]
        elif kind == 3:
            payload += rng.randbytes(rng.randrange(1, 1 << 12))
        elif kind == 4:  # of nobody
            name = rng.randbytes(_ID)
            topic = f"{topic.rsplit('/', 1)[0]}/{name.hex()}"
            payload = name + payload[_ID:]
        elif kind == 5:  # a part of one connection for another
            topic, payload = (
                other,
                bytes.fromhex(other[-2 * _ID :]) + payload[_ID:] if _named(other) else payload,
            )
        else:
            payload = rng.randbytes(rng.choice((0, 1, 25, 200, 1 << 16)))
        self._client.publish(topic, payload, qos=rng.randrange(2), retain=rng.random() < 0.02)
        self.sent += 1

    def leave(self) -> None:
        """End the connection."""
        self._client.disconnect()
        self._client.loop_stop()


def _named(topic: str) -> bool:
    """Return whether a topic ends with a connection's name."""
    return len(topic.rpartition("/")[2]) == 2 * _ID


def _flipped(payload: bytes, rng: Random) -> bytes:
    found = bytearray(payload)
    for _ in range(rng.choice((1, 1, 8))):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)
