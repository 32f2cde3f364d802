"""Increments shared counters by guarded commits and by updates: ``count URL SEED INCREMENTS TASKS COUNTERS``.

Each round takes two counters in one commit, and one more by ``update``. Says at the end how many increments of each
kind were acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from standfast.stores import Commit, Decision, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import Record, Snapshot, Store

seen: dict[RecordKey, int] = {}


def note(versions: dict[RecordKey, int]) -> None:
    """Check that this process only ever sees a counter's version grow."""
    for name, version in versions.items():
        assert version > seen.get(name, 0), f"{name} went from {seen[name]} to {version}"
        seen[name] = version


def plus_one(name: RecordKey, record: Record | None) -> Put:
    """Return the change that increments a counter."""
    if record is None:
        return Put(name, b"1")
    return Put(name, b"%d" % (int(record.value) + 1), expected=record.version)


async def increment_both(store: Store, names: list[RecordKey]) -> None:
    """Increment counters in one guarded commit, again and again until it is the one that wins."""
    records: dict[RecordKey, Record | None] = dict.fromkeys(names)
    records.update((await store.read(*names)).records)
    while True:
        verdict = await store.commit(*(plus_one(name, records[name]) for name in names))
        if isinstance(verdict, Commit):
            return note(verdict.versions)
        assert verdict.current, "no guard failed, and yet it was a conflict"
        records.update(verdict.current)


async def increment_folded(store: Store, name: RecordKey) -> None:
    """Increment a counter by ``update``."""

    def decide(snapshot: Snapshot) -> Decision[None]:
        return Decision(None, (plus_one(name, snapshot.get(name)),))

    await store.update((name,), decide)


async def work(store: Store, chooser: random.Random, increments: int, counters: int) -> None:
    """Do the share of one task."""
    for _ in range(increments):
        first, second = chooser.sample(range(counters), 2)
        await increment_both(store, [key("guarded", first), key("guarded", second)])
        await increment_folded(store, key("folded"))


async def main(url: str, seed: int, increments: int, tasks: int, counters: int) -> None:
    """Open, wait for the word, count, report."""
    store = await open_store(url)
    say("ready")
    told()
    shares = (work(store, random.Random(seed * 1000 + n), increments // tasks, counters) for n in range(tasks))
    await asyncio.gather(*shares)
    await store.aclose()
    say("acknowledged", increments // tasks * tasks)
    told()


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0], *map(int, ARGUMENTS[1:])))
