"""A site tells the names of its labels, if its file allows that: names alone, no counts, bounded in number and length.

A column of texts that was taken for the labels is refused here, at the site.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fednlp.config import Experiment
from fednlp.deployment.session.setup import read_experiment
from fednlp.deployment.site.data import UnfitSiteData, open_site_data
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.refusals import check_labels, refused_by
from fednlp.errors import RunError
from fednlp.formatting.safe_text import clean

LABELS = "labels"
"""Name of the call; a site that refused is asked by ``labels-2``, and so on."""
MOST_LABELS, LONGEST_LABEL = 1000, 100
NOT_TOLD = "its labels are not such as can be told"
_NAME = re.compile(r"labels(-[1-9][0-9]{0,5})?")
_WHEN_ALLOWED = "fednlp join tells them, and a dry run then shows the rest"
_WHEN_REFUSED = "change the site's file, or have the experiment name its labels (data.labels)"


def _label(text: str) -> str:
    name = unicodedata.normalize("NFC", text)
    if not name.isprintable() or not name.strip() or len(name) > LONGEST_LABEL:
        raise ValueError(f"a label has 1 to {LONGEST_LABEL} characters that can be printed")
    return name


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AskedLabels(_Checked):
    """A server asks for the names of the labels."""

    experiment: dict[str, JsonValue]


class ToldLabels(_Checked):
    """What a site tells, in composed form (NFC)."""

    labels: list[Annotated[str, Field(max_length=4 * LONGEST_LABEL), AfterValidator(_label)]] = Field(
        max_length=MOST_LABELS
    )


def asks_labels(call_id: str) -> bool:
    """Return whether a call asks for the names of labels.

    >>> asks_labels("0.3.labels-2"), asks_labels("0.3.setup")
    (True, False)
    """
    return _NAME.fullmatch(call_id.rpartition(".")[2]) is not None


def tell_labels(policy: SitePolicy, site: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a server that asks for the names of a site's labels.

    Raises:
        RunError: The policy does not allow it, or the request is not valid.
        UnfitSiteData: The data do not fit the task, or their labels are too many or too long.
    """
    experiment = _experiment(request)
    refusals = check_labels(policy, experiment)
    if refusals:
        raise RunError("; ".join(refused_by(site, refusals)))
    return {"labels": own_labels(policy, experiment)}


def examine_labels(policy: SitePolicy, site: str, request: Mapping[str, Any], federation: str) -> list[str]:
    """Return the lines that tell what a server would be told of labels; it is told nothing.

    Args:
        federation: The server's address, for people.
    """
    experiment = _experiment(request)
    refusals = check_labels(policy, experiment)
    told = ", ".join(own_labels(policy, experiment)) if not refusals else "nothing"
    return [
        f"{federation} asks for the names of this site's labels, before it sends the experiment {experiment.name}",
        f"tells       {clean(told)}",
        f"refused     {'; '.join(map(str, refusals)) or 'nothing: the file of this site allows it'}",
        f"nothing was sent; {_WHEN_REFUSED if refusals else _WHEN_ALLOWED}",
    ]


def own_labels(policy: SitePolicy, experiment: Experiment) -> list[str]:
    """Return the names of a site's labels, as the experiment calls them.

    Raises:
        UnfitSiteData: The data do not fit the task, or their labels are too many or too long, or cannot be printed.
    """
    data = open_site_data(policy, experiment.task.configured or "", None, experiment.partly_labelled)
    names = list(data.label_names)
    try:
        return ToldLabels(labels=names).labels
    except ValidationError:
        raise UnfitSiteData(
            f"{data.name} has {len(names):,} labels of up to {max(map(len, names), default=0):,} characters, and at "
            f"most {MOST_LABELS:,} of {LONGEST_LABEL} characters that can be printed are told: name the column of the "
            "labels (data.label)",
            NOT_TOLD,
        ) from None


def _experiment(request: Mapping[str, Any]) -> Experiment:
    try:
        asked = AskedLabels.model_validate(request)
    except ValidationError:
        raise RunError(
            "the server asks for labels in a way that this version of fednlp does not know"
        ) from None
    return read_experiment(asked.experiment)
