"""Which pairs of options go together: for each pair that is refused, the sections that the refusal names.

    python -m tests.laws.refusals > tests/laws/refusals.txt   # after a change of what goes with what

The wording of a refusal is not stored, and may change.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.laws.configurations import CONFIGURATIONS, Configuration
from tests.laws.material import Material

STORED = Path(__file__).with_name("refusals.txt")
_EQUAL = {"algorithm.weighting": "uniform"}
_PRIVATE = {"clip": 0.5, "noise": 0.3}
OPTIONS: dict[str, Mapping[str, Any]] = {
    "server optimiser": {"algorithm.name": "fedopt", "server": {"optimizer": "adam", "learning_rate": 0.01}},
    "uniform weights": {"algorithm.weighting": "uniform"},
    "bounded weights": {"algorithm.most_examples": 10},
    "clipped updates": {"exchange.up": ["clip:0.5"]},
    "rounded models": {"exchange.down": ["float16"]},
    "finetuned": {"client.finetune_steps": 2},
    "validation": {"evaluation.validation_fraction": 0.2},
    "federated evaluation": {"evaluation.federated": True},
    "server's model": {"evaluation.server_model": True},
    "bf16 evaluation": {"evaluation.bf16_full_eval": True},
    "own split": {"partition.test_sets": "own-split"},
    "label quantity": {"partition": {"method": "label+quantity", "beta": 1.0}},
    "personal head": {"model.train": {"personal": ["head"]}},
    "lora on frozen layers": {
        "model.peft": {"method": "lora", "r": 2},
        "model.train": {"frozen": ["embeddings"]},
    },
    "summed reports": {"secure": {"protocol": "secagg", "sum_reports": True}},
    "epsilon": {"privacy": {"clip": 0.5, "epsilon": 8.0}, "algorithm.weighting": "uniform"},
    "filtered texts": {"fewshot": {"filter": "representational"}},
    "device": {"costs.device": "jetson-tx2"},
    "heads at once": {"model.train": ["head"], "runtime.clients_at_once": 2},
    "exact lora": {"model.peft": {"method": "lora", "averaging": "exact"}},
}
"""Options beside those of :data:`tests.laws.configurations.CONFIGURATIONS`."""
_HEADS = OPTIONS["heads at once"]
_SGD = {"client.optimizer": "sgd"}
_SITES = {
    "data": {"path": None, "name": "sites"},
    "partition": {"method": None, "clients": None, "alpha": None},
}
_TOLD = {**_SITES, "task.name": "text-classification"}
_SEARCH = {"gold": 24, "pacing": "search"}
_GIVEN = {"algorithm.name": "given-in-python"}
TOGETHER: dict[str, Mapping[str, Any]] = {
    "all at once": {"runtime.clients_at_once": 2},
    "gradients accumulated at once": {**_HEADS, "client.gradient_accumulation_steps": 2},
    "batches of tokens at once": {**_HEADS, "client.max_tokens_per_batch": 64},
    "checkpointed at once": {**_HEADS, "client.gradient_checkpointing": True},
    "fp16 at once": {**_HEADS, "client.fp16": True},
    "attacked at once": {**_HEADS, "attack": {"name": "sign-flip", "fraction": 0.25}},
    "over-selection without a clock": {"rounds.over_selection": 1.5, "clients_per_round": 2},
    "fedbuff without a clock": {"algorithm": {"name": "fedbuff", "buffer_size": 2}},
    "fedbuff of many": {"algorithm": {"name": "fedbuff", "buffer_size": 9}, "costs.device": "jetson-tx2"},
    "fedbuff of few": {
        "algorithm": {"name": "fedbuff", "buffer_size": 2},
        "costs.device": "jetson-tx2",
        "min_clients": 3,
    },
    "constant fedbuff": {
        "algorithm": {
            "name": "fedbuff",
            "buffer_size": 2,
            "staleness": "constant",
            "staleness_exponent": 1.0,
        },
        "costs.device": "jetson-tx2",
    },
    "scaffold by adam": {"algorithm.name": "scaffold"},
    "scaffold with momentum": {"algorithm.name": "scaffold", **_SGD, "client.momentum": 0.5},
    "scaffold of clipped gradients": {"algorithm.name": "scaffold", **_SGD, "client.max_grad_norm": 1.0},
    "fednova by adam": {"algorithm.name": "fednova"},
    "fednova of clipped gradients": {"algorithm.name": "fednova", **_SGD, "client.max_grad_norm": 1.0},
    "fednova with a falling rate": {
        "algorithm.name": "fednova",
        **_SGD,
        "client.lr_scheduler_type": "linear",
    },
    "fednova with kept momentum": {
        "algorithm.name": "fednova",
        **_SGD,
        "client.momentum": 0.5,
        "client.keep_optimizer": True,
    },
    "median of weights": {"aggregator.name": "median"},
    "private weights": {"privacy": {"clip": 0.5, "noise": 0.3}},
    "secure poisson": {**_EQUAL, "privacy": _PRIVATE | {"sampling": "poisson"}, "secure.protocol": "secagg+"},
    "poisson of some": {**_EQUAL, "privacy": _PRIVATE | {"sampling": "poisson"}, "min_clients": 2},
    "a large secure clip": {
        **_EQUAL,
        "privacy": {"clip": 2000.0, "noise": 0.3},
        "secure.protocol": "secagg+",
    },
    "two clips": {**_EQUAL, "privacy": _PRIVATE, "secure": {"protocol": "secagg+", "clip": 2.0}},
    "private error feedback": {
        **_EQUAL,
        "privacy": _PRIVATE,
        "exchange": {"up": ["topk:0.1"], "error_feedback": True},
    },
    "secure without a protocol": {"secure.dropout": 0.2},
    "more clients than there are": {"clients_per_round": 9},
    "more answers than clients": {"min_clients": 5},
    "pull nothing": {"pull.share": 0.2},
    "whole weights": {"exchange.send": "weights"},
    "weights with error feedback": {"exchange": {"up": ["int8"], "send": "weights", "error_feedback": True}},
    "sparse weights": {"exchange": {"up": ["topk:0.1"], "send": "weights"}},
    "a rate that does not fall": {"client.minimum_rate": 0.1},
    "warm for ever": {"client.warmup_rounds": 3},
    "warm servers for ever": {"algorithm.name": "fedopt", "server.warmup_rounds": 3},
    "an address of the pool": {"runtime.address": "auto"},
    "placed by ray": {"runtime": {"engine": "ray", "gpu_mapping": "gpus.yaml"}},
    "options of uniform": {"partition": {"method": "uniform", "alpha": None, "options": {"a": 1}}},
    "majority": {"algorithm.name": "majority", "client.round_schedule": "linear"},
    "ordered fedavg": {"algorithm.order": "greedy"},
    "chosen fedavg": {"algorithm.clients": ["0"]},
    "mu of fedavg": {"algorithm.mu": 0.5},
    "fedadam by sgd": {"algorithm.name": "fedadam", "server.optimizer": "sgd"},
    "server of fedavg": {"server.momentum": 0.5},
    "tau of sgd": {"algorithm.name": "fedopt", "server.tau": 0.1},
    "given over-selection": {**_GIVEN, "rounds.over_selection": 1.5, "costs.device": "jetson-tx2"},
    "given schedule": {**_GIVEN, "client.round_schedule": "linear"},
    "given server": {**_GIVEN, "server.momentum": 0.5},
    "late without pseudo labels": {"fewshot": {"gold": 24, "pacing": "none", "first_labelling": 2}},
    "late search": {"fewshot": _SEARCH | {"validation": 20, "first_labelling": 2}, "num_rounds": 14},
    "late without gold": {"fewshot": {"gold": 0, "first_labelling": 2}, "task.name": "prompt-classification"},
    "no gold": {"fewshot": {"gold": 0}},
    "balanced twice": {"fewshot": {"gold": 24, "label_counts": "truth", "class_balanced": True}},
    "a long search": {"fewshot": _SEARCH | {"validation": 20}},
    "sequential search": {"fewshot": _SEARCH | {"trials": "sequential"}, "num_rounds": 14},
    "search without gold": {
        "fewshot": _SEARCH | {"gold": 0},
        "num_rounds": 14,
        "task.name": "prompt-classification",
    },
    "kept search": {
        "fewshot": _SEARCH | {"validation": 20},
        "num_rounds": 14,
        "client.keep_optimizer": True,
    },
    "true counts": {"fewshot": {"gold": 24, "label_counts": "truth"}},
    "of no known task": _SITES,
    "sites": _TOLD,
    "validation of sites": {**_TOLD, "evaluation.validation_fraction": 0.2},
    "own split of sites": {**_TOLD, "partition.test_sets": "own-split"},
    "words of sites": {**_TOLD, "model": {"name_or_path": "lstm", "vocabulary_size": 320}},
    "gold of sites": {**_TOLD, "fewshot.gold": 24},
    "skew of sites": {**_TOLD, "fewshot.gamma": 2.0},
    "wrong labels of sites": {**_TOLD, "fewshot.noisy_client_fraction": 0.5},
    "random texts of sites": {**_TOLD, "fewshot.filter": "random"},
    "search of sites": {**_TOLD, "fewshot.pacing": "search", "num_rounds": 14},
    "validation texts without a search": {**_TOLD, "data.validation_path": "texts.csv"},
}
"""Options that are tried together, and not with any others."""


class _Unmade(Material):
    """Files that are named and not there: an experiment is checked before they are read."""

    def rows(self, kind: str) -> Path:
        return self.folder / f"{kind}.csv"

    def model(self, kind: str) -> Path:
        return self.folder / kind


def found_refusals(folder: Path) -> Iterator[str]:
    """Yield a line for each option that is refused, each pair of others, and each that is refused between machines.

    Args:
        folder: Where the experiments say that their models and examples are.
    """
    material, refused = _Unmade(folder), set[tuple[str, ...]]()
    options = {name: (one.changes, one.rows) for name, one in CONFIGURATIONS.items()}
    options |= {name: (changes, "texts") for name, changes in OPTIONS.items()}
    pairs = [*itertools.combinations(options, 2)]
    options |= {name: (changes, "texts") for name, changes in TOGETHER.items()}
    for one, other in [*((name, name) for name in options), *pairs]:
        (changes, rows), (further, other_rows) = options[one], options[other]
        if {(one, one), (other, other)} & refused or ("texts" not in (rows, other_rows) and one != other):
            continue
        together = Configuration({**changes, **further}, rows if other_rows == "texts" else other_rows)
        said = one if one == other else f"{one} | {other}"
        where = _refused_by(material.document(together))
        if where is not None:
            refused.add((one, other))
            yield f"{said}: {where}"
            continue
        where = _refused_by(material.document(together), between_machines=True)
        if where is not None and not {(one, one, "apart"), (other, other, "apart")} & refused:
            refused.add((one, other, "apart"))
            yield f"between machines | {said}: {where}"


def _refused_by(document: dict[str, Any], *, between_machines: bool = False) -> str | None:
    """Return the sections that the refusal of an experiment names; None if it is not refused."""
    from fednlp.config import Experiment, parse
    from fednlp.deployment.session.servable import require_servable, unsupported
    from fednlp.errors import ConfigError

    sections = "|".join(Experiment.model_fields)
    problems: list[str] = []
    try:
        experiment = parse(document).resolved()
        if between_machines:
            problems = unsupported(experiment)
            if experiment.data.at_sites:
                require_servable(experiment)
    except ConfigError as error:
        problems = error.problems or [str(error)]
    if not problems:
        return None
    named = re.findall(rf"\[({sections})\]|\b({sections})\.[a-z_]+", "\n".join(problems))
    return ", ".join(sorted({first or second for first, second in named}))


if __name__ == "__main__":
    print("\n".join(found_refusals(Path("nowhere"))))
