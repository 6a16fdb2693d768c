"""Headless chromium, told what to do through a pipe by the DevTools protocol."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)
_LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from descriptor 3 and writes to 4."""
_PATIENCE = 60.0


class Tab:
    """A tab. Messages are JSON that ends with a zero byte."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._count = to, back, b"", 0
        self.complaints: list[str] = []
        self._session: str | None = None
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Have a command done, and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            if answer["method"] in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(answer["params"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._back], [], [], _PATIENCE)[0], "chromium says nothing"
            new = os.read(self._back, 1 << 16)
            assert new, "chromium has ended"
            self._rest += new
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + _PATIENCE
        while not self.value(expression):
            assert time.monotonic() < until, (
                f"{expression}; the page says {self.value('document.body.innerText')}"
            )
            time.sleep(0.05)


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """Start chromium for the time of a block; skip the test where there is none.

    Args:
        folder: For its profile.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    its_input, to = os.pipe()
    back, its_output = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _LAUNCH,
            str(its_input),
            str(its_output),
            program,
            *_OPTIONS,
            f"--user-data-dir={folder}",
        ],
        pass_fds=(its_input, its_output),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Tab(to, back)
    finally:
        os.close(to)
        os.close(back)
        process.kill()
        process.wait()
