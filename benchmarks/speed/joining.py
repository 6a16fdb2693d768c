"""Section ``join``: what a site's process takes until it is ready, with BERT-tiny.

A real server in this process waits for one site over mTLS. Only then ``fednlp join`` is started with a token and 60
short texts, as a user starts it. The seconds are those until the server has the site's answer that it is ready: it has
enrolled, fetched the model (17.6 MB), read and tokenised its texts, and built its worker. Memory is the highest
resident set of the site's process (VmHWM), until it is ready and until a round of four local steps is done. The model
has the size of BERT-tiny and random weights. The figures are the medians.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fednlp.simulation.callback import NullCallback

MEGABYTES_BOUND, SECONDS_BOUND = 450, 6.0
_HIDDEN, _VOCABULARY = 128, 30522


def join(repeats: int) -> dict[str, Any]:
    """Return the figures of the section ``join``.

    Args:
        repeats: Sites that join, one after the other, each a server of its own.
    """
    found = [_joined() for _ in range(repeats)]
    medians = {key: round(statistics.median(one[key] for one in found), 2) for key in found[0]}
    return medians | {"seconds_bound": SECONDS_BOUND, "mb_bound": MEGABYTES_BOUND}


def _joined() -> dict[str, float]:
    from made_up import experiment

    from fednlp.deployment.operate.serve import Listening, serve
    from fednlp.deployment.operate.shards import split_out

    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        made = experiment(folder / "made", _HIDDEN, clients=1, rounds=1, vocabulary=_VOCABULARY)
        shards = split_out(made.resolved(), folder / "shards", lambda text: None)
        site = Site(shards.files(shards.names[0])[0], folder)
        served = (shards.experiment, folder / "server", shards.names, Listening("127.0.0.1:0"), site)
        try:
            serve(*served, site.invited, on_look=site.start)
        finally:
            site.stop()
        return site.figures


class Site(NullCallback):
    """A site's process, and what the server hears of it.

    Args:
        data: The site's examples.
        folder: Holds what it keeps.
    """

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._token, self._began = "", 0.0
        self.figures: dict[str, float] = {}

    def invited(self, name: str, token: str) -> None:
        """Take the token."""
        self._token = token

    def start(self) -> None:
        """Start the process, once the server waits for it."""
        if self._process is not None:
            if self._process.poll() is not None:
                raise SystemExit("fednlp join has ended before it was ready")
            return
        environment = os.environ | {"FEDNLP_HOME": str(self._folder / "state"), "OMP_NUM_THREADS": "1"}
        words = ["join", "-", "--data", str(self._data), "--test-fraction", "0"]
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fednlp.cli", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._token}\n".encode())
        self._process.stdin.close()

    def log(self, text: str) -> None:
        """Measure when the site is ready."""
        if " is ready" in text:
            self.figures = {"seconds": time.perf_counter() - self._began, "ready_mb": self._peak()}

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Measure after the round."""
        self.figures["trained_mb"] = self._peak()

    def _peak(self) -> float:
        """Return the highest resident set of the process so far, in MB."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    def stop(self) -> None:
        """End the process, which has been told that the federation has ended."""
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
