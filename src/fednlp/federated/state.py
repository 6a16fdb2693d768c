"""Everything a resumed run needs, as one value and one file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.params import Layout


@dataclass
class State:
    """The server between two rounds. The tensors are moved in place by a round, so keep no other reference.

    Attributes:
        round: Rounds that are done.
        layout: What lies where in the flat tensors.
        x: The global model, flat float32.
        slots: The server optimiser's memory (or, in centralised training, the trainer's), by name.
        totals: Running sums of the run: ``seconds``.
        memory: What a procedure keeps from one round to the next beside tensors: JSON values.
    """

    round: int
    layout: Layout
    x: Tensor
    slots: dict[str, Tensor] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        slots = f", {', '.join(self.slots)}" if self.slots else ""
        return f"<State after {self.round:,} rounds: {self.x.numel():,} elements{slots}>"

    def save(self, path: Path) -> None:
        """Write the state as one safetensors file (not atomically: see ``fednlp.rundir``)."""
        metadata = {
            "round": self.round,
            "totals": self.totals,
            "memory": self.memory,
            "layout": self.layout.describe(),
        }
        tensors = {"x": self.x, **{f"slot.{name}": slot for name, slot in self.slots.items()}}
        save_file(tensors, str(path), {"fednlp": json.dumps(metadata)})

    @staticmethod
    def load(path: Path, layout: Layout) -> "State":
        """Read a state written by :meth:`save`.

        Raises:
            RunError: The file is cut short, altered, or of another model.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata: dict[str, Any] = json.loads((file.metadata() or {})["fednlp"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise RunError(f"the checkpoint {path} cannot be read ({error}): start the run anew") from None
        if metadata["layout"] != layout.describe() or tensors["x"].shape != (layout.numel,):
            raise RunError(f"the checkpoint {path} is of another model: start the run anew")
        slots = {name.removeprefix("slot."): slot for name, slot in tensors.items() if name != "x"}
        if not all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point()):
            raise RunError(
                f"the checkpoint {path} holds NaN or infinity: lower the learning rate, start anew"
            )
        totals, memory = dict(metadata["totals"]), dict(metadata["memory"])
        return State(int(metadata["round"]), layout, tensors["x"], slots, totals, memory)
