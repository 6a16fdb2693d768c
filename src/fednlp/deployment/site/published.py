"""What a server has published, as a site unpacks it."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fednlp.deployment.session.objects import mapped, mapped_privately
from fednlp.deployment.session.site_kinds import DERIVED
from fednlp.errors import RunError
from fednlp.federated.communication import decode_broadcast, derived_entries, entry_shapes
from fednlp.federated.message import unpack
from fednlp.federated.transforms import RngKey
from fednlp.federated.upload import flat_of
from fednlp.runtime.allocator import release_freed_memory
from fednlp.training.worker import ClientWorker


class Published:
    """The vectors of a server, of which the last of each name is kept: the next one takes its memory."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Tensor]] = {}

    def vector(
        self, worker: ClientWorker, name: str, objects: Mapping[str, Path], encoded_in: int | None
    ) -> Tensor:
        """Return what the server published under a name, flat.

        Args:
            objects: The files that came with a call, by name.
            encoded_in: The round for which it was transformed; None if it was not.

        Raises:
            RunError: The files hold something else.
        """
        derived = None if encoded_in is None else objects.get(DERIVED)
        key = f"{objects[name].name} {encoded_in} {derived and derived.name}"
        known = self._known.get(name)
        if known is None or known[0] != key:
            into = None
            if known is None:
                release_freed_memory()  # what the setup took, and the messages in which the model arrived
            else:
                into = self._known.pop(name)[1]
            known = key, _flat(worker, objects[name], derived, encoded_in, into)
            self._known[name] = known
        return known[1]


def _flat(
    worker: ClientWorker, path: Path, derived: Path | None, encoded_in: int | None, into: Tensor | None
) -> Tensor:
    layout = worker.layout
    if encoded_in is None:
        return flat_of(mapped_privately(path), layout, into)
    key = RngKey(worker.spec.seed, encoded_in, -1)
    with mapped(path) as data:
        tensors = decode_broadcast(worker.algorithm.downlink, layout, data, key)
    if layout.derived:
        if derived is None:
            raise RunError(f"the server did not send {DERIVED}")
        with mapped(derived) as data:
            tensors |= unpack(data, entry_shapes(derived_entries(layout)))
    return layout.flatten(tensors)
