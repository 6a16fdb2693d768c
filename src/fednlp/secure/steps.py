"""The order of a protocol's steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fednlp.errors import SecureAbort


class Steps:
    """Steps that can be taken in one order only, each once; after one that fails, none."""

    def __init__(self, *order: str) -> None:
        self._order = order
        self.taken = 0
        self._aborted = False

    @contextmanager
    def take(self, name: str, forget: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Take a step.

        Args:
            name: Which.
            forget: Called when the step fails, and after the last one; by default nothing is to be forgotten.

        Raises:
            SecureAbort: Another one is due, or one failed before.
        """
        try:
            if self._aborted:
                raise SecureAbort(f"{name!r} was asked for after the round was aborted")
            self._aborted = True  # until the step has gone through
            due = self._order[self.taken] if self.taken < len(self._order) else "nothing"
            if name != due:
                raise SecureAbort(f"{name!r} was asked for where {due!r} is due")
            yield
            self.taken += 1
            self._aborted = False
        finally:
            if self._aborted or self.taken == len(self._order):
                forget()
