"""The lines for mosquitto on the page of operation: a stranger can paste them."""

import asyncio
import getpass
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from fednlp.errors import RunError
from tests.deployment.mosquitto import MOSQUITTO
from tests.deployment.throwaway import Authority

pytest.importorskip("paho.mqtt.client")
from fednlp.deployment.links.mqtt.broker import PASSWORD, ROOTS, USER, Broker

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "deployment" / "operate.md"
FOLDER = "/etc/mosquitto"


def block(begins: str) -> str:
    """Return the block of the page that begins with a word."""
    found = re.search(rf"^```text\n({begins} .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


async def reached(port: int, name: str, topic: str) -> None:
    broker = Broker(f"mqtts://localhost:{port}", [topic], ("t", b"", False), print, print, name=name)
    await broker.open()
    broker.close()


def test_the_pasted_lines_start_a_broker_with_tls_logins_and_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOSQUITTO is not None
    port, authority = free_port(), Authority()
    key, certificate = authority.server_pair("localhost")
    for name, content in (
        ("certs/broker.key", key),
        ("certs/broker.pem", certificate),
        ("fednlp.acl", block("user").encode()),
        ("roots.pem", authority.pem),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch(0o600)
        path.write_bytes(content)
    passwords = tmp_path / "fednlp.passwords"
    for flag, user in (("-c", "server"), ("-b", "nord")):
        options = ["-c", "-b"] if flag == "-c" else ["-b"]
        subprocess.run(
            ["mosquitto_passwd", *options, str(passwords), user, f"of {user}"],
            check=True,
            capture_output=True,
        )
    lines = block("listener").replace(FOLDER, str(tmp_path)).replace("8883", f"{port} 127.0.0.1")
    (tmp_path / "fednlp.conf").write_text(f"{lines}user {getpass.getuser()}\n")
    monkeypatch.setenv(ROOTS, str(tmp_path / "roots.pem"))
    monkeypatch.setenv(USER, "server")
    monkeypatch.setenv(PASSWORD, "of server")
    with subprocess.Popen([MOSQUITTO, "-c", str(tmp_path / "fednlp.conf")]) as process:
        try:
            wait_for(port)
            asyncio.run(reached(port, "", "fednlp/0/up/+"))
            monkeypatch.setenv(PASSWORD, "another")
            with pytest.raises(RunError, match=USER):
                asyncio.run(reached(port, "", "fednlp/0/up/+"))
        finally:
            process.kill()


def wait_for(port: int) -> None:
    """Wait until a broker listens with TLS."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as line, trusting.wrap_socket(line):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("mosquitto does not listen")
