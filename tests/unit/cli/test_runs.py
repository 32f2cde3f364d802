"""``standfast runs``: what is shown of runs, and what is said to them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.cli.runs import history_line, shown
from standfast.clock import Instant
from standfast.errors import RequestCancelledError, RequestFailedError
from standfast.workflows.queries import HistoryEntry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cli.conftest import Ask


@sf.workflow
async def adds(ctx: sf.Context, first: int, second: int) -> int:
    """Add two numbers in a step."""
    return await ctx.step("add", lambda: first + second)


@sf.workflow(version="2")
async def waits(ctx: sf.Context, password: str) -> str:
    """Wait for a signal."""
    assert password
    return str(await ctx.wait_signal("go"))


@sf.workflow
async def fails(ctx: sf.Context) -> None:
    """Raise in a step."""

    def break_down() -> None:
        raise ConnectionError("postgresql://app:hunter2@db/prod is down")

    await ctx.step("call", break_down)


@sf.workflow
async def with_child(ctx: sf.Context) -> int:
    """Have a child."""
    return await ctx.child(adds, 1, 1)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine that drives the runs of this test."""
    async with sf.Engine(
        url, workflows=[adds, waits, fails, with_child], worker=sf.admin.WorkerLimits(linger=0)
    ) as opened:
        yield opened


async def ended(run: sf.Run[Any]) -> None:
    """Wait for a run's end, however it ends."""
    await asyncio.gather(run.result(timeout=20), return_exceptions=True)


async def waiting(engine: sf.Engine, run_id: str) -> None:
    """Wait until a run is out of memory."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while (info := await engine.get(run_id)).status != "suspended":
            assert not info.has_ended, info
            await watch.wait(0.1)


async def test_runs_are_listed_in_columns(engine: sf.Engine, ask: Ask) -> None:
    """Each has its workflow, when it was started, how long it took, how it is and what it waits for."""
    await ended(await engine.start(adds, 1, 2, id="a"))
    await engine.start(waits, "x", id="b")
    await waiting(engine, "b")
    rows = [re.split(r" {2,}", line) for line in (await ask("runs", "list", "--oldest-first")).stdout.splitlines()]

    assert rows[0] == ["RUN", "WORKFLOW", "STARTED", "TOOK", "STATUS"]
    assert [rows[1][:2], rows[1][-1]] == [["a", "adds"], "completed"]
    assert [rows[2][:2], rows[2][-1]] == [["b", "waits@2"], "suspended, waits for the signal 'go'"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["c", "b", "a"]),
        (("--oldest-first",), ["a", "b", "c"]),
        (("--workflow", "adds"), ["b", "a"]),
        (("--status", "failed"), ["c"]),
        (("--status", "failed", "--status", "completed"), ["c", "b", "a"]),
        (("--limit", "1"), ["c"]),
        (("--started-after", "1 hour", "--ended-after", "1h"), ["c", "b", "a"]),
        (("--started-before", "1 hour"), []),
        (("--ended-before", "2026-01-01"), []),
        (("--ended-after", "2026-01-01T00:00:00+00:00", "--tag", "red"), ["a"]),
        (("--workflow", "nothing"), []),
    ],
)
async def test_a_list_can_be_narrowed(engine: sf.Engine, ask: Ask, options: tuple[str, ...], names: list[str]) -> None:
    """By workflow, status, tag and time; and the runs are counted."""
    await ended(await engine.start(adds, 1, 2, id="a", tags=["red"]))
    await ended(await engine.start(adds, 2, 3, id="b"))
    await ended(await engine.start(fails, id="c"))

    found = json.loads((await ask("runs", "list", "--json", *options)).stdout)
    assert [run["id"] for run in found["runs"]] == names
    if "--limit" not in options:
        assert found["count"] == {"number": len(names), "has_more": False}


async def test_an_empty_list_says_so(engine: sf.Engine, ask: Ask) -> None:
    """Nothing is an answer, and the way to the next page is told."""
    assert (await ask("runs", "list")).stdout == "there are no such runs\n"
    for name in ("a", "b"):
        await ended(await engine.start(adds, 1, 2, id=name))
    first = (await ask("runs", "list", "--limit", "1")).stdout
    place = re.search(r"1 of 2; continue with --after (\S+/b)\n$", first)
    assert place is not None
    assert (await ask("runs", "list", "--after", place[1])).stdout.splitlines()[1].startswith("a ")
    wrong = await ask("runs", "list", "--started-after", "soon")
    assert (wrong.exit_code, "2 hours" in wrong.stderr) == (2, True)


async def test_everything_about_a_run_is_shown(engine: sf.Engine, ask: Ask) -> None:
    """Its state, input, result and history."""
    await ended(await engine.start(adds, 1, 2, id="a"))
    text, data = await ask("runs", "show", "a"), await ask("runs", "show", "a", "--json")

    assert text.stdout.startswith("a: completed\nworkflow: adds\n")
    assert 'input:    {"first":1,"second":2}' in text.stdout
    assert "result:   3" in text.stdout
    assert re.search(r"0 {2}\+\d+ ms +step +add {2}3", text.stdout)
    found = json.loads(data.stdout)
    assert found.keys() == {"run", "history", "more", "holds", "queues", "children", "lock", "timeline"}
    assert [span["id"] for span in found["timeline"]["spans"] if span["kind"] == "work"] == ["add"]
    assert re.search(r"timeline: .* work \(\d+ %\)", text.stdout)
    assert (found["run"]["result"], found["history"][0]["id"]) == (3, "add")


async def test_a_run_lock_is_shown_with_its_holder(engine: sf.Engine, ask: Ask) -> None:
    """With the run that it holds, and among the locks, by the family that the library itself has declared."""
    await ended(await engine.start(adds, 1, 2, id="a"))
    assert await engine.space.run_locks.try_acquire("adds", "a", holder="repair crew") is not None
    run, lock = await ask("runs", "show", "a"), await ask("locks", "explain", "--family", "standfast.run", "adds", "a")

    assert "run lock: held by repair crew until " in run.stdout
    assert "repair crew" in lock.stdout


async def test_a_failure_is_shown_with_its_place_and_without_secrets(engine: sf.Engine, ask: Ask) -> None:
    """What was raised and from where; passwords are masked, in text and in JSON."""
    await ended(await engine.start(fails, id="a"))
    text, data = await ask("runs", "show", "a"), await ask("runs", "show", "a", "--json")

    assert "builtins.ConnectionError" in text.stdout
    assert "test_runs.py" in text.stdout
    assert "hunter2" not in text.stdout + data.stdout
    assert json.loads(data.stdout)["run"]["failure"]["type"] == "builtins.ConnectionError"


async def test_a_secret_in_the_input_is_masked(engine: sf.Engine, ask: Ask) -> None:
    """By its name, in the list too."""
    await engine.start(waits, "hunter2", id="a")
    for arguments in (("show", "a"), ("show", "a", "--json"), ("list", "--json")):
        shown_text = (await ask("runs", *arguments)).stdout
        assert '"***"' in shown_text
        assert "hunter2" not in shown_text


async def test_children_are_shown(engine: sf.Engine, ask: Ask) -> None:
    """With how they are."""
    await ended(await engine.start(with_child, id="a"))
    assert "child:    a.adds: completed" in (await ask("runs", "show", "a")).stdout


async def test_what_a_run_holds_is_shown(engine: sf.Engine, ask: Ask) -> None:
    """The lock, and its fence."""

    @sf.workflow
    async def holds(ctx: sf.Context) -> None:
        async with ctx.mutex("till"):
            await ctx.wait_signal("go")

    async with sf.Engine(engine.space, workflows=[holds], worker=sf.admin.WorkerLimits(linger=0)) as other:
        await other.start(holds, id="a")
        await waiting(other, "a")
        text = (await ask("runs", "show", "a")).stdout
    assert re.search(r"holds: {4}mutex till, fence \d+", text)


async def test_a_run_that_is_not_there_has_its_exit_code(engine: sf.Engine, ask: Ask) -> None:
    """Whatever is asked of it."""
    assert engine.address
    for arguments in (
        ("show", "x"),
        ("tail", "x"),
        ("signal", "x", "go"),
        ("cancel", "x", "--yes"),
        ("retry", "x", "--yes"),
    ):
        answer = await ask("runs", *arguments)
        assert (answer.exit_code, "there is no run 'x'" in answer.stderr) == (3, True), arguments


async def test_a_signal_reaches_the_run(engine: sf.Engine, ask: Ask) -> None:
    """With JSON for its value, once for each id."""
    run = await engine.start(waits, "x", id="a")
    await waiting(engine, "a")
    first = await ask("runs", "signal", "a", "go", '{"n": 1}', "--id", "one")

    assert first.stdout == "go is sent to a\n"
    assert await run.result(timeout=20) == "{'n': 1}"
    late = await ask("runs", "signal", "a", "go")
    assert late.exit_code == 3
    assert "has ended" in late.stderr


async def test_a_signal_with_plain_text_says_so(engine: sf.Engine, ask: Ask) -> None:
    """What is neither JSON nor said to be text is refused."""
    run = await engine.start(waits, "x", id="a")
    assert (await ask("runs", "signal", "a", "go", "now")).exit_code == 2
    assert json.loads((await ask("runs", "signal", "a", "go", "now", "--text", "--json")).stdout)["is_new"] is True
    assert await run.result(timeout=20) == "now"


async def test_a_cancelled_run_says_why(engine: sf.Engine, ask: Ask) -> None:
    """It is asked first, and one that has ended is told apart."""
    run = await engine.start(waits, "x", id="a")
    await waiting(engine, "a")
    assert (await ask("runs", "cancel", "a")).exit_code == 2
    assert (await ask("runs", "cancel", "a", "--yes", "--reason", "not needed")).exit_code == 0
    await ended(run)

    assert (await ask("runs", "show", "a")).stdout.startswith("a: cancelled: not needed\n")
    assert (await ask("runs", "list")).stdout.rstrip().endswith("  cancelled: not needed")
    assert (await ask("runs", "cancel", "a", "--yes")).exit_code == 3


async def test_a_run_whose_code_is_not_there_is_ended_by_force(url: str, ask: Ask) -> None:
    """What no worker can tell to stop is over when the command returns."""
    async with sf.Engine(url, drive=False) as client:
        run = await client.start("nobody-has-it", id="stuck", unknown="start")

        said = await ask("runs", "cancel", "stuck", "--force", "--yes")

        assert "has been ended" in said.output
        assert (await run.info()).status == "cancelled"


async def test_the_record_of_a_durable_request_says_that_an_operator_cancelled_it(url: str, ask: Ask) -> None:
    """Whose request it is, its run tells."""
    flow, begun = sf.Flow("shop"), asyncio.Event()

    @flow.action(durable=True)
    async def pack(_request: sf.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with sf.Dispatcher(url, [flow]) as server:
        handle = await server.dispatch(sf.Call(flow="shop", action="pack", principal=sf.Principal("acme", "ann")))
        await begun.wait()
        assert (await ask("runs", "cancel", handle.id, "--yes")).exit_code == 0
        with pytest.raises(RequestCancelledError) as problem:
            await handle.result(timeout=20)
    assert (problem.value.cancelled_by, problem.value.reason) == ("operator", "an operator asked for it")


async def test_a_request_that_has_ended_is_not_retried(url: str, ask: Ask) -> None:
    """Its run would go on and do nothing, since those who waited have been told how the request ended."""
    flow = sf.Flow("shop")

    @flow.action(durable=True)
    async def pack(_request: sf.Request) -> None:
        raise LookupError("no such parcel")

    async with sf.Dispatcher(url, [flow]) as server:
        handle = await server.dispatch(sf.Call(flow="shop", action="pack", principal=sf.Principal("acme", "ann")))
        with pytest.raises(RequestFailedError):
            await handle.result(timeout=20)
        refused = await ask("runs", "retry", handle.id, "--yes")
        assert (refused.exit_code, "Send the request again" in refused.stderr) == (3, True)
        assert (await server.engine.get(handle.id)).status == "failed"


async def test_a_failed_run_can_be_retried(engine: sf.Engine, ask: Ask) -> None:
    """It goes on with the step that failed; one that has not ended is left alone."""
    await ended(await engine.start(fails, id="a"))
    assert (await ask("runs", "retry", "a", "--yes")).stdout == "a resumes as soon as a worker claims it\n"
    await ended(engine.run("a"))
    await engine.start(waits, "x", id="b")
    assert (await ask("runs", "retry", "b", "--yes")).exit_code == 3


async def test_a_run_is_followed_to_its_end(engine: sf.Engine, ask: Ask) -> None:
    """What it has done, then what it does, and its result; the exit code tells how it ended."""
    await engine.start(waits, "x", id="a")
    await waiting(engine, "a")
    tail = asyncio.create_task(ask("runs", "tail", "a"))
    await engine.signal("a", "go", 7)
    told = await tail

    assert told.exit_code == 0
    assert "signal:go  7" in told.stdout
    assert told.stdout.endswith('completed\nresult: "7"\n')
    await ended(await engine.start(fails, id="b"))
    failed = await ask("runs", "tail", "b", "--json")
    assert failed.exit_code == 5
    assert [next(iter(json.loads(line))) for line in failed.stdout.splitlines()] == ["entry", "run"]


async def test_run_ids_are_completed(engine: sf.Engine, ask: Ask) -> None:
    """From what is stored."""
    await engine.start(waits, "x", id="order-1")
    answer = await ask(_STANDFAST_COMPLETE="bash_complete", COMP_WORDS="standfast runs show ord", COMP_CWORD="3")
    assert answer.stdout == "plain,order-1\n"


async def test_a_long_value_is_cut_as_text_and_whole_in_json(engine: sf.Engine, ask: Ask) -> None:
    """A program gets all of it."""
    text = "x" * 5_000
    await engine.start("write", kwargs={"text": text}, id="order-1", unknown="start")
    told, data = await ask("runs", "show", "order-1"), await ask("runs", "show", "order-1", "--json")
    assert text not in told.stdout
    assert text in json.dumps(json.loads(data.stdout)["run"]["input"])


def test_values_are_shown_on_one_line_and_not_too_long() -> None:
    """Whatever is in them."""
    assert shown({"a": "x\ny"}) == '{"a":"x\\ny"}'
    assert shown("é" * 1000).startswith('"' + "é" * 299 + "...")


def test_a_wait_in_a_history_says_until_when() -> None:
    """And how long after the start it was."""
    entry = HistoryEntry(3, "sleep", "sleep", Instant(2_500_000), until=Instant(60_000_000))
    assert history_line(entry, Instant(0)) == "    3  +2.5 s     sleep      sleep  until 1970-01-01 00:01:00Z"
