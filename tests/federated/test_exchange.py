"""The way down: what a transform cannot hold is refused before anybody trains on it."""

import math

import pytest
import torch
from fednlp.federated.exchange import Exchange, broadcast

from fednlp.errors import RunError
from fednlp.federated.params import Layout

from .test_transforms import KEY, chain_of

LAYOUT = Layout.of({"w": ((3,), "parameter")})
HALF = Exchange(down=chain_of(["float16"]))


def test_a_model_that_float16_cannot_hold_is_refused() -> None:
    assert broadcast(HALF, LAYOUT, torch.tensor([1.0, 2.0, 65504.0]), KEY).tolist() == [1.0, 2.0, 65504.0]
    with pytest.raises(RunError, match=r"exchange\.down cannot: say bfloat16"):
        broadcast(HALF, LAYOUT, torch.tensor([1.0, 2.0, 1e6]), KEY)


def test_a_model_that_is_not_finite_already_is_no_fault_of_the_exchange() -> None:
    arrived = broadcast(HALF, LAYOUT, torch.tensor([1.0, math.inf, 2.0]), KEY)
    assert arrived.tolist() == [1.0, math.inf, 2.0]
