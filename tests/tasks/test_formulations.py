"""The table of tasks agrees with their classes, and is read without them."""

import json
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import Any

import pytest
from pydantic import TypeAdapter

from fednlp.config import parse
from fednlp.config.sections import Task
from fednlp.errors import ConfigError
from fednlp.formulations import TASKS, option_types
from fednlp.tasks import task_class

MADE_OF_OTHERS = {"prompt", "verbalizer"}
"""Options from which ``build`` makes fields of other names."""
BAD: dict[str, Any] = {
    "label_smoothing_factor": 1.0,
    "scheme": "loose",
    "doc_stride": -1,
    "max_answer_length": 0,
    "max_target_length": 0,
    "num_beams": 1.5,
    "scorer": "meteor",
    "mlm_probability": 0.0,
    "verbalizer": {"a": 1},
}
"""Near misses; any other option is given a list."""


@pytest.mark.parametrize("name", TASKS)
def test_the_table_says_what_the_class_says(name: str) -> None:
    kind = task_class(name)
    told = {one.name: one.default for one in fields(kind)}  # type: ignore[arg-type]
    assert told["name"] == name
    assert told["model_class"] == f"AutoModelFor{TASKS[name].head}"


@pytest.mark.parametrize("name", TASKS)
def test_an_option_is_a_field_whose_default_is_in_range(name: str) -> None:
    there = {one.name: one.default for one in fields(task_class(name))}  # type: ignore[arg-type]
    for option, kind in TASKS[name].options.items():
        if option not in MADE_OF_OTHERS:
            assert there[option] is not MISSING, f"{option} has no default"
            if there[option] is not None:  # left out
                TypeAdapter(kind).validate_json(json.dumps(there[option]), strict=True)


def test_an_option_has_one_type_in_all_tasks() -> None:
    for one in TASKS.values():
        assert one.options.items() <= option_types().items()
    assert set(Task.model_fields) == {"name", "options", *option_types()}


@pytest.mark.parametrize("option", option_types())
def test_a_value_out_of_range_is_refused_by_its_key(option: str) -> None:
    """Whichever task is named, and before any class is loaded."""
    with pytest.raises(ConfigError, match=rf"task\.{option}"):
        parse({"data": {"name": "20news"}, "task": {option: BAD.get(option, [1])}})


@pytest.mark.whole
def test_options_are_checked_without_torch() -> None:
    program = (
        "import sys\nfrom fednlp.config import parse\nfrom fednlp.errors import ConfigError\n"
        "task = {'name': 'sequence-to-sequence', 'num_beams': 4, 'scorer': 'bleu'}\n"
        "made = parse({'data': {'name': '20news'}, 'task': task})\n"
        "assert made.task.given() == {'num_beams': 4, 'scorer': 'bleu'}\n"
        "try:\n    parse({'data': {'name': '20news'}, 'task': {'num_beams': 0}})\n"
        "except ConfigError as error:\n    assert 'task.num_beams = 0' in str(error)\n"
        "else:\n    sys.exit(2)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
