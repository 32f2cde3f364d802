"""Exporting, importing and fencing, on the reference store."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import TYPE_CHECKING

import pytest

from standfast.errors import (
    InvalidArgumentError,
    StoreMovedError,
    UnsuitableStoreError,
)
from standfast.keys import RecordKey
from standfast.space import Space
from standfast.stores import Capabilities, Commit, Conflict, GroupedStore, Put
from standfast.stores.backend import EXPORTED, OPEN
from standfast.stores.memory import MemoryBackend, MemoryRecords, open_memory
from standfast.stores.transfer import SKEW, accept_loss, export_store, fence_store, import_store

if TYPE_CHECKING:
    from collections.abc import Iterator

K = RecordKey("space", "default", "k")
PRESENCE = RecordKey("space", "default", "presence", "p", "1")


async def exported(store: GroupedStore) -> bytes:
    """Return the file of an export."""
    sink = io.BytesIO()
    await export_store(store, contextlib.nullcontext(sink))
    return sink.getvalue()


async def test_a_store_is_frozen_and_its_copy_goes_on_above() -> None:
    """Records have the versions that they had; the next one is above all that the old store has given out."""
    old, new = open_memory(), open_memory()
    await put(old, K)
    await put(old, K.child("gone"))
    version = await put(old, K.child("high"))

    await import_store(new, io.BytesIO(await exported(old)), "file")

    assert (await new.read(K)).get(K) == (await old.read(K)).get(K)
    assert await put(new, K.child("next")) > version
    with pytest.raises(StoreMovedError):
        await put(old, K.child("next"))


async def test_who_is_there_does_not_move() -> None:
    """Presences stay behind."""
    old, new = open_memory(), open_memory()
    await put(old, K)
    await put(old, PRESENCE)

    footer = await import_store(new, io.BytesIO(await exported(old)), "file")

    assert footer.records == 1
    assert (await new.read(PRESENCE)).get(PRESENCE) is None


async def test_an_export_that_fails_leaves_the_store_in_use() -> None:
    """Nothing was moved, so it goes on."""
    store = open_memory()
    await put(store, K)

    @contextlib.contextmanager
    def full() -> Iterator[io.BytesIO]:
        yield io.BytesIO()
        raise OSError("no space left")

    with pytest.raises(OSError, match="space"):
        await export_store(store, full())

    assert await store.transfer().frozen() == OPEN
    await put(store, K.child("next"))


async def test_an_exported_store_is_exported_again() -> None:
    """With the same records; it stays frozen also if that fails."""
    store = open_memory()
    await put(store, K)
    first = (await exported(store)).splitlines()[1:-1]

    assert (await exported(store)).splitlines()[1:-1] == first
    assert await store.transfer().frozen() == EXPORTED


async def test_a_store_with_records_is_no_target() -> None:
    """Nothing is written, and it goes on."""
    old, new = open_memory(), open_memory()
    await put(old, K)
    version = await put(new, K.child("mine"))

    with pytest.raises(UnsuitableStoreError, match="mine"):
        await import_store(new, io.BytesIO(await exported(old)), "file")

    assert (await new.read(K)).get(K) is None
    assert isinstance(await new.commit(Put(K.child("mine"), b"", version)), Commit)


async def test_nothing_is_written_of_a_file_that_is_not_whole() -> None:
    """The target is not even frozen."""
    old, new = open_memory(), open_memory()
    await put(old, K)
    data = await exported(old)

    with pytest.raises(InvalidArgumentError, match="end is missing"):
        await import_store(new, io.BytesIO(data[: data.rindex(b'{"line"')]), "file")

    assert (await new.read(K)).get(K) is None
    await put(new, K)


async def test_an_import_that_broke_off_is_repeated() -> None:
    """Until it is through the store is frozen; the same file finishes it, another one does not."""
    old, new = open_memory(), open_memory()
    for number in range(500):
        await put(old, K.child(str(number)))
    data = await exported(old)

    with pytest.raises(KeyboardInterrupt):
        await import_store(new, io.BytesIO(data), "file", interrupt)
    with pytest.raises(StoreMovedError, match="repeat the import"):
        await put(new, K)
    with pytest.raises(StoreMovedError, match="another file"):
        await import_store(new, io.BytesIO(await exported(old)), "file")
    await import_store(new, io.BytesIO(data), "file")

    assert len([record async for page in new.transfer().dump() for record in page]) == 500
    await put(new, K)


async def test_a_repeated_import_writes_over_nothing_else() -> None:
    """Somebody thawed the store meanwhile and wrote; that is not lost without a word."""
    old, new = open_memory(), open_memory()
    await put(old, K)
    data = await exported(old)
    with pytest.raises(KeyboardInterrupt):
        await import_store(new, io.BytesIO(data), "file", interrupt)
    reason = await new.transfer().frozen()
    await new.transfer().thaw()
    await new.commit(Put(K, b"mine", (await new.read(K)).version(K)))
    await new.transfer().freeze(reason)

    with pytest.raises(UnsuitableStoreError, match="another record"):
        await import_store(new, io.BytesIO(data), "file")


async def test_a_value_that_does_not_fit_is_known_before() -> None:
    """The limits of the target are compared with the whole file first."""
    limits = Capabilities("small", atomic=True, durable=False, reach="process", wakes="push", max_value_bytes=3)
    old, new = open_memory(), on(MemoryRecords(capabilities=limits))
    await put(old, K)

    with pytest.raises(UnsuitableStoreError, match="5 bytes"):
        await import_store(new, io.BytesIO(await exported(old)), "file")

    assert await new.transfer().frozen() == OPEN


async def test_a_store_that_was_exported_is_no_target() -> None:
    """It would be taken for the one that goes on."""
    old = open_memory()
    data = await exported(old)

    with pytest.raises(StoreMovedError, match="exported"):
        await import_store(old, io.BytesIO(data), "file")


async def test_fencing_takes_everybody_for_gone() -> None:
    """What a process holds is free at once, whoever takes it has a higher fence, and a late commit fails."""
    memory = MemoryRecords()
    old, new, store = Space(on(memory)), Space(on(memory)), on(memory)
    async with old.mutex("k").hold(on_lost="tell") as hold:
        fenced = await fence_store(store)

        assert (fenced.presences, fenced.workers) == (1, 0)
        assert await asyncio.create_task(taken(new)) > hold.fence
        assert isinstance(await old.commit(hold.guard, Put(old.key("late"), b"")), Conflict)
    await new.aclose()
    await old.aclose()


async def test_an_accepted_loss_moves_every_fence_beyond_what_was_seen() -> None:
    """Also beyond versions that the store does not know any more, and those that were seen outside of it."""
    memory = MemoryRecords()
    old, new, store = Space(on(memory)), Space(on(memory)), on(memory)
    async with old.mutex("k").hold(on_lost="tell") as hold:
        seen = hold.fence + 10 * SKEW

        accepted = await accept_loss(store, seen=seen)

        assert accepted.above > seen
        assert accepted.presences == 1
        assert await asyncio.create_task(taken(new)) > accepted.above
    await new.aclose()
    await old.aclose()


async def test_fencing_moves_a_worker_on_so_that_what_it_guards_fails() -> None:
    """Its record stays, for others to find its runs by, with another version."""
    store = open_memory()
    key = RecordKey("space", "default", "worker", "p.1")
    version = await put(store, key)

    assert (await fence_store(store)).workers == 1

    assert (await store.read(key)).version(key) > version


async def taken(space: Space) -> int:
    """Take the lock, and return the fence."""
    async with space.mutex("k").hold(timeout="5s") as hold:
        return hold.fence


def on(memory: MemoryRecords) -> GroupedStore:
    """Return a handle."""
    return GroupedStore(MemoryBackend(memory))


def interrupt(_done: int, _of: int) -> None:
    """Break off an import, as Ctrl-C does."""
    raise KeyboardInterrupt


async def put(store: GroupedStore, key: RecordKey) -> int:
    """Create a record, and return its version."""
    done = await store.commit(Put(key, b"value"))
    assert isinstance(done, Commit)
    return done.versions[key]
