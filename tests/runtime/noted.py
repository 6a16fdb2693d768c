"""The pool, which notes what other workers would be built from."""

from typing import Any, ClassVar

from fednlp.runtime.engine import Worker
from fednlp.runtime.pool import Pool


class Noted(Pool):
    """Keeps the arguments of the last run."""

    arguments: ClassVar[dict[str, Any]] = {}

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        type(self).arguments = arguments
        super().start(worker, arguments)
