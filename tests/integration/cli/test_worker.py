"""``standfast worker`` with real processes: what it says, how it is stopped, and what it refuses."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RunFailedError
from tests.integration.cli.programs import answer
from tests.integration.cli.terminals import CONTROL_C, begin

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Start
    from tests.integration.cli.programs import Program
    from tests.integration.cli.terminals import Terminal

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

MODULE = """
import asyncio, os
import standfast as sf

async def stay():
    print("staying", flush=True)
    await asyncio.sleep(float(os.environ.get("STAY", "0")))
    return "stayed"

@sf.workflow(version="3")
async def stays(ctx):
    return await ctx.step(stay)

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[stays], drive=False)
not_one = 7

def make():
    return engine

async def make_later():
    return engine

def cannot():
    raise RuntimeError("no settings")
"""


FROZEN = """
import gc, os
import standfast as sf

@sf.workflow
async def frozen(ctx):
    return gc.get_freeze_count()

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[frozen], drive=False)
"""


@sf.workflow
async def frozen(ctx: sf.Context) -> int:
    """Stand in for the workflow of the module, to start it from here."""
    raise NotImplementedError(ctx)


@sf.workflow(version="3")
async def stays(ctx: sf.Context) -> str:
    """Stand in for the workflow of the module, to start it from here."""
    raise NotImplementedError(ctx)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the module is."""
    (tmp_path / "flows.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "wrong.py").write_text("def f():\n    return 1 / 0\nf()\n")
    return str(tmp_path)


def drive(start: Start, folder: str, *options: str, name: str = "flows:engine") -> Program:
    """Start a worker."""
    return start("worker", name, "--app-dir", folder, *options)


async def test_a_worker_says_what_it_does_and_hands_back_when_it_is_stopped(
    start: Start, folder: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it works and what it can run; a step that is under way has time to end."""
    monkeypatch.setenv("STAY", "0.5")
    worker = drive(start, folder)
    assert f"drives runs of {url}, namespace default, tenant default" in worker.hear()
    assert worker.hear() == "workflows: stays@3"
    async with sf.Engine(url, drive=False) as engine:
        await engine.start(stays, id="a")
        assert worker.hear() == "staying"
        worker.send(signal.SIGTERM)
        assert worker.hear().startswith("SIGTERM: handing back what is in memory (1)")

        assert worker.hear() in ("stopped: 1 steps, 1 handed back", "stopped: 1 steps, 1 completed")
        code, said = worker.end()
        assert code == 0
        assert said.startswith("waiting up to 10 s for what is under way: a (stay); then it is cancelled")
        assert "Ctrl-C once more" in said
        assert [entry.value for entry in await engine.history("a")] == ["stayed"]


async def test_a_second_signal_waits_for_no_step(
    start: Start, folder: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is handed back at once, without the step, and the exit code says so."""
    monkeypatch.setenv("STAY", "60")
    worker = drive(start, folder, "--grace", "50s")
    async with sf.Engine(url, drive=False) as engine:
        await engine.start(stays, id="a")
        while worker.hear() != "staying":
            pass
        worker.send(signal.SIGTERM)
        worker.hear()
        worker.send(signal.SIGINT)

        assert worker.hear() == "stopped: 1 handed back"
        code, said = worker.end()
        assert (code, "a (stay)" in said) == (128 + signal.SIGINT, True)
        info = await engine.get("a")
        assert (info.status, info.owner, info.deaths) == ("running", "", 0)


async def test_a_worker_tells_programs_in_json(start: Start, folder: str, url: str) -> None:
    """One document a line: what it is, each event, and what it has done."""
    worker = drive(start, folder, "--json", name="flows:make")
    first = json.loads(worker.hear())
    assert (first["event"], first["store"], first["process"]) == ("worker-started", url, worker.process.pid)
    assert first["workflows"] == [{"name": "stays", "version": "3"}]
    async with sf.Engine(url, drive=False) as engine:
        assert await (await engine.start(stays, id="a")).result(timeout=30) == "stayed"
    worker.send(signal.SIGTERM)
    out, _ = worker.process.communicate(timeout=30)
    events = [json.loads(line) for line in worker.rest(out) if line.startswith("{")]
    names = [event["event"] for event in events]
    assert names[-2:] == ["worker-stopping", "worker-stopped"]
    assert {"run-moved", "step-recorded"} <= set(names)
    assert events[-1]["completed"] == 1


async def test_a_worker_leaves_what_it_has_loaded_out_of_garbage_collections(
    start: Start, folder: str, url: str, tmp_path: Path
) -> None:
    """Looking at all modules holds up the event loop for some 20 ms, again and again."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    drive(start, folder, name="frozen:engine")
    async with sf.Engine(url, drive=False) as engine:
        assert await (await engine.start(frozen, id="a")).result(timeout=30) > 10_000


async def test_a_quiet_worker_says_nothing(start: Start, folder: str, url: str) -> None:
    """Neither when it starts nor when it stops; an engine that is made later is fine too."""
    worker = drive(start, folder, "--quiet", name="flows:make_later")
    async with sf.Engine(url, drive=False) as engine:
        await (await engine.start(stays, id="a")).result(timeout=30)
    assert worker.hear() == "staying"
    worker.send(signal.SIGTERM)
    out, err = worker.process.communicate(timeout=30)
    assert (out, err, worker.process.returncode) == (b"", b"", 0)


def test_a_worker_shows_on_a_terminal_how_it_goes(start: Start, folder: str, terminal: Terminal) -> None:
    """One line that is written over, until Ctrl-C hands everything back."""
    worker = begin(start, terminal, "worker", "flows:engine", "--app-dir", folder)
    terminal.read_until(b"0 in memory, nothing")
    terminal.type(CONTROL_C)
    terminal.read_until(b"SIGINT: handing back what is in memory (0)")
    terminal.read_until(b"stopped: nothing")
    assert worker.end()[0] == 0


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nowhere:engine", 4, "there is no module nowhere"),
        ("flows:nothing", 4, "Did you mean flows:engine?"),
        ("flows:not_one", 4, "flows:not_one is no engine but of type int"),
        ("flows:stays", 4, "flows:stays() made no engine: stays: start it with"),
        ("flows:cannot", 4, "flows:cannot() made no engine: RuntimeError: no settings"),
        ("broken", 4, "No module named 'nothing_of_this_name'"),
        ("wrong:engine", 4, "ZeroDivisionError: division by zero"),
        ("not a name", 2, "Name the engine as module:attribute"),
    ],
)
def test_what_is_no_engine_is_refused(url: str, folder: str, name: str, code: int, words: str) -> None:
    """With what is wrong and what to do, and no traceback of ours."""
    got, said = answer(url, "worker", name, "--app-dir", folder)
    assert got == code
    assert words in said
    assert "standfast/cli" not in said


def test_a_worker_takes_no_store_of_the_command(url: str, folder: str) -> None:
    """The engine says which one."""
    code, said = answer(url, "--store", url, "worker", "flows:engine", "--app-dir", folder)
    assert (code, "The engine says which store" in said) == (2, True)


LOGS = """
import logging, os
import standfast as sf

logging.basicConfig(format="in a shape of its own: %(message)s")

@sf.step(retry=sf.Retry(attempts=2, delay=0.001))
async def charge():
    logging.getLogger("library").info("password=hunter2")
    raise ValueError("no stock")

@sf.workflow
async def pays(ctx):
    ctx.log.info("begins", extra={"order": 7})
    try:
        await ctx.step(charge)
    except ValueError:
        ctx.log.exception("gave up")
        raise

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[pays], drive=False)
"""


async def test_a_worker_logs_json_if_it_is_told_to(start: Start, tmp_path: Path, url: str) -> None:
    """Everything on stderr is one object a line: of the run, of libraries in its steps, and of Standfast."""
    (tmp_path / "logs.py").write_text(LOGS)
    worker = drive(start, str(tmp_path), "--log-format", "json", name="logs:engine")
    worker.hear()
    worker.hear()
    async with sf.Engine(url, drive=False) as engine:
        run = await engine.start("pays", id="p-1")
        with pytest.raises(RunFailedError):
            await run.result()
    worker.send(signal.SIGTERM)
    code, said = worker.end()
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    [begins] = [line for line in lines if line["message"] == "begins"]
    assert (begins["level"], begins["logger"], begins["run"], begins["workflow"], begins["order"]) == (
        "info",
        "logs",
        "p-1",
        "pays",
        7,
    )
    library = [line for line in lines if line["logger"] == "library"]
    assert [(line["run"], line["step"], line["attempt"]) for line in library] == [
        ("p-1", "charge", 1),
        ("p-1", "charge", 2),
    ]
    [retried] = [line for line in lines if line.get("event") == "step-retried"]
    assert (retried["level"], retried["run"], retried["step"]) == ("warning", "p-1", "charge")
    assert 'message="no stock"' in retried["message"]
    assert retried["place"].endswith("in charge")
    [gave_up] = [line for line in lines if line["message"] == "gave up"]
    assert "ValueError: no stock" in gave_up["exception"]
    [failed] = [line for line in lines if line.get("event") == "failure"]
    assert (failed["level"], failed["run"], failed["error"]) == ("error", "p-1", "builtins.ValueError")
    assert "hunter2" not in said


async def test_a_worker_logs_no_less_than_the_level_it_is_told(start: Start, tmp_path: Path, url: str) -> None:
    """With errors alone, a run that fails is one line."""
    (tmp_path / "logs.py").write_text(LOGS)
    worker = drive(start, str(tmp_path), "--log-level", "error", "--quiet", name="logs:engine")
    async with sf.Engine(url, drive=False) as engine:
        run = await engine.start("pays", unknown="start")
        with pytest.raises(RunFailedError):
            await run.result()
    worker.send(signal.SIGTERM)
    _, said = worker.end()
    heads = [line for line in said.splitlines() if " ERROR " in line]
    assert [line.split(": ", 1)[0].split(" ERROR ")[1] for line in heads] == ["logs", "standfast.workflows"]
    assert "begins" not in said
