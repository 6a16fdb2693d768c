"""A section of an experiment: its keys, what these need of other sections and break for them, what they bring to a run.

A need and what breaks it are joined into one sentence, so that two features that were never thought of together are
checked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

TRAITS: Mapping[str, str] = {
    "additive": "updates are summed, and no more is made of one than its share of the sum",
    "all_counted": "every update that arrives counts",
    "all_drawn": "cohorts are drawn among all clients",
    "averages": "the new model is the old one and the mean update",
    "bounded_update": "an update is of one round, and cut once",
    "class_labels": "the task is to tell labels apart",
    "clock": "the time that each client takes is known",
    "each_report": "the server has the numbers of each client's training",
    "encoder": "the model is an encoder",
    "equal_weights": "every client counts once",
    "federated_rounds": "clients train and send in rounds",
    "fixed_base": "weights that no client trains stay as they are",
    "fixed_labels": "a client learns from the same labels in all rounds",
    "fixed_sizes": "how many examples each client learns from is known before the first round",
    "foreseen": "who is in a cohort follows from the seed and the round alone",
    "honest_server": "the server does what it says",
    "no_reports": "clients report no numbers in the open",
    "noised_sums": "nothing exact of the clients is published",
    "nothing_kept": "clients keep nothing from one round to the next",
    "open_population": "clients may join between two rounds",
    "one_model": "all clients train the same model of the server",
    "one_size": "all cohorts are of one size",
    "one_training": "a client trains one model in a round",
    "one_vector": "clients send the model's update, and no other vector",
    "plain_steps": "clients take local steps from the global model, of one batch over a frozen base, and nothing else",
    "replaceable_rule": "a method's updates are averaged, and another rule may stand in its place",
    "same_tensors": "all clients send the same tensors",
    "sees_updates": "the server has each update by itself",
    "simulation": "all clients and their texts are in one place",
    "training_labels": "the labels of all training examples are at hand",
    "updates": "clients send what they changed, and not their weights",
    "waits": "the run draws a round's cohort, and the round waits for it",
    "weighted_mean": "a sum of updates is their weighted mean",
    "whole_model": "the whole model is shared by all clients",
}
"""What features need and break, each with what holds where it is not broken."""

Reason = str | tuple[str, str]
"""Words after a feature's name; or these words, and what to type in place of the feature's ``remedy``."""


@dataclass(frozen=True)
class Feature:
    """One thing that an experiment may have.

    Attributes:
        name: What messages call it. That of a setting is as it is typed: a section, a key that is not as by default, or
            a key with its value.
        needs: What it needs, by the names in :data:`TRAITS`, each with why.
        breaks: What it breaks for others, each with how.
        remedy: What to type so that it is not there, by default to leave it out; empty where the other feature alone
            can go.
        given: Whether an experiment has it, where the name does not say so.
    """

    name: str
    needs: Mapping[str, Reason] = field(default_factory=dict)
    breaks: Mapping[str, Reason] = field(default_factory=dict)
    remedy: str | None = None
    given: Callable[[Any], bool] | None = None

    def in_experiment(self, experiment: Any) -> bool:
        """Whether an experiment has it."""
        if self.given is not None:
            return self.given(experiment)
        path, _, value = self.name.partition(" = ")
        section, _, key = path.strip("[]").partition(".")
        there, default = getattr(experiment, section), type(experiment).model_fields[section].default
        if there is None or not key:
            return bool(there != default)
        if value:
            return bool(getattr(there, key) == value.strip('"'))
        return bool(getattr(there, key) != type(there).model_fields[key].default)


def conflicts(features: Iterable[Feature]) -> list[str]:
    """Return why features do not go together: a sentence for each need and each feature that breaks it.

    >>> secure = Feature("[secure]", breaks={"sees_updates": "shows the server their sum alone"})
    >>> conflicts([Feature("median", {"sees_updates": "compares updates"}, remedy=""), secure])
    ['median compares updates, and [secure] shows the server their sum alone: leave [secure] out']
    """
    there = list(features)
    return [
        _joined((needer, needer.needs[trait]), (breaker, breaker.breaks[trait]))
        for needer in there
        for trait in needer.needs
        for breaker in there
        if trait in breaker.breaks and breaker is not needer
    ]


def _joined(*halves: tuple[Feature, Reason]) -> str:
    clauses, remedies = [], []
    for feature, reason in halves:
        usual = f"leave {feature.name} out" if feature.remedy is None else feature.remedy
        words, remedy = (reason, usual) if isinstance(reason, str) else reason
        clauses.append(f"{feature.name} {words}")
        remedies.append(remedy)
    what_to_type = ", or ".join(filter(None, dict.fromkeys(remedies))) or "leave one of the two out"
    return f"{', and '.join(clauses)}: {what_to_type}"


IN_ROUNDS: Mapping[str, Reason] = {"federated_rounds": "needs federated rounds"}


class Section(BaseModel):
    """Strict and frozen, without other keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), validate_default=True
    )

    traits: ClassVar[tuple[Feature, ...]] = ()
    """What its settings need of the others, and break for them."""
    later: ClassVar[tuple[str, ...]] = ()
    """Keys that came later: where they are as by default, runs from before there was the key go by the same name."""
    places: ClassVar[Mapping[str, str]] = {}
    """What it brings to the rooms above, ``"module:name"`` by place: ``rounds`` what runs them and has clients label
    alongside, ``split`` which labels the sites' files get, ``site`` what keeps a site's labels, ``server`` what counts
    the labels of all sites."""

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what is wrong with its own values, a sentence each."""
        yield from ()

    def problems_at_sites(self, experiment: Any) -> Iterator[str]:
        """Yield what of its values only a simulation has, where no trait says so."""
        yield from ()

    def served(self) -> dict[str, Any]:
        """Return its keys as the server of a deployment has them, whose clients have their own files."""
        return self.model_dump(exclude_none=True)

    def deciding(self) -> dict[str, Any]:
        """Return the keys that decide a run's result."""
        fields = type(self).model_fields
        given = self.model_dump(exclude_none=True)
        return {k: v for k, v in given.items() if not (k in self.later and v == fields[k].default)}
