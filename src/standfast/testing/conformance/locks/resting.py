"""Rest: what is left when nobody holds and nobody waits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.keys import RecordKey
from standfast.testing.conformance.locks.ground import LockGround, at_rest, entered, eventually, passes, waiting

if TYPE_CHECKING:
    import pytest

    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


def descriptors() -> int:
    """Count the open files of this process, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


class RestCases(LockGround):
    """Nothing is left behind."""

    async def test_no_record_is_left(self, space: Space, other: Space, kind: Kind) -> None:
        """After contention in two processes there are presences, which expire, and nothing else."""
        await asyncio.gather(*(passes(kind.one((space, other)[n % 2])) for n in range(10)))
        await at_rest(space)

        page = await space.scan(*RecordKey(space.namespace, space.tenant).within(), limit=100)
        assert all(record.expires_at is not None for record in page.records.values())

    async def test_a_closed_space_leaves_no_record(self, open_space: OpenSpace, other: Space, kind: Kind) -> None:
        """Not even a presence."""
        space = await open_space()
        await passes(kind.one(space))
        await space.aclose()

        page = await other.scan(*RecordKey(other.namespace, other.tenant).within(), limit=100)
        assert page.records == {}

    async def test_a_closed_space_leaves_no_task(self, open_space: OpenSpace, kind: Kind) -> None:
        """Whatever it did before."""
        before = asyncio.all_tasks()
        space, other = await open_space(), await open_space()
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))
        await holder.leave()
        await waiter.hold()
        await waiter.leave()

        await other.aclose()
        await space.aclose()

        assert asyncio.all_tasks() == before

    async def test_a_closed_space_leaves_no_thread_and_no_file(self, open_space: OpenSpace, kind: Kind) -> None:
        """Its keeper ends, and what it had opened is closed."""
        others = _keepers()  # of spaces that were never closed
        await passes(kind.one(warm := await open_space()))
        await warm.aclose()
        await eventually(lambda: _has_only(others))
        files = descriptors()
        space = await open_space()
        await passes(kind.one(space))

        await space.aclose()

        await eventually(lambda: _has_only(others))
        await eventually(lambda: _has_files(files))  # a connection is let go of a moment after it was closed

    async def test_closing_twice_is_fine(self, open_space: OpenSpace, kind: Kind) -> None:
        """The second time there is nothing to do."""
        space = await open_space()
        await passes(kind.one(space))
        await space.aclose()
        await space.aclose()

    async def test_a_process_forgets_keys_that_are_not_in_use(
        self, space: Space, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many keys it has seen, it keeps few of them in mind."""
        monkeypatch.setattr("standfast.locks.registry.REMEMBERED", 10)
        for n in range(50):
            await passes(space.mutex(f"key-{n}").hold())
        assert len(space._lines._lines) <= 11  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- what it keeps in mind


async def _has_files(most: int) -> bool:
    return descriptors() <= most


def _keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "standfast-keeper"}


async def _has_only(threads: set[threading.Thread]) -> bool:
    return _keepers() <= threads
