"""Deleting runs, and everything of a tenant."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    IdempotencyKeyPurgedError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    RunUnfinishedError,
)
from standfast.keys import RecordKey
from standfast.workflows import records as creating
from standfast.workflows.records import found
from tests.unit.workflows.engines import BROKEN, act, acts, collects, engine, has_children, until


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def limited(ctx: sf.Context, names: list[str]) -> list[str]:
    """Do one thing after another, one run at a time."""
    return [await ctx.step(name, act, name) for name in names]


async def remains(opened: sf.Engine) -> list[str]:
    """Return the kinds of records that there are, without those of processes."""
    space = opened.space
    page = await space.scan(*RecordKey(space.namespace, space.tenant).within(), limit=1_000)
    return sorted({key.parts[2] for key in page.records} - {"presence", "worker", "fleet", "declared", "indexed"})


async def begun(opened: sf.Engine, run_id: str) -> None:
    """Wait until there is such a run."""
    key = opened.space.key("life", run_id)
    async with opened.space.watch(key) as watch:
        while (await opened.space.read(key)).get(key) is None:
            await watch.wait(0.5)


async def test_nothing_of_a_purged_run_remains(url: str) -> None:
    """Header, life, history, inbox and markers are deleted, in as many commits as it takes."""
    async with engine(url) as opened:
        run = await opened.start(collects, 130)
        await run.signal("other", "never taken")
        await asyncio.gather(*(run.signal("item", n, signal_id=str(n)) for n in range(130)))
        await run.result()
        assert await opened.purge(run.id) == 1
        assert await remains(opened) == []
        with pytest.raises(RunNotFoundError):
            await run.info()


async def test_the_idempotency_key_of_a_purged_run_stays(url: str) -> None:
    """What was done once is not done again because nobody remembers it."""
    async with engine(url) as opened:
        await (await opened.start(acts, ["x"], idempotency_key="k")).result()
        await opened.purge(status="completed")
        assert await remains(opened) == ["once"]
        with pytest.raises(IdempotencyKeyPurgedError):
            await opened.start(acts, ["x"], idempotency_key="k")


async def test_a_purged_id_can_be_used_again(url: str) -> None:
    """A new run with the id of a purged one begins from nothing."""
    async with engine(url) as opened:
        for names in (["x"], ["y", "z"]):
            run = await opened.start(acts, names, id="a")
            assert await run.result() == names
            assert len(await run.history()) == len(names)
            await opened.purge("a")


@pytest.mark.parametrize("workflow", [acts, limited])
async def test_a_start_that_meets_a_run_as_it_is_purged_starts_a_new_one(
    url: str, workflow: sf.Workflow[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused because of the run that was there, and finds it gone when it looks."""
    async with engine(url, workflows=[acts, limited]) as opened:
        await (await opened.start(workflow, ["x"], id="a")).result()

        async def too_late(*args: Any) -> Any:
            monkeypatch.undo()
            await opened.purge("a")
            return await found(*args)

        monkeypatch.setattr(creating, "found", too_late)
        again = await opened.start(workflow, ["x"], id="a")
        assert again.is_new
        assert await again.result() == ["x"]


async def test_an_unfinished_run_is_not_purged(url: str) -> None:
    """Unless by force, which ends it first, with everything that it has started."""
    async with engine(url) as opened:
        run = await opened.start(has_children, ["1", "1"], id="a")
        await until(opened, run.id, "suspended")
        with pytest.raises(RunUnfinishedError, match="suspended"):
            await opened.purge(run.id)
        assert await opened.purge(workflow="has_children") == 0
        assert await opened.purge(run.id, force=True) == 3
        assert (await opened.list()).runs == ()


async def test_a_child_is_not_purged_before_its_parent_has_ended(url: str) -> None:
    """The parent may still ask for its result."""
    async with engine(url) as opened:
        run = await opened.start(has_children, ["0", "1"], id="a")
        await until(opened, run.id, "suspended")
        ended = (await opened.list(parent="a", status="completed")).runs[0]
        with pytest.raises(RunUnfinishedError):
            await opened.purge(ended.id)
        assert await opened.purge(status="completed") == 0
        waiting = (await opened.list(parent="a", workflow="collects", status=["running", "suspended"])).runs[0]
        await opened.signal(waiting.id, "item")
        await run.result()
        assert await opened.purge(status="completed") == 3


@sf.workflow
async def goes_on(ctx: sf.Context) -> None:
    """Take one signal, and go on."""
    await ctx.wait_signal("item")
    await ctx.continue_as_new()


async def test_what_the_rest_of_a_chain_may_still_take_is_not_purged(url: str) -> None:
    """A link of a chain is deleted when nothing is left in its inbox; its history does not matter to the others."""
    async with engine(url, workflows=[goes_on]) as opened:
        run = await opened.start(goes_on, id="a")
        await run.signal("other")
        await run.signal("item")
        await until(opened, "a", "completed")
        with pytest.raises(RunUnfinishedError):
            await opened.purge("a")
        await run.signal("item")
        await until(opened, "a~2", "completed")
        assert await opened.purge("a~2") == 1


async def test_only_those_are_purged_that_are_meant(url: str) -> None:
    """All that is said must hold."""
    async with engine(url) as opened:
        BROKEN.add("bad")
        for name, names in (("a", ["x"]), ("b", ["bad"]), ("c", [])):
            run = await opened.start(acts, names, id=name)
            await until(opened, run.id, "completed", "failed")
        assert await opened.purge(status="completed", workflow="other") == 0
        assert await opened.purge(older_than="1 hour") == 0
        assert await opened.purge(before=datetime.now(UTC) - timedelta(hours=1)) == 0
        assert await opened.purge(status=["failed"], before=datetime.now(UTC) + timedelta(hours=1)) == 1
        assert [each.id for each in (await opened.list()).runs] == ["a", "c"]
        assert await opened.purge(workflow="acts") == 2


async def test_what_is_to_be_purged_must_be_said(url: str) -> None:
    """Everything is never meant by saying nothing, and a moment needs a time zone."""
    async with engine(url, drive=False) as opened:
        with pytest.raises(DeclarationError, match="which runs"):
            await opened.purge()
        with pytest.raises(DeclarationError, match="which runs"):
            await opened.purge("a", status="failed")
        with pytest.raises(DeclarationError, match="time zone"):
            await opened.purge(before=datetime(2020, 1, 1))  # noqa: DTZ001 -- wrong on purpose
        with pytest.raises(RunNotFoundError):
            await opened.purge("nobody")


async def test_two_who_purge_the_same_do_not_get_in_each_others_way(url: str) -> None:
    """Each run is deleted once, and counted once or twice at most."""
    async with engine(url) as one, engine(url, drive=False) as two:
        for n in range(10):
            await (await one.start(acts, ["x"], id=f"r{n}")).result()
        counts = await asyncio.gather(one.purge(workflow="acts"), two.purge(workflow="acts"))
        assert sum(counts) >= 10
        assert await remains(one) == ["run"]  # how often each id was used


async def test_everything_of_a_tenant_is_erased_and_fences_go_on(url: str) -> None:
    """Payloads, keys, locks and idempotency keys are gone; other tenants keep theirs; versions keep growing."""
    async with engine(url, tenant="ann") as ann, engine(url, tenant="bob") as bob:
        await (await ann.start(acts, ["secret"], idempotency_key="k")).result()
        await ann.start(collects, 1)
        await (await bob.start(acts, ["x"], id="b")).result()
        async with ann.space.mutex("door").hold() as before:
            pass
        with pytest.raises(DeclarationError, match="ann"):
            await ann.erase(tenant="bob")
        await ann.erase(tenant="ann")
        assert await remains(ann) == []
        assert (await bob.get("b")).status == "completed"
        async with ann.space.mutex("door").hold() as after:
            assert after.fence > before.fence


async def test_a_parent_is_told_that_a_child_was_purged_by_force(url: str) -> None:
    """Whether or not it was in memory then: it does not wait for a run that is no longer there."""
    for linger in (0.01, 60):
        async with engine(url, linger=linger) as opened:
            run = await opened.start(has_children, ["1", "1"])
            await begun(opened, f"{run.id}.g1.0.collects")
            await opened.purge(f"{run.id}.g1.0.collects", force=True)
            with pytest.raises(RunFailedError, match="it was purged"):
                await run.result(timeout=10)


async def test_a_parent_can_be_cancelled_whose_child_is_being_purged(url: str) -> None:
    """It asks for the end of a run that is no longer there, and goes on."""
    async with engine(url) as opened:
        run = await opened.start(has_children, ["1"])
        await begun(opened, f"{run.id}.g1.0.collects")
        await asyncio.gather(opened.purge(f"{run.id}.g1.0.collects", force=True), run.cancel("no more"))
        with pytest.raises((RunCancelledError, RunFailedError)):
            await run.result(timeout=10)
        assert (await opened.retry(run.id)).status == "running"
        with pytest.raises((RunCancelledError, RunFailedError)):
            await run.result(timeout=10)
