"""What a server publishes, as a site keeps it: one vector of each name, in the memory of the one before."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fednlp.deployment.site.published import Published
from fednlp.errors import RunError
from fednlp.federated.message import pack
from fednlp.federated.params import Layout

LAYOUT = Layout.of({"w": ((3,), "parameter"), "b": ((2,), "buffer")})


def test_the_next_model_takes_the_memory_of_the_one_before(tmp_path: Path) -> None:
    worker: Any = SimpleNamespace(layout=LAYOUT)
    published = Published()

    def vector(name: str, value: float, content: bytes | None = None) -> torch.Tensor:
        path = tmp_path / str(value)
        path.write_bytes(content or pack(dict(LAYOUT.views(torch.full((5,), value)))))
        return published.vector(worker, name, {name: path}, None)

    first, control = vector("model", 1.0), vector("control", 7.0)
    assert vector("model", 1.0) is first
    assert first.tolist() == [1.0] * 5
    second = vector("model", 2.0)
    assert second.data_ptr() == first.data_ptr()
    assert (second.tolist(), control.tolist()) == ([2.0] * 5, [7.0] * 5)
    with pytest.raises(RunError):
        vector("model", 3.0, b"nonsense")
    assert vector("model", 2.0).tolist() == [2.0] * 5
