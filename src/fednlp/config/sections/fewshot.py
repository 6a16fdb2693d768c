"""The section ``[fewshot]`` of an experiment: few labels, and pseudo labels."""

from typing import Annotated, Literal

from pydantic import Field

from fednlp.config.sections.base import Section
from fednlp.option_types import Count, Fraction, PositiveFloat, PositiveInt


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
