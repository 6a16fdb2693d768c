"""Which pairs of options go together: for each pair that is refused, the sections that the refusal names.

    python -m tests.laws.refusals > tests/laws/refusals.txt   # after a change of what goes with what

The wording of a refusal is not stored, and may change.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.laws.configurations import CONFIGURATIONS, Configuration
from tests.laws.material import Material

STORED = Path(__file__).with_name("refusals.txt")
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
}
"""Options beside those of :data:`tests.laws.configurations.CONFIGURATIONS`."""


def found_refusals(folder: Path) -> Iterator[str]:
    """Yield a line for each option, and each pair of options, that is refused.

    Args:
        folder: For models and examples, made if they are not there.
    """
    from fednlp.config import Experiment, parse
    from fednlp.errors import ConfigError

    material, sections = Material(folder), "|".join(Experiment.model_fields)
    named = re.compile(rf"\[({sections})\]|\b({sections})\.[a-z_]+")
    options = {name: (one.changes, one.rows) for name, one in CONFIGURATIONS.items()}
    options |= {name: (changes, "texts") for name, changes in OPTIONS.items()}
    alone = [(name, name) for name in options]
    for one, other in [*alone, *itertools.combinations(options, 2)]:
        (changes, rows), (further, other_rows) = options[one], options[other]
        if "texts" not in (rows, other_rows) and one != other:
            continue
        together = Configuration({**changes, **further}, rows if other_rows == "texts" else other_rows)
        try:
            parse(material.document(together)).resolved()
        except ConfigError as error:
            text = "\n".join(error.problems or [str(error)])
            where = sorted({first or second for first, second in named.findall(text)})
            yield f"{one} | {other}: {', '.join(where)}" if one != other else f"{one}: {', '.join(where)}"


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        print("\n".join(found_refusals(Path(name))))
