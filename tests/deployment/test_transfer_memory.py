"""An upload of any size needs a few chunks of memory, at both ends."""

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import CHUNK, Call
from fednlp.deployment.session.objects import ObjectCache, ref_of
from fednlp.deployment.session.replies import Outbox

from . import memory_link
from .memory_link import MemoryLink

SIZE = 64 << 20


@pytest.mark.whole
def test_an_object_there_and_back_holds_a_few_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_link, "_MOST_KEPT", 0)
    model = tmp_path / "model"
    with model.open("wb") as file:
        for number in range(64):
            file.write(Random(number).randbytes(CHUNK))

    def work(call: ReadyCall) -> None:
        body = tmp_path / "body"
        call.objects["model"].rename(body)
        session.answer(call.id, {}, body)

    session = ClientSession(
        Outbox(tmp_path / "outbox"),
        ObjectCache(tmp_path / "objects"),
        run=None,
        software="1.0",
        on_ready=work,
    )
    hub = Hub(tmp_path / "hub", "run")
    ref = hub.add_object(model)
    hub.ask(0, Call("1.0.train", {}, {"model": ref}), SIZE)
    link = MemoryLink(session.begin, lambda wake: hub.session(0, wake, lambda: 0.0))
    tracemalloc.start()
    while link.step(Random(0)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reply = hub.take(0)
    assert reply is not None
    assert reply.path is not None
    assert ref_of(reply.path) == ref
    assert link.sent[0] > SIZE
    assert peak < 12 * CHUNK
