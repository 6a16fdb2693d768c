"""Sites that join a server in threads of this process."""

import threading
from collections.abc import Callable, Iterable


class SitesAtOnce:
    """Sites that begin once the server listens.

    Args:
        names: Of the sites.
        join: Enrols a site and takes part, given its name and what is typed there; it returns when the run is over.
    """

    def __init__(self, names: Iterable[str], join: Callable[[str, str], None]) -> None:
        self._names, self._join = list(names), join
        self.typed: dict[str, str] = {}
        self.threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Begin, each in a thread of its own."""
        for name in self._names:
            self.threads.append(threading.Thread(target=self._join, args=(name, self.typed[name])))
            self.threads[-1].start()

    def look(self) -> None:
        """Check that none has ended, while the server runs."""
        assert all(thread.is_alive() for thread in self.threads)

    def end(self) -> None:
        """Wait until all have ended."""
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
