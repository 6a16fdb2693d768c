"""Memory that a step frees is kept for the next one, and given back at the end."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.whole

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

THREADS = """
import resource
from threading import Event, Thread
from fednlp.deployment.links.system import reuse_memory

def transfer(over):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [bytes([1]) * (1 << 16) for _ in range(600)]  # 39 MB
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del kept
    freed.set()
    over.wait()

reuse_memory()
faults, freed, over = [], Event(), Event()
for _ in range(2):
    freed.clear()
    Thread(target=transfer, args=(over,), daemon=True).start()
    freed.wait()
over.set()
print(*faults)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is meant")
def test_a_second_step_faults_no_pages_in() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, given_back = map(int, done.stdout.split())
    assert first > 40_000
    assert second < first / 20
    assert given_back > 150 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is meant")
def test_a_thread_of_a_connection_takes_what_another_has_freed() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 5_000
    assert second < first / 20
