"""The server's register of sites: who is invited, who has enrolled with which certificate, who was removed.

It is one JSON file, replaced as a whole under a lock, so that ``fednlp sites`` may change it while a server runs: the
server reads it again when it has changed. Sites are told apart by the SHA-256 of the certificate that TLS has checked,
never by a name or number that somebody claims.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from cryptography import x509
from pydantic import AfterValidator, Field, ValidationError

from fednlp.checked_json import damaged
from fednlp.checked_json.stored import Stored
from fednlp.deployment.identity.certificates import (
    REMEDY,
    Clock,
    certificate_pem,
    ends,
    fingerprint,
    is_issued_by,
    key_id,
    load_certificate,
    public_key,
)
from fednlp.deployment.identity.names import lookalike, site_name, stored_name
from fednlp.deployment.identity.tokens import ASK_AGAIN, SECRET_BYTES, date_text, invitation_root
from fednlp.disk import locked, private_folder, regular, write_private
from fednlp.errors import IdentityError

LONGEST_INVITATION = 365
"""Days."""
DAY = 24 * 3600
_MOST_CERTIFICATES = 4
"""Of one site at a time: renewals that got lost on the way leave some behind."""
State = Literal["invited", "enrolled", "removed"]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_T = TypeVar("_T")


class _Invitation(Stored):
    """A root certificate (PEM), and the SHA-256 of the key that has used it."""

    root: str
    expires: float
    used_by: _Hex | None = None


class _Certificate(Stored):
    """A certificate's SHA-256, and that of its key."""

    fingerprint: _Hex
    key: _Hex
    expires: float


class _Entry(Stored):
    """A site; its number is its place in the list, and no entry is ever taken out."""

    name: Annotated[str, AfterValidator(stored_name)]
    state: State
    since: float
    invitation: _Invitation | None = None
    certificates: list[_Certificate] = Field(default_factory=list)


class _File(Stored):
    """All sites."""

    version: Literal[1] = 1
    sites: list[_Entry] = Field(default_factory=list)


@dataclass(frozen=True)
class Site:
    """A site as others see it.

    Args:
        client: Its number: 0, 1, ... in order of invitation. No other site ever gets it.
        state: What it may do: enrol, take part, nothing.
        since: When it came into this state, seconds since 1970.
        invitation_expires: Until when its open invitation is good; None where there is none.
        certificate_expires: Until when its newest certificate is good; None where there is none.
    """

    name: str
    client: int
    state: State
    since: float
    invitation_expires: float | None
    certificate_expires: float | None


class Register:
    """The sites of one federation.

    Several processes and threads may use one folder at the same time. Every change is on the disk when its method
    returns, and a crash leaves the register as it was before the change or after it.

    Args:
        folder: The federation's folder on the server; made if missing.
        now: The clock; it alone decides whether an invitation has expired.

    Raises:
        RunError: The folder cannot be made.
    """

    def __init__(self, folder: Path, now: Clock = time.time) -> None:
        private_folder(folder, REMEDY)
        self._path, self._now = folder / "sites.json", now
        self._last = (b"", _File())

    def sites(self) -> list[Site]:
        """Return all sites in the order of their numbers, removed ones among them."""
        return [_site(client, entry) for client, entry in enumerate(self._read().sites)]

    def invite(self, name: str, days: float = 7) -> tuple[bytes, int]:
        """Open an invitation, in place of an earlier one of this site.

        A new name gets the next number. A site that has enrolled keeps its certificates until the invitation is used,
        as for a new machine; one that was removed may come back, with its number.

        Args:
            days: How long the invitation is good, at most :data:`LONGEST_INVITATION`.

        Returns:
            The secret, which is kept nowhere, and when the invitation expires.

        Raises:
            IdentityError: The name is not valid or is too like another one, or the days are out of range.
        """
        name = site_name(name)
        if not 0 < days <= LONGEST_INVITATION:
            raise IdentityError(
                f"an invitation is good for up to {LONGEST_INVITATION} days, not for {days:g}"
            )
        secret, expires = secrets.token_bytes(SECRET_BYTES), int(self._now() + days * DAY)
        root = certificate_pem(invitation_root(secret)).decode()

        def change(file: _File) -> None:
            entry = self._entry(file, name)
            if entry.state == "removed":
                entry.state, entry.since, entry.certificates = "invited", self._now(), []
            entry.invitation = _Invitation(root=root, expires=expires)

        self._change(change)
        return secret, expires

    def expect(self, name: str) -> Site:
        """Let a site take part that has a certificate of its organisation's own authority.

        Raises:
            IdentityError: The name is not valid, or is too like another one.
        """
        name = site_name(name)

        def change(file: _File) -> Site:
            entry = self._entry(file, name)
            if entry.state != "enrolled":
                entry.state, entry.since, entry.certificates = "enrolled", self._now(), []
            return _site(file.sites.index(entry), entry)

        return self._change(change)

    def roots(self) -> list[bytes]:
        """Return the certificates of all open invitations, PEM: TLS trusts them beside the authority's."""
        return [
            entry.invitation.root.encode()
            for entry in self._read().sites
            if entry.invitation and entry.invitation.expires > self._now()
        ]

    def redeem(self, certificate: bytes) -> Site:
        """Use an invitation; it is good for the first key that it is used with, and only for this one.

        Using it again with the same key changes nothing, so that a site whose answer got lost may ask again.

        Args:
            certificate: What the peer has shown in TLS, PEM.

        Raises:
            IdentityError: No open invitation has signed it, or another key has used the invitation.
        """
        shown = load_certificate(certificate)

        def change(file: _File) -> Site:
            client, invitation, key = self._invited(file, shown)
            invitation.used_by = key
            return _site(client, file.sites[client])

        return self._change(change)

    def require_invited(self, certificate: bytes) -> None:
        """Check that an open invitation has signed a certificate; it is not used up.

        Args:
            certificate: What the peer has shown, PEM.

        Raises:
            IdentityError: None has.
        """
        self._invited(self._read(), load_certificate(certificate))

    def _invited(self, file: _File, shown: x509.Certificate) -> tuple[int, _Invitation, str]:
        """Return the site whose invitation has signed a certificate, this invitation, and the certificate's key."""
        key = key_id(public_key(shown))
        for client, entry in enumerate(file.sites):
            invitation = entry.invitation
            if invitation is None or not is_issued_by(shown, load_certificate(invitation.root.encode())):
                continue
            if invitation.expires <= self._now():
                raise IdentityError(
                    f"the invitation of {entry.name} expired on {date_text(invitation.expires)}: {ASK_AGAIN}"
                )
            if invitation.used_by not in (None, key):
                raise IdentityError(
                    f"the invitation of {entry.name} was used by another machine, which is a theft if it was none of "
                    f"yours: {ASK_AGAIN}"
                )
            return client, invitation, key
        raise IdentityError(f"this invitation was used up, replaced or withdrawn: {ASK_AGAIN}")

    def record(self, client: int, certificate: x509.Certificate) -> None:
        """Accept a certificate from now on; those that the site has for other keys are good no longer.

        Args:
            client: The site's number.
            certificate: What the authority has signed for it.

        Raises:
            IdentityError: The site was removed or invited anew in the meantime.
        """
        new = _Certificate(
            fingerprint=fingerprint(certificate),
            key=key_id(public_key(certificate)),
            expires=ends(certificate),
        )

        def change(file: _File) -> None:
            entry = file.sites[client]
            if entry.state == "removed":
                raise _removed(entry)
            invited = entry.invitation is not None and entry.invitation.used_by == new.key
            if not invited and all(one.key != new.key for one in entry.certificates):
                raise IdentityError(
                    f"the invitation of {entry.name} was replaced in the meantime: {ASK_AGAIN}"
                )
            if entry.state == "invited":
                entry.state, entry.since = "enrolled", self._now()
            same = [one for one in entry.certificates if one.key == new.key and one.expires > self._now()]
            entry.certificates = [*same[1 - _MOST_CERTIFICATES :], new]

        self._change(change)

    def authorise(self, certificate: bytes) -> Site:
        """Return the site that a certificate belongs to.

        Its first use shows that the site has stored it; so it closes the invitation that led to it.

        Args:
            certificate: What the peer has shown in TLS, PEM.

        Raises:
            IdentityError: The certificate is unknown, replaced or expired, or its site was removed.
        """
        client, entry, known = self._find(fingerprint(load_certificate(certificate)))
        if entry.state == "removed":
            raise _removed(entry)
        if known.expires <= self._now():
            raise IdentityError(
                f"the certificate of {entry.name} expired on {date_text(known.expires)}: {ASK_AGAIN}"
            )
        if entry.invitation is None or entry.invitation.used_by != known.key:
            return _site(client, entry)

        def close(file: _File) -> Site:
            now = file.sites[client]
            if now.invitation and now.invitation.used_by == known.key:  # not another one by now
                now.invitation = None
            return _site(client, now)

        return self._change(close)

    def _find(self, shown: str) -> tuple[int, _Entry, _Certificate]:
        for client, entry in enumerate(self._read().sites):
            for one in entry.certificates:
                if one.fingerprint == shown:
                    return client, entry, one
        raise IdentityError(
            f"this certificate is not one of the federation's, or was replaced by a newer join: {ASK_AGAIN}"
        )

    def remove(self, name: str) -> Site:
        """Refuse a site from now on, and withdraw its invitation; no other site is touched.

        Raises:
            IdentityError: There is no such site, or no site can have this name.
        """
        name = site_name(name)

        def change(file: _File) -> Site:
            for client, entry in enumerate(file.sites):
                if entry.name == name:
                    if entry.state != "removed":
                        entry.state, entry.since = "removed", self._now()
                    entry.invitation = None
                    return _site(client, entry)
            known = ", ".join(entry.name for entry in file.sites) or "none yet"
            raise IdentityError(f"no site is called {name!r}; the sites are {known[:400]}")

        return self._change(change)

    def _read(self) -> _File:
        """Return what the file says, not to be changed; it is parsed only if it has changed.

        Raises:
            RunError: It is damaged.
        """
        try:
            content = regular(self._path).read_bytes()
            if content != self._last[0]:
                self._last = (content, _File.model_validate_json(content))
        except FileNotFoundError:
            return _File()
        except (ValidationError, OSError):
            error = ValueError("it is no register of sites")
            raise damaged(self._path, error, "restore it from a backup") from None
        return self._last[1]

    def _change(self, change: Callable[[_File], _T]) -> _T:
        """Apply a change to what the file says now, and return what the change returns.

        When this returns, the file is on the disk; when the change raises, nothing is written.

        Args:
            change: Works on a copy of its own.

        Raises:
            RunError: The file is damaged or cannot be written.
        """
        with locked(self._path.with_suffix(".lock"), REMEDY):
            before = self._read()
            file = before.model_copy(deep=True)
            result = change(file)
            if file != before:
                write_private(self._path, file.model_dump_json(indent=1).encode(), REMEDY)
            return result

    def _entry(self, file: _File, name: str) -> _Entry:
        """Return the entry of a name, a new one if there is none."""
        for entry in file.sites:
            if entry.name == name:
                return entry
            if lookalike(entry.name) == lookalike(name):
                raise IdentityError(
                    f"there is a site {entry.name} already, which {name} can be taken for: two names must differ in "
                    "more than case and script"
                )
        file.sites.append(entry := _Entry(name=name, state="invited", since=self._now()))
        return entry


def _site(client: int, entry: _Entry) -> Site:
    return Site(
        name=entry.name,
        client=client,
        state=entry.state,
        since=entry.since,
        invitation_expires=entry.invitation.expires if entry.invitation else None,
        certificate_expires=max((one.expires for one in entry.certificates), default=None),
    )


def _removed(entry: _Entry) -> IdentityError:
    return IdentityError(
        f"the site {entry.name} was removed from the federation on {date_text(entry.since)}; to come back, {ASK_AGAIN}"
    )
