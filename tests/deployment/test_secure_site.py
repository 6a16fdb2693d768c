"""A site does not believe what a server says of a secure sum, and does nothing twice that would tell an update."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.config import Experiment
from fednlp.deployment.session.messages import Call
from fednlp.deployment.session.setup import MOST_EXAMPLES, read_experiment
from fednlp.errors import FednlpError, RunError, SecureAbort
from fednlp.federated.client import TrainRequest
from fednlp.privacy.noise import LARGEST_SIGMA
from fednlp.secure.deployment.server.sums import Asking, SecureSessions
from fednlp.secure.deployment.session.messages import steps_of, to_json
from fednlp.secure.deployment.session.terms import RoundTerms, spec_of, terms_of
from fednlp.secure.deployment.site.agreed import agreed
from fednlp.secure.deployment.site.sums import SecureSite
from fednlp.secure.messages import KEY, SEED, Revealed, Survivors
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg import SecAggRoundSpec

from .secure_rig import (
    DIGEST,
    LENGTH,
    PROTOCOLS,
    RUN,
    STEPS_OF,
    WEIGHTS,
    Killed,
    Sites,
    agreed_by,
    deployed,
    params_of,
    simulated,
    sum_of,
    train,
    uploads_of,
)

Make = Callable[..., Experiment]
Change = partial[None]
OWN = 2
OTHER = "f" * 64


@pytest.fixture(scope="module", autouse=True)
def fast_disk() -> Iterator[None]:
    """No power is cut here, and a disk takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def terms(params: SecAggParams, round_number: int = 1) -> dict[str, Any]:
    return terms_of(params, sorted(WEIGHTS), round_number, DIGEST).model_dump()


def put(place: str, value: Any) -> Change:
    """Return a change of one value of the terms, by its dotted path."""

    return partial(_put, place, value)


def _put(place: str, value: Any, found: dict[str, Any]) -> None:
    *path, last = place.split(".")
    for key in path:
        found = found[key]
    found[last] = value


HOSTILE: dict[str, tuple[Change, str]] = {
    "threshold": (put("plan.threshold", 3), "plan have threshold = 3"),
    "neighbours": (put("plan.neighbours", 2), "plan have neighbours = 2"),
    "colluding": (put("plan.max_colluding", 5), "plan have max_colluding = 5"),
    "protocol": (put("plan.protocol", "none"), "plan have protocol = none"),
    "more": (put("plan.extra", 1), "plan have extra = 1"),
    "small cohort": (put("cohort", [1, 2, 3]), "a cohort of 3, and the experiment's settings ask for 8"),
    "twice": (put("cohort", [1, 2, 2, 3, 4, 5, 6, 7]), "8 different ones of 8"),
    "strangers": (put("cohort", [2, 3, 4, 5, 6, 7, 8, 9]), "8 different ones of 8"),
    "clip": (put("encoding.clip", 1e9), "encoding have clip"),
    "bits": (put("encoding.bits", 2), "encoding have bits"),
    "no room": (put("encoding.largest_weight", 1.0), "names 1.0 as the largest weight"),
    "too much weight": (put("encoding.largest_weight", 1e9), "10000000 at most"),
    "no weight": (put("encoding.largest_weight", "a"), "names a as the largest weight"),
    "infinite": (put("encoding.largest_weight", float("inf")), "names inf as the largest weight"),
    "noise": (put("noise_std", 1.0), "terms have noise_std = 1.0"),
    "round": (put("round", 0), "of which round"),
    "huge round": (put("round", 10**5000), "of which round"),
    "huge number": (put("cohort", [10**5000]), "a number in it that is too long"),
    "no round": (put("round", None), "of which round"),
    "extra": (put("code", "x"), "terms of the secure sum do not fit: code"),
    "no digest": (put("request", None), "terms of the secure sum do not fit: request"),
    "other digest": (put("request", "model"), "terms of the secure sum do not fit: request"),
    "no cohort": (put("cohort", None), "terms of the secure sum do not fit: cohort"),
}


def test_each_term_has_a_lie() -> None:
    """A new term has none yet: say what a site makes of it when the server lies."""
    assert {*RoundTerms.model_fields} <= {change.args[0].partition(".")[0] for change, _ in HOSTILE.values()}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_terms_that_the_experiment_does_not_give_are_refused(
    protocol: str, case: str, tmp_path: Path
) -> None:
    """Nothing was told, so the right terms are still taken."""
    change, message = HOSTILE[case]
    params = params_of(protocol)
    site = SecureSite(tmp_path / "site", agreed_by(OWN, params))
    said = terms(params)
    change(said)
    with pytest.raises(FednlpError, match=message):
        site.answer("keys", said, {})
    assert site.answer("keys", terms(params), {})[0]


def test_a_cohort_without_the_site_is_refused(tmp_path: Path) -> None:
    params = params_of("secagg")
    site = SecureSite(tmp_path / "site", replace(agreed_by(OWN, params), clients=9))
    said = terms(params) | {"cohort": [0, 1, 3, 4, 5, 6, 7, 8]}
    with pytest.raises(SecureAbort, match="client 2 is not in the cohort"):
        site.answer("keys", said, {})


@pytest.mark.parametrize(("protocol", "fewest"), [("secagg", 5), ("secagg+", 3), ("lightsecagg", 6)])
def test_a_sum_may_not_be_over_fewer_than_the_policy_allows(
    protocol: str, fewest: int, tmp_path: Path
) -> None:
    params = params_of(protocol)
    assert params.fewest_in_sum == fewest
    SecureSite(tmp_path / "one", agreed_by(OWN, params, fewest)).answer("keys", terms(params), {})
    strict = SecureSite(tmp_path / "two", agreed_by(OWN, params, fewest + 1))
    with pytest.raises(SecureAbort, match=r"this site's policy asks for \d \(allow.smallest_cohort\)"):
        strict.answer("keys", terms(params), {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_there_is_one_session_in_a_round(protocol: str, tmp_path: Path) -> None:
    """Not with other peers, not again once it is over, and not in a round before."""
    params = params_of(protocol)
    site = SecureSite(tmp_path / "site", replace(agreed_by(OWN, params), clients=9))
    site.answer("keys", terms(params, 4), {})
    first = site.answer("keys", terms(params, 5), {})
    assert site.answer("keys", terms(params, 5), {}) == first
    others = terms(params, 5) | {"cohort": [0, 1, 2, 3, 4, 5, 6, 8]}
    with pytest.raises(SecureAbort, match="keys of round 5 twice, and not for the same"):
        site.answer("keys", others, {})
    for again in (3, 4):
        with pytest.raises(SecureAbort, match=f"begins a secure sum in round {again}"):
            site.answer("keys", terms(params, again), {})
    site.over(6)
    with pytest.raises(
        SecureAbort, match="begins a secure sum in round 5, and this site is done with round 5"
    ):
        site.answer("keys", terms(params, 5), {})
    more = SecureSite(tmp_path / "site", replace(agreed_by(OWN, params), clients=10))
    with pytest.raises(SecureAbort, match="names 10 sites, and this run began with 9"):
        more.answer("keys", terms(params, 6), {})
    elsewhere = SecureSite(tmp_path / "site", replace(agreed_by(OWN, params), run="another", clients=9))
    with pytest.raises(SecureAbort, match="another run of the federation"):
        elsewhere.answer("keys", terms(params, 7), {})


def stopped_before(protocol: str, step: str, folder: Path, **options: Any) -> tuple[Sites, SecAggParams]:
    """Return sites that have taken all steps before one."""
    params = params_of(protocol, **options)
    sites = Sites(folder, params)
    ask = sites.ask

    def stop(client: int, call: Call, most_bytes: int = 0) -> None:
        if call.id.endswith(f".{step}"):
            raise Killed
        ask(client, call, most_bytes)

    sites.ask = stop  # type: ignore[method-assign]
    sessions = SecureSessions(Asking(sites), folder / "server", lambda number: DIGEST)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        sum_of(params, 1, sessions.open, lambda requests: list(uploads_of(sites, requests)))
    sites.ask = ask  # type: ignore[method-assign]
    return sites, params


def survivors(clients: list[int]) -> dict[str, Any]:
    return {"round": 1, **to_json(Survivors(np.array(clients, dtype=np.uint32)))}


EVERYONE = sorted(WEIGHTS)
WITHOUT = EVERYONE[:-1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shares_are_revealed_once(protocol: str, tmp_path: Path) -> None:
    """For another list of survivors they would tell a peer's seed and its key: they are not there any more."""
    last = STEPS_OF[protocol][-1]
    sites, _ = stopped_before(protocol, last, tmp_path / "sites")
    spec = sites.site(OWN).agreed.spec(sites.site(OWN).kept.load(1).terms)
    near = spec.client_spec(OWN).neighbours if isinstance(spec, SecAggRoundSpec) else EVERYONE
    shown = survivors(sorted({*near, OWN}))
    first, body = sites.site(OWN).answer(last, shown, {})
    again, copy = sites.site(OWN).answer(last, shown, {})
    assert first == again
    if body is not None and copy is not None:
        assert body.read_bytes() == copy.read_bytes()
    with pytest.raises(SecureAbort, match=f"{last} of round 1 twice, and not for the same"):
        sites.site(OWN).answer(last, survivors(WITHOUT), {})
    state = sites.site(OWN).kept.load(1).client
    assert state is not None
    assert not state.get("shares")
    assert not state["sealing"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([0, 1, OWN], "are needed|must be over|does not expect|not one of"),
        ([one for one in EVERYONE if one != OWN], "though it is still here|does not expect"),
        ([*EVERYONE, 77], "longer than"),
        ([*EVERYONE[:-1], EVERYONE[0]], "twice|does not expect"),
    ],
)
def test_a_wrong_list_of_survivors_ends_the_session(
    protocol: str, listed: list[int], message: str, tmp_path: Path
) -> None:
    last = STEPS_OF[protocol][-1]
    sites, _ = stopped_before(protocol, last, tmp_path / "sites")
    with pytest.raises(SecureAbort, match=message):
        sites.site(OWN).answer(last, survivors(listed), {})
    with pytest.raises(SecureAbort, match="this site has left the secure sum of round 1"):
        sites.site(OWN).answer(last, survivors(EVERYONE), {})
    names = {path.name for path in (tmp_path / "sites" / f"site-{OWN}" / "1").iterdir()}
    assert not names & {"own-piece", "pieces"}


def test_a_sum_is_opened_with_the_noise_of_enough_sites(tmp_path: Path) -> None:
    """Five of eight open a sum by SecAgg, and six must be in it for its noise to be enough."""
    sites, params = stopped_before("secagg", "reveal", tmp_path / "sites", noise_multiplier=1.0)
    assert (params.plan.threshold, params.min_updates) == (5, 6)
    with pytest.raises(SecureAbort, match="the sum would be over 5 sites, and must be over 6 or more"):
        sites.site(OWN).answer("reveal", survivors(EVERYONE[:5]), {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_masks_are_used_for_one_vector(protocol: str, tmp_path: Path) -> None:
    """Whatever the server asks for, and though the site would now compute something else."""
    last = STEPS_OF[protocol][-1]
    sites, _ = stopped_before(protocol, last, tmp_path / "sites")
    site = sites.site(OWN)

    def other(request: TrainRequest) -> Any:
        raise AssertionError("it has trained")

    request = TrainRequest(OWN, 1, 0.5, masking={"seeds": [["00" * 32, 1]]})
    answers = [site.train(request, DIGEST, other) for _ in range(2)]
    bodies = [body.read_bytes() for _, body in answers if body is not None]
    assert bodies == [(sites.folder / f"1.{OWN}.train").read_bytes()] * 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 0.001}, "masking have weight"),
        ({"noise_std": 5.0}, "masking have noise_std"),
        ({"clip": 1e-9}, "masking have clip"),
        ({"seeds": [["00" * 32, 1]]}, "masking have seeds"),
        ({"encoding": {"bits": 1}}, "masking have encoding"),
        ({"more": 1}, "masking have more"),
    ],
)
def test_an_update_is_masked_as_the_terms_say_or_not_sent(
    protocol: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sites, params = stopped_before(protocol, "train", tmp_path / "sites")
    masking = {
        "encoding": asdict(params.encoding),
        "noise_std": params.noise_std,
        "weight": WEIGHTS[OWN],
        "seeds": [],
        "clip": None,
    }
    site = sites.site(OWN)
    with pytest.raises(SecureAbort, match=message):
        site.train(TrainRequest(OWN, 1, 0.5, masking=masking | changes), DIGEST, train)
    with pytest.raises(SecureAbort, match="masking have"):
        site.train(TrainRequest(OWN, 1, 0.5), DIGEST, train)
    with pytest.raises(SecureAbort, match="round 2 that did not begin here"):
        site.train(TrainRequest(OWN, 2, 0.5, masking=masking), DIGEST, train)
    assert site.train(TrainRequest(OWN, 1, 0.5, masking=masking), DIGEST, train)[1] is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_step_is_taken_out_of_turn(protocol: str, tmp_path: Path) -> None:
    params, last = params_of(protocol), STEPS_OF[protocol][-1]
    site = SecureSite(tmp_path / "site", agreed_by(OWN, params))
    with pytest.raises(SecureAbort, match="did not begin here"):
        site.answer("shares", {"round": 1}, {})
    site.answer("keys", terms(params), {})
    with pytest.raises(SecureAbort, match="before it delivers shares"):
        site.train(TrainRequest(OWN, 1, 0.5), DIGEST, train)
    with pytest.raises(SecureAbort, match="has no step called"):
        site.answer("reveal" if last == "answer" else "answer", {"round": 1}, {})
    with pytest.raises(SecureAbort, match="where 'share' is due"):
        site.answer(last, survivors(EVERYONE), {})
    with pytest.raises(SecureAbort, match="has left the secure sum"):
        site.answer("shares", {"round": 1}, {})


@pytest.mark.parametrize("text", [None, 3, "!", "AAAA", "A" * 10**6, "/w" + "A" * 40])
def test_what_is_no_message_is_refused(text: Any, tmp_path: Path) -> None:
    params = params_of("secagg")
    site = SecureSite(tmp_path / "site", agreed_by(OWN, params))
    site.answer("keys", terms(params), {})
    with pytest.raises(SecureAbort):
        site.answer("shares", {"round": 1, "message": text}, {})


@pytest.mark.parametrize("term", ["largest weight", "request"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parties_that_were_told_different_terms_do_not_understand_each_other(
    protocol: str, term: str, tmp_path: Path
) -> None:
    """A server cannot weigh one client more than the others, nor send it another model and say so to it alone."""
    params = params_of(protocol)
    larger = replace(params, encoding=replace(params.encoding, largest_weight=1e6))
    said = terms(larger) if term == "largest weight" else terms(params) | {"request": OTHER}
    sites = Sites(tmp_path / "sites", params, sent={OWN: said["request"]})
    ask = sites.ask

    def twist(client: int, call: Any, most_bytes: int = 0) -> None:
        if call.id == f"1.{OWN}.keys":
            call = replace(call, request=said)
        if call.id == f"1.{OWN}.train":
            call.request["request"]["masking"]["encoding"] = said["encoding"]
        ask(client, call, most_bytes)

    sites.ask = twist  # type: ignore[method-assign]
    with pytest.raises(SecureAbort, match=r"are needed|no update arrived"):
        deployed(sites, params)
    assert any(
        "the sites were sent different models or requests" in str(r.error) for r in sites.inbox.values()
    )


@pytest.mark.parametrize("others", [{OWN}, {*WEIGHTS} - {OWN}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_made_of_another_model_is_in_no_sum(protocol: str, others: set[int], tmp_path: Path) -> None:
    """Who was sent another model than all have agreed on stays out; if too many were, there is no sum."""
    params = params_of(protocol)
    sites = Sites(tmp_path / "sites", params, sent=dict.fromkeys(others, OTHER))
    if others == {OWN}:
        total, _ = deployed(sites, params)
        assert torch.equal(total.storage, simulated(params, vanished=others)[0].storage)
    else:
        with pytest.raises(SecureAbort, match=r"are needed|must be|must have"):
            deployed(sites, params)
    assert {*sites.trained} == {*WEIGHTS} - others
    for client in others:
        reason = sites.inbox[f"1.{client}.train"].error
        assert reason is not None
        assert reason.endswith("the sites were sent different models or requests")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_noise_is_drawn_once_and_nobody_else_can_draw_it(protocol: str, tmp_path: Path) -> None:
    """The sum is that of the encoded updates and of noise of the stated size, other noise each time."""
    params = params_of(protocol, noise_multiplier=1.0, dropout=0.0)
    assert 10 < params.noise_std < LARGEST_SIGMA
    plain, _ = simulated(replace(params, noise_std=0.0, min_updates=1))
    sums = []
    for number in range(2):
        total, _ = deployed(Sites(tmp_path / str(number), params), params)
        noise = (total.storage - plain.storage).double().numpy() / 2.0**40 / params.encoding.step
        sums.append(noise / (params.noise_std * len(WEIGHTS) ** 0.5))
    for one in (*sums, (sums[0] - sums[1]) / 2**0.5):
        assert 0.65 < one.std() < 1.35  # of some hundred numbers


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
def test_a_share_is_of_the_seed_or_of_the_key(protocol: str, tmp_path: Path) -> None:
    """All that a site ever says of a peer's secrets is one share of one of them."""
    sites, params = stopped_before(protocol, "train", tmp_path / "sites")
    sites.late = {OWN: "train"}
    deployed(sites, params)
    spec = spec_of(params, terms_of(params, EVERYONE, 1, DIGEST), RUN, LENGTH + 1)
    form = steps_of(spec)[3].up
    assert form is not None
    for client in sorted(WEIGHTS.keys() - {OWN}):
        found = form.from_json(sites.inbox[f"1.{client}.reveal"].answer or {})
        assert isinstance(found, Revealed)
        assert len(set(found.ids.tolist())) == len(found.ids)
        kinds = dict(zip(found.ids.tolist(), found.kinds.tolist(), strict=True))
        assert kinds == {peer: KEY if peer == OWN else SEED for peer in kinds}


@pytest.mark.whole
def test_an_experiment_says_what_is_expected(experiment: Make) -> None:
    numbers: dict[str, Any] = {"own": 1, "clients": 8, "parameters": 10, "examples": 25, "smallest": 3}
    assert agreed(experiment({}), "run", **numbers) is None
    found = agreed(experiment({"secure.protocol": "secagg"}), "run", **numbers)
    assert found is not None
    assert (found.weight, found.largest, found.rule.params.plan.clients) == (25.0, MOST_EXAMPLES, 4)
    assert found.draw is not None
    drawn = found.draw(3)
    named = terms_of(found.rule.params, drawn, 3, DIGEST)
    named.encoding["largest_weight"] = 25.0
    assert replace(found, own=drawn[0]).params(named).plan == found.rule.params.plan
    others = sorted({*range(8)} - {*drawn})
    with pytest.raises(SecureAbort, match="another cohort in round 3"):
        replace(found, own=others[0]).params(named.model_copy(update={"cohort": others}))
    capped = experiment({"secure.protocol": "secagg", "algorithm.most_examples": 20})
    found = agreed(capped, "run", **numbers)
    assert found is not None
    assert (found.weight, found.largest) == (20.0, 20.0)
    private = {
        "privacy": {"clip": 0.5, "noise": 0.3},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
    }
    found = agreed(experiment({"secure.protocol": "secagg", **private}), "run", **numbers)
    assert found is not None
    assert (found.weight, found.largest, found.rule.clip) == (1.0, 1.0, 0.5)
    assert found.rule.params.noise_std > 0
    for changes, told in (
        ({"secure.protocol": "secagg", "fewshot": {}}, r"leave \[secure\] out, or leave \[fewshot\] out"),
        (
            {"secure": {"protocol": "secagg", "malicious_server": True}},
            r"say secure\.malicious_server = false",
        ),
    ):
        with pytest.raises(RunError, match=told):
            read_experiment(experiment(changes).model_dump(exclude_none=True))
