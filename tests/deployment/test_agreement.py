"""What a site has agreed to is on its disk as a whole, or not at all."""

from pathlib import Path
from random import Random

import pytest

from fednlp import Experiment
from fednlp.deployment.session.setup import Setup, place_models
from fednlp.deployment.site.agreement import Agreed, Agreement
from fednlp.deployment.site.policy import SitePolicy
from fednlp.errors import RunError

from .disks import Disk
from .test_federation import quiet

FILES = {
    "start:config.json": b"{}" * 9,
    "start:target:spiece.model": b"pieces" * 9,
    "encoder:a.txt": b"words" * 9,
}


@pytest.mark.parametrize("seed", range(20))
def test_a_model_that_came_with_the_setup_outlives_a_loss_of_power(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's next start takes what lies in the folder of the model as what it has agreed to."""
    disk, site = Disk(monkeypatch), tmp_path / "site"
    site.mkdir()
    objects = {name: tmp_path / str(place) for place, name in enumerate(FILES)}
    for name, path in objects.items():
        path.write_bytes(FILES[name])
    agreement = Agreement(site, "north", SitePolicy(), quiet)
    place_models(objects, agreement._models)
    setup = Setup(experiment={}, task="x", task_fields={}, longest=8, client=0, clients=2, run="run")
    agreement.keep(setup)
    disk.after_a_crash(site, tmp_path / "after", Random(seed))
    disk.close()
    after = Agreement(tmp_path / "after", "north", agreement.policy, quiet)
    assert after.known() == Agreed(**dict(setup))
    found = {path: path.read_bytes() for folder in after._models.values() for path in folder.rglob("*.*")}
    assert sorted(found.values()) == sorted(FILES.values())


def test_a_site_keeps_its_number_in_a_run(tmp_path: Path) -> None:
    agreement = Agreement(tmp_path, "north", SitePolicy(), quiet)
    sections = {"data": {"name": "sites"}, "task": {"name": "text-classification"}}
    setup = Setup(
        experiment=Experiment(**sections).model_dump(exclude_none=True),
        task="text-classification",
        task_fields={},
        longest=8,
        client=0,
        clients=2,
        run="run",
    )
    agreement.keep(setup)
    agreement.require_allowed(setup, {})
    with pytest.raises(RunError, match="gives this site the number 1 in this run, and it was 0"):
        agreement.require_allowed(setup.model_copy(update={"client": 1}), {})
