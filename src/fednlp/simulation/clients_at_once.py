"""A runtime whose workers train several clients at once (``runtime.clients_at_once``)."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fednlp.federated.runtime import Runtime
from fednlp.runtime.messages import from_json, to_json, trains
from fednlp.training.requests.train import TrainTogetherRequest


class ClientsAtOnce:
    """Has the clients of a round trained in groups.

    Which clients are a group is a function of their requests, and not of the number of workers: so the weights are not
    either.

    Args:
        runtime: Where the clients are.
        size: Clients of a group, at most.
        work: Returns how much work a request is.
    """

    def __init__(self, runtime: Runtime, size: int, work: Callable[[Any], float]) -> None:
        self._runtime, self._size, self._work = runtime, size, work

    def __len__(self) -> int:
        return len(self._runtime)

    @property
    def total(self) -> Any:
        """The runtime's."""
        return self._runtime.total

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let the clients have a flat vector under a name."""
        self._runtime.publish(name, vector, message)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered: those of clients that train in groups of like work, the others as they are."""
        training = [number for number, one in enumerate(requests) if trains(one)]
        training.sort(key=lambda number: (-self._work(requests[number]), number))
        count = -(-len(training) // self._size)
        groups = [
            training[len(training) * i // count : len(training) * (i + 1) // count] for i in range(count)
        ]
        others = [number for number, one in enumerate(requests) if not trains(one)]
        asked: list[Any] = [
            TrainTogetherRequest([to_json(requests[number]) for number in group]) for group in groups
        ]
        parts = len(asked) + len(others)
        answers = self._runtime.do(
            [*asked, *(requests[number] for number in others)],
            lambda done: on_progress(len(requests) * done // parts),
        )
        by_number = dict(zip(others, answers[count:], strict=True))
        for group, answer in zip(groups, answers, strict=False):
            by_number |= zip(group, map(from_json, answer.clients), strict=True)
        return [by_number[number] for number in range(len(requests))]
