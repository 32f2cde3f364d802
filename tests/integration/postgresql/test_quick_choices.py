"""Choices that have functions of their own do what the general one does, and are sent without a task for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import AttemptClosedError
from standfast.keys import RecordKey
from standfast.stores import (
    Alternative,
    Append,
    Conflict,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
)
from standfast.stores.group_commit import verdict_of
from standfast.stores.postgresql import server as postgres_server
from standfast.stores.postgresql.statements import channel, data_of
from standfast.stores.protocol import STAMP_BYTES
from standfast.stores.remote.server import ChoiceIntent
from standfast.stores.remote.subscriptions import decode_message
from tests import services
from tests.integration.faults.proxy import Fault, proxy_to
from tests.integration.postgresql.ground import connected, made, opened, place, run_sql, schema_of, server_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.stores import GroupedStore, Record
    from tests.integration.faults.proxy import Direction

pytestmark = pytest.mark.services

GRANT, HEAD = RecordKey("n", "grant", "0"), RecordKey("n", "line")
QUEUE, INBOXES = RecordKey("n", "queue"), RecordKey("n", "inbox")
MINE = b'{"who":"me"}'


def enter(value: bytes = MINE) -> tuple[Alternative, ...]:
    """Take it, or join."""
    return (
        Alternative((Put(HEAD, b"held"), Stamped(GRANT, value))),
        Alternative((Present(HEAD), Append(QUEUE, value, RecordKey("p1"), stamped=True))),
    )


def leave(fence: int, head: int) -> tuple[Alternative, ...]:
    """Pass it on, or free it."""
    return (
        Alternative((MoveFirst(QUEUE, GRANT, fence, INBOXES),)),
        Alternative((Empty(QUEUE), Delete(HEAD, head), Delete(GRANT, fence))),
    )


# --- the same as the general function -------------------------------------------------------------------------------

STATES = {
    "nothing": "",
    "held": "GH",
    "held, and one waits": "GHt",
    "held, and two wait": "GHtt",
    "held, and the first cannot be moved": "GHut",
    "held, and the first is too long to be shown": "GHT",
    "a grant alone": "G",
    "a head alone": "H",
    "waiters alone": "tt",
    "an expired head": "Gh",
    "an expired grant": "gH",
    "an expired waiter before another": "GHet",
    "only an expired waiter": "GHe",
}

ASKED: dict[str, Callable[[Mapping[RecordKey, int]], Sequence[Alternative]]] = {
    "enter": lambda _: enter(),
    "leave": lambda at: leave(at.get(GRANT, 7), at.get(HEAD, 7)),
    "leave at an old fence": lambda at: leave(5, at.get(HEAD, 7)),
    "leave with an old head": lambda at: leave(at.get(GRANT, 7), 5),
    "enter without waiting": lambda _: enter()[:1],
    "enter under a time": lambda _: (Alternative(enter()[0].changes, before=Instant(1)), enter()[1]),
    "enter with two values": lambda _: (enter()[0], enter(b"other")[1]),
}


async def _lay(url: str, state: str) -> dict[RecordKey, int]:
    """Write records past the store, each with a version of its own; return the versions."""
    schema, versions = schema_of(url), dict[RecordKey, int]()
    async with connected(url) as connection:
        await connection.execute(f"DELETE FROM {schema}.records")  # noqa: S608 -- a name of the test's own
        for n, letter in enumerate(state, 11):
            suffix = b"" if letter == "u" else bytes(RecordKey("p2"))
            key: bytes = {"g": GRANT, "h": HEAD}.get(letter.lower(), QUEUE + b"%016d\x00\x01" % n + suffix)
            value = b"%016d" % n + (b"x" * 6_000 if letter == "T" else b"waits")
            ends = 1 if letter in "ghe" else None
            insert = f"INSERT INTO {schema}.records (key, value, version, expires_at) VALUES ($1, $2, $3, $4)"  # noqa: S608 -- see above
            await connection.execute(insert, bytes(key), value, n, ends)
            versions[RecordKey.from_encoded(bytes(key))] = n
    return versions


def _shown(record: Record | None, drawn: int) -> tuple[object, ...] | None:
    """Return a record without the time in it, and without the version if it was drawn."""
    if record is None:
        return None
    stamp = STAMP_BYTES if record.version == drawn else 0
    return bytes(record.value[stamp:]), "drawn" if record.version == drawn else record.version


async def _outcome(store: GroupedStore, heard: asyncio.Queue[str], asked: Sequence[Alternative]) -> object:
    """Choose; return the answer, what is left, and what was notified, without times and drawn versions."""
    answer = await store.choose(*asked)
    left = (await store.scan(*RecordKey("n").within(), limit=50)).records
    if isinstance(answer, Conflict):
        lost = {key: _shown(each, 0) for key, each in answer.current.items()}
        return lost, {key: _shown(each, 0) for key, each in left.items()}
    drawn, told = answer.version, None
    if answer.moved is not None:
        async with asyncio.timeout(10):
            origin, wakes = decode_message(data_of(await heard.get()))
        told = origin, [(wake.to, wake.about, _shown(wake.moved, drawn)) for wake in wakes or ()]
    return {
        "index": answer.index,
        "written": [_key(key, drawn) for key in answer.versions],
        "appended": answer.appended and _key(answer.appended, drawn),
        "moved": _shown(answer.moved, drawn),
        "from": answer.moved_from,
        "present": {key: _shown(each, 0) for key, each in answer.present.items()},
        "told": told,
        "left": {_key(key, drawn): _shown(each, drawn) for key, each in left.items()},
    }


def _key(key: RecordKey, drawn: int) -> bytes:
    return bytes(key).replace(b"%016d" % drawn, b"drawn") if drawn else bytes(key)


@pytest.mark.parametrize("asked", ASKED)
async def test_a_choice_comes_to_the_same_by_its_own_function_and_by_the_general_one(
    asked: str, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer, records and notification are the same in every state of the line."""
    url = await made(postgresql_url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with opened(url) as [store], connected(url) as connection:
        await connection.add_listener(channel(schema_of(url), INBOXES), lambda *given: heard.put_nowait(str(given[3])))
        await _use(store)
        for state in STATES.values():
            by_itself = await _outcome(store, heard, ASKED[asked](await _lay(url, state)))
            with monkeypatch.context() as patch:
                patch.setattr(postgres_server, "quick_choice", lambda *_: None)
                in_general = await _outcome(store, heard, ASKED[asked](await _lay(url, state)))

            assert by_itself == in_general, state


async def _use(store: GroupedStore) -> None:
    """Take it and free it: from then on all of the statements are prepared."""
    for _ in range(4):
        taken: Any = await store.choose(*enter())
        freed: Any = await store.choose(*leave(taken.version, taken.version))
        assert freed.index == 1
    await store.choose(Alternative((Empty(QUEUE),)))


# --- sent without a task --------------------------------------------------------------------------------------------


async def test_a_lone_choice_is_sent_without_a_task(postgresql_url: str) -> None:
    """No task is made for it."""
    async with opened(place(postgresql_url)) as [store]:
        await _use(store)
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
    async with proxy_to(place(postgresql_url)) as proxy, opened(f"{proxy.url}&lifeline=false") as [store]:

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
        async with opened(f"{own.url}?timeout=500ms&lifeline=false") as [store]:
            await _use(store)
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
        await _use(store)
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
        assert await _sessions(url) == before


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
        await _use(store)
        choosing = asyncio.ensure_future(store.choose(*enter()))
        await asyncio.sleep(0)
        await store.aclose()
        taken: Any = await choosing

        assert (await other.read(GRANT)).version(GRANT) == taken.version


async def test_a_closed_attempt_is_not_made_by_a_function_of_its_own(postgresql_url: str) -> None:
    """It is refused as by the general one, and nothing is written."""
    async with opened(place(postgresql_url)) as [store]:
        await _use(store)
        server = server_of(store)
        assert await server.close_attempt("handle", 1, b"") is None
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        intent = ChoiceIntent("handle", 1, (enter(),), ((), ()), "x" * 36, b"n")

        assert server.choose_soon(intent, answer.set_result) is not None
        assert isinstance(await answer, AttemptClosedError)
        assert (await store.read(GRANT, HEAD)).records == {}
