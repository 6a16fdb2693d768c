"""What the id of a call, ``round.client.name``, says: of which round, client and attempt it is, and about what."""

from fednlp.deployment.session.site_kinds import SITE_KINDS

_WORDS = {
    "setup": "its setup",
    "labels": "the names of its labels",
    "model": "the final model",
}
"""Of calls that carry no request; each kind of request has words of its own."""
_SECURE = "a secure sum of round {}"
"""Of the steps of a protocol, which are several."""


def round_of(call_id: str) -> int:
    """Return the round of a call."""
    return int(call_id.split(".")[0])


def client_of(call_id: str) -> int:
    """Return the client of a call."""
    return int(call_id.split(".")[1])


def next_attempt(call_id: str) -> str:
    """Return the number of the call that asks for the same once more.

    >>> next_attempt("3.1.train"), next_attempt("3.1.train-2")
    ('3.1.train-2', '3.1.train-3')
    """
    first, _, number = call_id.partition("-")
    return attempt_name(first, int(number or 1) + 1)


def attempt_name(name: str, attempt: int) -> str:
    """Return the name of the calls of a further attempt.

    >>> attempt_name("train", 1), attempt_name("train", 2)
    ('train', 'train-2')
    """
    return name if attempt == 1 else f"{name}-{attempt}"


def in_words(call_id: str) -> str:
    """Return what a call is about.

    Args:
        call_id: ``round.client.name``; what follows a hyphen in a name is the number of an attempt.

    >>> in_words("0.3.setup"), in_words("4.1.unmask")
    ('its setup', 'a secure sum of round 4')
    """
    number, _, name = call_id.split(".", 2)
    step, _, attempt = name.partition("-")
    if attempt and not attempt.isdecimal():
        return _SECURE.format(number)
    words = _WORDS | {name: about for kind in SITE_KINDS.values() for name, about in kind.calls.items()}
    return words.get(step, _SECURE).format(number)


def all_in_words(call_ids: list[str]) -> str:
    """Return what some calls are about, each thing once.

    >>> all_in_words(["2.0.keys", "2.0.share", "13.0.model"])
    'a secure sum of round 2, the final model'
    """
    return ", ".join(dict.fromkeys(map(in_words, call_ids)))
