"""A site's identity: enrolled once, renewed, crashed between any two writes, and hostile messages on both sides."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.deployment.identity.admission.federation import MOST_MESSAGE_BYTES, EnrolRequest
from fednlp.deployment.identity.certificates import (
    certificate_pem,
    key_id,
    load_certificate,
    load_key,
    new_key,
    public_key,
)
from fednlp.deployment.identity.site_identity import Membership, SiteIdentity
from fednlp.deployment.identity.tokens import JoinToken, invitation_certificate
from fednlp.errors import IdentityError, RunError

from .federation import ADDRESS, DAY, NOW, Federation, enrol_message, refusal, request_pem, self_signed


class Crash(BaseException):
    """The end of a process."""


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def test_a_site_enrols_and_its_key_stays(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site, token = federation.site(), federation.invite()
    assert site.membership is None
    material = site.enrolment_material(token)
    sent: list[bytes] = []

    def call(message: bytes) -> bytes:
        sent.append(message)
        return federation.admission.enrol(material.chain, message)

    membership = site.enrol(token, call)
    assert membership == federation.site().membership
    assert (membership.site, membership.client, membership.address) == ("north", 0, ADDRESS)
    assert membership.federation == federation.admission.authority.federation == token.federation
    assert site.material().key == material.key
    assert site.material().roots == federation.admission.authority.pem
    assert federation.admission.authorise(site.material().chain).client == 0
    assert key_id(public_key(load_certificate(site.material().chain))) == key_id(
        load_key(material.key).public_key()
    )
    assert set(json.loads(sent[0])) == {"version", "csr"}
    assert b"PRIVATE" not in b"".join(sent)
    assert repr(material).count("PRIVATE") == 0


def test_a_token_is_good_once(tmp_path: Path) -> None:
    """Again for the site that has used it, until it has connected; for nobody else."""
    federation = Federation(tmp_path)
    token = federation.invite()
    site, thief = federation.site("north"), federation.site("thief")

    def enrol(one: SiteIdentity) -> Membership:
        return one.enrol(token, federation.call(one.enrolment_material(token).chain))

    enrol(site)
    with pytest.raises(
        IdentityError, match="the server refuses: the invitation of north was used by another machine"
    ):
        enrol(thief)
    assert thief.membership is None
    assert enrol(site).client == 0
    assert len(federation.admission.material().roots) > len(federation.admission.authority.pem)
    federation.admission.authorise(site.material().chain)
    assert federation.admission.material().roots == federation.admission.authority.pem
    with pytest.raises(IdentityError, match="used up, replaced or withdrawn"):
        enrol(site)
    assert federation.admission.authorise(site.material().chain).client == 0


def test_an_expired_token_is_refused_by_the_server_s_clock(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    token, site = federation.invite(days=7), federation.site()
    federation.time += 7 * DAY
    assert federation.admission.material().roots == federation.admission.authority.pem
    with pytest.raises(IdentityError, match="the invitation of north expired on 2026-03-08"):
        site.enrol(token, federation.call(site.enrolment_material(token).chain))
    slow = SiteIdentity(tmp_path / "slow", lambda: NOW + 10 * DAY)
    with pytest.raises(IdentityError, match="the join token for north expired on 2026-03-08"):
        slow.enrol(token, federation.call(b""))


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_is_wrong_by_a_day_locks_no_site_out(tmp_path: Path, days: int) -> None:
    federation = Federation(tmp_path)
    token = federation.invite()
    site = SiteIdentity(tmp_path / "site", lambda: NOW + days * DAY)
    site.enrol(token, federation.call(site.enrolment_material(token).chain))
    certificate = load_certificate(site.material().chain)
    site.require_current()
    assert certificate.not_valid_before_utc.timestamp() <= NOW + days * DAY


def test_a_new_token_replaces_the_open_one(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    first, second, site = federation.invite(), federation.invite(), federation.site()
    with pytest.raises(IdentityError, match="used up, replaced or withdrawn"):
        site.enrol(first, federation.call(site.enrolment_material(first).chain))
    assert site.enrol(second, federation.call(site.enrolment_material(second).chain)).client == 0


def test_a_new_machine_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    old = federation.joined()
    token, new = federation.invite(), federation.site("elsewhere")
    assert federation.admission.authorise(old.material().chain).client == 0
    assert new.enrol(token, federation.call(new.enrolment_material(token).chain)).client == 0
    assert federation.admission.authorise(new.material().chain).client == 0
    with pytest.raises(IdentityError, match="was replaced by a newer join"):
        federation.admission.authorise(old.material().chain)


def test_a_removed_site_comes_back_with_its_number_and_a_new_token_only(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    old = site.material().chain
    federation.admission.register.remove("north")
    with pytest.raises(IdentityError, match="the server refuses: the site north was removed"):
        federation.renew(site)
    token = federation.invite()
    with pytest.raises(IdentityError, match="not one of the federation's"):
        federation.admission.authorise(old)
    assert site.enrol(token, federation.call(site.enrolment_material(token).chain)).client == 0
    assert federation.admission.authorise(site.material().chain).client == 0


def test_renewal_is_due_in_the_last_third_and_the_key_stays(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    first = site.material()
    federation.time = NOW + 58 * DAY
    assert not site.renewal_due()
    federation.time = NOW + 62 * DAY
    assert site.renewal_due()
    federation.renew(site)
    second = site.material()
    assert second.key == first.key
    assert second.chain != first.chain
    assert not site.renewal_due()
    for certificate in (first.chain, second.chain):
        assert federation.admission.authorise(certificate).client == 0


def test_an_expired_certificate_says_so_on_both_sides(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    site.require_current()
    federation.time += 91 * DAY
    with pytest.raises(
        IdentityError, match=r"expired on 2026-05-30 .* by this machine's clock: set the clock, or ask"
    ):
        site.require_current()
    with pytest.raises(IdentityError, match="the certificate of north expired on 2026-05-30"):
        federation.admission.authorise(site.material().chain)
    with pytest.raises(IdentityError, match="the server refuses: the certificate of north expired"):
        federation.renew(site)


def test_the_same_folder_cannot_join_two_federations(tmp_path: Path) -> None:
    first, second = Federation(tmp_path / "one"), Federation(tmp_path / "two")
    site = first.joined()
    with pytest.raises(IdentityError, match="join the other federation in a folder of its own"):
        site.enrol(second.invite(), second.call(b""))


def test_before_joining_and_with_damaged_files_it_says_what_to_do(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.site()
    with pytest.raises(RunError, match="type fednlp join and the token"):
        site.material()
    site = federation.joined()
    folder = tmp_path / "sites" / "north"
    (folder / "identity.json").write_text("{}")
    with pytest.raises(RunError, match=r"identity.json is damaged .* join with a new token"):
        site.material()
    (folder / "key.pem").write_text("x")
    with pytest.raises(RunError, match=r"key.pem is damaged .* join with a new token"):
        site.enrolment_material(federation.invite("south"))


def enrol_and_connect(federation: Federation, folder: Path) -> None:
    """All that happens from the token to the first session and a renewal, as a process does it after any crash."""
    site = SiteIdentity(folder / "site", federation.now)
    if site.membership is None:
        token = JoinToken.parse((folder / "token").read_text())
        federation.admission = federation.reopened()
        site.enrol(token, federation.call(site.enrolment_material(token).chain))
    assert federation.admission.authorise(site.material().chain).client == 0
    federation.renew(site)
    assert federation.admission.authorise(site.material().chain).client == 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(7))
def test_a_crash_at_any_write_is_repaired_by_doing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, before: bool
) -> None:
    """On either side: site and server end at the same moment, with what is on the disk then."""
    federation = Federation(tmp_path)
    (tmp_path / "token").write_text(str(federation.invite()))
    replace, writes = os.replace, 0

    def crashing(source: Any, target: Any) -> None:
        nonlocal writes
        writes += 1
        if before and writes == number + 1:
            raise Crash
        replace(source, target)
        if writes == number + 1:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crashing)
        patch.setattr(os, "unlink", lambda name: None)  # a process that is killed tidies nothing up
        with pytest.raises(Crash):
            enrol_and_connect(federation, tmp_path)
    federation.admission = federation.reopened()
    enrol_and_connect(federation, tmp_path)
    (site,) = federation.admission.register.sites()
    assert (site.client, site.state, site.invitation_expires) == (0, "enrolled", None)


def test_there_are_seven_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key, redeemed, recorded, the identity, the invitation closed, and two of the renewal."""
    federation = Federation(tmp_path)
    (tmp_path / "token").write_text(str(federation.invite()))
    replace, names = os.replace, []

    def noted(source: Any, target: Any) -> None:
        names.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    enrol_and_connect(federation, tmp_path)
    assert names == ["key.pem", *["sites.json"] * 2, "identity.json", *["sites.json"] * 2, "identity.json"]


def test_another_site_s_certificate_gets_nothing(tmp_path: Path) -> None:
    """A signing request for one key over the connection of another, in every combination."""
    federation = Federation(tmp_path)
    north, south = federation.joined("north"), federation.joined("south")
    token, key = federation.invite("west"), new_key()
    invited = certificate_pem(invitation_certificate(token.secret, key.public_key()))
    connections = {north.material().chain: north, south.material().chain: south, invited: None}
    keys = [load_key(north.material().key), load_key(south.material().key), key]
    for place, shown in enumerate(connections):
        for other, signer in enumerate(keys):
            answer = federation.admission.enrol(shown, enrol_message(request_pem(signer)))
            if place == other:
                assert json.loads(answer)["client"] == place
            else:
                assert "another key than that of the connection" in refusal(answer)


def test_a_stranger_s_certificate_gets_nothing(tmp_path: Path) -> None:
    federation, key = Federation(tmp_path), new_key()
    other = Federation(tmp_path / "other")
    token = other.invite()
    for shown in (
        certificate_pem(self_signed(key=key)),
        certificate_pem(self_signed("fednlp federation", key)),
        certificate_pem(invitation_certificate(token.secret, key.public_key())),
    ):
        answer = federation.admission.enrol(shown, enrol_message(request_pem(key)))
        assert "used up, replaced or withdrawn" in refusal(answer)
    signed = other.joined("south").material()
    answer = federation.admission.enrol(signed.chain, enrol_message(request_pem(load_key(signed.key))))
    assert "used up, replaced or withdrawn" in refusal(answer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_messages_are_refused_with_a_reason(
    federation: Federation, mutants: ModuleType, data: st.DataObject
) -> None:
    key, token = new_key(), federation.invite()
    before = federation.admission.register.sites()
    shown = certificate_pem(invitation_certificate(token.secret, key.public_key()))
    message = enrol_message(request_pem(key))
    kind = data.draw(st.sampled_from(["value", "bytes", "cut", "csr"]))
    if kind == "value":
        hostile = json.dumps(mutants.changed(data.draw, json.loads(message))).encode()
    elif kind == "bytes":
        hostile = data.draw(st.binary(max_size=300))
    elif kind == "cut":
        hostile = message[: data.draw(st.integers(0, 10**6)) % len(message)]
    else:
        csr = bytearray(request_pem(key))
        csr[data.draw(st.integers(0, 10**6)) % len(csr)] = data.draw(st.integers(0, 255))
        hostile = enrol_message(bytes(csr))
    answer = federation.admission.enrol(shown, hostile)
    if "refused" in json.loads(answer):
        assert refusal(answer)
        assert federation.admission.register.sites() == before
    else:  # a change that says the same, such as another line break
        EnrolRequest.model_validate_json(hostile)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"{" + b" " * MOST_MESSAGE_BYTES, "at most 16384 bytes"),
        (b"[" * 10_000, "no message of enrolment"),
        (b'{"version": 1, "csr": "' + b"A" * 5000 + b'"}', "no message of enrolment"),
        (b'{"version": 2, "csr": ""}', "enrolment speaks version 1 here and version 2 at the site"),
        (b'{"version": true, "csr": ""}', "no message of enrolment"),
        (b'{"version": 1, "csr": "", "client": 0}', "no message of enrolment"),
        (b'{"version": 1, "csr": "\\ud800"}', "no message of enrolment"),
        (b'{"version": 1, "csr": "\xff"}', "no message of enrolment"),
    ],
)
def test_messages_that_are_none_are_refused(tmp_path: Path, message: bytes, reason: str) -> None:
    federation = Federation(tmp_path)
    assert reason in refusal(federation.admission.enrol(certificate_pem(self_signed()), message))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_a_peer_without_a_certificate_is_refused(federation: Federation, shown: bytes) -> None:
    """TLS lets none through; a driver that is wrong must not either."""
    refusal(federation.admission.enrol(shown, enrol_message(request_pem(new_key()))))
    with pytest.raises(IdentityError):
        federation.admission.authorise(shown)


def test_a_connection_without_mutual_tls_gets_nothing(federation: Federation) -> None:
    message = enrol_message(request_pem(new_key()))
    assert "only mutual TLS is accepted" in refusal(federation.admission.enrol(None, message))
    with pytest.raises(IdentityError, match="only mutual TLS is accepted"):
        federation.admission.authorise(None)


def answer_to(federation: Federation, site: SiteIdentity) -> dict[str, Any]:
    """What the server answers to this site."""
    token = federation.invite()
    key = load_key(site.enrolment_material(token).key)
    shown = certificate_pem(invitation_certificate(token.secret, key.public_key()))
    return dict(json.loads(federation.admission.enrol(shown, enrol_message(request_pem(key)))))


def test_a_site_stores_no_changed_answer(tmp_path: Path, mutants: ModuleType) -> None:
    """But for the number and the id: the number is the server's to give, and the id is computed."""
    federation = Federation(tmp_path)
    site = federation.site()
    answer, token = answer_to(federation, site), federation.invite()

    @settings(max_examples=50)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        hostile, present = mutants.changed(data.draw, answer), site.membership
        try:
            site.enrol(token, lambda _: json.dumps(hostile).encode())
        except IdentityError as error:
            reason = str(error)
        else:
            reason = ""
        expected = present if reason else site.membership
        assert "\n" not in reason
        assert site.membership == expected
        if not reason:
            assert {name: hostile[name] for name in ("certificate", "ca")} == {
                name: answer[name] for name in ("certificate", "ca")
            }
            assert expected is not None
            assert expected.federation == token.federation

    check()


def test_an_answer_of_another_federation_or_for_another_key_is_refused(tmp_path: Path) -> None:
    federation, other = Federation(tmp_path / "one"), Federation(tmp_path / "two")
    site, token = federation.site(), federation.invite()
    mine, theirs = answer_to(federation, federation.site("else")), answer_to(other, site)
    for answer, reason in (
        (theirs, "signed by another authority"),
        (theirs | {"ca": mine["ca"]}, "signed by another authority"),
        (mine | {"ca": theirs["ca"]}, "signed by another authority"),
        (mine, "for another key than this site's"),
    ):
        with pytest.raises(IdentityError, match=reason):
            site.enrol(token, lambda _: json.dumps(answer).encode())  # noqa: B023
    assert site.membership is None


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b"\xff", b"[" * 10_000, b'{"refused": 3}', b"x" * 20_000]
)
def test_answers_that_are_none_are_refused(tmp_path: Path, answer: bytes) -> None:
    federation = Federation(tmp_path)
    with pytest.raises(IdentityError, match="no message of enrolment"):
        federation.site().enrol(federation.invite(), lambda _: answer)


def test_a_server_s_reason_is_harmless_for_a_terminal(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    reason = "\x1b[2J\nroot# " + "x" * 10_000
    with pytest.raises(IdentityError, match="the server refuses: ") as caught:
        federation.site().enrol(federation.invite(), lambda _: json.dumps({"refused": reason}).encode())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_failed_renewal_keeps_the_present_certificate(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    present = site.material()
    with pytest.raises(IdentityError):
        site.renew(lambda _: b'{"refused": "no"}')
    assert site.material() == present


def test_of_many_machines_that_use_a_token_at_once_one_joins(federation: Federation, tmp_path: Path) -> None:
    token = federation.invite()
    thieves = [SiteIdentity(tmp_path / f"thief-{number}", federation.now) for number in range(8)]

    def enrol(site: SiteIdentity) -> bool:
        try:
            site.enrol(token, federation.call(site.enrolment_material(token).chain))
        except IdentityError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        joined = [site for site, came in zip(thieves, pool.map(enrol, thieves), strict=True) if came]
    (winner,) = joined
    assert federation.admission.authorise(winner.material().chain).client == 0
    assert len(federation.admission.register.sites()) == 1


@pytest.mark.parametrize("name", ["key.pem", "identity.json"])
def test_a_pipe_in_the_place_of_a_file_of_the_site_is_said(federation: Federation, name: str) -> None:
    """Reading it would wait for ever."""
    site = federation.joined()
    path = federation.folder.parent / "sites" / "north" / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=rf"{name} is damaged"):
        site.material()


def test_a_pipe_in_the_place_of_the_authority_is_said(federation: Federation) -> None:
    path = federation.folder / "authority.pem"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=r"authority\.pem is damaged .*a pipe or a device"):
        federation.reopened()
