"""What is named as a task is found to be one, with its fields, before anything of it is called."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError, RunError
from fednlp.formulations import TASKS
from fednlp.tasks import require_trusted, task_class, task_from
from fednlp.tasks.text_classification import TextClassification

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("subprocess:Popen", "is no dataclass"),
        ("os:system", "is no class"),
        ("fednlp.tasks.base:Predictions", "has no name, metric"),
        ("nowhere:Task", "there is no module nowhere"),
        ("json:nothing", "module json has no nothing"),
        ("..:x", 'is not "module:name"'),
        (":", 'is not "module:name"'),
    ],
)
def test_what_is_no_task_is_one_line(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        task_class(name)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_task.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        task_class("broken_task:Task")


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A list of the calls of a class in the module ``callable_things``."""
    code = "calls = []\nclass Recorder:\n    def __init__(self, **fields):\n        calls.append(fields)\n"
    (tmp_path / "callable_things.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    import callable_things  # type: ignore[import-not-found]

    yield callable_things.calls
    sys.modules.pop("callable_things")


def test_nothing_is_called_that_is_no_task(called: list[Any]) -> None:
    with pytest.raises(ConfigError, match="is no dataclass"):
        task_from("callable_things:Recorder", {"args": ["touch", "PWNED"]})
    assert called == []


@given(st.dictionaries(st.sampled_from(["labels", "padding", "name", "x", "__class__"]), JSON, max_size=3))
def test_fields_fit_or_are_refused(fields: dict[str, Any]) -> None:
    """A task that is made has the fields that were given; all else is a ConfigError."""
    fields = json.loads(json.dumps(fields))
    try:
        task = task_from("text-classification", fields)
    except ConfigError:
        return
    assert isinstance(task, TextClassification)
    made = json.loads(json.dumps(asdict(task)))
    assert {key: made[key] for key in fields} == fields


@pytest.mark.parametrize("name", [*TASKS, "fednlp.tasks.token_classification:TokenClassification"])
def test_a_registered_task_needs_no_consent(name: str) -> None:
    require_trusted("run", name, None)
    require_trusted("run", name, name)


@pytest.mark.parametrize("task", [None, "mine:Other", "text-classification"])
@pytest.mark.parametrize("named", ["mine:Task", "text-classification+mine:exact"])
def test_a_class_or_a_metric_needs_the_users_own_word(named: str, task: str | None) -> None:
    require_trusted("run", named, named)
    with pytest.raises(RunError, match="--task"):
        require_trusted("run", named, task)
