"""The audit: every action of an operator is a record, and none of a program is."""

from __future__ import annotations

import asyncio
import inspect
import io
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast import admin
from standfast.audit import ACTIONS, MOST_READ, Audit
from standfast.cli import application
from standfast.clock import Instant
from standfast.errors import InvalidArgumentError, RunNotFoundError
from standfast.flows.records import REQUESTS, RequestKeys, RequestRecord
from standfast.flows.request_list import cancel_request
from standfast.locks.locks import DurableLock, ModeLock, Mutex, Semaphore
from standfast.locks.rate_limiter import RateLimiter
from standfast.space import Space
from standfast.stores.backend import EXPORTED
from standfast.stores.protocol import Put
from standfast.stores.url import open_store
from standfast.workflows.schedules.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    import click

ANN = admin.Actor("ann", via="http", host="10.0.0.7")


@sf.workflow
async def wait_for_word(ctx: sf.Context, word: str = "") -> str:
    """Wait for a signal, and take updates."""
    ctx.on_update("rename", str.upper)
    if word == "fail":
        raise ValueError(word)
    return str(await ctx.wait_signal("go"))


@sf.workflow(concurrency=sf.Limit(1))
async def limited(ctx: sf.Context) -> None:
    """Run one at a time."""
    await ctx.step(asyncio.sleep, 0)


@pytest.fixture
async def engine() -> AsyncIterator[sf.Engine]:
    """An engine in the hands of an operator."""
    async with sf.Engine(sf.open("memory://", actor=ANN), workflows=[wait_for_word, limited]) as opened:
        yield opened


# --- each action, done once -----------------------------------------------------------------------------------------


async def _held(engine: sf.Engine, *, action: str) -> None:
    space = engine.space
    async with space.mutex("door").hold(on_lost="tell"):
        waiter = asyncio.create_task(_enter(space))
        told = await space.explain("door")
        while not told.waiters:
            await asyncio.wait((waiter,), timeout=0.001)
            told = await space.explain("door")
        if action == "release":
            await space.mutex("door").force_release(told.holders[0].entry)
        await space.mutex("door").withdraw(told.waiters[0].entry)
    await waiter


async def _enter(space: sf.Space) -> None:
    try:
        async with space.mutex("door").hold():
            pass
    except sf.errors.WithdrawnError:
        pass


async def _started(engine: sf.Engine, run_id: str, word: str = "") -> None:
    run = await engine.start(wait_for_word, word, id=run_id)
    if word == "fail":
        with pytest.raises(sf.errors.RunFailedError):
            await run.result()


async def _force_cancel(engine: sf.Engine) -> None:
    await _started(engine, "forced")
    await engine.cancel("forced", "enough", force=True)


async def _retry(engine: sf.Engine) -> None:
    await _started(engine, "again", "fail")
    await engine.retry("again")


async def _restart(engine: sf.Engine) -> None:
    await _started(engine, "over")
    await engine.restart("over", id="over-2")


async def _fork(engine: sf.Engine) -> None:
    run = await engine.start(limited, id="stem")
    await run.result()
    await engine.fork("stem", (await run.history())[0].id, id="branch")


async def _erase(engine: sf.Engine) -> None:
    await engine.erase(tenant="default")


async def _schedule(engine: sf.Engine) -> None:
    daily = sf.Schedule(wait_for_word, id="daily", cron="0 9 * * *")
    await engine.schedules.create(daily)
    await engine.schedules.change(daily)
    await engine.schedules.pause("daily", "the source is down")
    await engine.schedules.resume("daily")
    await engine.schedules.trigger("daily")
    now = datetime.now(UTC)
    await engine.schedules.backfill("daily", now - timedelta(days=2), now)
    await engine.schedules.delete("daily")


async def _update(engine: sf.Engine) -> None:
    await _started(engine, "updated")
    await engine.update("updated", "rename", "Bob")


async def _signal(engine: sf.Engine) -> None:
    await _started(engine, "signalled")
    await engine.signal("signalled", "go", "secret value")


async def _cancel(engine: sf.Engine) -> None:
    await _started(engine, "cancelled")
    await engine.cancel("cancelled", "asked by phone")


async def _resume(engine: sf.Engine) -> None:
    await _started(engine, "resumed")
    await engine.resume("resumed")


async def _rate(engine: sf.Engine) -> None:
    mails = engine.space.rate_limiter("mails", interval="1 minute")
    await mails.close_for("1 minute")
    await mails.try_acquire(waiter="ann")
    await mails.withdraw("ann")
    await mails.open_again()
    await mails.change_rate()


async def _move(engine: sf.Engine) -> None:
    store: Any = engine.space.store
    file = io.BytesIO()
    await admin.fence_store(store, actor=ANN)
    await admin.accept_loss(store, actor=ANN)
    await admin.export_store(store, nullcontext(file), actor=ANN)
    await admin.thaw_store(store, actor=ANN)


async def _cancel_request(engine: sf.Engine) -> None:
    keys = RequestKeys(engine.space, "default", "r-1")
    asked = RequestRecord("desk", "answer", "running", Instant(1), server="s")
    await engine.space.commit(Put(keys.record, REQUESTS.encode(asked)))
    await cancel_request(engine, "default", "r-1", "it hangs")


DEEDS: dict[str, Callable[[sf.Engine], Awaitable[Any]]] = {
    "lock.release": lambda engine: _held(engine, action="release"),
    "lock.withdraw": lambda engine: _held(engine, action="withdraw"),
    "lock.resize": lambda engine: engine.space.semaphore("pool", permits=2).resize(3),
    "lock.forget_size": lambda engine: engine.space.semaphore("pool", permits=2).forget_size(),
    **dict.fromkeys(("rate.withdraw", "rate.close", "rate.open", "rate.change"), _rate),
    "limit.set": lambda engine: engine.set_limit(limited, 3),
    "limit.clear": lambda engine: engine.clear_limit(limited),
    "run.start": lambda engine: _started(engine, "new"),
    "run.signal": _signal,
    "run.update": _update,
    "run.cancel": _cancel,
    "run.force_cancel": _force_cancel,
    "run.resume": _resume,
    "run.sweep": lambda engine: engine.sweep(),
    "run.recover": lambda engine: engine.recover_all(),
    "run.retry": _retry,
    "run.restart": _restart,
    "run.fork": _fork,
    "run.purge": lambda engine: engine.purge(older_than="1 day"),
    "run.erase": _erase,
    "request.cancel": _cancel_request,
    **{f"schedule.{name}": _schedule for name in ("create", "change", "pause", "resume", "delete", "trigger")},
    "schedule.backfill": _schedule,
    **dict.fromkeys(("store.accept_loss", "store.export", "store.thaw", "store.fence"), _move),
}


@pytest.mark.parametrize("action", [each for each in ACTIONS if each != "store.import"])
async def test_each_action_of_an_operator_leaves_a_record(engine: sf.Engine, action: str) -> None:
    """Who did it, to what, from where, when, and what came of it."""
    await DEEDS[action](engine)

    found = (await engine.audit(action=action)).records[0]

    assert (found.actor, found.outcome) == (ANN, "begun" if action == "store.export" else "done")
    assert found.at > 0
    assert found.subject or action in {"run.sweep", "run.recover", "run.purge"} or action.startswith("store.")
    assert "secret value" not in str(found)


async def test_an_import_is_recorded_when_it_is_done() -> None:
    """Before, the store had to be empty."""
    file, target = io.BytesIO(), await open_store("memory://")
    async with sf.open("memory://") as source:
        await source.keep_audit("30 days")
        store: Any = source.store
        await admin.export_store(store, nullcontext(file))

    await admin.import_store(target, io.BytesIO(file.getvalue()), "backup", actor=ANN)

    assert [each.action for each in (await Space(target).audit()).records] == ["store.import"]
    await target.aclose()


async def test_a_program_without_an_actor_leaves_no_record() -> None:
    """Code that cancels its own runs is no operator."""
    async with sf.Engine("memory://", workflows=[wait_for_word, limited]) as engine:
        for deed in (_cancel, _schedule, _rate, _retry):
            await deed(engine)

        assert (await engine.audit()).records == ()


# --- no action without a record: by enumeration ---------------------------------------------------------------------

AUDITED_METHODS = {
    sf.Engine: {
        *("start", "start_or_signal", "signal", "update", "cancel", "set_limit", "clear_limit", "resume", "sweep"),
        *("recover_all", "restart", "fork", "retry", "purge", "erase"),
    },
    sf.Run: {"signal", "update", "cancel"},
    Schedules: {"create", "change", "pause", "resume", "delete", "trigger", "backfill"},
    DurableLock: {"force_release", "withdraw", "resize", "forget_size"},
    RateLimiter: {"withdraw", "close_for", "open_again", "change_rate"},
}
NOT_AUDITED = {
    sf.Engine: "open aclose get history list result query audit workers limits overview count timeline",
    sf.Run: "result info place history query",
    Schedules: "declare get list ticks next_ticks",
    DurableLock: "explain",
    RateLimiter: "try_acquire acquire inspect",
}


@pytest.mark.parametrize("kind", AUDITED_METHODS)
def test_every_method_is_known_to_be_an_action_or_not(kind: type[Any]) -> None:
    """A new method of an engine, a run, a schedule or a lock is either recorded or listed as no action."""
    kinds = [kind, *((Mutex, Semaphore, ModeLock) if kind is DurableLock else ())]
    methods = {
        name: method
        for each in kinds
        for name, method in vars(each).items()
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    }

    assert set(methods) == AUDITED_METHODS[kind] | set(NOT_AUDITED[kind].split())
    for name in AUDITED_METHODS[kind]:
        source = inspect.getsource(methods[name])
        assert ".acts(" in source or "._acts(" in source or f".run(run_id).{name}(" in source, name


def test_every_function_on_a_store_takes_an_actor() -> None:
    """What is done to a whole store is recorded too."""
    moves = [getattr(admin, name) for name in admin.__all__ if name.endswith("_store")]

    assert moves
    assert all("actor" in inspect.signature(move).parameters for move in moves)


AUDITED_COMMANDS = {
    *("locks release", "locks withdraw", "runs start", "runs cancel", "runs retry", "runs signal", "runs purge"),
    *("runs update", "runs restart", "runs fork", "runs resume", "runs erase", "limits set", "limits clear"),
    *("schedules pause", "schedules resume", "schedules trigger", "schedules backfill"),
    *("accept-loss", "export", "import", "thaw", "fence", "requests cancel"),
}
OTHER_COMMANDS = {
    *("completion", "run", "serve", "worker", "mcp", "dashboard"),  # programs, and not what is done to others
    "cloudflare init",  # files, and no store
    *("locks list", "locks inspect", "locks explain", "runs list", "runs show", "runs tail"),  # only look
    *("runs query", "limits show", "limits rates", "schedules list", "schedules show", "workers"),
    *("status", "top", "audit", "requests list", "requests show"),
}


def _commands(group: click.Group, before: str = "") -> list[str]:
    context: Any = application.make_context("standfast", [], resilient_parsing=True)
    found: list[str] = []
    for name in group.list_commands(context):
        command: Any = group.get_command(context, name)
        found += _commands(command, f"{before}{name} ") if hasattr(command, "commands") else [f"{before}{name}"]
    return found


def test_every_command_is_known_to_be_an_action_or_not() -> None:
    """A new command is either recorded, by the space or the engine that it opens, or listed as no action."""
    assert set(_commands(application)) == AUDITED_COMMANDS | OTHER_COMMANDS


# --- what a record says ---------------------------------------------------------------------------------------------


async def test_an_eviction_names_the_entry_its_owner_and_the_void_fence(engine: sf.Engine) -> None:
    """So that a late write with that fence can be explained later."""
    space = engine.space
    async with space.mutex("door").hold(owner="job 7", on_lost="tell") as hold:
        entry = (await space.explain("door")).holders[0].entry
        assert await space.mutex("door").force_release(entry)

    found = (await space.audit(subject="door")).records[0]

    assert (found.action, found.entry, found.fence) == ("lock.release", entry, hold.fence)
    assert found.details == {"owner": "job 7"}


async def test_what_was_refused_is_recorded_with_the_reason(engine: sf.Engine) -> None:
    """An attempt is worth as much as a deed."""
    with pytest.raises(RunNotFoundError):
        await engine.cancel("no-such-run", "by mistake")

    found = (await engine.audit()).records[0]

    assert (found.subject, found.outcome, found.reason) == ("no-such-run", "refused", "by mistake")
    assert found.problem.startswith("RunNotFoundError")


async def test_what_had_nothing_to_act_on_says_so(engine: sf.Engine) -> None:
    """An entry that had left was not evicted."""
    assert not await engine.space.mutex("door").force_release("long-gone")

    assert (await engine.audit()).records[0].outcome == "nothing"


async def _never_ends(space: sf.Space, begun: asyncio.Event) -> None:
    async with Audit(space, ANN).action("run.cancel", "order-7"):
        begun.set()
        await asyncio.Event().wait()


async def test_an_interrupted_action_stays_in_the_record() -> None:
    """The record is there before the action is done."""
    async with sf.open("memory://", actor=ANN) as space:
        is_begun = asyncio.Event()
        task = asyncio.create_task(_never_ends(space, is_begun))
        await is_begun.wait()
        assert [each.outcome for each in (await space.audit()).records] == ["begun"]
        task.cancel()
        await asyncio.wait((task,))

        assert [each.outcome for each in (await space.audit()).records] == ["unknown"]


async def test_an_action_that_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    """The record comes first."""
    done = False
    async with sf.open(f"sqlite:///{tmp_path / 'store.db'}", actor=ANN) as space:
        store: Any = space.store
        await store.transfer().freeze(EXPORTED)
        with pytest.raises(sf.errors.StoreError):
            async with Audit(space, ANN).action("run.cancel", "order-7"):
                done = True

    assert not done


async def test_an_operator_is_named_for_one_call_of_a_shared_engine() -> None:
    """A program that acts for many operators names each, and its own calls none."""
    async with sf.Engine("memory://", workflows=[wait_for_word]) as engine:
        await engine.start(wait_for_word, id="order-7")
        await engine.acting_as(ANN).run("order-7").cancel("asked by phone")
        await engine.acting_as(ANN).schedules.create(sf.Schedule(wait_for_word, id="daily", cron="0 9 * * *"))
        await engine.acting_as(ANN).space.semaphore("pool", permits=1).resize(2)

        told = (await engine.audit()).records
        assert [each.action for each in told] == ["lock.resize", "schedule.create", "run.cancel"]
        assert engine.actor is None


# --- reading --------------------------------------------------------------------------------------------------------


async def test_records_are_read_newest_first_in_pages(engine: sf.Engine) -> None:
    """Every record once, whatever the page."""
    for number in range(7):
        await engine.space.mutex(f"door {number}").force_release("nobody")
    subjects, after = list[str](), None
    while True:
        page = await engine.audit(limit=3, after=after)
        subjects += [each.subject for each in page.records]
        if (after := page.next) is None:
            break

    assert subjects == [f"door {number}" for number in reversed(range(7))]


async def test_filters_hold_together(engine: sf.Engine) -> None:
    """Subject, action and actor: each record that is shown fits all of them."""
    bob = engine.acting_as(admin.Actor("bob"))
    for space in (engine.space, bob.space):
        await space.mutex("door").force_release("nobody")
        await space.mutex("door").withdraw("nobody")
    await engine.space.mutex("gate").withdraw("nobody")

    page = await engine.audit(action="lock.withdraw", subject="door", actor="bob")

    assert [(each.action, each.subject, each.actor.name) for each in page.records] == [("lock.withdraw", "door", "bob")]
    assert len((await engine.audit(actor="ann")).records) == 3
    assert (await engine.audit(subject="nowhere")).records == ()


async def test_a_page_of_few_matches_ends_early_and_can_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one page reads is bounded, however much is stored."""
    monkeypatch.setattr("standfast.audit.MOST_READ", 4)
    assert MOST_READ > 4
    async with sf.open("memory://", actor=ANN) as space:
        await space.mutex("door").withdraw("nobody")
        for _ in range(250):
            await space.mutex("door").force_release("nobody")

        page = await space.audit(subject="door", action="lock.withdraw")
        assert (page.records, page.next is None) == ((), False)
        while not page.records:
            page = await space.audit(subject="door", action="lock.withdraw", after=page.next)
        assert page.next is None


async def test_a_tenant_sees_its_own_records_only() -> None:
    """The audit of one tenant is no business of another."""
    store = await open_store("memory://")
    ours, theirs = Space(store, tenant="ours", actor=ANN), Space(store, tenant="theirs", actor=ANN)

    await ours.mutex("door").force_release("nobody")

    assert (len((await ours.audit()).records), len((await theirs.audit()).records)) == (1, 0)
    await store.aclose()


async def test_records_are_kept_for_as_long_as_was_said() -> None:
    """The length is kept in the store: it counts for everyone who writes."""
    async with sf.open("memory://", actor=ANN) as space:
        await space.keep_audit("90 days")
        await space.mutex("door").force_release("nobody")
        found = (await space.audit()).records[0]
        record = (await space.read(space.key("audit", found.id))).get(space.key("audit", found.id))

    assert record is not None
    assert record.expires_at == found.at + 90 * 86_400 * 1_000_000


@pytest.mark.parametrize(("given", "about"), [({"limit": 0}, "limit"), ({"action": "run.burn"}, "action")])
async def test_a_page_that_makes_no_sense_is_refused(given: dict[str, Any], about: str) -> None:
    """The message says what there is."""
    async with sf.open("memory://") as space:
        with pytest.raises(InvalidArgumentError, match=about):
            await space.audit(**given)


@pytest.mark.parametrize("given", [{"name": ""}, {"name": "a\n"}, {"name": "ann", "via": "phone"}])
def test_an_actor_has_a_printable_name_and_a_known_origin(given: dict[str, Any]) -> None:
    """They are shown on terminals."""
    with pytest.raises(InvalidArgumentError):
        admin.Actor(**given)


async def test_a_long_subject_is_found_all_the_same(engine: sf.Engine) -> None:
    """Keys can be long; parts of a record's key cannot."""
    await engine.space.mutex("k" * 400).force_release("nobody")

    assert (await engine.audit(subject="k" * 400)).records[0].subject == "k" * 400
