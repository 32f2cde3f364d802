"""Choices that have functions of their own do what the general one does, and are sent without a task for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import AttemptClosedError
from standfast.keys import RecordKey
from standfast.stores import (
    Alternative,
    Append,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
)
from standfast.stores.group_commit import verdict_of
from standfast.stores.postgresql import server as postgres_server
from standfast.stores.postgresql.statements import channel, data_of, quick_choice_made
from standfast.stores.remote.server import ChoiceIntent
from tests import services
from tests.integration.alternatives import quick_slots
from tests.integration.alternatives.quick import (
    ASKED,
    GRANT,
    HEAD,
    INBOXES,
    MINE,
    STATES,
    enter,
    laid,
    leave,
    outcome,
    use,
)
from tests.integration.faults.proxy import Fault, proxy_to
from tests.integration.postgresql.ground import connected, made, opened, place, run_sql, schema_of, server_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.stores import GroupedStore
    from tests.integration.faults.proxy import Direction

    Laid = Callable[[str], Iterable[tuple[RecordKey, bytes, int, int | None]]]

pytestmark = pytest.mark.services

# --- the same as the general function -------------------------------------------------------------------------------


async def _lay(url: str, state: str, laid: Laid = laid) -> dict[RecordKey, int]:
    """Write records past the store; return their versions."""
    schema, versions = schema_of(url), dict[RecordKey, int]()
    async with connected(url) as connection:
        await connection.execute(f"DELETE FROM {schema}.records")  # noqa: S608 -- a name of the test's own
        for key, value, version, ends in laid(state):
            insert = f"INSERT INTO {schema}.records (key, value, version, expires_at) VALUES ($1, $2, $3, $4)"  # noqa: S608 -- see above
            await connection.execute(insert, bytes(key), value, version, ends)
            versions[key] = version
    return versions


@pytest.mark.parametrize("asked", ASKED)
async def test_a_choice_comes_to_the_same_by_its_own_function_and_by_the_general_one(
    asked: str, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer, records and notification are the same in every state of the line."""
    url = await made(postgresql_url)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    async with opened(url) as [store], connected(url) as connection:
        await connection.add_listener(
            channel(schema_of(url), INBOXES), lambda *given: heard.put_nowait(data_of(str(given[3])))
        )
        await use(store)
        for state in STATES.values():
            by_itself = await outcome(store, heard, ASKED[asked](await _lay(url, state)))
            with monkeypatch.context() as patch:
                patch.setattr(postgres_server, "quick_call", lambda *_: None)
                in_general = await outcome(store, heard, ASKED[asked](await _lay(url, state)))

            assert by_itself == in_general, state


@pytest.mark.parametrize("asked", quick_slots.ASKED)
async def test_a_choice_of_a_semaphore_comes_to_the_same_by_its_own_function_and_by_the_general_one(
    asked: str, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer, records and notification are the same in every state of the line."""
    url, made_so = await made(postgresql_url), 0
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    def counted(row: Any, intent: ChoiceIntent) -> Any:
        nonlocal made_so
        answer = quick_choice_made(row, intent)
        made_so += answer is not None
        return answer

    monkeypatch.setattr(postgres_server, "quick_choice_made", counted)
    async with opened(url) as [store], connected(url) as connection:
        await connection.add_listener(
            channel(schema_of(url), INBOXES), lambda *given: heard.put_nowait(data_of(str(given[3])))
        )
        await quick_slots.use(store)
        used, made_so = made_so, 0
        for state in quick_slots.STATES:
            laid = quick_slots.laid
            by_itself = await outcome(store, heard, quick_slots.ASKED[asked](await _lay(url, state, laid)))
            with monkeypatch.context() as patch:
                patch.setattr(postgres_server, "quick_call", lambda *_: None)
                in_general = await outcome(store, heard, quick_slots.ASKED[asked](await _lay(url, state, laid)))

            assert by_itself == in_general, state

    assert used >= 6
    assert made_so > 0 or "old" in asked


@pytest.mark.parametrize("is_quick", [True, False])
async def test_one_that_joins_waits_for_one_that_gives_a_slot_back(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, *, is_quick: bool
) -> None:
    """Its ticket would be seen by none: so it counts what is there when the other one has committed, and takes that."""
    url = await made(postgresql_url)
    schema = schema_of(url)
    if not is_quick:
        monkeypatch.setattr(postgres_server, "quick_call", lambda *_: None)
    async with opened(url) as [store], connected(url) as connection:
        await quick_slots.use(store)
        await _lay(url, "gh01", quick_slots.laid)
        waiting = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%'"  # noqa: S608 -- a name of the test's own
        async with connection.transaction():
            await connection.execute(f"DELETE FROM {schema}.records WHERE key = $1", bytes(quick_slots.SLOTS[1]))  # noqa: S608 -- see above
            joining = asyncio.ensure_future(store.choose(*quick_slots.enter("jtb", 1)))
            while not await run_sql(url, waiting):
                assert not joining.done(), joining.result()
        answer: Any = await joining

    assert answer.index == 1
    assert list(answer.versions) == [quick_slots.SLOTS[1]]


async def test_one_that_leaves_a_slot_keeps_its_grant_from_none_while_it_waits(postgresql_url: str) -> None:
    """One that tried to be the last has gate and head locked, and then counts this grant: else they were a deadlock."""
    url = await made(postgresql_url)
    lock = f"SELECT 1 FROM {schema_of(url)}.records WHERE key = $1"  # noqa: S608 -- a name of the test's own
    waiting = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema_of(url)}%'"  # noqa: S608 -- see above
    async with opened(url) as [store], connected(url) as connection:
        await quick_slots.use(store)
        at = await _lay(url, "gh01", quick_slots.laid)
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '500ms'")  # before a deadlock is looked for
            for key in (quick_slots.GATE, quick_slots.HEAD):
                await connection.execute(f"{lock} FOR UPDATE", bytes(key))
            leaving = asyncio.ensure_future(store.choose(*quick_slots.ASKED["leave slot 1"](at)))
            while not await run_sql(url, waiting):
                assert not leaving.done(), leaving.result()
            await connection.execute(f"{lock} FOR KEY SHARE", bytes(quick_slots.SLOTS[1]))
        answer: Any = await leaving

    assert answer.index == 2


# --- sent without a task --------------------------------------------------------------------------------------------


async def test_a_lone_choice_is_sent_without_a_task(postgresql_url: str) -> None:
    """No task is made for it."""
    async with opened(place(postgresql_url)) as [store]:
        await use(store)
        tasks = asyncio.all_tasks()
        choosing = asyncio.ensure_future(store.choose(*enter()))
        await asyncio.sleep(0)
        under_way = asyncio.all_tasks()
        taken: Any = await choosing

    assert under_way - tasks == {choosing}
    assert taken.index == 0


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_a_lost_answer_to_a_lone_choice_is_found_out(postgresql_url: str, direction: Direction) -> None:
    """Whether it was done or has to be done again, it is done once."""
    async with proxy_to(place(postgresql_url)) as proxy, opened(f"{proxy.url}&liveness=false") as [store]:

        async def struck(*asked: Alternative) -> Any:
            await _use_elsewhere(store)
            proxy.fault = Fault(direction, proxy.carried[direction] + 1, "lose")
            return await store.choose(*asked)

        taken = await struck(*enter())
        joined = await struck(*enter(b"two"))
        passed = await struck(*leave(taken.version, taken.version))
        freed = await struck(*leave(passed.version, taken.version))

        assert proxy.struck == 4
        assert [each.index for each in (taken, joined, passed, freed)] == [0, 1, 0, 1]
        assert [each.is_settled for each in (taken, joined, passed, freed)] == [direction == "reply"] * 4
        assert not (await store.scan(*RecordKey("n").within(), limit=5)).records


async def _use_elsewhere(store: GroupedStore) -> None:
    """Prepare the statements anew, on a connection that is open, without touching the line."""
    there = RecordKey("n", "z")
    for _ in range(2):
        taken: Any = await store.choose(
            Alternative((Put(there.child("line"), b""), Stamped(there.child("grant"), MINE))),
            Alternative((Present(there.child("line")), Append(there.child("queue"), MINE, stamped=True))),
        )
        await store.choose(
            Alternative((MoveFirst(there.child("queue"), there.child("grant"), taken.version, INBOXES),)),
            Alternative(
                (
                    Empty(there.child("queue")),
                    Delete(there.child("line"), taken.version),
                    Delete(there.child("grant"), taken.version),
                )
            ),
        )
    await store.read(HEAD)


async def test_a_choice_that_is_not_answered_in_time_is_unknown_and_then_settled() -> None:
    """The time limit holds without a task that waits, and what becomes of it is found out later."""
    with services.private("postgresql") as own:
        async with opened(f"{own.url}?timeout=500ms&liveness=false") as [store]:
            await use(store)
            own.stop()
            choosing = asyncio.ensure_future(store.choose(*enter()))
            await asyncio.wait({choosing}, timeout=2)
            own.cont()
            taken: Any = await choosing
            seen = await store.read(GRANT, HEAD)

    assert taken.index == 0
    assert {record.version for record in seen.records.values()} == {taken.version}


async def test_a_caller_that_is_cancelled_has_the_verdict_and_the_connection_is_kept(postgresql_url: str) -> None:
    """What is under way is not torn down with its caller."""
    url = place(postgresql_url)
    async with opened(url) as [store]:
        await use(store)
        before = await _sessions(url)
        async with connected(url) as connection, connection.transaction():
            await connection.execute(f"LOCK TABLE {schema_of(url)}.records IN EXCLUSIVE MODE")
            choosing = asyncio.ensure_future(store.choose(*enter()))
            await asyncio.sleep(0)
            choosing.cancel()
            await asyncio.sleep(0)
            assert not choosing.done()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await choosing
        verdict: Any = verdict_of(cancelled.value)

        assert verdict.index == 0
        assert (await store.read(GRANT)).version(GRANT) == verdict.version
        assert await _sessions(url) >= before  # the read may have opened one of its own


async def _sessions(url: str) -> set[int]:
    rows = await run_sql(
        url,
        f"SELECT pid FROM pg_stat_activity WHERE query LIKE '%{schema_of(url)}%' AND pid <> pg_backend_pid()",  # noqa: S608 -- a name of the test's own
    )
    return {row[0] for row in rows}


async def test_a_store_is_closed_when_its_lone_choice_is_answered(postgresql_url: str) -> None:
    """Closing waits for it, though there is no task to wait for."""
    url = place(postgresql_url)
    async with opened(url, url) as [store, other]:
        await use(store)
        choosing = asyncio.ensure_future(store.choose(*enter()))
        await asyncio.sleep(0)
        await store.aclose()
        taken: Any = await choosing

        assert (await other.read(GRANT)).version(GRANT) == taken.version


async def test_a_closed_attempt_is_not_made_by_a_function_of_its_own(postgresql_url: str) -> None:
    """It is refused as by the general one, and nothing is written."""
    async with opened(place(postgresql_url)) as [store]:
        await use(store)
        server = server_of(store)
        assert await server.close_attempt("handle", 1, b"") is None
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        intent = ChoiceIntent("handle", 1, (enter(),), ((), ()), "x" * 36, b"n")

        assert server.choose_soon(intent, answer.set_result) is not None
        assert isinstance(await answer, AttemptClosedError)
        assert (await store.read(GRANT, HEAD)).records == {}
