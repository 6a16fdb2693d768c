"""What a site may answer to a request: what it was asked, about itself, in numbers that a server can count with."""

import json
from typing import Any

from fednlp.errors import RunError
from fednlp.federated.client import ClientResult

MOST_COUNTED = 2**48
"""Examples, steps or bytes that a site may report of a round."""
MOST_FACTS = 1 << 16
"""Characters of JSON that a site may say beside its numbers."""
_COUNTS = ("examples", "steps", "gradient_examples", "bytes_down", "tensors_down", "bytes_up", "labels")


def require_own(request: Any, answer: Any, kind: type[Any]) -> None:
    """Check that an answer is to the request: a site speaks for itself alone.

    A number that is negative or longer than a float would end the server when it computes a mean, and again at each
    start, as the answer is stored.

    Args:
        request: As the site got it.
        answer: What it said.
        kind: Of the answers to such a request.

    Raises:
        RunError: It is not.
    """
    if not (isinstance(answer, kind) and answer.client == request.client):
        raise RunError("the site answered something else than it was asked")
    for name in _COUNTS:
        count = getattr(answer, name, None)
        if count is not None and not 0 <= count <= MOST_COUNTED:
            raise RunError(f"the site answered with a number of {name} that cannot be")
    if isinstance(answer, ClientResult):
        if answer.weight != request.weight:
            raise RunError("the site answered with another weight than it was told")
        _require_short(answer.facts)


def _require_short(facts: dict[str, Any]) -> None:
    try:
        length = len(json.dumps(facts))
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or too deep
        length = MOST_FACTS + 1
    if length > MOST_FACTS:
        raise RunError(f"the site says more than {MOST_FACTS:,} characters beside its numbers")
