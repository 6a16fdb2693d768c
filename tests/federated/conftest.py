"""A trainer of one number, to see what becomes of clients' numbers."""

import pytest
import torch


class NumberTrainer:
    """A trainer of a number ``w``, and of statistics if they are named: all of them end at the client's data."""

    def __init__(self, *statistics: str) -> None:
        self.buffer_names = statistics
        self.params = {name: torch.zeros(()) for name in ("w", *statistics)}

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return self.params

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        self.params = params

    def train(self, data: list[float]) -> None:
        values = zip(self.params, data, strict=True)
        self.params = {name: torch.tensor(value) for name, value in values}

    def test(self, data: object) -> dict[str, float]:
        return {}


@pytest.fixture
def number_trainer() -> type[NumberTrainer]:
    """Return the class of trainers of one number."""
    return NumberTrainer
