"""A model that does not fit a site's memory is refused before it is built, by an estimate from its configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.config import Experiment
from fednlp.deployment.server.components import server_components
from fednlp.deployment.session.setup import Setup, model_files
from fednlp.deployment.site import machine, memory
from fednlp.deployment.site import worker as site_worker
from fednlp.deployment.site.facts import facts_of
from fednlp.deployment.site.machine import machine_memory
from fednlp.deployment.site.memory import check_memory, predicted_memory
from fednlp.deployment.site.policy import parse_policy
from fednlp.deployment.site.site import Site
from fednlp.errors import RunError
from fednlp.simulation.start_model import start_model
from fednlp.tasks import agreed_fields

Make = Callable[..., Experiment]


def setup_of(experiment: Experiment) -> tuple[Setup, Path]:
    components = server_components(experiment, lambda text: None)
    setup = Setup(
        experiment=experiment.model_dump(exclude_none=True),
        task=components.task_spec,
        task_fields=agreed_fields(components.task),
        longest=components.longest,
        client=0,
        clients=2,
        run="run",
    )
    return setup, Path(components.source)


def served(experiment: Make, **changes: Any) -> Experiment:
    data = {"name": "sites", "labels": ["arts", "economy", "science", "sports"]}
    return experiment(
        {"data": data, "task.name": "text-classification", "partition": None} | changes
    ).resolved()


def test_a_model_that_does_not_fit_is_refused_and_never_built(
    experiment: Make, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, source = setup_of(served(experiment))
    monkeypatch.setattr(memory, "machine_memory", lambda: (30_000, 30_000))
    monkeypatch.setattr(site_worker, "start_model", lambda *given: pytest.fail("the model is built"))
    policy = parse_policy({"data": {"path": str(texts)}, "device": {"device": "cpu"}})
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder, "nord", policy, lambda text: None)
    with pytest.raises(RunError) as caught:
        site.answer("setup", setup.model_dump(), model_files(source))
    assert str(caught.value).startswith("site nord refuses: the experiment is predicted to need ")
    assert "cpu has 30 kB here" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_estimate_is_that_of_the_model_that_is_built(experiment: Make) -> None:
    """From the configuration alone it is the same as with the weights."""
    made = served(experiment)
    setup, source = setup_of(made)
    components = server_components(made, lambda text: None)
    model = start_model(made, components.source, components.task)
    found = facts_of(made, model, components.task, clients=2, examples=9, longest=components.longest)
    assert predicted_memory(setup, made, source) == found.memory


def test_with_adapters_the_model_itself_has_to_fit(experiment: Make) -> None:
    made = served(experiment, **{"model.peft": {"method": "lora", "r": 2}})
    setup, source = setup_of(made)
    parameters = predicted_memory(setup, made, source) // 4
    policy = parse_policy({"device": {"device": "cpu"}})
    assert parameters > 1000
    assert check_memory(policy, setup, made, source) == []


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CONTAINER", limit)
    whole = machine_memory()
    limit.write_text("max\n")
    assert machine_memory()[0] == whole[0]
    limit.write_text("1000000\n")
    assert machine_memory() == (10**6, 10**6)
