"""What calls are about, in words for people."""

_WORDS = {
    "train": "the training of round {}",
    "evaluate": "the evaluation of round {}",
    "finetune": "the evaluation after fine-tuning",
    "loss": "the loss before round {}",
    "label": "the labelling of round {}",
    "tests": "the sums over its tests of round {}",
    "setup": "its setup",
    "labels": "the names of its labels",
    "model": "the final model",
}
_SECURE = "a secure sum of round {}"
"""Of the steps of a protocol, which are several."""


def in_words(call_id: str) -> str:
    """Return what a call is about.

    Args:
        call_id: ``round.client.name``; what follows a hyphen in a name is the number of an attempt.

    >>> in_words("12.3.train-2"), in_words("0.3.setup"), in_words("4.1.unmask")
    ('the training of round 12', 'its setup', 'a secure sum of round 4')
    """
    number, _, name = call_id.split(".", 2)
    step, _, attempt = name.partition("-")
    known = not attempt or attempt.isdecimal()
    return (_WORDS.get(step, _SECURE) if known else _SECURE).format(number)


def all_in_words(call_ids: list[str]) -> str:
    """Return what some calls are about, each thing once.

    >>> all_in_words(["2.0.keys", "2.0.share", "2.0.train"])
    'a secure sum of round 2, the training of round 2'
    """
    return ", ".join(dict.fromkeys(map(in_words, call_ids)))
