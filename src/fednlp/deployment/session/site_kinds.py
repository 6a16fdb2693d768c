"""Kinds of requests that go to sites: what both ends make of each. A request of no such kind is the server's own work.

The declarations are the files of :mod:`fednlp.deployment.site.requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment

if TYPE_CHECKING:
    from fednlp.deployment.session.reply_checks import Reportable


DERIVED = "derived"
"""The object with the tensors that the server computes, beside a model whose other tensors are transformed."""


@dataclass(frozen=True)
class SiteKind:
    """A kind of request that sites answer.

    Attributes:
        request: Its type, declared in :mod:`fednlp.runtime.messages`; it has a ``client`` and a ``round``.
        calls: The names of its calls, and what each is about, with {} for the round. The first is the usual one.
        require: (request, name of the call, experiment): raises RunError unless the experiment has this asked. The
            client and the round have been checked. A server that asks for more would learn more than was agreed.
        answer: (site, request, published vectors) -> the answer, with all that the site itself may know.
        withhold: (what the site's policy allows, answer) -> the answer that the server gets.
        bounds: (request, answer, what a site may report): raises RunError if the answer cannot be. Its type, client
            and counts have been checked.
        in_round: Whether it comes before the round's model is made, with the model as clients get it to train; or
            else after it, with the new model.
        name: Returns the name of a request's call, where it is not the usual one.
        told: Returns the request as its site gets it.
        allowed: (what the site's policy allows, experiment): raises RunError where the policy has it refused.
        masked: Returns what answers it under masks, of a site (:mod:`fednlp.secure.deployment.site.sums`), which
            remembers it too; None where its answer is in the clear, and remembered by the site's replay guard.
        as_counted: (worker, request, round in which the site counted last) -> the request, with what the site kept in
            rounds that came to nothing left out. It is called where there are such rounds.
    """

    request: type[Any]
    calls: Mapping[str, str]
    require: Callable[[Any, str, Experiment], None]
    answer: Callable[[Any, Any, Any], Any]
    withhold: Callable[[Any, Any], Any]
    bounds: Callable[[Any, Any, Reportable], None] = lambda request, answer, may: None
    in_round: bool = False
    name: Callable[[Any], str] | None = None
    told: Callable[[Any], Any] = lambda request: request
    allowed: Callable[[Any, Experiment], None] = lambda allow, experiment: None
    masked: Callable[[Any], Callable[..., Any] | None] = lambda site: None
    as_counted: Callable[[Any, Any, int], Any] = lambda worker, request, counted: request


SITE_KINDS: dict[type[Any], SiteKind] = {}
"""By the type of the request."""


def declare_at_sites(kind: SiteKind) -> None:
    """Make a kind of request known as one that goes to sites."""
    SITE_KINDS[kind.request] = kind


def forgetting_between(worker: Any, request: Any, counted: int) -> Any:
    """Have what a site kept in rounds that came to nothing left out; it may train in the present one as well."""
    worker.trainer.forget(request.client, counted + 1, before=request.round)
    return request


def call_id(request: Any) -> str:
    """Return the number of the call that carries a request: ``round.client.name``."""
    kind = SITE_KINDS[type(request)]
    told = kind.told(request)
    name = next(iter(kind.calls)) if kind.name is None else kind.name(request)
    return f"{told.round}.{told.client}.{name}"
