"""The page's script: its arithmetic, where Node is there to run it."""

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

SCRIPT = files("fednlp.reports").joinpath("report.js").read_text(encoding="utf-8")
NODE = shutil.which("node")


def _evaluate(expression: str) -> Any:
    if NODE is None:
        pytest.skip("needs Node.js")
    code = f"{SCRIPT}\nconsole.log(JSON.stringify({expression}))"
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_the_script_can_stand_in_a_page_and_writes_no_markup() -> None:
    for word in ("</script", "<!--", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "http"):
        assert word not in SCRIPT


def test_ticks_names_ranges_and_values() -> None:
    found = _evaluate(
        "[ticks(0, 100, 5, false), ticks(0, 4, 8, true), ticks(1, 1, 5, true), apart([50, 50, 90], 10, 0, 100),"
        " apart([99, 99], 10, 0, 100), within([2, 5], [0, 10]), within([-1, 11], [0, 10]),"
        " nearest([{x: 0, y: 0}, {x: 9, y: 0}], 8, 3), nearest([], 1, 1),"
        " extent([1, 3], [0, null], 0.1), valueText(54.04, 0.5, ' %'), valueText(0.12345, null, '')]"
    )
    assert found == [
        [0, 20, 40, 60, 80, 100],
        [0, 1, 2, 3, 4],
        [1],
        [50, 60, 90],
        [90, 100],
        [2, 5],
        None,
        1,
        -1,
        [0, 3.2],
        "54.0 ± 0.5 %",
        "0.1235",
    ]
