"""What a server offers to its sites: flat vectors, as the objects of which they consist."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import ObjectRef
from fednlp.deployment.session.objects import write_object
from fednlp.deployment.session.site_kinds import DERIVED
from fednlp.federated.communication import derived_entries
from fednlp.federated.message import message_pieces
from fednlp.federated.params import Layout


@dataclass(frozen=True)
class Offer:
    """A flat vector that sites can fetch.

    Attributes:
        objects: What it consists of, by name.
        encoded: Whether it is transformed on its way.
    """

    name: str
    objects: Mapping[str, ObjectRef]
    encoded: bool


class Publisher:
    """Offers flat vectors to the sites.

    Args:
        folder: For files on their way into it.
    """

    def __init__(self, hub: Hub, folder: Path, layout: Layout) -> None:
        self.hub, self.folder, self.layout = hub, folder, layout

    def offer(self, name: str, vector: Tensor, message: bytes | None) -> Offer:
        """Offer a vector, until :meth:`drop`.

        Args:
            message: Its bytes, where it is transformed on its way.
        """
        views = self.layout.views(vector)
        if message is None:
            return Offer(name, {name: self._object(name, views)}, False)
        objects = {name: self._object(name, message)}
        derived = derived_entries(self.layout)
        if derived:  # they are never transformed
            objects[DERIVED] = self._object(DERIVED, {one.name: views[one.name] for one in derived})
        return Offer(name, objects, True)

    def drop(self, offer: Offer) -> None:
        """Offer a vector no longer."""
        for ref in offer.objects.values():
            self.hub.drop_object(ref.digest)

    def _object(self, name: str, content: Mapping[str, Tensor] | bytes) -> ObjectRef:
        pieces = [content] if isinstance(content, bytes) else message_pieces(content)
        path, ref = write_object(self.folder / f"{name}.new", pieces)
        self.hub.add_object(path, ref.digest)
        path.unlink()  # the hub has it open: its bytes go once it is no longer offered
        return ref
