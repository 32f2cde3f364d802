"""A commit of a few records, which has a statement for each of them, comes to what one over arrays comes to."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import AttemptClosedError
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Delete, Put
from standfast.stores.postgresql import server as postgres_server
from standfast.stores.postgresql.statements import channel, data_of
from standfast.stores.remote.server import Intent, Message, Row, WriteRefused, Written
from tests.integration.postgresql.ground import connected, made, opened, run_sql, schema_of, server_of

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from standfast.stores.protocol import Change

pytestmark = pytest.mark.services

KEYS = tuple(sorted([RecordKey("n", name) for name in "abcd"]))
ELSEWHERE = RecordKey("n", "z")
VERSION = 7
ENDS = {"absent": (), "there": (None,), "expired": (1,), "lasting": (1 << 60,)}
ROUNDS = 150


async def use(store: GroupedStore) -> None:
    """Commit alone, in every number of records, until that is sent at once."""
    for _ in range(4):
        for count in range(1, len(KEYS) + 1):
            keys = [ELSEWHERE.child(f"{number}") for number in range(count)]
            done: Any = await store.commit(*(Put(key, b"") for key in keys))
            await store.commit(*(Delete(key, done.versions[key]) for key in keys))


def asked(given: random.Random, states: list[str]) -> list[Change]:
    """Return a commit of some of the keys; mostly, what it expects is there."""
    changes: list[Change] = []
    for key, state in zip(KEYS, states, strict=True):
        live = VERSION if state in {"there", "lasting"} else 0
        expected = given.choice([live] * 8 + [VERSION, 0])
        put: Change = Put(key, b"new", expected)
        others = (Delete(key, expected), Check(key, expected)) if expected else (put, put)
        changes += given.choice(([], [put], [put], [others[0]], [others[1]]))
    return changes if any(type(change) is not Check for change in changes) else [Put(KEYS[0], b"new", 0)]


async def outcome(store: GroupedStore, connection: Any, schema: str, changes: list[Change]) -> tuple[object, ...]:
    """Return what a commit came to, without its time; and the records, new ones at version 0."""
    answer = await store.commit(*changes)
    new = {*answer.versions.values()} if isinstance(answer, Commit) else set[int]()
    found = await connection.fetch(f"SELECT key, value, version, expires_at FROM {schema}.records ORDER BY key")  # noqa: S608 -- a name of the test's own
    records = [(row[0], row[1], 0 if row[2] in new else row[2], row[3]) for row in found]
    return (answer.current, records) if isinstance(answer, Conflict) else (len(new), records)


async def test_a_few_records_are_written_as_many_are(
    postgresql_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is there, the answer and the records are the same."""
    given, url = random.Random(seed), await made(postgresql_url)
    schema = schema_of(url)
    insert = f"INSERT INTO {schema}.records (key, value, version, expires_at) VALUES ($1, 'old', {VERSION}, $2)"  # noqa: S608 -- a name of the test's own
    async with opened(url) as [store], connected(url) as connection:
        await use(store)
        for _ in range(ROUNDS):
            states = [given.choice(list(ENDS)) for _ in KEYS]
            changes, outcomes = asked(given, states), list[tuple[object, ...]]()
            for how in ("few", "many"):
                await connection.execute(f"DELETE FROM {schema}.records")  # noqa: S608 -- see above
                for key, state in zip(KEYS, states, strict=True):
                    await connection.executemany(insert, [(bytes(key), end) for end in ENDS[state]])
                with monkeypatch.context() as patch:
                    if how == "many":
                        patch.setattr(postgres_server, "few_call", lambda *_: None)
                    outcomes.append(await outcome(store, connection, schema, changes))

            assert outcomes[0] == outcomes[1], (states, changes)


async def test_what_was_created_while_others_drew_versions_gets_a_higher_one(postgresql_url: str) -> None:
    """A key may have come and gone, at a version above the one that was drawn first."""
    url = await made(postgresql_url)
    schema = schema_of(url)
    async with opened(url) as [store]:
        await use(store)
        there: Any = await store.commit(Put(KEYS[1], b"old"))
        await run_sql(
            url,
            "CREATE FUNCTION @.draw() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM nextval('{schema}.versions'::regclass); RETURN NEW; END $$",
            "CREATE TRIGGER drawing BEFORE INSERT ON @.records FOR EACH ROW EXECUTE FUNCTION @.draw()",
        )
        done: Any = await store.commit(
            Put(KEYS[0], b"new"), Put(KEYS[1], b"new", there.versions[KEYS[1]]), Put(KEYS[2], b"new")
        )
        [[last]] = await run_sql(url, "SELECT last_value FROM @.versions")
        rows = await run_sql(url, "SELECT version FROM @.records WHERE value = 'new'")
        [[counted]] = await run_sql(url, "SELECT versions FROM @.attempts ORDER BY touched_at DESC LIMIT 1")

    assert {*done.versions.values()} == {last} == {row[0] for row in rows} == {*counted}


async def test_a_closed_attempt_writes_no_record(postgresql_url: str) -> None:
    """It was settled as never written, and stays so."""
    async with opened(await made(postgresql_url)) as [store]:
        server = server_of(store)
        for number in (1, 2):
            await server.write(Intent("handle", number, {KEYS[number]: 0}, (Row(KEYS[number], b"", 0),), (), 1))
        await server.close_attempt("handle", 3, b"")
        answers: asyncio.Queue[object] = asyncio.Queue()
        closed = Intent("handle", 3, {KEYS[0]: 0}, (Row(KEYS[0], b"", 0),), (), 1)
        assert server.write_soon(closed, answers.put_nowait) is not None
        assert await answers.get() is None, "it is to be written as ever"
        with pytest.raises(AttemptClosedError):
            await server.write(closed)

        assert KEYS[0] not in (await store.read(*KEYS)).records


async def test_messages_are_sent_with_a_few_records_and_only_with_them(postgresql_url: str) -> None:
    """Who listens is told of what was written, and of nothing that was refused."""
    url = await made(postgresql_url)
    told: asyncio.Queue[bytes] = asyncio.Queue()
    async with opened(url) as [store], connected(url) as connection:
        server, answers, came = server_of(store), asyncio.Queue[object](), list[type]()
        await connection.add_listener(channel(schema_of(url), b"t"), lambda *given: told.put_nowait(data_of(given[3])))
        for number, data in enumerate((b"first", b"second", b"refused"), start=1):
            key = KEYS[min(number, 2)]
            intent = Intent("handle", number, {key: 0}, (Row(key, b"", 0),), (), 1, messages=(Message(b"t", data),))
            if number == 1:
                await server.write(intent)
            else:
                assert server.write_soon(intent, answers.put_nowait) is not None
                came.append(type(await answers.get()))

        assert came == [Written, WriteRefused]
        assert [await told.get(), await told.get()] == [b"first", b"second"]
        await connection.execute("SELECT")
        assert told.empty()
