"""Names of sites and addresses of servers: what may stand in one."""

import re
import unicodedata

from fednlp.errors import ConfigError, IdentityError
from fednlp.formatting.safe_text import clean

LONGEST_NAME, LONGEST_NAME_BYTES = 64, 192
"""Characters of a site's name, and bytes of it in UTF-8: with what is put around it, it names a file."""
LONGEST_ADDRESS = 255
_ADDRESS = re.compile(
    r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?):([1-9][0-9]{0,4})"
)
_PUNCTUATION = "._-"
_TOGETHER = (
    {"LATIN", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    {"LATIN", "CJK", "IDEOGRAPHIC", "HANGUL"},
    {"LATIN", "CJK", "IDEOGRAPHIC", "BOPOMOFO"},
)
"""Scripts that are written together, by Unicode's names (UTS 39, "highly restrictive")."""
_INVISIBLE = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Marks and letters that show nothing."""
_LIKE_LATIN = str.maketrans("аеорсухіјѕһԁԛԝѵӏαονρυχι", "aeopcyxijshdqwvlaovpuxi")
"""Small letters of other scripts that look like Latin ones."""
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Names that no file can have on Windows."""
_BROKERS = {"mqtt://": 1883, "mqtts://": 8883}
"""How the addresses of MQTT brokers begin, and their usual ports; ``mqtts`` has TLS to the broker as well."""


def site_name(text: str) -> str:
    """Return a site's name in Unicode's composed form (NFC), after checking it.

    Raises:
        IdentityError: It is empty, too long, begins with punctuation, ends with a dot, has a character that is no
            letter of any script, no digit and none of ``._-``, mixes scripts, or cannot name a file.

    >>> site_name("Charité-2")
    'Charité-2'
    """
    if (
        len(text) > 4 * LONGEST_NAME
        or not 0 < len(name := unicodedata.normalize("NFC", text)) <= LONGEST_NAME
    ):
        raise IdentityError(f"a site's name has 1 to {LONGEST_NAME} characters, this one has {len(text)}")
    if len(name.encode(errors="replace")) > LONGEST_NAME_BYTES:
        raise IdentityError(
            f"{clean(name)!r} is too long for a site's name: it has at most {LONGEST_NAME_BYTES} bytes in UTF-8"
        )
    if name[0] in _PUNCTUATION or not all(map(_may_stand, name)):
        raise IdentityError(
            f"{clean(name)!r} cannot name a site: use letters, digits and '._-', and begin with a letter or a digit"
        )
    if _DEVICE.fullmatch(name) or name[-1] == ".":
        raise IdentityError(f"{name!r} cannot name a site: no file can have this name on Windows")
    scripts = {unicodedata.name(c, "?").split()[0] for c in name if c.isalpha()}
    mixed = len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER)
    if mixed or unicodedata.normalize("NFKC", name) != name or _INVISIBLE.search(name):
        raise IdentityError(
            f"{name!r} ({name!a}) cannot name a site: it can be taken for another name; use the plain letters of one "
            "script"
        )
    return name


def lookalike(name: str) -> str:
    """Return what a name is compared by, so that two names that people do not tell apart are one.

    >>> lookalike("ОСА") == lookalike("oca")  # the first is in Cyrillic letters
    True
    """
    return name.casefold().translate(_LIKE_LATIN)


def stored_name(text: str) -> str:
    """Return a site's name from a file, after checking that it has no character that no name can have.

    Raises:
        ValueError: It has one.
    """
    if not 0 < len(text) <= LONGEST_NAME or not all(map(_may_stand, text)):
        raise ValueError("it can name no site")
    return text


def _may_stand(character: str) -> bool:
    category = unicodedata.category(character)
    return character in _PUNCTUATION or category[0] in "LM" or category == "Nd"


def server_address(text: str) -> str:
    """Return an address, after checking that it is a host name or IP address and a port, or a broker's.

    Raises:
        IdentityError: It is anything else.

    >>> server_address("fl.example.org:8443"), server_address("[::1]:8443"), server_address("mqtts://broker.example.org")
    ('fl.example.org:8443', '[::1]:8443', 'mqtts://broker.example.org:8883')
    """
    scheme = broker_scheme(text)
    rest = text.removeprefix(scheme)
    if scheme and not _ADDRESS.fullmatch(rest):
        rest = f"{rest}:{_BROKERS[scheme]}"
    match = _ADDRESS.fullmatch(rest) if len(text) <= LONGEST_ADDRESS else None
    if match is None or int(match[2]) > 65535:
        raise IdentityError(
            f"{clean(text)[:80]!r} is no address: type host:port, as in fl.example.org:8443 or [2001:db8::1]:8443, or "
            "mqtts://host:port for a broker"
        )
    return scheme + rest


def host_and_port(text: str, option: str) -> tuple[str, int]:
    """Return the host, which may be empty, and the port of an address to listen at.

    Args:
        text: Such as ``"0.0.0.0:8443"`` or ``"[::1]:0"``.
        option: The command line's name of it.

    Raises:
        ConfigError: The port is no number from 0 to 65535.

    >>> host_and_port("[::1]:8443", "--listen")
    ('::1', 8443)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(
            f"{option} {clean(text)[:80]}: write host:port with a port of at most 65535, for example 127.0.0.1:8443"
        )
    return host.strip("[]"), int(port)


def broker_scheme(address: str) -> str:
    """Return how the address of an MQTT broker begins; nothing for a server's.

    >>> broker_scheme("mqtt://[::1]:1883"), broker_scheme("fl.example.org:8443")
    ('mqtt://', '')
    """
    return next((scheme for scheme in _BROKERS if address.startswith(scheme)), "")
