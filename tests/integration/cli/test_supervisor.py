"""``standfast worker --processes``: real processes under one supervisor, killed and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.cli.supervisor import LONGEST_PAUSE, STOPS, WorkerProcess, marked
from standfast.telemetry.merged_metrics import families_in

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Start
    from tests.integration.cli.programs import Program

MODULE = """
import asyncio, os
import standfast as sf

@sf.step
async def process(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@sf.workflow
async def where(ctx: sf.Context, seconds: float) -> int:
    return await ctx.step(process, seconds)

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[where], drive=False)

def cannot():
    raise RuntimeError("no settings")
"""


@sf.workflow
async def where(ctx: sf.Context, seconds: float) -> int:
    """Stand in for the workflow of the module, to start it from here."""
    raise NotImplementedError(ctx, seconds)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the module is."""
    (tmp_path / "flows.py").write_text(MODULE)
    return str(tmp_path)


def supervise(start: Start, folder: str, *options: str, name: str = "flows:engine") -> Program:
    """Start a supervisor with two workers."""
    return start("worker", name, "--app-dir", folder, "--processes", "2", *options)


def started(program: Program, count: int = 2) -> list[int]:
    """Return the ids of workers that say that they drive runs."""
    found: list[int] = []
    while len(found) < count:
        told = json.loads(program.hear())
        if told["event"] == "worker-started":
            assert told["number"] in (1, 2)
            found.append(told["process"])
    return found


def is_there(process: int) -> bool:
    """Tell whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.heavy
async def test_two_processes_drive_runs_and_one_signal_stops_both(start: Start, folder: str, url: str) -> None:
    """Each takes its share, and the whole ends with one exit code when both have handed back what they had."""
    program = supervise(start, folder, "--json")
    workers = started(program)
    async with sf.Engine(url, drive=False) as engine:
        runs = [await engine.start(where, 0.05) for _ in range(100)]
        assert {await run.result(timeout=30) for run in runs} == set(workers)
    program.send(signal.SIGTERM)
    out, _ = program.process.communicate(timeout=30)
    told = [json.loads(line) for line in program.rest(out)]
    assert sorted(each["number"] for each in told if each["event"] == "worker-stopped") == [1, 2]
    assert (told[-1]["event"], told[-1]["exit_code"], program.process.returncode) == ("supervisor-stopped", 0, 0)


def fetch(address: str) -> tuple[int, str]:
    """Return the status and the body of what the supervisor answers."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 -- an address of this machine
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def ended_in(text: str) -> float:
    """Return how many runs have completed, by a scrape."""
    samples = families_in(text)["standfast_runs_ended_total"].samples
    return sum(value for sample, value in samples.items() if 'outcome="completed"' in sample)


@pytest.mark.heavy
async def test_metrics_of_all_processes_are_added_up_and_never_fall(start: Start, folder: str, url: str) -> None:
    """One address has the metrics, the health and the scale of all workers, also after one of them was killed."""
    program = supervise(start, folder, "--json", "--listen", "0")
    while (told := json.loads(program.hear()))["event"] != "supervisor-listening":
        pass
    address, workers = told["address"], started(program)
    async with sf.Engine(url, drive=False) as engine:
        runs = [await engine.start(where, 0.02) for _ in range(40)]
        assert {await run.result(timeout=30) for run in runs} == set(workers)
    before = await asyncio.to_thread(fetch, f"{address}/metrics")
    ready, scale = [await asyncio.to_thread(fetch, address + path) for path in ("/health/ready", "/scale")]
    os.kill(workers[0], signal.SIGKILL)
    while json.loads(program.hear())["event"] != "worker-ended":
        pass
    missing = await asyncio.to_thread(fetch, f"{address}/health/ready")
    meanwhile = await asyncio.to_thread(fetch, f"{address}/metrics")
    started(program, 1)
    after = await asyncio.to_thread(fetch, f"{address}/metrics")
    program.send(signal.SIGTERM)
    program.process.communicate(timeout=30)

    assert ready[0] == 200
    assert {"load", "ready", "workers", "utilisation"} <= json.loads(scale[1]).keys()
    assert (missing[0], "1 of 2 workers" in missing[1]) == (503, True)
    assert [ended_in(each[1]) for each in (before, meanwhile, after)] == [40, 40, 40]
    assert program.process.returncode == 0


@pytest.mark.heavy
async def test_a_worker_that_is_killed_is_started_again(start: Start, folder: str) -> None:
    """The other one goes on meanwhile, and the supervisor says what has happened."""
    program = supervise(start, folder, "--json")
    first, _ = started(program)
    os.kill(first, signal.SIGKILL)
    while (told := json.loads(program.hear()))["event"] != "worker-ended":
        pass
    assert (told["ended"], told["how"], told["pause"]) == (first, "SIGKILL", 0.5)
    assert started(program, 1) != [first]
    program.send(signal.SIGTERM)
    program.process.communicate(timeout=30)
    assert program.process.returncode == 0


@pytest.mark.heavy
def test_workers_that_cannot_start_end_the_whole_with_their_error(start: Start, folder: str) -> None:
    """They are not tried again, and the exit code is theirs."""
    program = supervise(start, folder, name="flows:cannot")
    out, err = program.process.communicate(timeout=60)
    assert program.process.returncode == 4, out
    assert b"RuntimeError: no settings" in err
    assert b"it could not start" in err


@pytest.mark.heavy
async def test_a_second_signal_waits_for_no_step(start: Start, folder: str, url: str) -> None:
    """The workers hand back at once what they have, and the exit code says so."""
    program = supervise(start, folder, "--json", "--grace", "1 hour")
    started(program)
    async with sf.Engine(url, drive=False) as engine:
        run = await engine.start(where, 3_600.0)
        while json.loads(program.hear())["event"] != "run-moved":
            pass
        program.send(signal.SIGTERM)
        while json.loads(program.hear())["event"] != "worker-waits":
            pass
        program.send(signal.SIGTERM)
        program.process.communicate(timeout=30)
        assert program.process.returncode == 128 + signal.SIGTERM
        assert (await run.info()).owner == ""


def pending_in(process: int) -> int | None:
    """Return how many signals to stop wait for a stopped process to handle them; None: it is not stopped yet."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    mask = int(status.split("ShdPnd:")[1].split()[0], 16)
    return sum(mask >> (number - 1) & 1 for number in STOPS) if "\nState:\tT" in status else None


@pytest.mark.heavy
async def test_a_second_signal_is_not_lost_on_a_worker_that_has_not_handled_the_first(
    start: Start, folder: str, url: str
) -> None:
    """Two signals of one number that are pending are one: the worker would wait for a step that it should not."""
    program = supervise(start, folder, "--json", "--grace", "1 hour")
    workers = started(program)
    async with sf.Engine(url, drive=False) as engine:
        run = await engine.start(where, 3_600.0)
        while json.loads(program.hear())["event"] != "run-moved":
            pass
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        for count in range(3):
            if count:
                program.send(signal.SIGTERM)
            while [pending_in(worker) for worker in workers] != [count, count]:
                pass
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        program.process.communicate(timeout=30)
        assert program.process.returncode == 128 + signal.SIGTERM
        assert (await run.info()).owner == ""


@pytest.mark.heavy
def test_workers_end_when_their_supervisor_is_killed(start: Start, folder: str) -> None:
    """None is left behind that nobody stops."""
    program = supervise(start, folder, "--json")
    workers = started(program)
    program.process.kill()
    program.hear_the_end()
    for worker in workers:
        while is_there(worker):
            pass


def test_every_line_says_which_process_wrote_it() -> None:
    """In front of words, and as a field of JSON."""
    assert marked(3, b"it began\n") == b"[3] it began\n"
    assert json.loads(marked(3, b'{"event":"a"}\n')) == {"number": 3, "event": "a"}
    assert marked(3, b'{"event": no json\n') == b'[3] {"event": no json\n'


async def test_a_worker_that_dies_again_and_again_is_started_ever_later() -> None:
    """Up to a bound, and at once anew after it has run for a while."""
    worker = WorkerProcess(1, ["/bin/false"])
    pauses = [worker.next_pause() for _ in range(9)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE
    assert await asyncio.wait_for(worker.run(), 30) == 1
    assert not worker.was_ready
