"""A round of secure aggregation without a training loop: the same three moments for all protocols."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fednlp.errors import ConfigError, SecureAbort
from fednlp.federated.params import Layout
from fednlp.federated.sums import FRACTION_BITS, ExactSum
from fednlp.federated.transforms import RngKey
from fednlp.secure.masks import MaskSeeds
from fednlp.secure.params import SecAggParams, make_params
from fednlp.secure.round import SecureRound
from fednlp.secure.session import PHASES
from fednlp.secure.upload import mask_update, mask_values

PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
LENGTH = 1003  # no multiple of a block of AES
WEIGHTS = {client: float(client) for client in (3, 8, 1, 14, 9, 20, 5, 6, 2, 4)}
FAILED = 14


def params_of(protocol: str, **options: Any) -> SecAggParams:
    settings: dict[str, Any] = {"dropout": 0.3, "clip": 4.0} | options
    return make_params(protocol, len(WEIGHTS), LENGTH, max(WEIGHTS.values()), 7, **settings)


def update_of(client: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(client).uniform(-1, 1, LENGTH).astype(np.float32))


def upload(round_: SecureRound, total: ExactSum, skip: frozenset[int] = frozenset()) -> None:
    """Have every client that is asked to mask its update do so."""
    for client, masking in round_.begin().items():
        if client not in skip:
            masked = mask_update(update_of(client), masking | {"clip": None}, RngKey(7, 1, client))
            total.add_residues(masked.residues[:-1])
            round_.add(client, int(masked.residues[-1]), masked.seconds)


def finish(round_: SecureRound, total: ExactSum) -> tuple[float, float]:
    def unmask(slices: int, length: int, seeds: MaskSeeds) -> None:
        for start in range(0, slices * length, length):
            total.add_residues(mask_values(start, min(start + length, LENGTH), seeds), start)

    return round_.finish(total, unmask)


def new_sum() -> ExactSum:
    return ExactSum(Layout.of({"a": ((LENGTH,), "parameter")}))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_sum_is_that_of_the_clients_that_were_added(protocol: str) -> None:
    """One client fails in training: its masks are taken out of the sum, and it is in neither sum nor weights."""
    params, total = params_of(protocol), new_sum()
    round_ = SecureRound(params, 1, WEIGHTS, LENGTH)
    upload(round_, total, skip=frozenset({FAILED}))
    unit, share = finish(round_, total)
    kept = [client for client in WEIGHTS if client != FAILED]
    assert unit == 32.0
    assert share == sum(WEIGHTS[client] for client in kept) / unit
    plain = sum(WEIGHTS[client] / unit * update_of(client).double() for client in kept)
    found = total.storage.double() / 2.0**FRACTION_BITS
    assert (found - plain).abs().max() <= len(kept) / 2 * params.encoding.step + 1e-6
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_traffic_says_of_every_client_what_it_cost_and_what_became_of_it(protocol: str) -> None:
    found: set[str] = set()
    for number in range(1, 30):
        round_ = SecureRound(params_of(protocol, simulated_dropout=0.15), number, WEIGHTS, LENGTH)
        total = new_sum()
        try:
            upload(round_, total, skip=frozenset({FAILED}))
            finish(round_, total)
        except SecureAbort:
            continue
        traffic = round_.traffic()
        assert list(traffic) == list(WEIGHTS)
        for client, one in traffic.items():
            phase = round_.dropped_out.get(client)
            if client == FAILED and phase in {None, "answer"}:
                assert one.reason == "its masked update did not arrive"
            elif phase in {None, "answer"}:
                assert one.reason is None
            else:
                assert one.reason == f"dropped out before its {phase} (simulated)"
            assert one.got_model == (phase in {None, "update", "answer"})
            masked = one.bytes_up - round_.session.channel.bytes_up[client]
            assert masked == (0 if one.reason else round_.upload_bytes())
        found |= set(round_.dropped_out.values())
        sent = sum(one.bytes_up + one.bytes_down for one in traffic.values())
        uploads = sum(one.reason is None for one in traffic.values())
        assert round_.metrics(1)["bytes"] == sent - uploads * 4 * LENGTH
        assert round_.metrics(1)["dropped_out"] == round_.dropped_out
    assert found == set(PHASES)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_that_aborts_in_setup_asks_nobody(protocol: str) -> None:
    round_ = SecureRound(params_of(protocol, simulated_dropout=0.95), 1, WEIGHTS, LENGTH)
    with pytest.raises(SecureAbort, match=r"are needed|no client"):
        round_.begin()
    reasons = {client: one.reason for client, one in round_.traffic().items()}
    for client in WEIGHTS:
        phase = round_.dropped_out.get(client)
        expected = (
            f"dropped out before its {phase} (simulated)" if phase else "did not get as far as training"
        )
        assert reasons[client] == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sum_with_too_little_noise_stays_masked(protocol: str) -> None:
    params, total = params_of(protocol, noise_multiplier=1.0), new_sum()
    assert params.min_updates == params.noise_clients == 7
    round_ = SecureRound(params, 1, WEIGHTS, LENGTH)
    upload(round_, total, skip=frozenset({1, 2, 3, 4}))
    before = total.storage.clone()
    with pytest.raises(SecureAbort, match="6 updates arrived, and the noise of differential privacy needs 7"):
        finish(round_, total)
    assert torch.equal(total.storage, before)


def test_a_round_without_uploads_has_no_sum() -> None:
    round_ = SecureRound(params_of("secagg"), 1, WEIGHTS, LENGTH)
    upload(round_, total := new_sum(), skip=frozenset(WEIGHTS))
    with pytest.raises(SecureAbort, match="no update arrived"):
        finish(round_, total)


def test_noise_needs_an_honest_client() -> None:
    """With as many colluding as staying, only the noise is in the way: without it the protocol has its own say."""
    with pytest.raises(ConfigError, match=r"10 clients none is left whose noise counts .* = 0\.3 .* = 0\.7"):
        params_of("secagg", max_colluding=0.7, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="must answer at max_colluding"):
        params_of("secagg", max_colluding=0.7)


def test_who_drops_out_is_a_function_of_seed_and_round() -> None:
    params = params_of("secagg", simulated_dropout=0.5)
    drawn = [SecureRound(params, number, WEIGHTS, LENGTH).dropped_out for number in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    other = SecureRound(replace(params, seed=8), 1, WEIGHTS, LENGTH).dropped_out
    assert other != drawn[0]
