"""The server's state, which a resumed run needs, as one value and one file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fednlp.checked_json import parse_json
from fednlp.checked_json.shapes import Count, Shape
from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.formatting.units import plural


@dataclass
class State:
    """The server's state between two rounds. A round changes the tensors in place: keep no other reference.

    Attributes:
        round: Number of finished rounds.
        layout: The layout of the flat tensors.
        params: float32 (``layout.numel``,), the global model.
        vectors: Further tensors by name: optimiser state, control variates, pseudo labels.
        memory: Further state as JSON values.
    """

    round: int
    layout: Layout
    params: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        vectors = f", {', '.join(self.vectors)}" if self.vectors else ""
        return (
            f"<State after {plural(self.round, 'round')}: {plural(self.params.numel(), 'element')}{vectors}>"
        )

    def save(self, path: Path) -> None:
        """Write the state as one safetensors file; the caller makes it atomic."""
        metadata = {
            "round": self.round,
            "memory": self.memory,
            "layout": self.layout.describe(),
        }
        tensors = {"params": self.params, **{f"vector.{name}": v for name, v in self.vectors.items()}}
        save_file(tensors, str(path), {"fednlp": json.dumps(metadata)})

    @staticmethod
    def load(path: Path, layout: Layout) -> "State":
        """Read a state written by :meth:`save`.

        Raises:
            RunError: The file is cut short, altered, or of another model.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = parse_json((file.metadata() or {})["fednlp"], _Metadata)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            finite = all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
            params = tensors.pop("params")
        except Exception as error:  # of an altered file, safetensors and torch raise anything
            raise RunError(f"the checkpoint {path} cannot be read ({error})") from None
        if metadata["layout"] != layout.describe() or (params.shape, params.dtype) != (
            (layout.numel,),
            torch.float32,
        ):
            raise RunError(f"the checkpoint {path} is of another model")
        if not finite:
            raise RunError(f"the checkpoint {path} holds NaN or infinity, as from too high a learning rate")
        vectors = {name.removeprefix("vector."): vector for name, vector in tensors.items()}
        return State(metadata["round"], layout, params, vectors, metadata["memory"])


class _Metadata(Shape):
    round: Count
    layout: str
    memory: dict[str, Any]
