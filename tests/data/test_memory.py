"""A large file is read, stored, indexed and sampled in bounded memory."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import pathlib, sys
from fednlp.data import load_data
data = load_data(path=sys.argv[1])
assert data.train.num_rows == int(sys.argv[2])
assert data.labels("train").max() == 19
assert len(data.groups("train", "author")[1]) == 50_000
sample = load_data(path=sys.argv[1], train_size=1000, test_size=500)
assert sample.train.num_rows == 1500
status = pathlib.Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_a_million_lines_take_less_memory_than_their_strings_would(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process's memory is read from /proc/self/status, which only Linux has")
    path, count = tmp_path / "large.csv", 1_000_000
    with path.open("w") as file:
        file.write("text,label,author\n")
        for number in range(count):
            file.write(f"{'word ' * 20}{number},l{number % 20},a{number % 50_000}\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(count)], capture_output=True, text=True, check=True
    )
    # As Python's strings the rows alone would take 300 MB (3 x 49 bytes of overhead each, and the text).
    assert int(done.stdout) * 1024 < 300e6
