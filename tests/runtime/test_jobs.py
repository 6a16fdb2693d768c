"""Several jobs at once: each is done once, errors and interrupts reach whoever waits, and the machine is divided."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp import errors
from fednlp.errors import ConfigError, DamagedError, FednlpError, RunError
from fednlp.plugins import place_of
from fednlp.runtime import jobs
from fednlp.runtime.job import Fault, as_error, as_message
from fednlp.runtime.jobs import Interrupted, JobProcess, Jobs, Share, _shares

Call = Callable[..., Any]
KINDS = sorted(
    name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, FednlpError)
)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes find the functions of ``errand.py``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def process(path: None) -> Iterator[JobProcess]:
    """One process."""
    made = JobProcess(Share(()))
    yield made
    made.close()


@pytest.fixture
def call(process: JobProcess) -> Call:
    """Call a function of ``errand.py`` in the process; what it says goes to ``hear``."""

    def made(function: str, hear: Callable[[Any], None] = lambda said: None, **arguments: Any) -> Any:
        return process.do(f"errand:{function}", arguments, hear)

    return made


def until(path: Path, text: str) -> None:
    """Wait until a file holds a text."""
    for _ in range(3000):
        if path.is_file() and path.read_text() == text:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} does not hold {text}")


# What is done --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 20))
def test_each_job_is_done_once_and_no_more_at_once_than_asked_for(number: int, count: int) -> None:
    waiting, lock = iter(range(count)), threading.Lock()
    done: list[int] = []
    doing = most = 0

    def do(job: int, process: JobProcess | None) -> None:
        nonlocal doing, most
        with lock:
            doing += 1
            most = max(most, doing)
        assert (process is None) is (number == 1)
        with lock:
            doing -= 1
            done.append(job)

    with Jobs(number) as jobs:
        jobs.each(lambda: next(waiting, None), do)
    assert sorted(done) == list(range(count))
    assert most <= number


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_what_needs_others_waits_for_them(number: int, levels: int, width: int) -> None:
    """A job of a level is given out when all of the level before are done, and no one gives up before."""
    todo = [[(level, one) for one in range(width)] for level in range(levels)]
    done: set[tuple[int, int]] = set()

    def take() -> tuple[int, int] | None:
        level = len(done) // width
        return todo[level].pop() if level < levels and todo[level] else None

    def do(job: tuple[int, int], process: JobProcess | None) -> None:
        assert sum(one < job[0] for one, _ in done) == job[0] * width
        done.add(job)

    with Jobs(number) as jobs:
        jobs.each(take, do)
    assert len(done) == levels * width


@pytest.mark.parametrize("number", [1, 3])
def test_the_first_error_ends_the_work(number: int) -> None:
    waiting, done = iter(range(1000)), []

    def do(job: int, process: JobProcess | None) -> None:
        done.append(job)
        if job == 5:
            raise RunError("five")
        time.sleep(0.001)

    with pytest.raises(RunError, match="five"), Jobs(number) as jobs:
        jobs.each(lambda: next(waiting, None), do)
    assert 5 in done
    assert len(done) < 1000


def test_an_error_where_jobs_are_taken_is_raised() -> None:
    def take() -> None:
        raise RunError("no jobs")

    with pytest.raises(RunError, match="no jobs"), Jobs(2) as jobs:
        jobs.each(take, lambda job, process: None)


@pytest.mark.parametrize("number", [0, -1])
def test_at_least_one_is_done(number: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Jobs(number)


def test_ranks_of_mpirun_work_for_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednlp.runtime.jobs.rank_of", lambda: (0, 2))
    with pytest.raises(ConfigError, match="mpirun"):
        Jobs(2)
    assert Jobs(1).number == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
@pytest.mark.whole
def test_several_processes_divide_the_cores(path: None) -> None:
    cores = os.sched_getaffinity(0)
    found: list[list[int]] = []
    both = threading.Barrier(2)

    def do(job: int, process: JobProcess | None) -> None:
        assert process is not None
        found.append(process.do("errand:own_cores", {}, lambda said: None))
        both.wait(timeout=60)

    waiting = iter(range(2))
    with Jobs(2) as jobs:
        jobs.each(lambda: next(waiting, None), do)
    assert set().union(*found) == cores
    assert len(cores) == 1 or not set(found[0]) & set(found[1])


# One process ----------------------------------------------------------------------------------------------------------


def test_a_process_does_one_job_after_the_other(call: Call, process: JobProcess) -> None:
    first = call("process")
    assert first != os.getpid()
    assert call("add", a=0.1, b=0.2) == 0.1 + 0.2
    assert call("process") == first


def test_the_cpu_seconds_of_jobs_are_added(call: Call, process: JobProcess) -> None:
    call("compute", seconds=0.1)
    first = process.cpu_seconds
    assert first >= 0.09  # the system counts in hundredths
    with pytest.raises(RunError):
        call("fail", kind="RunError", problems=[])
    call("compute", seconds=0.1)
    assert process.cpu_seconds >= first + 0.08


def test_what_a_job_says_is_heard_in_order_and_what_it_prints_is_not(call: Call) -> None:
    heard: list[Any] = []
    assert call("count", heard.append, upto=5) == 5
    assert heard == [{"number": number} for number in range(5)]
    assert call("shown", text='{"said": 1}\n') == '{"said": 1}\n'


def test_who_hears_can_stop_it_at_that_point(call: Call) -> None:
    heard: list[int] = []

    def hear(said: dict[str, int]) -> None:
        heard.append(said["number"])
        if said["number"] == 2:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        call("count", hear, upto=10**9)
    assert heard == [0, 1, 2]
    assert call("add", a=1, b=2) == 3  # and the process goes on


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_the_same_as_here(kind: str, call: Call) -> None:
    with pytest.raises(getattr(errors, kind), match="that is wrong") as caught:
        call("fail", kind=kind, problems=["one", "two"])
    assert type(caught.value).__name__ == kind
    if isinstance(caught.value, ConfigError):
        assert caught.value.problems == ["one", "two"]
    if isinstance(caught.value, DamagedError):
        assert caught.value.what == "a file is cut short"


@given(st.sampled_from(KINDS), st.text(), st.lists(st.text(), min_size=1), st.text())
def test_errors_come_through_a_message(kind: str, text: str, problems: list[str], what: str) -> None:
    error: Any = type("NotInErrors", (getattr(errors, kind),), {})(text)
    error.problems, error.what = problems, what
    again = as_error(as_message(error))
    assert type(again) is getattr(errors, kind), "the nearest class that all know"
    assert str(again) == text
    if isinstance(again, ConfigError):
        assert again.problems == problems
    if isinstance(again, DamagedError):
        assert again.what == what


def test_a_fault_is_named_and_the_process_goes_on(call: Call) -> None:
    """It has the name and the place of the error there, and its traceback as a note."""
    with pytest.raises(Fault, match="that is wrong") as caught:
        call("fail", kind="none", problems=[])
    assert type(caught.value).__name__ == "ValueError"
    place = place_of(caught.value)
    assert place is not None
    assert place.startswith("errand.py, line ")
    assert "Traceback (most recent call last)" in caught.value.__notes__[0]
    assert call("add", a=1, b=2) == 3


def test_a_process_that_dies_is_named_and_replaced(call: Call) -> None:
    with pytest.raises(RunError, match=r"died \(signal SIGKILL.*try fewer jobs"):
        call("die")
    assert call("add", a=1, b=2) == 3


@pytest.mark.parametrize("how", ["wait", "stubborn"])
@pytest.mark.whole
def test_an_interrupt_ends_what_is_being_done(
    how: str, path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job's error interrupts the other, which is killed if it does not end."""
    monkeypatch.setattr("fednlp.runtime.jobs._PATIENCE", 20.0 if how == "wait" else 0.5)
    file, waiting = tmp_path / "file", iter(range(2))
    ended: list[Exception] = []

    def do(job: int, process: JobProcess | None) -> None:
        assert process is not None
        if job == 0:
            until(file, "begun")
            raise RunError("enough")
        try:
            process.do(f"errand:{how}", {"file": str(file)}, lambda said: None)
        except Exception as error:
            ended.append(error)
            raise

    with pytest.raises(RunError, match="enough"), Jobs(2) as jobs:
        jobs.each(lambda: next(waiting, None), do)
    assert [type(error) for error in ended] == [Interrupted]
    assert file.read_text() == ("interrupted" if how == "wait" else "begun")


@pytest.mark.parametrize(("how", "times"), [("wait", 1), ("stubborn", 2)])
@pytest.mark.whole
def test_ctrl_c_interrupts_all_and_a_second_one_kills(
    how: str, times: int, path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in "ab"]
    waiting, running = iter(files), []
    if (
        times > 1
    ):  # the test takes the time that is left for processes to end by themselves only if it is not ended
        monkeypatch.setattr("fednlp.runtime.jobs._PATIENCE", 300.0)

    def press() -> None:
        for file in files:
            until(file, "begun")
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    def do(file: Path, process: JobProcess | None) -> None:
        assert process is not None
        running.append(process._running())
        process.do(f"errand:{how}", {"file": str(file)}, lambda said: None)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt), Jobs(2) as jobs:
        jobs.each(lambda: next(waiting, None), do)
    thread.join()
    assert [file.read_text() for file in files] == ["interrupted" if times == 1 else "begun"] * 2
    assert all(not one.alive for one in running), "none of them stays behind"


def test_a_process_is_interrupted_though_a_shell_had_that_ignored(path: None, tmp_path: Path) -> None:
    """A shell without job control starts what runs in the background so."""
    file, before = tmp_path / "file", signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = JobProcess(Share(()))
    try:
        made._running()
    finally:
        signal.signal(signal.SIGINT, before)

    def press() -> None:
        until(file, "begun")
        made.interrupt()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(Interrupted):
        made.do("errand:wait", {"file": str(file)}, lambda said: None)
    thread.join()
    assert file.read_text() == "interrupted"
    made.close()


def test_a_process_that_somebody_else_interrupts_is_named(call: Call, process: JobProcess) -> None:
    def hear(said: Any) -> None:
        if said["number"] == 1:
            assert process._child is not None
            os.kill(process._child._process.pid, signal.SIGINT)

    with pytest.raises(RunError, match="a process for jobs was interrupted"):
        call("count", hear, upto=10**9)


def test_what_was_interrupted_is_stopped_at_the_next_thing_it_says(call: Call, process: JobProcess) -> None:
    """Even where a library has swallowed the interrupt."""
    heard: list[Any] = []

    def hear(said: Any) -> None:
        heard.append(said)
        process._stopped = True

    with pytest.raises(Interrupted):
        call("count", hear, upto=10**9)
    assert len(heard) == 1


def test_nothing_is_begun_after_an_interrupt(process: JobProcess) -> None:
    process.interrupt()
    with pytest.raises(Interrupted):
        process.do("errand:add", {"a": 1, "b": 2}, lambda said: None)


def test_a_process_ends_with_the_one_that_started_it(path: None, tmp_path: Path) -> None:
    """Its input ends, and it does what it does no further than to the next thing it says."""
    made = JobProcess(Share(()))

    def hear(said: Any) -> None:
        if said["number"] == 1:
            assert made._child is not None
            made._child._to.close()

    with pytest.raises(RunError, match="died"):
        made.do("errand:count", {"upto": 10**9}, hear)
    made.close()


# The machine ----------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 20), st.lists(st.integers(0, 99), unique=True), st.lists(st.integers(0, 9), unique=True)
)
def test_the_machine_is_divided(number: int, cores: list[int], gpus: list[int]) -> None:
    found = _shares(number, cores, [str(gpu) for gpu in gpus])
    assert len(found) == number
    for things, own in (
        (cores, [list(share.cores) for share in found]),
        (gpus, [[int(gpu) for gpu in share.gpus.split(",")] for share in found if share.gpus is not None]),
    ):
        if not own:
            assert len(things) < 2
            continue
        given_out = [one for share in own for one in share]
        assert set(given_out) == set(things)  # nothing is idle
        sizes = [len(share) for share in own]
        assert max(sizes) - min(sizes) <= 1
        if len(things) >= number:
            assert len(given_out) == len(things)  # and nothing is shared


def test_a_process_sees_the_gpus_of_its_share(path: None) -> None:
    made = JobProcess(Share((), "3,5"))
    assert made.do("errand:variable", {"name": "CUDA_VISIBLE_DEVICES"}, lambda said: None) == "3,5"
    made.close()


def test_gpus_are_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def noted(jobs: int, cores: Any, gpus: list[str]) -> list[Share]:
        asked.append(list(gpus))
        return [Share(()) for _ in range(jobs)]

    monkeypatch.setattr("fednlp.runtime.jobs._shares", noted)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for visible, on_gpus in ((None, True), ("4,7", True), ("4,7", False)):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with Jobs(2, on_gpus=on_gpus) as jobs:
            jobs.each(lambda: None, lambda job, process: None)
    assert asked == [["0", "1"], ["4", "7"], []]


def test_a_process_that_does_not_end_is_killed(
    process: JobProcess, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE", 0.2)
    assert call("add", a=1, b=2) == 3
    assert process._child is not None
    running = process._child._process
    os.kill(running.pid, signal.SIGSTOP)
    process.close()
    assert running.returncode == -signal.SIGKILL
