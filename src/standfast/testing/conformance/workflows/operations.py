"""Operating: looking at runs, making them go on, starting them again, and deleting them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import MICROSECONDS
from standfast.errors import IdempotencyKeyPurgedError, RunFailedError, RunNotFoundError, RunUnfinishedError
from standfast.keys import RecordKey
from standfast.testing.conformance.workflows.ground import WorkflowGround, eventually, result_of, waits
from standfast.testing.conformance.workflows.samples import DONE, act, acts, collects, enters, fails, parent

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


MANY = 110
"""More runs than are read at once anywhere."""

KINDS = ("runs", "tagged", "begun", "begun-tagged")
"""The records that are the index of runs."""


@sf.workflow
async def needs_luck(ctx: sf.Context, name: str) -> str:
    """Do three things, the second of which fails the first time."""
    await ctx.step("first", act, f"{name} first")
    await ctx.step("second", lucky, name)
    return await ctx.step("third", act, f"{name} third")


async def lucky(name: str) -> None:
    """Fail the first time."""
    found = f"{name} second"
    await act(found)
    if DONE.count(found) == 1:
        raise LookupError(name)


class LookingCases(WorkflowGround):
    """What can be seen of runs."""

    async def test_runs_are_listed_page_by_page(self, engine: sf.Engine, client: sf.Engine) -> None:
        """In the order in which they came to be as they are, each once, whatever the size of the pages."""
        for number in range(7):
            await waits(await engine.start(collects, 1, id=f"run-{number}"))
        first = await client.list(limit=3)
        second = await client.list(limit=3, after=first.next)
        third = await client.list(limit=3, after=second.next)

        pages = [[run.id for run in page.runs] for page in (first, second, third)]
        assert pages == [["run-0", "run-1", "run-2"], ["run-3", "run-4", "run-5"], ["run-6"]]
        assert third.next is None

    async def test_runs_are_found_by_what_they_are(self, engine: sf.Engine) -> None:
        """By workflow, status and tag."""
        await result_of(await engine.start(acts, ["a"], id="done", tags=["red"]))
        await waits(await engine.start(collects, 1, id="waiting", tags=["red", "blue"]))
        with pytest.raises(RunFailedError):
            await result_of(await engine.start(fails, "x", id="failed"))

        assert await _ids(engine, workflow="acts") == ["done"]
        assert await _ids(engine, status="failed") == ["failed"]
        assert await _ids(engine, status=["suspended", "completed"]) == ["done", "waiting"]
        assert await _ids(engine, tag="red") == ["done", "waiting"]
        assert await _ids(engine, newest_first=True, limit=1) == ["failed"]

    async def test_runs_are_found_and_counted_by_time(self, engine: sf.Engine) -> None:
        """Those that ended after a moment, or before it; a count stops at its bound and says so."""
        first = await _ended_at(engine, await engine.start(acts, ["a"], id="first", tags=["red"]))
        second = await _ended_at(engine, await engine.start(acts, ["b"], id="second", tags=["red"]))

        assert await _ids(engine, ended_after=second) == ["second"]
        assert await _ids(engine, ended_before=second, started_before=second) == ["first"]
        assert await _ids(engine, started_after=first, tag="red") == ["second"]
        assert [str(await engine.count(most=most, status="completed")) for most in (1, 2)] == ["1+", "2"]
        assert (await engine.count(tag="red", ended_before=second)).number == 1

    async def test_the_index_of_runs_is_what_their_states_say(self, open_engine: OpenEngine) -> None:
        """Whatever was done to them: ended, cancelled, retried, forked and purged."""
        engine = await open_engine(acts, collects, fails)
        await result_of(await engine.start(acts, ["a"], id="done", tags=["red"]))
        for name in ("failed", "again", "gone"):
            with pytest.raises(RunFailedError):
                await result_of(await engine.start(fails, "x", id=name, tags=["red"]))
        for name in ("waiting", "stopped", "forced"):
            await waits(await engine.start(collects, 1, id=name, tags=["blue"]))
        await engine.cancel("stopped")
        await engine.cancel("forced", force=True)
        await engine.retry("again")
        await engine.purge("gone")
        await _at_rest(engine)

        listed, expected = await _index(engine)
        assert listed == expected

    async def test_very_many_runs_are_listed(self, client: sf.Engine) -> None:
        """More than the engine reads at once."""
        await asyncio.gather(*(client.start(acts, [str(n)], id=f"{n:03}") for n in range(MANY)))
        assert sorted(await _ids(client, limit=1_000)) == [f"{n:03}" for n in range(MANY)]

    async def test_a_run_that_waits_says_for_what(self, engine: sf.Engine, client: sf.Engine) -> None:
        """For people who look."""
        run = await engine.start(collects, 1)
        info = await waits(run)
        assert "item" in info.waits_for
        assert (await client.get(run.id)).waits_for == info.waits_for

    async def test_a_history_is_read_while_the_run_goes_on(self, engine: sf.Engine, client: sf.Engine) -> None:
        """What is recorded is there for everybody."""
        run = await engine.start(collects, 2)
        await run.signal("item", 1)

        async def is_recorded() -> bool:
            return [entry.value for entry in await client.history(run.id) if entry.kind == "signal"] == [1]

        await eventually(is_recorded)


class AgainCases(WorkflowGround):
    """Runs that go on, or begin anew."""

    async def test_a_failed_run_goes_on_where_it_failed(
        self, open_engine: OpenEngine, client: sf.Engine, done: list[str]
    ) -> None:
        """What was recorded before is not done again."""
        engine = await open_engine(needs_luck)
        run = await engine.start(needs_luck, "x")
        with pytest.raises(RunFailedError):
            await result_of(run)
        await client.retry(run.id)

        assert await result_of(run) == "did x third"
        assert done == ["x first", "x second", "x second", "x third"]

    async def test_a_restarted_run_does_everything_again(self, engine: sf.Engine, done: list[str]) -> None:
        """As a new run with the same input."""
        run = await engine.start(acts, ["a", "b"])
        await result_of(run)
        again = await engine.restart(run.id)

        assert await result_of(again) == ["did a", "did b"]
        assert done == ["a", "b", "a", "b"]
        assert (await again.info()).forked_from == run.id

    async def test_a_forked_run_goes_on_from_a_step(
        self, engine: sf.Engine, client: sf.Engine, done: list[str]
    ) -> None:
        """What came before it is taken over."""
        run = await engine.start(acts, ["a", "b", "c"])
        await result_of(run)
        fork = await client.fork(run.id, "b")

        assert await result_of(fork) == ["did a", "did b", "did c"]
        assert done == ["a", "b", "c", "b", "c"]

    async def test_everything_unfinished_is_recovered(self, client: sf.Engine, open_engine: OpenEngine) -> None:
        """The caller is told what was found."""
        runs = [await client.start(collects, 1) for _ in range(3)]
        engine = await open_engine()
        recovered = await engine.recover_all()

        assert {run.id for run in runs} <= set(recovered.found)
        for run in runs:
            await run.signal("item", 1)
            await result_of(run)

    async def test_a_run_is_taken_up_when_asked(self, client: sf.Engine, engine: sf.Engine, done: list[str]) -> None:
        """Without waiting for anybody to look."""
        run = await client.start(acts, ["a"])
        await engine.resume(run.id)
        await result_of(run)
        assert done == ["a"]


class PurgingCases(WorkflowGround):
    """Runs that are deleted."""

    async def test_nothing_is_left_of_a_purged_run(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Nor of its children."""
        run = await engine.start(parent, ["a", "b"])
        await result_of(run)
        await _at_rest(engine)
        assert await client.purge(run.id) == 3

        with pytest.raises(RunNotFoundError):
            await client.get(run.id)
        assert await _records(client) == []

    async def test_a_purged_key_is_not_used_again(self, engine: sf.Engine) -> None:
        """What was done once is not done again."""
        run = await engine.start(acts, ["a"], idempotency_key="once")
        await result_of(run)
        await engine.purge(run.id)
        with pytest.raises(IdempotencyKeyPurgedError):
            await engine.start(acts, ["a"], idempotency_key="once")

    async def test_an_unfinished_run_is_not_purged(self, engine: sf.Engine) -> None:
        """Unless by force: then what it held is free."""
        run = await engine.start(enters, "k", "a")
        await waits(run)
        with pytest.raises(RunUnfinishedError):
            await engine.purge(run.id)
        assert await engine.purge(run.id, force=True) == 1

        async with engine.space.mutex("k").try_hold():
            pass

    async def test_runs_are_purged_by_what_they_are(self, engine: sf.Engine) -> None:
        """Those that have ended so; others stay."""
        for n in range(4):
            await result_of(await engine.start(acts, [str(n)]))
        with pytest.raises(RunFailedError):
            await result_of(await engine.start(fails, "x", id="failed"))

        assert await engine.purge(status="completed") == 4
        assert await _ids(engine) == ["failed"]

    async def test_a_long_run_is_purged(self, engine: sf.Engine) -> None:
        """More records than one commit deletes."""
        run = await engine.start(collects, MANY)
        await asyncio.gather(*(run.signal("item", n, signal_id=str(n)) for n in range(MANY)))
        await result_of(run)
        await _at_rest(engine)
        await engine.purge(run.id)

        assert await _records(engine) == []

    async def test_a_tenant_is_erased(self, engine: sf.Engine) -> None:
        """Runs, states, locks and keys."""
        await result_of(await engine.start(acts, ["a"], idempotency_key="once"))
        await engine.start(enters, "k", "a")
        await engine.state.shared("note").set("x")
        await engine.erase(tenant="default")

        assert await _records(engine) == []


async def _ids(engine: sf.Engine, **options: Any) -> list[str]:
    page = await engine.list(**options)
    return [run.id for run in page.runs]


async def _ended_at(engine: sf.Engine, run: sf.Run[Any]) -> datetime:
    """Wait for the end of a run, and return when that was."""
    await result_of(run)
    return datetime.fromtimestamp((await engine.get(run.id)).changed_at / 1_000_000, UTC)


async def _index(engine: sf.Engine) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """Return what is listed and what has to be, of one moment: no run has changed while both were read."""
    lives = engine.space.key("life").within()
    while True:
        before = (await engine.space.scan(*lives, limit=1_000)).records
        found = await _listed(engine), await _expected(engine)
        if (await engine.space.scan(*lives, limit=1_000)).records == before:
            return found


async def _listed(engine: sf.Engine) -> set[tuple[str, ...]]:
    """Return all records of the index of runs."""
    space = engine.space
    pages = [await space.scan(*space.key(kind).within(), limit=1_000) for kind in KINDS]
    return {key.parts[2:] for page in pages for key in page.records}


async def _expected(engine: sf.Engine) -> set[tuple[str, ...]]:
    """Return what the index has to be, by a look at every run."""
    found: set[tuple[str, ...]] = set()
    space = engine.space
    for key in (await space.scan(*space.key("life").within(), limit=1_000)).records:
        run = await engine.get(key.parts[-1])
        rest = (f"{run.changed_at:016d}", run.id)
        if not run.owner:
            found |= {("runs", run.status, run.workflow, *rest)}
            found |= {("tagged", tag, run.status, *rest) for tag in run.tags}
        if not run.owner and not 0 <= run.changed_at - run.started_at < MICROSECONDS:  # by its start as well
            rest = (f"{run.started_at:016d}", run.id)
            found |= {("begun", run.status, run.workflow, *rest)}
            found |= {("begun-tagged", tag, run.status, *rest) for tag in run.tags if run.has_ended}
    return found


async def _records(engine: sf.Engine) -> list[str]:
    """Return every record of the space, but for those of processes."""
    space = engine.space
    page = await space.scan(*RecordKey(space.namespace, space.tenant).within(), limit=1_000)
    kept = ("presence", "worker", "fleet", "declared", "past", "indexed")
    return [str(key) for key in page.records if key.parts[2] not in kept]


async def _at_rest(engine: sf.Engine) -> None:
    """Return when nothing is driven any more, nor about to be: a run that was retried waits for a worker at first."""
    space = engine.space

    async def is_idle() -> bool:
        pages = [await space.scan(*space.key(kind).within(), limit=1) for kind in ("ready", "own", "ready")]
        return not any(page.records for page in pages)

    await eventually(is_idle)
