"""The section ``[secure]`` of an experiment."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fednlp.errors import ConfigError
from fednlp.option_types import Decay
from fednlp.section import IN_ROUNDS, Feature, Section

LARGEST_CLIP = 1024.0
"""Of an element of an update in a secure sum."""


class Secure(Section):
    """Secure aggregation: the server learns the sum of the clients' weighted updates, and no one's.

    ``dropout`` and ``max_colluding`` are the largest fractions of a cohort that may drop out, or collude with the
    server; the protocol's thresholds follow from them. An update's elements are cut at ``clip`` and rounded to
    ``bits`` bits. ``malicious_server`` is for a server that may lie: clients sign what they were shown.
    ``simulated_dropout`` makes each client drop out with that probability, in a phase drawn at random. With
    ``sum_reports`` the training loss, the examples seen and the local steps of each client are summed with its update.
    """

    later: ClassVar[tuple[str, ...]] = ("sum_reports",)
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "[secure]",
            {
                **IN_ROUNDS,
                "one_vector": "sums the model's update alone under its masks",
                "no_reports": "hides nothing else than updates",
                "weighted_mean": "has an aggregator of its own",
                "same_tensors": (
                    "sums the same tensors of all clients",
                    "leave [secure] out, or select tensors for the whole run with model.train",
                ),
                "one_size": "needs cohorts of one size",
                "foreseen": "has the sites check each cohort",
                "all_counted": (
                    "has its own way with dropouts",
                    "raise clients_per_round and secure.dropout",
                ),
            },
            {
                "sees_updates": "shows the server nothing but the sum over the cohort",
                "open_population": "has had every site check the number of sites",
            },
        ),
        Feature(
            "secure.sum_reports",
            breaks={
                "each_report": "shows their sums alone",
                "noised_sums": "publishes exact sums of the clients' losses",
            },
        ),
        Feature("secure.clip", breaks={"bounded_update": "cuts updates too"}),
        Feature(
            "secure.malicious_server",
            {
                "simulation": (
                    "needs a directory of the sites' signing keys that the server does not control",
                    "say secure.malicious_server = false",
                )
            },
            {"honest_server": "is for one that may lie"},
        ),
    )

    protocol: Literal["none", "secagg", "secagg+", "lightsecagg"] = "none"
    dropout: Decay = 0.1
    max_colluding: Decay = 0.1
    clip: Annotated[float, Field(gt=0, le=LARGEST_CLIP)] = 1.0
    bits: Annotated[int, Field(ge=2, le=31)] | None = None
    stochastic: bool = False
    malicious_server: bool = False
    simulated_dropout: Decay = 0.0
    sum_reports: bool = False

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what is wrong with the numbers of a protocol, and with those of ``[privacy]`` under it."""
        from fednlp.config.sections.base import BASELINES
        from fednlp.secure.plan import make_plan

        privacy, cohort = experiment.privacy, experiment.clients_per_round
        if self.protocol == "none":
            if self != Secure():
                yield '[secure] has no protocol: say secure.protocol = "secagg+", or leave the section out'
            return
        if experiment.algorithm.name in BASELINES:
            return
        if privacy is not None and privacy.clip > LARGEST_CLIP:
            yield (
                f"privacy.clip = {privacy.clip} is more than a secure sum has room for: {LARGEST_CLIP} at most"
            )
        try:
            make_plan(
                self.protocol, cohort, self.dropout, self.max_colluding, self.bits, self.malicious_server
            )
        except ConfigError as error:
            yield str(error)
