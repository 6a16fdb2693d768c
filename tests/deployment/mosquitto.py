"""A broker of a test's own: mosquitto, on a free port of loopback, without memory of what was before."""

import getpass
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


class Mosquitto:
    """A broker that runs for the time of a block.

    Args:
        folder: For its configuration.
        rules: Who may read and write what, as lines of mosquitto's ACL file; everybody everything without them.
        users: A password for each user that the rules name.
    """

    def __init__(
        self, folder: Path, rules: str | None = None, users: Mapping[str, str] | None = None
    ) -> None:
        self._rules, self._users = rules, dict(users or {})
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder
        self.address = f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert MOSQUITTO is not None
        settings = self.folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
            "max_inflight_messages 0\nmax_packet_size 300000\nset_tcp_nodelay true\nlog_type error\n"
            f"user {getpass.getuser()}\n"
        )
        if self._rules is not None:
            (self.folder / "acl").write_text(self._rules)
            with settings.open("a") as file:
                file.write(f"acl_file {self.folder / 'acl'}\npassword_file {self.folder / 'passwords'}\n")
            (self.folder / "passwords").write_text("")
            for path in (self.folder / "acl", self.folder / "passwords"):
                path.chmod(0o600)
            for user, password in self._users.items():
                command = ["mosquitto_passwd", "-b", str(self.folder / "passwords"), user, password]
                subprocess.run(command, check=True, capture_output=True)
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(settings)])
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("mosquitto does not listen")

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Kill it, or end it by another signal."""
        self.process.send_signal(number)
        self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
