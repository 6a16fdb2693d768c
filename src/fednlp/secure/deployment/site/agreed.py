"""What a site expects of the secure sums of an experiment, whatever the server says of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.deployment.session.setup import MOST_EXAMPLES
from fednlp.deployment.site.facts import even_partition
from fednlp.errors import ConfigError, SecureAbort
from fednlp.federated.cohort import Population
from fednlp.plugins import is_own
from fednlp.secure.aggregator import SecureMean
from fednlp.secure.deployment.session.messages import OF_TESTS
from fednlp.secure.deployment.session.terms import (
    RoundTerms,
    spec_of,
    terms_of,
)
from fednlp.secure.encoding import Encoding
from fednlp.secure.messages import Survivors
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg import SECAGG_PLUS
from fednlp.secure.session import RoundSpec
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.federated_evaluation import sums_params
from fednlp.simulation.protection import protect
from fednlp.tasks.base import Task
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.scores import num_sums, require_summable


@dataclass(frozen=True)
class AgreedTerms(ABC):
    """What a site expects of secure sums.

    Attributes:
        own: The site's number.
        clients: How many sites there are.
        weight: What the site's vector weighs.
        largest: The most that any site's vector may weigh.
        smallest: The fewest sites that the site's policy lets a sum be over.
    """

    run: str
    own: int
    clients: int
    weight: float
    largest: float
    smallest: int

    @abstractmethod
    def numbers(self, cohort: int) -> SecAggParams:
        """Return the numbers that the experiment gives for a cohort of some size, but for the largest weight.

        Raises:
            SecureAbort: There are none.
        """

    @abstractmethod
    def length(self, params: SecAggParams) -> int:
        """Return the number of elements of a masked vector."""

    @abstractmethod
    def cohort(self, round_number: int) -> list[int] | None:
        """Return the cohort that the experiment draws for a round; None where a site cannot draw it."""

    @abstractmethod
    def masking(self, terms: RoundTerms) -> dict[str, Any]:
        """Return what the server has to say of masks when it asks for the vector."""

    def params(self, terms: RoundTerms) -> SecAggParams:
        """Return the numbers of a round, having checked that its terms are those of the experiment.

        The largest weight of all sites is the server's to say, between the site's own and the most that a site's may
        be: where all sites weigh the same, these are one number. What the sites are asked is compared when it comes.

        Raises:
            SecureAbort: They are not.
        """
        largest = terms.encoding.get("largest_weight")
        if not isinstance(largest, float) or not self.weight <= largest <= self.largest:
            raise SecureAbort(
                f"the server names {largest} as the largest weight, and this site's is {self.weight} and any site's "
                f"{self.largest:.15g} at most"
            )
        numbers = self.numbers(len(terms.cohort))
        params = replace(numbers, encoding=replace(numbers.encoding, largest_weight=largest))
        expected = terms_of(params, terms.cohort, terms.round, terms.request)
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
        if self.cohort(terms.round) not in (None, terms.cohort):
            raise SecureAbort(
                f"the server names another cohort in round {terms.round} than the experiment's seed draws"
            )
        if params.fewest_in_sum < self.smallest:
            raise SecureAbort(
                f"a sum may be over {params.fewest_in_sum} sites, and this site's policy asks for {self.smallest} "
                "(allow.smallest_cohort)"
            )
        return params

    def spec(self, terms: RoundTerms) -> RoundSpec:
        """Return the spec of a round.

        Raises:
            SecureAbort: Its terms are not those of the experiment.
        """
        params = self.params(terms)
        return spec_of(params, terms, self.run, self.length(params))

    def encoding(self, terms: RoundTerms, masking: Mapping[str, Any]) -> Encoding:
        """Return how the site's vector is encoded, having checked what the server says of it when it asks for it.

        Raises:
            SecureAbort: That is not what the terms say.
        """
        _require_same("masking", masking, self.masking(terms))
        return self.params(terms).encoding

    def check_survivors(self, terms: RoundTerms, survivors: Survivors) -> None:
        """Check that a sum is over as many sites as it must be; in SecAgg+ a site is not shown all of them.

        Raises:
            SecureAbort: It is not.
        """
        shown, params = len(survivors.ids), self.numbers(len(terms.cohort))
        fewest = max(params.fewest_in_sum, self.smallest)
        if params.plan.protocol != SECAGG_PLUS and shown < fewest:
            raise SecureAbort(f"the sum would be over {shown} sites, and must be over {fewest} or more")


@dataclass(frozen=True)
class Agreed(AgreedTerms):
    """What a site expects of the secure sums of updates.

    Attributes:
        rule: The experiment's rule, with the protocol's numbers.
        draw: Returns the cohort of a round; None where the server draws it by what a site does not know.
    """

    rule: SecureMean
    parameters: int
    draw: Callable[[int], list[int]] | None = None

    def numbers(self, cohort: int) -> SecAggParams:
        """Return the numbers of the experiment's cohorts, which all have one size."""
        return self.rule.params

    def cohort(self, round_number: int) -> list[int] | None:
        """Return the cohort that the experiment's seed draws: a server does not choose who is summed with whom."""
        return None if self.draw is None else self.draw(round_number)

    def length(self, params: SecAggParams) -> int:
        """Return the number of elements of an update, of what is reported with it, and its weight."""
        return self.parameters + self.rule.masked_extra + 1

    def masking(self, terms: RoundTerms) -> dict[str, Any]:
        """Return what the server has to say of masks: nothing but the terms."""
        return {
            "encoding": terms.encoding,
            "noise_std": terms.noise_std,
            "weight": self.weight,
            "seeds": [],
            "clip": self.rule.clip,
            **({"reports": True} if self.rule.sum_reports else {}),
        }


@dataclass(frozen=True)
class _AgreedOnTests(AgreedTerms):
    """What a site expects of the secure sums over the sites' tests.

    The server says which sites have tests. The numbers of the protocol follow from how many these are.

    Attributes:
        experiment: Resolved.
        added: How many numbers each site adds.
    """

    experiment: Experiment
    added: int

    def numbers(self, cohort: int) -> SecAggParams:
        """Return the numbers for as many sites as have tests.

        Raises:
            SecureAbort: There are none for so few.
        """
        try:
            return sums_params(self.experiment, cohort, self.added)
        except ConfigError as error:
            raise SecureAbort(f"no sum over the tests of {cohort} sites: {error}") from None

    def length(self, params: SecAggParams) -> int:
        """Return the number of digits of all numbers."""
        return self.added * params.encoding.num_digits(SUM_BITS)

    def cohort(self, round_number: int) -> None:
        """Return nothing: which sites have tests is the server's to say."""

    def masking(self, terms: RoundTerms) -> dict[str, Any]:
        """Return what the server has to say of masks: nothing but the encoding."""
        return {"encoding": terms.encoding, "seeds": []}


def agreed(
    experiment: Experiment, run: str, *, own: int, clients: int, parameters: int, examples: int, smallest: int
) -> Agreed | None:
    """Return what a site expects of the secure sums of an experiment; None where there are none.

    Args:
        experiment: Resolved.
        own: The site's number.
        clients: How many sites there are.
        examples: How many training examples the server thinks that the site has.
        smallest: The fewest sites that a sum may be over.

    Raises:
        ConfigError: No numbers of the protocol withstand what they must.
    """
    algorithm = protect(
        build_algorithm(experiment), experiment, even_partition(clients), parameters
    ).algorithm
    if not isinstance(algorithm.aggregator, SecureMean):
        return None
    everyone = Population(np.ones(clients, dtype=np.int64), experiment.seed)

    def draw(number: int) -> list[int]:
        return list(algorithm.sample(everyone, number).clients)

    return Agreed(
        run,
        own,
        clients,
        algorithm.weight(examples),
        algorithm.weight(MOST_EXAMPLES),
        smallest,
        algorithm.aggregator,
        parameters,
        None if is_own(experiment.algorithm.name) else draw,  # whose cohorts may go by the sites' sizes
    )


def agreed_on_tests(
    experiment: Experiment, run: str, task: Task, *, own: int, clients: int, smallest: int
) -> _AgreedOnTests | None:
    """Return what a site expects of the secure sums over the sites' tests; None where there are none.

    Args:
        experiment: Resolved.
        own: The site's number.
        clients: How many sites there are.
        smallest: The fewest sites that a sum may be over.

    Raises:
        ConfigError: The task's metrics are no functions of sums.
    """
    if not experiment.evaluation.federated or experiment.secure.protocol == "none":
        return None
    added = num_sums(require_summable(task))
    return _AgreedOnTests(OF_TESTS + run, own, clients, 1.0, 1.0, smallest, experiment, added)


def _require_same(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check what a server says against what the site works out itself."""
    for name in sorted({*found, *expected}):
        if name not in found or name not in expected or found[name] != expected[name]:
            raise SecureAbort(
                f"the server's {what} have {name} = {found.get(name)}, and the experiment's settings give "
                f"{expected.get(name)}"
            )
