"""What a client sends, as bytes: of the length that is counted, and nothing else is taken for it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.client import ClientResult
from fednlp.federated.communication import Uplink, encode_update
from fednlp.federated.params import Layout
from fednlp.federated.pulling import Pull
from fednlp.federated.sent import Sent
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import RngKey, make_chain
from fednlp.federated.update import Update
from fednlp.federated.upload import (
    Upload,
    pack_upload,
    received,
    require_reported,
    unpack_upload,
    upload_bytes,
)

LAYOUT = Layout.of(
    {"a": ((3, 2), "parameter"), "b": ((5,), "buffer"), "words": ((4, 3), "parameter")}, table="words"
)
KEY = RngKey(7, 2, 1)
X = LAYOUT.zeros()
PLAIN = replace(fedavg(1), sends=("model", "control"))
FLOATS = st.floats(-100, 100, width=32)


def update(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def result(entries: list[int] | None = None) -> ClientResult:
    return ClientResult(1, 0.5, entries=entries)


def result_of(sent: Sent | None) -> ClientResult:
    if sent is None:
        return result()
    return replace(result(list(sent.entries)), slices=[list(one) for one in sent.slices])


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].flat(LAYOUT), other[name].flat(LAYOUT)) for name in one
    )


vectors = st.lists(FLOATS, min_size=LAYOUT.numel, max_size=LAYOUT.numel).map(update)


@given(vectors, vectors, st.sets(st.integers(0, 3)))
def test_a_plain_upload_arrives_as_it_was(model: torch.Tensor, control: torch.Tensor, rows: set[int]) -> None:
    """Rows that a client did not use arrive as zeros: the bytes do not tell which words it has."""
    numbers = torch.tensor(sorted(rows), dtype=torch.int64)
    sent = Upload(
        model=Update(model[: LAYOUT.dense], numbers, LAYOUT.rows(model)[numbers]), others={"control": control}
    )
    data = pack_upload(sent, LAYOUT)
    assert len(data) == 2 * LAYOUT.message_bytes == upload_bytes(PLAIN, LAYOUT, None, masked=False)
    back = unpack_upload(memoryview(data), PLAIN, LAYOUT, result(), masked=False)
    assert same(received(back, PLAIN, LAYOUT, X, KEY), received(sent, PLAIN, LAYOUT, X, KEY))


@given(vectors, vectors, st.sampled_from([[], ["int8"], ["topk:0.3"], ["float16"]]), st.booleans(), st.data())
def test_a_compressed_upload_arrives_as_the_client_knows_it(
    model: torch.Tensor, control: torch.Tensor, up: list[str], some: bool, data: st.DataObject
) -> None:
    some = some or not up
    pull = Pull("low", of="parameters") if some else Pull()
    algorithm = replace(PLAIN, uplink=Uplink(make_chain(parse_chain(up, "up")), pull=pull))
    chosen = data.draw(st.sampled_from([Sent((0, 2)), Sent((2,), ((0, 1, 2),))])) if some else None
    encoded = encode_update(algorithm.uplink, LAYOUT, model, KEY, chosen)
    sent = Upload(encoded=encoded, others={"control": control})
    packed = pack_upload(sent, LAYOUT)
    assert len(packed) == upload_bytes(algorithm, LAYOUT, encoded.sent, masked=False)
    assert len(packed) <= upload_bytes(algorithm, LAYOUT, None, masked=False)
    back = unpack_upload(packed, algorithm, LAYOUT, result_of(encoded.sent), masked=False)
    assert same(received(back, algorithm, LAYOUT, X, KEY), received(sent, algorithm, LAYOUT, X, KEY))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=LAYOUT.numel + 1, max_size=LAYOUT.numel + 1))
def test_a_masked_upload_arrives_as_it_was(residues: list[int]) -> None:
    sent = Upload(masked=np.array(residues, dtype=np.uint32))
    data = pack_upload(sent, LAYOUT)
    assert len(data) == upload_bytes(PLAIN, LAYOUT, None, masked=True)
    back = unpack_upload(data, PLAIN, LAYOUT, result(), masked=True)
    assert back.masked is not None
    assert back.masked.tolist() == residues
    with pytest.raises(RunError, match="bytes where"):
        unpack_upload(data, PLAIN, LAYOUT, result(), masked=False)


@given(st.data(), st.booleans())
def test_bytes_that_were_changed_are_refused_or_are_another_update(data: st.DataObject, masked: bool) -> None:
    """Whatever arrives, it is a declared error or an update of the right shape."""
    flat = torch.arange(LAYOUT.numel, dtype=torch.float32)
    sent = Upload(model=Update.of(flat, LAYOUT), others={"control": flat})
    if masked:
        sent = Upload(masked=np.arange(LAYOUT.numel + 1, dtype=np.uint32))
    good = bytearray(pack_upload(sent, LAYOUT))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([len(good), place, len(good) - 1]))
    try:
        back = unpack_upload(bytes(good[:cut]), PLAIN, LAYOUT, result(), masked=masked)
    except RunError:
        return
    assert cut == len(good)
    assert back.masked is not None or back.model is not None


@pytest.mark.parametrize("entries", [[3], [-1], [0, 0], [2, 1], [10**12]])
def test_entries_that_the_model_does_not_have_are_refused(entries: list[int]) -> None:
    algorithm = replace(PLAIN, uplink=Uplink(make_chain(parse_chain(["int8"], "up")), pull=Pull("low")))
    with pytest.raises(RunError, match="not numbers of this model's tensors"):
        unpack_upload(b"", algorithm, LAYOUT, result(entries), masked=False)


def test_tensors_are_chosen_by_clients_only_where_the_method_says_so() -> None:
    """A plain update that says it holds fewer tensors would not count with its weight in the others."""
    data = pack_upload(Upload(model=Update.of(X, LAYOUT), others={"control": X}), LAYOUT)
    with pytest.raises(RunError, match="it was to send all of them"):
        unpack_upload(data, PLAIN, LAYOUT, result([0]), masked=False)


@given(st.floats(), st.floats())
def test_numbers_that_are_not_finite_or_not_declared_are_refused(one: float, other: float) -> None:
    method = replace(fedavg(1), reports=("a", "b"))
    reported = ClientResult(1, 0.5, metrics={"a": one, "b": other})
    if math.isfinite(one) and math.isfinite(other):
        require_reported(reported, method)
    else:
        with pytest.raises(RunError, match="no finite number"):
            require_reported(reported, method)
    for declared in ((), ("a",), ("a", "b", "c")):
        with pytest.raises(RunError, match="does not report what"):
            require_reported(reported, replace(method, reports=declared))
