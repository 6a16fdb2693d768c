"""What a site expects of the secure sums of an experiment, whatever the server says of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fednlp.config import Experiment
from fednlp.deployment.facts import even_partition
from fednlp.deployment.secure_terms import NO_DIRECTORY, RoundSpec, Terms, spec_of, terms_of
from fednlp.errors import RunError, SecureAbort
from fednlp.secure.aggregator import SecureMean
from fednlp.secure.encoding import Encoding
from fednlp.secure.messages import Survivors
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg_rules import SECAGG_PLUS
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.protection import protect


@dataclass(frozen=True)
class Agreed:
    """What a site expects of all secure sums of a run.

    Attributes:
        run: The run's name.
        own: The site's number.
        clients: How many sites there are.
        rule: The experiment's rule, with the protocol's numbers.
        parameters: Elements of an update.
        weight: What the site's update weighs.
        smallest: The fewest sites that the site's policy lets a sum be over.
    """

    run: str
    own: int
    clients: int
    rule: SecureMean
    parameters: int
    weight: float
    smallest: int

    def params(self, terms: Terms) -> SecAggParams:
        """Return the numbers of a round, having checked that its terms are those of the experiment.

        The largest weight of all sites is the server's to say; the site's own is at most that.

        Raises:
            SecureAbort: They are not.
        """
        largest = terms.encoding.get("largest_weight")
        if not isinstance(largest, float) or not self.weight <= largest:
            raise SecureAbort(
                f"the server names {largest} as the largest weight, and this site's is {self.weight}"
            )
        encoding = replace(self.rule.params.encoding, largest_weight=largest)
        params = replace(self.rule.params, encoding=encoding)
        expected = terms_of(params, terms.cohort, terms.round)
        _require_same("plan", terms.plan, expected.plan)
        _require_same("encoding", terms.encoding, expected.encoding)
        _require_same("terms", terms.model_dump(), expected.model_dump())
        cohort, wanted = set(terms.cohort), params.plan.clients
        if not len(cohort) == len(terms.cohort) == wanted or not cohort <= {*range(self.clients)}:
            raise SecureAbort(
                f"the server names a cohort of {len(terms.cohort)}, and the experiment's settings ask for {wanted} "
                f"different ones of {self.clients} sites"
            )
        if self.own not in cohort:
            raise SecureAbort(f"client {self.own} is not in the cohort that the server names")
        if self.fewest > wanted or params.fewest_in_sum < self.smallest:
            raise SecureAbort(
                f"a sum may be over {params.fewest_in_sum} sites, and this site's policy asks for {self.smallest} "
                "(allow.smallest_cohort)"
            )
        return params

    @property
    def fewest(self) -> int:
        """The fewest sites that a sum may be over."""
        return max(self.rule.params.fewest_in_sum, self.smallest)

    def spec(self, terms: Terms) -> RoundSpec:
        """Return the spec of a round.

        Raises:
            SecureAbort: Its terms are not those of the experiment.
        """
        return spec_of(self.params(terms), terms, self.run, self.parameters + 1)

    def encoding(self, terms: Terms, masking: Mapping[str, Any]) -> Encoding:
        """Return how the site's update is encoded, having checked what the server says of it when it asks for it.

        Raises:
            SecureAbort: That is not what the terms say.
        """
        expected = {
            "encoding": terms.encoding,
            "noise_std": terms.noise_std,
            "weight": self.weight,
            "seeds": [],
            "clip": self.rule.clip,
        }
        _require_same("masking", masking, expected)
        return self.params(terms).encoding

    def check_survivors(self, survivors: Survivors) -> None:
        """Check that a sum is over as many sites as it must be; in SecAgg+ a site is not shown all of them.

        Raises:
            SecureAbort: It is not.
        """
        shown = len(survivors.ids)
        if self.rule.params.plan.protocol != SECAGG_PLUS and shown < self.fewest:
            raise SecureAbort(f"the sum would be over {shown} sites, and must be over {self.fewest} or more")


def agreed(
    experiment: Experiment, run: str, *, own: int, clients: int, parameters: int, examples: int, smallest: int
) -> Agreed | None:
    """Return what a site expects of the secure sums of an experiment; None where there are none.

    Args:
        experiment: Resolved.
        run: The run's name.
        own: The site's number.
        clients: How many sites there are.
        parameters: Elements of an update.
        examples: How many training examples the server thinks that the site has.
        smallest: The fewest sites that a sum may be over.

    Raises:
        ConfigError: No numbers of the protocol withstand what they must.
        RunError: The experiment asks for what a deployment does not have.
    """
    if experiment.secure.malicious_server:
        raise RunError(NO_DIRECTORY)
    algorithm = protect(
        build_algorithm(experiment), experiment, even_partition(clients), parameters
    ).algorithm
    if not isinstance(algorithm.aggregator, SecureMean):
        return None
    return Agreed(run, own, clients, algorithm.aggregator, parameters, algorithm.weight(examples), smallest)


def _require_same(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check what a server says against what the site works out itself."""
    for name in sorted({*found, *expected}):
        if name not in found or name not in expected or found[name] != expected[name]:
            raise SecureAbort(
                f"the server's {what} have {name} = {found.get(name)}, and the experiment's settings give "
                f"{expected.get(name)}"
            )
