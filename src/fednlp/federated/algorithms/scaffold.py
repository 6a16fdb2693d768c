"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerOptimizer, ServerUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State

Option = Literal["I", "II"]


def refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    """Return what SCAFFOLD cannot go with in an experiment."""
    client, found = experiment.client, []
    if client.optimizer != "sgd" or client.momentum:
        found.append(
            'scaffold corrects the steps of plain SGD: say client.optimizer = "sgd", without client.momentum'
        )
    if client.max_grad_norm and options.get("option", "II") == "II":
        found.append(
            'algorithm.option = "II" takes what the local steps moved for a sum of gradients, which steps cut by '
            'client.max_grad_norm are not: leave it out, or say algorithm.option = "I"'
        )
    return found


@method(
    "SCAFFOLD",
    refuses=refuses,
    needs={"fixed_labels": "corrects steps by what a client learnt from in earlier rounds"},
)
def scaffold(
    clients_per_round: int,
    option: Option = "II",
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return SCAFFOLD (Algorithm 1).

    The paper minimises the plain mean of the clients' losses. Here client i counts p_i, and the loss is
    sum p_i f_i / sum p_i, as in FedAvg: by default p_i is its number of examples. The server's control variate is then
    the mean of the clients' with the same weights, and |S|/N becomes the cohort's share of all clients' weight. With
    equal weights (:func:`fednlp.federated.cohort.equally`) all of this is as in the paper.

    Args:
        clients_per_round: The size of the cohort.
        option: How a client renews its control variate: ``"I"`` by the gradient at x over all of its examples, one more
            pass over them; ``"II"`` by the mean gradient of its local steps.
        server: The server optimiser; the learning rate of SGD is the paper's global step size.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "scaffold",
        uniform_cohort(clients_per_round),
        client=scaffold_client(option),
        server=ScaffoldServer(server),
        sends=("model", "control"),
        keeps=("control",),
        receives=("control",),
        local_gradients=1 if option == "I" else 0,
        **common,
    )


def scaffold_client(option: Option) -> ClientFunction:
    """Return the client of SCAFFOLD: lines 6 to 14 of Algorithm 1.

    Args:
        option: How it renews its control variate.
    """

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        c, c_i = server["control"], own.get("control", x.new_zeros(x.shape))
        c_new = local.gradient(x) if option == "I" else c_i
        y = local.steps(x, lambda g, y, drift: g.add_(drift), c - c_i)
        if option == "II" and local.rate_sum:  # K times the learning rate; a round at rate 0 tells nothing
            c_new = c_i - c + (x - y) / local.rate_sum
        return Result(update={"model": y - x, "control": c_new - c_i}, keep={"control": c_new})

    return client


@dataclass(frozen=True)
class ScaffoldServer(ServerUpdate):
    """The server of SCAFFOLD: lines 16 and 17 of Algorithm 1."""

    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return the optimiser's vectors, and a control variate of zeros."""
        return {**self.optimizer.init(layout), "control": layout.zeros()}

    def step(self, state: "State", update: "AggregatedUpdate") -> None:
        """x <- x + eta mean(y - x);  c <- c + |S|/N mean(c_i_new - c_i)."""
        self.optimizer.step(state, update)
        state.vectors["control"].add_(update.vectors["control"].delta, alpha=update.fraction)
