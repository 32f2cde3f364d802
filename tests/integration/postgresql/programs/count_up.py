"""Open a store and count on records that others count on too, in random order; say how often that succeeded.

Arguments: the URL, handles, commits of each, keys, the seed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Delete, Put
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from standfast.stores.protocol import Change, Snapshot

NAMESPACE = RecordKey("counted")


def counted(seen: Snapshot, keys: list[RecordKey], rng: random.Random) -> list[Change]:
    """Return changes that add one to each of some keys, and compare others; one that is nine goes away instead."""
    changes: list[Change] = []
    for key in keys:
        record = seen.get(key)
        if record is not None and rng.random() < 0.3:
            changes.append(Check(key, record.version))
        elif record is not None and record.value == b"9":
            changes.append(Delete(key, record.version))
        else:
            number = 0 if record is None else int(record.value)
            changes.append(Put(key, b"%d" % (number + 1), seen.version(key)))
    rng.shuffle(changes)
    return changes


async def count(store: GroupedStore, commits: int, keys: int, rng: random.Random) -> int:
    """Commit so often; return by how much everything has grown, nines that went away left out."""
    grown = done = 0
    while done < commits:
        chosen = [NAMESPACE.child(str(number)) for number in rng.sample(range(keys), 4)]
        seen = await store.read(*chosen)
        changes = counted(seen, chosen, rng)
        if isinstance(await store.commit(*changes), Commit):
            done += 1
            grown += sum(isinstance(change, Put) for change in changes)
            grown -= 9 * sum(isinstance(change, Delete) for change in changes)
    return grown


async def main(url: str, handles: int, commits: int, keys: int, seed: int) -> None:
    """Count with several handles at once."""
    stores = [await open_store(url) for _ in range(handles)]
    try:
        tasks = [count(store, commits, keys, random.Random(f"{seed} {number}")) for number, store in enumerate(stores)]
        print(sum(await asyncio.gather(*tasks)))
    finally:
        for store in stores:
            await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
