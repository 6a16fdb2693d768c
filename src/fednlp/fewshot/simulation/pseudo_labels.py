"""Rounds with few labels: clients that have some train, others label their texts alongside (FeS, section 2.3).

Clients with a gold or a pseudo label may be drawn to train; n clients are drawn to label, every f rounds. Both use the
same global model. Texts labelled in a round are trained on from the next round on. No label but the gold ones reaches
a worker, a decision, or a score that a decision is based on.

Any algorithm can be trained so:
its cohorts are drawn among the clients that have labels, and
:class:`PseudoLabels` stands between the round and the runtime. Who holds the labels is a
:class:`~fednlp.fewshot.simulation.label_holder.LabelHolder`: the server of a simulation, or the sites of a deployment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Cohort, Population
from fednlp.federated.round import RoundReport, publish, run_round
from fednlp.federated.state import State
from fednlp.federated.transforms import RngKey
from fednlp.fewshot.pacing import FixedPacing, LabelQuota, Pace, is_labelling_round, label_quota, rounded_up
from fednlp.fewshot.simulation.central_labels import CentralLabels
from fednlp.fewshot.simulation.label_holder import Numbers, OpenLabels
from fednlp.fewshot.simulation.label_judge import LabelJudge
from fednlp.fewshot.simulation.pace_search import PaceSearch
from fednlp.fewshot.simulation.pace_trials import PaceTrials, without
from fednlp.fewshot.simulation.round_parts import RoundPart, whole_report
from fednlp.runtime.messages import trains
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext


def _among_labelled(
    algorithm: Algorithm, stream: Callable[[int], int] = lambda round_number: round_number
) -> Algorithm:
    """Return the algorithm with cohorts drawn among the clients that have examples with labels.

    Args:
        stream: Maps a round's number to the number that its cohort is drawn with.
    """

    def sample(population: Population, round_number: int) -> Cohort:
        able = np.flatnonzero(population.sizes)
        if not len(able):
            return Cohort([], reason="no client has a label yet, and some get theirs now")
        among = replace(population, sizes=population.sizes[able])
        drawn = algorithm.sample(among, stream(round_number))
        return replace(drawn, clients=[int(able[place]) for place in drawn.clients])

    return replace(algorithm, sample=sample)


class PseudoLabels:
    """A runtime that trains clients on the labels that they have, while other clients label their texts.

    Attributes:
        algorithm: The method, on the clients that have labels.
        sizes: int64 (clients,), number of labelled examples of each client.
        judge: Compares models with the labels that are known, and counts what clients compute besides training.
    """

    def __init__(
        self, context: RunContext, algorithm: Algorithm, open_labels: OpenLabels | None = None
    ) -> None:
        assert context.experiment.fewshot is not None
        holder = (open_labels or CentralLabels)(context)
        self.context, self.fewshot, self.holder = context, context.experiment.fewshot, holder
        self.judge = LabelJudge(context, holder)
        self.search: PaceSearch | PaceTrials | None = None
        if self.fewshot.pacing == "search":
            kind = PaceTrials if self.fewshot.trials == "parallel" else PaceSearch
            self.search = kind(context, self.judge)
        self.algorithm = _among_labelled(algorithm, self._stream)
        context.state.memory.setdefault("labellings", 0)
        context.labels = holder
        context.facts["fewshot"] = holder.facts()
        if self.fewshot.detect_label_noise and context.worker.replica.personal.numel:
            raise ConfigError(
                "fewshot.detect_label_noise asks the server's model, whose personal layers (model.train) no client has "
                "trained: share everything, or leave fewshot.detect_label_noise out"
            )
        holder.trust_all_but(context.state.memory.setdefault("flagged", []))
        self.sizes = holder.gold
        self._parts: list[RoundPart] = []
        self._part: RoundPart
        self._flagged: list[int] = []
        self._work = 0
        self._answers: list[tuple[Any, LabelQuota, Any]] = []
        if self.search is not None:
            self.search.begin()

    def __len__(self) -> int:
        return len(self.context.pool)

    @property
    def total(self) -> Any:
        """The aggregation that updates are added to."""
        return self.context.pool.total

    def prepare(self) -> None:
        """Draw the clients that label in the next round.

        Raises:
            ConfigError: No client has a label, and none can label.
        """
        context, number = self.context, self.context.state.round + 1
        self.judge.begin_round()
        self._answers = []
        if self.search is not None:
            self.search.prepare()
        trials = self._trials
        due_now = trials is not None or self._is_due(number)
        self._flagged = self._check() if due_now and self.fewshot.detect_label_noise else []
        self.sizes = self.holder.gold + self.holder.pseudo if trials is None else trials.train_sizes()
        if trials is not None:
            self._parts = trials.parts(self.sizes, self._drawn)
        else:
            labelling = self._drawn(self.pace.n, self.holder.candidates) if due_now else []
            self._parts = [RoundPart(context.state, self.sizes, labelling, self.quota if due_now else None)]
        if not any(part.sizes.any() or part.labelling for part in self._parts):
            raise ConfigError(
                "no client has a label to train on, and none is to label: raise fewshot.gold, or label texts at a site"
            )
        candidates = self.holder.candidates
        for client in self._labelling:
            self.judge.count(client, int(candidates[client]))
        most = context.experiment.clients_per_round
        training = sum(min(most, int(np.count_nonzero(part.sizes))) for part in self._parts)
        self._work = training + len(self._labelling)

    def run_round(self, on_progress: Callable[[int, int], None] = lambda done, of: None) -> RoundReport:
        """Run the prepared round, the parts of trials one after the other; move the state, return its numbers.

        Args:
            on_progress: Called with the number of clients that are done, and of how many that train or label.
        """
        trials = self._trials
        if trials is not None:
            reports: list[RoundReport] = []
            for part in self._parts:
                before = sum(len(report.cohort) for report in reports)
                reports.append(self._run_part(part, partial(_after, before, on_progress)))
            trials.finish(self._parts, reports)
            return whole_report(self._parts, reports)
        return self._run_part(self._parts[0], on_progress)

    def _run_part(self, part: RoundPart, on_progress: Callable[[int, int], None]) -> RoundReport:
        self._part = part
        before = len(self._answers)
        algorithm = self.algorithm
        if part.state is not self.context.state:
            algorithm = replace(algorithm, min_clients=min(algorithm.min_clients, 1))
        population = Population(part.sizes, self.context.experiment.seed)
        report = run_round(
            algorithm, part.state, population, self, lambda done, of: on_progress(done, self._work)
        )
        if part.labelling and len(self._answers) == before:
            # No client was trained: none has a label, or secure aggregation was aborted.
            self._label_only(report.round)
        return report

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Send a flat vector to the workers under a name."""
        self.context.pool.publish(name, vector, message)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have clients train on the labels that they have, and others label their texts alongside."""
        trials = self._trials
        held = frozenset[int]() if trials is None else trials.held_texts()
        given = [
            without(self.holder.with_labels(request), held) if trains(request) else request
            for request in requests
        ]
        if not any(map(trains, requests)):
            return self.context.pool.do(given, on_progress)
        labelling = self._label_requests(self._part.state.round + 1)
        answers = self.context.pool.do([*given, *labelling], on_progress)
        self._note(labelling, answers[len(given) :])
        return answers[: len(given)]

    def finish(self, report: RoundReport) -> dict[str, Any]:
        """Have the new labels stored; return the round's entries about labels."""
        failed = self._keep_labels()
        self.context.state.memory["labellings"] += bool(self._labelling)
        line: dict[str, Any] = {"labelling": [one for one in self._labelling if one not in failed]}
        if failed:
            line["labelling_dropped"] = [
                {"client": client, "reason": reason} for client, reason in failed.items()
            ]
        if self._flagged:
            line["flagged"] = self._flagged
        line["labels"] = {"gold": int(self.holder.gold.sum()), "pseudo": int(self.holder.pseudo.sum())}
        truth = self.holder.truth()
        return line | {"hidden_truth": truth} if truth else line

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report the round to the search for a pace, if any; return the round's entries about it."""
        return {} if self.search is None else self.search.tell(line)

    @property
    def pace(self) -> Pace | FixedPacing:
        """The pace of the next round."""
        if self.search is not None:
            return self.search.order.pace
        if self.fewshot.pacing == "static":
            return FixedPacing(self.fewshot.per_client, self.fewshot.f, self.fewshot.n)
        return Pace(self.fewshot.f, self.fewshot.n, self.fewshot.k)

    @property
    def quota(self) -> LabelQuota:
        """How many of a client's texts get a pseudo label in this round."""
        if self.search is None:
            return label_quota(self.pace, self.context.state.memory["labellings"] + 1)
        order = self.search.order
        return label_quota(order.pace, order.labelling, order.reached)

    @property
    def _trials(self) -> PaceTrials | None:
        """The search, if it makes trials at once in this round."""
        search = self.search
        return search if isinstance(search, PaceTrials) and search.trying else None

    def _is_due(self, number: int) -> bool:
        """Return whether clients label in a round."""
        if self.search is not None:
            return self.search.order.labelling > 0
        first = self.fewshot.first_labelling
        return self.fewshot.pacing != "none" and is_labelling_round(self.pace, number, first)

    def _stream(self, round_number: int) -> int:
        """Return the number that a round's clients are drawn with; the same for all trials of a search."""
        return self.search.order.iteration + 1 if isinstance(self.search, PaceSearch) else round_number

    def embedded(self, labelling: Mapping[int, int]) -> dict[int, int]:
        """Return the number of texts that clients embed: those of which their candidates are the rounded share.

        Args:
            labelling: Number of candidates of each client that labels for the first time.
        """
        ratio, sizes = self.fewshot.filter_ratio, np.diff(self.context.partition.train_offsets)
        if ratio is None or self.fewshot.filter == "random":
            return {}
        return {client: min(rounded_up(n / ratio), int(sizes[client])) for client, n in labelling.items()}

    @property
    def labelled_by(self) -> dict[int, int]:
        """Number of texts that each client has labelled in this round."""
        candidates = self.holder.candidates
        return {
            client: int(candidates[client]) for client in self._labelling if client in self.judge.texts_seen
        }

    @property
    def _labelling(self) -> list[int]:
        """The clients that label in this round."""
        return sorted(client for part in self._parts for client in part.labelling)

    def _label_requests(self, number: int) -> list[Any]:
        part = self._part
        if part.quota is None:
            return []
        return [self.holder.label_request(client, number, part.quota) for client in part.labelling]

    def _label_only(self, number: int) -> None:
        """Have clients label in a part of a round without training."""
        self._publish(number, self._part.state)
        requests = self._label_requests(number)
        self._note(requests, self.context.pool.do(requests))

    def _note(self, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        if self._part.quota is not None:
            quotas = [self._part.quota] * len(requests)
            self._answers += zip(requests, quotas, answers, strict=True)

    def _keep_labels(self) -> dict[int, str]:
        """Have the new labels replace earlier ones; return why clients failed to label, by client."""
        failed = {}
        for request, quota, answer in self._answers:
            reason = self.holder.keep(request, quota, answer)
            if reason is not None:
                failed[int(request.client)] = reason
                self.judge.failed(request.client)
        return failed

    def _check(self) -> list[int]:
        """Find clients whose gold labels contradict the present model, and discard these labels."""
        memory = self.context.state.memory
        self._publish(self.context.state.round + 1, self.context.state)
        found = self.judge.noisy_clients()
        memory["flagged"] = sorted({*memory["flagged"], *found})
        self.holder.trust_all_but(memory["flagged"])
        return found

    def _publish(self, number: int, state: State) -> None:
        """Send a model to the clients outside of the training of a round."""
        context = self.context
        publish(self.algorithm, state, context.pool, RngKey(context.experiment.seed, number, -1))

    def _drawn(self, count: int, candidates: Numbers) -> list[int]:
        """Draw the clients that label in the next round, among those with unlabelled texts."""
        number = self._stream(self.context.state.round + 1)
        rng = generator(self.context.experiment.seed, "labelling", number)
        clients = np.flatnonzero(candidates)
        drawn: list[int] = np.sort(rng.choice(clients, min(count, len(clients)), replace=False)).tolist()
        return drawn


def _after(before: int, on_progress: Callable[[int, int], None], done: int, of: int) -> None:
    on_progress(before + done, of)
