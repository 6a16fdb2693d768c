"""The section ``[fewshot]`` of an experiment: few labels, and pseudo labels."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fednlp.option_types import Count, Fraction, PositiveFloat, PositiveInt
from fednlp.section import IN_ROUNDS, Feature, Section

_DRAWN = ("gold", "gamma", "noisy_client_fraction", "validation")
"""Keys that say which labels a simulation hides: at a site its files do."""


class Fewshot(Section):
    """Few labels: ``gold`` of them in the whole federation, everything else unlabelled.

    ``gamma`` says how evenly they lie on the clients: small puts them on few. With ``pacing``, clients give their
    texts pseudo labels: a fixed number of them (``static``), ever more of them (``curriculum``), or at a pace that
    is searched for while the run goes on (``search``). ``f``, ``n`` and ``k`` are the pace: every f rounds n
    clients label, and k percent more of their texts each time; the surest of all, or of each label with
    ``class_balanced``. The first of these rounds is ``first_labelling``; before it, gold labels alone train the
    model. With ``label_counts = "truth"``, a client gives as many of each label as its texts truly have, as the
    authors' code does; this reads hidden labels, and is for simulations. A search tries the paces of ``pace_grid``,
    and is repeated ``max_searches`` times at most. Its ``trials`` are at once on groups of idle clients, or one
    after the other. They are judged by ``validation`` labelled texts that the server has, or with 0 by half of the
    gold labels of each class, which are held out; by the mean probability of the true labels, or by the accuracy
    (``trial_score``). A gain is divided by what the whole round costs, or by what its labels cost alone
    (``trial_cost``). ``filter_ratio`` is the share of each client's texts that a ``filter`` leaves to be labelled.
    ``noisy_client_fraction`` of the clients with gold labels have wrong ones; ``detect_label_noise`` takes the gold
    labels of suspected clients for unlabelled.
    """

    later: ClassVar[tuple[str, ...]] = (
        "first_labelling",
        "label_counts",
    )
    places: ClassVar[Mapping[str, str]] = {
        "rounds": "fednlp.fewshot.simulation.pseudo_labels:PseudoLabels",
        "split": "fednlp.fewshot.simulation.gold_labels:split_labels",
        "site": "fednlp.fewshot.deployment.site:SiteLabels",
        "server": "fednlp.fewshot.deployment.server:RemoteLabels",
    }
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "[fewshot]",
            {
                **IN_ROUNDS,
                "class_labels": ("labels texts", 'say task.name = "prompt-classification"'),
                "foreseen": "draws its cohorts among the clients that have labels",
                "one_model": "labels texts by one model",
            },
            {
                "training_labels": "hides those of most",
                "fixed_sizes": "has them change with each labelling",
                "open_population": "shares its gold labels out before the first round",
                "all_drawn": "draws its cohorts among the clients that have labels by then",
                "plain_steps": "also has them label texts",
            },
        ),
        Feature(
            "[fewshot] with pseudo labels",
            breaks={"fixed_labels": "changes what a client learns from"},
            remedy='say fewshot.pacing = "none"',
            given=lambda e: e.fewshot is not None and e.fewshot.pacing != "none",
        ),
        Feature(
            'fewshot.pacing = "search"',
            {"nothing_kept": "puts the model back between trials, but nothing that clients keep"},
        ),
        Feature(
            'fewshot.trials = "parallel"',
            {"sees_updates": "needs a sum of each group of clients"},
            remedy='say fewshot.trials = "sequential"',
            given=lambda e: (
                e.fewshot is not None and (e.fewshot.pacing, e.fewshot.trials) == ("search", "parallel")
            ),
        ),
        Feature(
            "fewshot.detect_label_noise",
            {
                "sees_updates": "shows the server what single clients label, and what the model says to it",
                "simulation": "compares the gold labels of all clients with the model's predictions",
            },
        ),
        Feature('fewshot.label_counts = "truth"', {"simulation": "reads the labels of unlabelled texts"}),
    )

    gold: Count = 64
    gamma: PositiveFloat = 1.0
    pacing: Literal["none", "static", "curriculum", "search"] = "curriculum"
    f: PositiveInt = 5
    n: PositiveInt = 2
    k: Annotated[float, Field(gt=0, le=100)] = 1.0
    first_labelling: PositiveInt = 1
    per_client: PositiveInt = 100
    class_balanced: bool = False
    label_counts: Literal["model", "truth"] = "model"
    pace_grid: Literal["laptop", "paper"] = "laptop"
    validation: Count = 0
    trials: Literal["parallel", "sequential"] = "parallel"
    trial_score: Literal["accuracy", "probability"] = "probability"
    trial_cost: Literal["labels", "round"] = "round"
    trial_rounds: Annotated[int, Field(ge=2)] = 5
    candidates: PositiveInt = 8
    threshold: float = 0.0
    window: PositiveInt = 5
    max_searches: Count = 2
    filter_ratio: Fraction | None = None
    filter: Literal["representational", "random"] = "representational"
    neighbours: PositiveInt | None = None
    rho: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10.0
    noisy_client_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    detect_label_noise: bool = False

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what cannot be done with so few labels, or has no effect."""
        if not self.gold and (experiment.task.configured != "prompt-classification" or self.pacing == "none"):
            yield (
                "fewshot.gold = 0: without any label there is nothing to begin from but what a model says to a prompt: "
                "say gold = 64, or give task.prompt and a fewshot.pacing"
            )
        if self.first_labelling != 1:
            yield from self._first_labelling_problems(at_sites=experiment.data.at_sites)
        if self.label_counts == "truth" and self.class_balanced:
            yield (
                'fewshot.label_counts = "truth" and fewshot.class_balanced are two rules for the number of pseudo '
                "labels of each class: leave out one of the two"
            )
        if self.pacing == "search":
            yield from self._search_problems(experiment)

    def problems_at_sites(self, experiment: Any) -> Iterator[str]:
        """Yield which keys say what a simulation hides, or what a search has no texts for."""
        drawn = [key for key in _DRAWN if getattr(self, key) != Fewshot.model_fields[key].default]
        if drawn:
            yield (
                f"fewshot.{drawn[0]} is for simulations, which hide labels: a site has the labels of its own files, "
                "and a text without one has an empty cell; leave it out"
            )
        if self.filter == "random":
            yield 'fewshot.filter = "random" is a baseline of simulations: say fewshot.filter = "representational"'
        if self.pacing == "search" and experiment.data.validation_path is None:
            yield (
                'fewshot.pacing = "search" compares paces on labelled texts of the server: say data.validation_path = '
                '"validation.csv", or fewshot.pacing = "curriculum"'
            )

    def served(self) -> dict[str, Any]:
        """Return the keys that a server of sites has: each site has the labels of its own files."""
        return {key: value for key, value in super().served().items() if key not in _DRAWN}

    def deciding(self) -> dict[str, Any]:
        """Return the keys that decide a run's result; those of a search where there is one."""
        given = super().deciding()
        if self.pacing == "search":
            return given
        return {key: value for key, value in given.items() if key not in ("trial_cost", "trial_score")}

    def _first_labelling_problems(self, *, at_sites: bool) -> Iterator[str]:
        """Yield why clients cannot begin to label in a round after the first."""
        given = f"fewshot.first_labelling = {self.first_labelling}"
        if self.pacing in ("none", "search"):
            why = "no client labels" if self.pacing == "none" else "the search says when clients label"
            yield f'{given}: {why} with fewshot.pacing = "{self.pacing}": set it to 1'
        elif not self.gold and not at_sites:
            yield f"{given}: without gold labels there is nothing to train on before: set it to 1"

    def _search_problems(self, experiment: Any) -> Iterator[str]:
        """Yield why trials cannot be made as ``[fewshot]`` has them."""
        if self.trial_rounds >= experiment.num_rounds:
            yield (
                f"fewshot.trial_rounds = {self.trial_rounds}: a search for a pace takes so many rounds at least, and "
                f"the run has {experiment.num_rounds}: give num_rounds more, or lower fewshot.trial_rounds"
            )
        if self.validation or experiment.data.at_sites:
            return
        if self.trials == "sequential":
            yield (
                'fewshot.trials = "sequential" trains each trial on all gold labels, which then cannot judge it: say '
                "how many labelled texts the server has, fewshot.validation = 128"
            )
        elif not self.gold:
            yield (
                "fewshot.gold = 0: there is no gold label to choose a pace by: say how many labelled texts the server "
                "has, fewshot.validation = 128, or set another fewshot.pacing"
            )
