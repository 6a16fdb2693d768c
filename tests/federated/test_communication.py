"""What travels between a client and the server: the message says all, and what it cannot hold is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.federated.communication import (
    Downlink,
    Uplink,
    broadcast,
    bytes_down,
    decode_update,
    encode_update,
    sent_shapes,
)
from fednlp.federated.message import unpack
from fednlp.federated.params import Layout
from fednlp.federated.sent import Sent

from .test_transforms import EVERY, KEY, chain_of

SHAPES: dict[str, Any] = {
    "w": ((5, 4), "parameter"),
    "scale": ((), "parameter"),
    "none": ((0,), "parameter"),
    "mean": ((4,), "buffer"),
    "base": ((3, 3), "derived"),
    "words": ((6, 2), "parameter"),
}
LAYOUT = Layout.of(SHAPES, table="words")
SMALL = Layout.of({"w": ((3,), "parameter")})
HALF = Downlink(chain_of(["float16"]))


def noise(seed: int) -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


def parts(what: list[str]) -> Sent:
    """Of each tensor all, nothing, or its elements but one; the slice begins at its second and comes round."""
    sizes = [entry.numel for entry in LAYOUT.entries]
    entries = tuple(number for number, how in enumerate(what) if how == "whole")
    slices = [
        (number, 1, sizes[number]) for number, how in enumerate(what) if how == "part" and sizes[number] > 1
    ]
    return Sent(
        entries,
        tuple((number, 2, 1) if size > 9 else (number, first, size) for number, first, size in slices),
    )


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 1000),
    feedback=st.booleans(),
    chosen=st.none()
    | st.lists(st.sampled_from(["whole", "part", "not"]), min_size=len(SHAPES), max_size=len(SHAPES)),
)
def test_the_bytes_of_a_message_say_all_that_one_process_knows(
    words: list[str], seed: int, feedback: bool, chosen: list[str] | None
) -> None:
    """Bit for bit, whatever is sent and however it is transformed; the client's half and the server's half agree."""
    uplink = Uplink(chain_of(words), error_feedback=feedback and "clip:1.0" not in words)
    which = None if chosen is None else parts(chosen)
    residual = noise(seed + 1) if uplink.error_feedback and seed % 2 else None
    sent = encode_update(uplink, LAYOUT, noise(seed), KEY, which, residual)
    assert sent.decoded is not None
    alone = decode_update(uplink, LAYOUT, replace(sent, decoded=None, residual=None), KEY)
    assert torch.equal(alone, decode_update(uplink, LAYOUT, sent, KEY))
    travels = torch.zeros(LAYOUT.numel, dtype=torch.bool)
    for start, stop in (which or parts(["whole"] * len(SHAPES))).stretches(LAYOUT):
        travels[start:stop] = True
    assert not alone[~travels].any()
    if uplink.error_feedback and sent.residual is not None:
        wanted = noise(seed) + (0 if residual is None else residual)
        torch.testing.assert_close((alone + sent.residual)[travels], wanted[travels], rtol=1e-5, atol=1e-5)


def test_nothing_chosen_is_no_message() -> None:
    sent = encode_update(Uplink(), LAYOUT, noise(0), KEY, Sent(()))
    assert (sent.message, sent.sent) == (b"", Sent(()))
    assert not decode_update(Uplink(), LAYOUT, replace(sent, decoded=None), KEY).any()


def test_what_was_lost_waits_where_a_tensor_is_not_sent() -> None:
    """Error feedback keeps what earlier messages lost of a tensor until the tensor is sent again."""
    uplink, residual = Uplink(chain_of(["sign"]), error_feedback=True), noise(1)
    chosen = Sent.marked([entry.name == "w" for entry in LAYOUT.entries])
    sent = encode_update(uplink, LAYOUT, noise(0), KEY, chosen, residual)
    assert sent.residual is not None
    for entry in LAYOUT.entries:
        same = torch.equal(sent.residual[entry.start : entry.stop], residual[entry.start : entry.stop])
        assert same is (entry.name != "w")


@pytest.mark.parametrize("words", [[], ["int8"]])
def test_a_message_that_the_layout_does_not_ask_for_is_refused(words: list[str]) -> None:
    uplink = Uplink(chain_of(words))
    sent = replace(encode_update(uplink, LAYOUT, noise(0), KEY), decoded=None)
    for message in (b"", sent.message[:-1], sent.message + b"\0"):
        with pytest.raises(RunError) as refused:
            decode_update(uplink, LAYOUT, replace(sent, message=message), KEY)
        assert "\n" not in str(refused.value)
    with pytest.raises(RunError):
        decode_update(uplink, LAYOUT, replace(sent, sent=Sent((0,))), KEY)


def test_an_uplink_is_plain_where_updates_travel_as_they_are() -> None:
    assert Uplink().plain
    assert not Uplink(chain_of(["sign"])).plain
    assert not Uplink(pull=replace(Uplink().pull, rule="low")).plain


def test_a_model_that_nothing_transforms_is_not_copied() -> None:
    x = noise(0)
    assert broadcast(Downlink(), LAYOUT, x, KEY).model is x


def test_a_model_that_float16_cannot_hold_is_refused() -> None:
    assert broadcast(HALF, SMALL, torch.tensor([1.0, 2.0, 65504.0]), KEY).model.tolist() == [
        1.0,
        2.0,
        65504.0,
    ]
    with pytest.raises(RunError, match=r"exchange\.down cannot: say bfloat16"):
        broadcast(HALF, SMALL, torch.tensor([1.0, 2.0, 1e6]), KEY)


def test_a_model_that_is_not_finite_already_is_no_fault_of_the_transforms() -> None:
    arrived = broadcast(HALF, SMALL, torch.tensor([1.0, math.inf, 2.0]), KEY).model
    assert arrived.tolist() == [1.0, math.inf, 2.0]


def test_the_server_s_vectors_that_travel_are_counted() -> None:
    for downlink in (Downlink(), HALF):
        more = bytes_down(downlink, LAYOUT, vectors=2)
        assert more == bytes_down(downlink, LAYOUT) + 2 * LAYOUT.message_bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-6, 1e-3, 1.0]))
def test_weights_in_16_bits_are_torch_s_rounding_of_the_weights(
    dtype: torch.dtype, seed: int, scale: float
) -> None:
    """A small change of a weight is lost, as over the wire of FedSplitBERT; and nothing of it is left at the server."""
    uplink = Uplink(chain_of([str(dtype).removeprefix("torch.")]), weights=True)
    x, update = noise(seed), noise(seed + 1) * scale
    sent = encode_update(uplink, LAYOUT, update, KEY, x=x)
    arrived = x + decode_update(uplink, LAYOUT, replace(sent, decoded=None), KEY, x)
    rounded = (x + update).to(dtype).float()
    for number, entry in enumerate(LAYOUT.entries):
        if number not in LAYOUT.derived:
            place = slice(entry.start, entry.stop)
            torch.testing.assert_close(arrived[place], rounded[place], rtol=0, atol=1e-6)
            message = unpack(sent.message, sent_shapes(uplink, LAYOUT, None))
            assert torch.equal(message[entry.name], (x + update)[place].view(entry.shape).to(dtype))
