"""Users with few rights: what they need, and that they can do no more."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import pytest

import standfast as sf
from standfast.errors import UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.postgresql.ground import connected, made, make_user, opened, place, run_sql, schema_of

KEY = RecordKey("n", "k")


@sf.workflow
async def greet(ctx: sf.Context, name: str) -> str:
    """A workflow of one step."""
    return await ctx.step("greet", str.title, name)


@pytest.fixture
async def few(postgresql_url: str) -> str:
    """A store that somebody else owns, as one sees it who was only let in."""
    return await make_user(await made(postgresql_url), "SELECT @.grant_to('$')")


async def test_one_who_was_let_in_can_lock(few: str) -> None:
    """Holding, waiting and giving back need no more than that."""
    async with sf.open(few, namespace="locks") as space, sf.open(f"{few}&migrate=false", namespace="locks") as other:
        async with space.mutex("door").hold() as hold:
            first = hold.fence
        async with other.mutex("door").hold(timeout=10) as hold:
            assert hold.fence > first


async def test_one_who_was_let_in_can_run_workflows(few: str) -> None:
    """From the start to the result."""
    async with sf.Engine(few, namespace="runs", workflows=[greet]) as engine:
        run = await engine.start(greet, "you")

        assert await run.result(timeout=30) == "You"


async def test_one_who_was_let_in_can_do_no_more(few: str) -> None:
    """Neither change the schema, nor empty it, nor let others in."""
    statements = [
        "CREATE TABLE @.more ()",
        "ALTER TABLE @.records ADD COLUMN more int",
        "TRUNCATE @.records",
        "DROP TABLE @.records",
        "DROP FUNCTION @.sweep",
        "CREATE OR REPLACE FUNCTION @.sweep(most int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "INSERT INTO @.migrations (number) VALUES (9000)",
        "DROP SEQUENCE @.versions",
        "CREATE SCHEMA more",
    ]
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await run_sql(few, statement)


async def test_one_who_was_not_let_in_is_told_what_to_do(postgresql_url: str) -> None:
    """Whoever owns the schema can let them in."""
    url = await make_user(await made(postgresql_url))

    with pytest.raises(UnsuitableStoreError, match="grant_to"):
        await open_store(url)


async def test_one_who_may_make_no_schema_is_told_what_to_do(postgresql_url: str) -> None:
    """Its owner opens the store once."""
    url = await make_user(place(postgresql_url))

    with pytest.raises(UnsuitableStoreError, match="grant_to"):
        await open_store(url)


async def test_the_schema_can_be_made_by_one_who_does_nothing_else(postgresql_url: str) -> None:
    """A user for migrations owns it; another one, who may create nothing, uses it."""
    url = place(postgresql_url)
    [[database]] = await run_sql(url, "SELECT current_database()")
    owner = await make_user(url, f'GRANT CREATE ON DATABASE "{database}" TO $')
    async with opened(owner):
        pass
    user = await make_user(url)
    await run_sql(owner, f"SELECT @.grant_to('{user.partition('//')[2].partition(':')[0]}')")

    async with opened(f"{user}&migrate=false") as [store]:
        await store.commit(Put(KEY, b"there"))

        assert (await store.read(KEY)).records[KEY].value == b"there"


async def test_one_who_may_only_look_sees_the_views_and_nothing_else(postgresql_url: str) -> None:
    """Without the values, and without a way to change anything."""
    url = await made(postgresql_url)
    reader = await make_user(url, "SELECT @.grant_views_to('$')")

    async with sf.open(url, namespace="seen") as space, space.mutex("door").hold():
        [lock] = await run_sql(reader, "SELECT namespace, key FROM @.locks")
    async with connected(reader) as connection:
        for relation in ("records", "attempts", "topics"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT * FROM {schema_of(url)}.{relation}")  # noqa: S608 -- names of our own

    assert tuple(lock) == ("seen", "door")


async def test_a_password_that_changes_is_asked_for_with_each_connection(postgresql_url: str) -> None:
    """So a token that runs out, or a password that is changed now and then, is taken up."""
    url = await make_user(await made(postgresql_url), "SELECT @.grant_to('$')")
    user, current = str(urlsplit(url).username), [f"secret-{urlsplit(url).username}"]
    store = await open_store(url.replace(f":{current[0]}", ""), credentials=sf.admin.Credentials(lambda: current[0]))
    try:
        await store.read(KEY)
        current[0] = "another"
        await run_sql(
            postgresql_url,
            f"ALTER ROLE {user} PASSWORD 'another'",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'",  # noqa: S608 -- a name of our own
        )

        assert (await store.read(KEY)).get(KEY) is None
    finally:
        await store.aclose()
