"""What a site that trains never imports: it is to fit on a small machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fednlp.deployment.operate.rehearse as rehearsing
from fednlp.config import Experiment
from fednlp.simulation.callback import NullCallback
from tests.models.test_quick_import import HEAVY

Make = Callable[..., Experiment]

NOTES = """
import atexit, json, os, sys
if "join" in sys.orig_argv:
    atexit.register(lambda: open(f"{os.environ['NOTED']}/{os.getpid()}", "w").write(json.dumps(sorted(sys.modules))))
"""


@pytest.mark.slow
def test_a_site_has_trained_without_heavy_libraries(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pandas, which Arrow looks for, nor sympy, which PyTorch draws shapes with, nor the compiler.

    Training is what counts: a final model that is written afterwards loads more."""
    made = experiment(
        {
            "num_rounds": 1,
            "clients_per_round": 2,
            "partition.clients": 2,
            "task.name": "text-classification",
            "evaluation.personal": False,
            "rounds.send_model": False,
        }
    )
    noted = tmp_path / "noted"
    noted.mkdir()
    (tmp_path / "sitecustomize.py").write_text(NOTES)
    paths = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("NOTED", str(noted))
    monkeypatch.setenv("FEDNLP_QUICK_IMPORT", "1")
    rehearsing.rehearse(made, tmp_path / "run", NullCallback())
    sites = [set(json.loads(path.read_text())) for path in noted.iterdir()]
    assert len(sites) == 2
    for modules in sites:
        assert {"torch", "fednlp.training.local", "transformers.modeling_utils"} <= modules
        assert not set(HEAVY) & modules
