"""Mutated tokens, enrolments, certificates and files: from a seed, any number. Each is read, or refused by an error."""

import base64
import json
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from cryptography import x509

from fednlp.deployment.identity.certificates import (
    certificate_pem,
    load_certificate,
    load_key,
    load_request,
    new_key,
    public_key,
)
from fednlp.deployment.identity.tokens import JoinToken
from fednlp.deployment.site.policy import load_policy
from fednlp.deployment.site.template import write_template
from fednlp.errors import ConfigError, FednlpError, IdentityError

from .federation import Federation, enrol_message, request_pem
from .test_organisation import Organisation

_LONGEST_LINE = 1000
_ODD = (None, True, -1, 0, 2**63, 1e308, "", "\x00", "\ud800", "../..", "a" * 5000, [], {}, [[[[]]]])
_TOML = (
    "0", "-1", "nan", "inf", "1e999", "true", '""', '"\\u0000"', '"../../x"', "[]", "{}", "[[[]]]",
    "9" * 5000, "1979-05-27", "07:32:00", '"' + "a" * 5000 + '"', "'" + "\\x" * 9 + "'",
)  # fmt: skip


class Mutations:
    """What strangers and slips of the hand make of what a federation reads, whoever wrote it.

    Args:
        folder: New or empty.
        seed: Of all that is made.

    Attributes:
        read: How many were read all the same, by kind.
        refused: How many were refused, by kind.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.read, self.refused = Counter[str](), Counter[str]()
        (folder / "federation").mkdir(parents=True)
        (folder / "organisation").mkdir()
        self.federation = Federation(folder / "federation")
        self.token = str(self.federation.invite("north"))
        site = self.federation.joined("south")
        self.shown = site.material().chain
        invited = self.federation.site("east").enrolment_material(self.federation.invite("east"))
        self.invited, self.first = invited.chain, _request(invited.key)
        self.renewal = _request(site.material().key)
        self.organisation = Organisation(folder / "organisation")
        self.files = self.organisation.issue(
            "north", new_key(), x509.DNSName("north"), x509.DNSName("north.example.org")
        )
        self.originals = {
            path: path.read_bytes() for path in (self.files.ca, self.files.cert, self.files.key)
        }
        self.admission = self.organisation.admission()
        self.admission.register.expect("north")
        self.policy = folder / "site.toml"
        write_template(self.policy, {"path": "notes.csv"})
        self.policy_text = self.policy.read_bytes()

    def run(self, count: int) -> None:
        """Make so many mutations.

        Raises:
            Exception: What was read raised something else than a declared error.
        """
        kinds: tuple[Callable[[], None], ...] = (
            self._token,
            self._renewal,
            self._shown,
            self._invitation,
            self._organisation,
            self._organisation_shown,
            self._policy,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cryptography, about certificates that are against the rules
            for _ in range(count):
                kind = self.random.choice(kinds)
                try:
                    kind()
                    self.read[kind.__name__] += 1
                except FednlpError as error:
                    self._check(error, "" if kind != self._organisation else str(self.organisation.folder))
                    self.refused[kind.__name__] += 1

    @staticmethod
    def _check(error: FednlpError, where: str) -> None:
        """An error is lines for people, whatever was read; those of a file of settings one for each mistake."""
        assert where in str(error)
        own = isinstance(error, ConfigError)
        for line in str(error).splitlines() if own else [str(error)]:
            assert line.isprintable(), ascii(line)
            assert own or len(line) < _LONGEST_LINE, line[:200]

    def _token(self) -> None:
        body = self.token.partition(":")[2]
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        draw = self.random.randrange(3)
        if draw == 0:
            text = self._mutated(self.token.encode()).decode("latin-1")
        else:  # of the right checksum, as a forger would write it
            inner = self._mutated(raw[2:-4])
            length = (len(inner) + 6).to_bytes(8, "big")[-2:] if draw == 1 else self.random.randbytes(2)
            whole = length + inner
            whole += zlib.crc32(whole).to_bytes(4, "little")
            text = "fednlp1:" + base64.urlsafe_b64encode(whole).decode().rstrip("=")
        token = JoinToken.parse(text)
        assert str(JoinToken.parse(str(token))) == str(token)

    def _renewal(self) -> None:
        self.shown = self._enrol(self.shown, self._message(self.renewal))

    def _shown(self) -> None:
        shown = self._pem(self.shown)
        self.federation.admission.authorise(shown)
        self.shown = self._enrol(shown, self.renewal)

    def _invitation(self) -> None:
        self._enrol(self._pem(self.invited), self._message(self.first))

    def _enrol(self, shown: bytes, message: bytes) -> bytes:
        """Return the certificate that a site gets: for the key of the connection, and no other."""
        answer = json.loads(self.federation.admission.enrol(shown, message))
        if "refused" in answer:
            raise IdentityError(answer["refused"])
        given = load_certificate(answer["certificate"].encode())
        asked = load_request(json.loads(message)["csr"].encode())
        assert public_key(given) == public_key(asked) == public_key(load_certificate(shown))
        return certificate_pem(given)

    def _organisation(self) -> None:
        path = self.random.choice(list(self.originals))
        path.write_bytes(self._pem(self.originals[path]))
        try:
            self.files.material()
            self.files.require_current(time.time())
            self.files.site()
        finally:
            path.write_bytes(self.originals[path])

    def _organisation_shown(self) -> None:
        self.admission.authorise(self._pem(self.originals[self.files.cert]))

    def _policy(self) -> None:
        random, lines = self.random, self.policy_text.decode().splitlines()
        if random.random() < 0.4:
            self.policy.write_bytes(self._mutated(self.policy_text))
        else:  # other values of the keys that there are, those in comments among them
            for _ in range(random.randrange(1, 6)):
                place = random.randrange(len(lines))
                key, equals, _ = lines[place].lstrip("# ").partition(" = ")
                if equals and key.isidentifier():
                    lines[place] = f"{key} = {random.choice(_TOML)}"
            self.policy.write_text("\n".join(lines))
        load_policy(self.policy)

    def _message(self, message: bytes) -> bytes:
        if self.random.random() < 0.3:
            return self._mutated(message)
        value = json.loads(message)
        if self.random.random() < 0.5:
            value["csr"] = self._pem(value["csr"].encode()).decode("latin-1")
        else:
            value[self.random.choice([*value, "other"])] = self.random.choice(_ODD)
        return json.dumps(value).encode()

    def _pem(self, pem: bytes) -> bytes:
        """Mutate a PEM file, or what is in one of its blocks."""
        if self.random.random() < 0.3:
            return self._mutated(pem)
        head, dash, rest = pem.partition(b"-----\n")
        body, end, tail = rest.partition(b"\n-----END")
        changed = base64.encodebytes(self._mutated(base64.b64decode(body)))
        return head + dash + changed.rstrip(b"\n") + end + tail

    def _mutated(self, data: bytes) -> bytes:
        random = self.random
        place, length = random.randrange(len(data)), random.randrange(1, 40)
        draw = random.randrange(7)
        if draw == 0:
            changed = bytearray(data)
            for _ in range(random.randrange(1, 5)):
                changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(changed)
        if draw == 1:
            return data[:place]
        if draw == 2:
            return data[:place] + data[place + length :]
        if draw == 3:
            return data[:place] + random.randbytes(length) + data[place:]
        if draw == 4:
            other = random.randrange(len(data))
            return data[:place] + data[other : other + length] + data[place + length :]
        if draw == 5:
            return data[:place] + bytes([random.choice((0, 0x7F, 0x80, 0xFF))]) * random.choice((1, 4, 5000))
        return data  # else nothing would say that what is not changed is read


def _request(key: bytes) -> bytes:
    return enrol_message(request_pem(load_key(key)))
