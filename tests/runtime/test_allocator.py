"""Memory that a step frees is kept for the next one, and given back at the end."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from pathlib import Path
import torch
from fednlp.runtime.allocator import keep_freed_memory, release_freed_memory

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(1 << 18) for _ in range(200)]  # 200 MB in blocks of 1 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
first, second = step(), step()
full = held()
release_freed_memory()
print(first, second, full - held())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is meant")
def test_a_second_step_faults_no_pages_in() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, given_back = map(int, done.stdout.split())
    assert first > 40_000
    assert second < first / 20
    assert given_back > 150 << 20
