"""Sign flip: attackers send their update with the sign reversed, such as in Li et al. 2019, "RSA"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fednlp.federated.attacks import Attack, attack
from fednlp.federated.client import Change, ClientFunction, Local, Result

if TYPE_CHECKING:
    from torch import Tensor


@attack("Sign flip")
def sign_flip(scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0) -> Attack:
    """Return the attack whose clients train as others do, and send ``-scale`` times what they should.

    Args:
        scale: How many times as large the update is; every vector that the method sends is.
    """

    def make(honest: ClientFunction) -> ClientFunction:
        def client(
            local: Local, x: Tensor, server: Mapping[str, Tensor], own: Mapping[str, Tensor]
        ) -> Result:
            result = honest(local, x, server, own)
            return replace(result, update={name: _flat(one) * -scale for name, one in result.update.items()})

        return client

    return make


def _flat(value: Change | Tensor) -> Tensor:
    """Return a tensor as it is, and a change as its flat vector."""
    from torch import Tensor

    return value if isinstance(value, Tensor) else value.flat()
