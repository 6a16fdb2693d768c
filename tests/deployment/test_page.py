"""The page: what it serves, what it refuses, and what a browser makes of it."""

import http.client
import importlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from fednlp.config import Experiment
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.operate.shards import split_out
from fednlp.deployment.server.status import read_status, write_status
from fednlp.errors import ConfigError, RunError
from fednlp.simulation.callback import NullCallback

from .chromium import Tab, chromium
from .watched import append, line, run_directory, status

pytestmark = pytest.mark.whole

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
server = importlib.import_module("fednlp.deployment.operate.page.server")
feed = importlib.import_module("fednlp.deployment.operate.feed")
page_app = importlib.import_module("fednlp.deployment.operate.page.app")
metrics = importlib.import_module("fednlp.deployment.operate.page.metrics")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_directory(tmp_path / "trial", line(1))


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    """The port of a page about the run."""
    with server.PageServer(run, "127.0.0.1:0", lambda text: None) as page:
        yield int(page.url.rsplit(":", 1)[1].strip("/"))


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    """Ask for a page; return the answer and its text."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()


class Events:
    """A stream of events, read one by one."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.connection.request("GET", "/events")
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[str, Any]:
        name, data, blank = (self.answer.readline().decode().rstrip("\n") for _ in range(3))
        assert not blank
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def test_everything_is_served_with_a_strict_policy(port: int) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/status.json", "application/json"),
        ("/rounds.json", "application/json"),
        ("/metrics", "text/plain; version=0.0.4"),
    ):
        answer, text = ask(port, path)
        assert (answer.status, bool(text)) == (200, True), path
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


def test_the_page_needs_nothing_from_elsewhere(port: int) -> None:
    for path in ("/", "/page.css", "/page.js"):
        text = ask(port, path)[1].replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"https?:|//[a-z]|@import|url\(", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|style=|onclick", text
        ), path


def test_status_and_rounds(run: Path, port: int) -> None:
    assert json.loads(ask(port, "/status.json")[1]) == status().model_dump()
    found = json.loads(ask(port, "/rounds.json")[1])
    assert found["metric"] == "accuracy"
    assert [(one["round"], one["loss"], one["scores"]["global"]["accuracy"]) for one in found["rounds"]] == [
        (1, 0.5, 0.25)
    ]


def test_events_tell_of_each_round_once_and_of_a_new_status(run: Path, port: int) -> None:
    with closing(Events(port)) as events:
        first, second = events.next(), events.next()
        assert (first[0], first[1]["after"], [one["round"] for one in first[1]["rounds"]]) == (
            "rounds",
            0,
            [1],
        )
        assert (second[0], second[1]["status"]["phase"]) == ("status", "round 2 of 3")
        append(run, line(2))
        third = events.next()
        assert (third[0], third[1]["after"], [one["round"] for one in third[1]["rounds"]]) == (
            "rounds",
            1,
            [2],
        )
        write_status(run / FOLDER, status(phase="finished"))
        assert events.next()[1]["status"]["phase"] == "finished"


def test_the_last_event_arrives_although_the_server_ends(run: Path) -> None:
    with server.PageServer(run, "127.0.0.1:0", lambda text: None) as page:
        events = Events(int(page.url.rsplit(":", 1)[1].strip("/")))
        events.next(), events.next()
        write_status(run / FOLDER, status(phase="stopped"))
    with closing(events):
        assert events.next()[1]["status"]["phase"] == "stopped"
        assert not events.answer.readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_possible(port: int, method: str) -> None:
    answer, _ = ask(port, "/status.json", method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["/", "/page.css", "/status.json", "/rounds.json", "/metrics", "/events", "/x"]
)
def test_a_balancer_that_asks_for_the_head_gets_it(port: int, path: str) -> None:
    """As GET answers, without the body; of events there is no end to wait for."""
    answer, text = ask(port, path, "HEAD")
    assert (answer.status, text) == (404 if path == "/x" else 200, b"" if isinstance(text, bytes) else "")


def test_a_proxy_serves_the_page_under_its_own_name(run: Path) -> None:
    with server.PageServer(run, "127.0.0.1:0", lambda text: None, ["Status.Example.org"]) as page:
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        assert [ask(port, "/", Host=host)[0].status for host in ("status.example.org", "example.org")] == [
            200,
            421,
        ]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "a b", "", "x" * 300]
)
def test_a_name_of_somebody_else_is_refused(port: int, host: str) -> None:
    answer, text = ask(port, "/status.json", Host=host)
    assert answer.status == 421
    assert "nord" not in text
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("host", ["localhost:9000", "LOCALHOST", "127.0.0.1", "[::1]:8080", "192.0.2.7:80"])
def test_an_address_is_right_and_a_tunnel_too(port: int, host: str) -> None:
    assert ask(port, "/status.json", Host=host)[0].status == 200


def test_two_hosts_or_none_are_refused(port: int) -> None:
    for hosts in (b"Host: localhost\r\nHost: localhost\r\n", b""):
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            plain.sendall(b"GET /status.json HTTP/1.1\r\n" + hosts + b"\r\n")
            assert re.match(rb"HTTP/1.1 4\d\d ", plain.recv(100))


def test_no_status_yet(tmp_path: Path) -> None:
    with server.PageServer(tmp_path, "127.0.0.1:0", lambda text: None) as page:
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        assert ask(port, "/status.json")[0].status == 503
        assert json.loads(ask(port, "/rounds.json")[1])["rounds"] == []
        assert "fednlp_rounds_done_total 0" in ask(port, "/metrics")[1]


def test_there_are_so_many_streams_and_no_more(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "MOST_STREAMS", 3)
    with ExitStack() as stack:
        streams = [stack.enter_context(closing(Events(port))) for _ in range(3)]
        assert [one.answer.status for one in streams] == [200] * 3
        answer, text = ask(port, "/events")
        assert (answer.status, "close one" in text) == (503, True)
        streams[0].close()
        wait_for_a_stream(port)


def test_a_reader_that_reads_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    monkeypatch.setattr(page_app, "MOST_STREAMS", 1)
    run = run_directory(tmp_path / "trial", *(line(number) for number in range(1, 40_000)))
    with server.PageServer(run, "127.0.0.1:0", lambda text: None) as page, socket.socket() as slow:
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        wait_for_a_stream(port)


def wait_for_a_stream(port: int) -> None:
    """Wait until the server takes another stream: it sees a little later that one has ended."""
    for _ in range(200):
        with closing(Events(port)) as late:
            if late.answer.status == 200:
                return
        time.sleep(0.1)
    pytest.fail("a stream that has ended is still counted")


def test_a_request_that_does_not_arrive_is_dropped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with (
        server.PageServer(run, "127.0.0.1:0", lambda text: None) as page,
        socket.create_connection(("127.0.0.1", int(page.url.rsplit(":", 1)[1].strip("/"))), 20) as slow,
    ):
        slow.sendall(b"GET /status.json HTTP/1.1\r\nHost: loc")
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_there_are_so_many_connections_and_no_more(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    with server.PageServer(run, "127.0.0.1:0", lambda text: None) as page, ExitStack() as stack:
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(5)]
        with socket.create_connection(("127.0.0.1", port), 20) as late, suppress(ConnectionResetError):
            assert late.recv(1) == b"", "one more is closed at once"
        idle[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[0].recv(12) == b"HTTP/1.1 200", "and the others are served"


def test_a_port_in_use_and_no_address(run: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(RunError, match="choose another port with --page"),
    ):
        server.PageServer(run, f"127.0.0.1:{taken.getsockname()[1]}", lambda text: None)
    for wrong in ("8080", "localhost", ":80", "localhost:99999", "localhost:x"):
        with pytest.raises(ConfigError, match=r"write host:port"):
            server.PageServer(run, wrong, lambda text: None)


def test_an_open_address_is_warned_of(run: Path) -> None:
    said: list[str] = []
    with server.PageServer(run, "0.0.0.0:0", said.append):
        assert any("warning: the page has no login" in text for text in said)
    said.clear()
    with server.PageServer(run, "localhost:0", said.append):
        assert not any("warning" in text for text in said)


# ---- what is read ------------------------------------------------------------------------------------------------


def test_rounds_that_begin_anew_are_read_anew(run: Path) -> None:
    seen = feed.Feed(run, every=0)
    seen.look()
    append(run, line(2), line(3))
    seen.look()
    assert ([one["round"] for one in seen.points], seen.begun) == ([1, 2, 3], 1)
    kept = (run / "rounds.jsonl").read_text().splitlines(keepends=True)[:2]
    other = run / "other"
    other.write_text("".join(kept))
    other.replace(run / "rounds.jsonl")  # as a server does that starts again
    seen.look()
    assert ([one["round"] for one in seen.points], seen.begun) == ([1, 2], 2)


def test_a_line_that_is_being_written_is_left_for_later(run: Path) -> None:
    seen, text = feed.Feed(run, every=0), json.dumps(line(2)) + "\n"
    with (run / "rounds.jsonl").open("a") as file:
        for part, count in ((text[:30], 1), (text[30:-1], 1), (text[-1:], 2)):
            file.write(part)
            file.flush()
            seen.look()
            assert len(seen.points) == count


def test_a_damaged_status_is_told_and_the_page_goes_on(run: Path, port: int) -> None:
    (run / FOLDER / "status.json").write_text('{"version": 1, "phase": 3}')
    with closing(Events(port)) as events:
        events.next()
        assert "is damaged" in events.next()[1]["problem"]


# ---- metrics -----------------------------------------------------------------------------------------------------

SAMPLE = re.compile(r'([a-z_:]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (-?[0-9.e+-]+|inf|nan)')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Read metrics by the grammar of the format; every name is typed before its first sample, and in one group."""
    found: dict[tuple[str, str], float] = {}
    types: dict[str, str] = {}
    for one in text.splitlines():
        if one.startswith("# TYPE "):
            _, _, name, kind = one.split(" ")
            assert name not in types
            assert name.endswith("_total") == (kind == "counter")
            types[name] = kind
        elif not one.startswith("# HELP "):
            match = SAMPLE.fullmatch(one)
            assert match, one
            assert list(types)[-1] == match[1]
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    assert text.endswith("\n")
    return found


def test_metrics(run: Path) -> None:
    seen = feed.Feed(run)
    seen.look()
    found = parsed(metrics.metrics_text(seen, status().updated))
    assert found["fednlp_round", ""] == 2
    assert found["fednlp_rounds_done_total", ""] == 1
    assert found["fednlp_sites", 'state="working"'] == found["fednlp_sites", 'state="awaited"'] == 1
    assert found["fednlp_sites", 'state="invited"'] == 0
    assert found["fednlp_received_bytes_total", 'site="nord"'] == 1_500_000
    assert found["fednlp_sent_bytes_total", 'site="nord"'] == 2_000_000
    assert found["fednlp_train_loss", ""] == 0.5
    assert found["fednlp_score", 'part="global",metric="accuracy"'] == 0.25
    assert found["fednlp_epsilon", 'delta="1e-05"'] == 2.5
    assert found["fednlp_seconds_since_last_round", ""] == 65
    assert found["fednlp_awaited_seconds", ""] == 65
    assert found["fednlp_phase", 'phase="round"'] == 1


def test_metrics_of_names_that_need_care(tmp_path: Path) -> None:
    name = 'a"b\\c\nd'
    run = run_directory(tmp_path / "trial", experiment=name, privacy=None, sites=[], awaited=[])
    seen = feed.Feed(run)
    seen.look()
    found = parsed(metrics.metrics_text(seen, 0.0))
    assert found["fednlp_run_info", 'run="trial",experiment="a\\"b\\\\c\\nd"'] == 1


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_narrow_window(run: Path, port: int, tmp_path: Path, scheme: str) -> None:
    with chromium(tmp_path / "profile") as tab:
        tab.tell(
            "Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True
        )
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.tell("Emulation.setEmulatedMedia", media="screen", features=media)
        tab.tell("Page.navigate", url=f"http://127.0.0.1:{port}/")
        tab.wait("document.getElementById('phase')?.textContent === 'Round 2 of 3'")
        text = tab.value("document.body.innerText")
        assert "west <b>&amp;" in text, "a name is text, not markup"
        assert tab.value("document.querySelectorAll('b').length") == 0
        assert tab.value("document.querySelectorAll('figure svg[role=img]').length") == 2
        assert tab.value("document.documentElement.scrollWidth") == 360
        append(run, line(2, 0.4))
        write_status(run / FOLDER, status(phase="round 3 of 3", round=3, awaited=[]))
        tab.wait("document.title === 'round 3 of 3 \u2013 trial'")
        tab.wait("document.querySelector('#rounds th').textContent === '2'")
        assert tab.value("document.getElementById('awaited').hidden")
        assert "training 0.4" in tab.value("document.querySelector('figure svg').getAttribute('aria-label')")
        assert contrast(tab) >= 4.5, "WCAG 2.2, 1.4.3"
        assert not tab.complaints


def contrast(tab: Tab) -> float:
    """The least contrast of text with its background, of all elements that show text of their own."""
    return float(
        tab.value(
            """(() => {
              const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
              const light = (c) => c.match(/[0-9.]+/g).slice(0, 3)
                .reduce((sum, v, i) => sum + [0.2126, 0.7152, 0.0722][i] * part(+v), 0.05);
              const under = (e) => {
                for (; e; e = e.parentElement) {
                  const color = getComputedStyle(e).backgroundColor;
                  if (!color.endsWith(", 0)")) return color;
                }
              };
              const text = (n) => n.nodeType === 3 && n.data.trim();
              const own = (e) => [...e.childNodes].some(text) && e.checkVisibility();
              return Math.min(...[...document.body.querySelectorAll("*")].filter(own).map((e) => {
                const style = getComputedStyle(e);
                const pair = [light(e.ownerSVGElement ? style.fill : style.color), light(under(e))];
                return Math.max(...pair) / Math.min(...pair);
              }));
            })()"""
        )
    )


# ---- with a run --------------------------------------------------------------------------------------------------


def test_a_server_shows_what_it_waits_for(experiment: Callable[..., Experiment], tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="gRPC is not installed")
    serving = importlib.import_module("fednlp.deployment.operate.serve")
    said: list[str] = []

    class Told(NullCallback):
        def log(self, text: str) -> None:
            said.append(text)

    found: list[dict[str, Any]] = []

    def look() -> None:
        port = int(next(text for text in said if "http://" in text).rsplit(":", 1)[1].strip("/"))
        found.append(json.loads(ask(port, "/status.json")[1]))
        raise RunError("that is enough")

    made = experiment({"partition.clients": 2, "clients_per_round": 2, "task.name": "text-classification"})
    shards = split_out(made.resolved(), tmp_path / "shards", said.append)
    where = serving.Listening("127.0.0.1:0")
    with pytest.raises(RunError, match="that is enough"):
        serving.serve(
            shards.experiment,
            tmp_path / "run",
            ["nord", "west"],
            where,
            Told(),
            lambda name, token: None,
            on_look=look,
            page="127.0.0.1:0",
        )
    assert found[0]["phase"] == "waiting for sites"
    assert [(site["name"], site["state"]) for site in found[0]["sites"]] == [
        ("nord", "invited"),
        ("west", "invited"),
    ]
    assert [one["release"] for one in found[0]["awaited"]] == ["it joins, or fednlp sites remove"] * 2
    last = read_status(tmp_path / "run" / FOLDER)
    assert last is not None
    assert last.phase == "stopped"
