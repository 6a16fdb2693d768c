"""An engine whose clients are on a machine without the files of the first one: their paths lead nowhere."""

from pathlib import Path
from typing import Any

from letters import Letters

from fednlp.runtime.engine import Worker

FILES = ("train_features", "test_features", "test_numbers", "partition", "records")


class Apart(Letters):
    """Tells the clients of files that are not there."""

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        spec = arguments["spec"]
        moved = {name: str(Path("/nowhere") / Path(spec[name]).name) for name in FILES}
        super().start(worker, arguments | {"spec": spec | moved})
