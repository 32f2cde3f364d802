"""Many changes in one script do what they would have done one after the other, and leave nothing half-written."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import StoreCorruptError, StoreFullError
from standfast.keys import RecordKey
from standfast.stores import (
    Alternative,
    Append,
    Check,
    Choice,
    Commit,
    Conflict,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
)
from standfast.stores.protocol import ABSENT, MAX_VERSION
from tests.sizes import size

if TYPE_CHECKING:
    import redis.asyncio

    from standfast.stores import GroupedStore
    from tests.integration.redis.conftest import Open

pytestmark = pytest.mark.services

KEYS = [RecordKey("n", "key", str(each)) for each in range(4)]
TICKETS, INBOXES = RecordKey("n", "ticket"), RecordKey("n", "inbox")
NEVER = b"9" * 16


def drawn(  # noqa: C901 -- a way for each kind
    seed: random.Random, versions: dict[RecordKey, int]
) -> tuple[Alternative, ...]:
    """Return some alternatives, mostly on what is there before the batch."""

    def expected(key: RecordKey) -> int:
        return versions.get(key, ABSENT) if seed.random() < 0.8 else ABSENT

    def change(key: RecordKey) -> Any:
        value, expires = b"v%d" % seed.randrange(10**6), seed.choice([None, Instant(MAX_VERSION)])
        kind = seed.randrange(6)
        if kind < 3:
            return (Put if kind else Stamped)(key, value, expected(key), expires)
        if kind == 3 and key in versions:
            return Delete(key, versions[key])
        if kind == 4 and key in versions:
            return Check(key, versions[key])
        return Present(key)

    def alternative() -> Alternative:
        chosen = seed.sample(KEYS, seed.randrange(1, 3))
        what: list[Any] = [change(key) for key in chosen[1:]]
        way = seed.randrange(6)
        if way == 0:
            what.append(MoveFirst(TICKETS, chosen[0], expected(chosen[0]), INBOXES))
        elif way == 1:
            what.append(Append(TICKETS, b"t%d" % seed.randrange(10**6), RecordKey("you"), stamped=seed.random() < 0.5))
        elif way == 2:
            what += [Empty(TICKETS), change(chosen[0])]
        elif way == 3:
            least = seed.randrange(4)
            below = seed.choice([TICKETS, RecordKey("n", "key")])
            what += [Count(below, least, seed.choice([None, least + seed.randrange(3)])), change(chosen[0])]
        else:
            what.append(change(chosen[0]))
        return Alternative(tuple(what))

    return tuple(alternative() for _ in range(seed.randrange(1, 4)))


async def contents(store: GroupedStore) -> list[tuple[object, bytes, Instant | None]]:
    """Return what is there, without versions and times."""
    page = await store.scan(*RecordKey("n").within(), limit=1000)
    return [
        (
            TICKETS if key.startswith(TICKETS) else key,
            record.value.lstrip(b"0123456789"),
            record.expires_at,
        )
        for key, record in page.records.items()
    ]


def shape(answer: object) -> object:
    """Return what an answer says, without versions and times."""
    if isinstance(answer, Choice):
        return answer.index, sorted(answer.present), answer.appended is not None, answer.moved is not None
    assert isinstance(answer, Conflict)
    return Conflict


async def is_whole(admin: redis.asyncio.Redis, prefix: str, *left: RecordKey) -> bool:
    """Return True if the order and the expiries name just the records that are there, and that expire.

    ``left``: what may stand in the order besides.
    """
    records = await admin.hgetall(f"{{{prefix}:n}}:records")
    order = await admin.zrange(f"{{{prefix}:n}}:order", 0, -1)
    expiries = await admin.zrange(f"{{{prefix}:n}}:expiries", 0, -1)
    expire = {key for key, raw in records.items() if raw[16:32] != NEVER}
    return set(records) == set(order) - ({*map(bytes, left)} - set(records)) and expire == set(expiries)


@pytest.mark.parametrize("number", range(size(full=300, quick=25)))
async def test_a_batch_does_what_its_choices_do_one_after_the_other(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str, number: int
) -> None:
    """The same answers, the same records, and an order and expiries that fit them, whatever meets in a batch."""
    together, apart = await open_it(liveness="false"), await open_it(prefix=f"{prefix}b", liveness="false")
    seeds = [random.Random(number), random.Random(number)]
    for _ in range(4):
        wanted = []
        for store, seed in zip((together, apart), seeds, strict=True):
            found = (await store.read(*KEYS)).records
            versions = {key: record.version for key, record in found.items()}
            wanted.append([drawn(seed, versions) for _ in range(12)])

        answers = await asyncio.gather(*(together.choose(*each) for each in wanted[0]))

        assert list(map(shape, answers)) == [shape(await apart.choose(*each)) for each in wanted[1]]
        assert await contents(together) == await contents(apart)
        assert await is_whole(admin, prefix)


async def test_a_batch_with_more_records_than_a_command_takes_is_written_whole(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """Commits and choices, in parts of a thousand."""
    store = await open_it(liveness="false")
    keys = [RecordKey("n", str(each)) for each in range(1_300)]
    for start in range(0, 1_300, 100):
        puts = [Put(key, b"x", expires_at=Instant(MAX_VERSION)) for key in keys[start : start + 100]]
        assert isinstance(await store.commit(*puts), Commit)

    assert await is_whole(admin, prefix)
    version = (await store.read(*keys[:100])).version
    riders = [Alternative((Delete(key, version(key)), Append(TICKETS, b""))) for key in keys[:100]]
    assert {type(each) for each in await asyncio.gather(*map(store.choose, riders))} == {Choice}
    assert await is_whole(admin, prefix)


async def test_a_full_server_still_lets_a_lock_go_and_takes_none(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """A choice that deletes needs no room, and one that puts is refused with nothing written."""
    store = await open_it(liveness="false")
    taken: Any = await store.choose(Alternative((Put(KEYS[0], b""), Put(KEYS[1], b""))))
    await admin.config_set("maxmemory", 1)

    with pytest.raises(StoreFullError):
        await store.choose(Alternative((Delete(KEYS[0], taken.version), Put(KEYS[1], b"2", taken.version))))
    with pytest.raises(StoreFullError):
        await store.choose(Alternative((Append(TICKETS, b""),)))
    assert (await store.read(*KEYS)).records.keys() == set(KEYS[:2])
    assert isinstance(await store.choose(Alternative((Empty(TICKETS), Delete(KEYS[0], taken.version)))), Choice)

    assert (await store.read(*KEYS)).records.keys() == {KEYS[1]}


@pytest.mark.parametrize("name", ["order", "expiries", "records", "head"])
async def test_a_choice_meets_a_key_that_holds_something_else_before_it_writes(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str, name: str
) -> None:
    """In a namespace that has been used: whichever key another program takes, nothing is written beside it."""
    store = await open_it(liveness="false")
    taken: Any = await store.choose(Alternative((Put(KEYS[0], b"", expires_at=Instant(MAX_VERSION)),)))
    await admin.set(f"{{{prefix}:n}}:{name}", "mine")
    before = {key: await admin.dump(key) async for key in admin.scan_iter(f"*{prefix}*")}
    ways: list[Any] = [
        (Put(KEYS[1], b"", expires_at=Instant(MAX_VERSION)),),
        (Delete(KEYS[0], taken.version),),
        (Put(KEYS[0], b"", taken.version), Delete(KEYS[2], taken.version)),
        (Put(KEYS[2], b""), Delete(KEYS[0], taken.version)),
    ]

    for way in ways[:2] if name != "records" else ways:
        with pytest.raises(StoreCorruptError):
            await store.choose(Alternative(way))

    assert {key: await admin.dump(key) async for key in admin.scan_iter(f"*{prefix}*")} == before
