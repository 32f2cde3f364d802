"""Modes: who may be inside together by what they do there, and nobody starved by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.errors import ReentryError, WouldWaitError
from standfast.keys import KeyFamily
from standfast.testing.conformance.locks.ground import (
    KEY,
    LockGround,
    all_of,
    entered,
    leftovers,
    passes,
    read_write,
    waiting,
)

if TYPE_CHECKING:
    from standfast.locks import ModeLock
    from standfast.space import Space

GRAPH = KeyFamily("lock-conformance-graph", modes=("read", "index"), alone=("write",))

TOGETHER = {("read", "read"), ("index", "index")}


def graph(space: Space) -> ModeLock:
    """Return a lock with two modes that share and one that does not."""
    return space.mode_lock(KEY, modes=("read", "index"), alone=("write",))


class ModeCases(LockGround):
    """Locks that are held in one mode or another."""

    @pytest.mark.parametrize("asked", ["read", "index", "write"])
    @pytest.mark.parametrize("held", ["read", "index", "write"])
    async def test_only_holders_of_one_shared_mode_are_together(
        self, space: Space, other: Space, held: str, asked: str
    ) -> None:
        """Each mode with each other: the matrix."""
        holder = await entered(graph(space).hold(held))
        try:
            await passes(graph(other).try_hold(asked))
        except WouldWaitError:
            together = False
        else:
            together = True
        assert together == ((held, asked) in TOGETHER)
        await holder.leave()

    async def test_a_reader_does_not_pass_a_writer(self, space: Space, other: Space) -> None:
        """While a writer waits, readers come behind it, though they could read with those inside."""
        reader = await entered(read_write(space).hold("read"))
        writer = await waiting(space, read_write(other).hold("write"))
        with pytest.raises(WouldWaitError):
            await passes(read_write(other).try_hold("read"))
        late = await waiting(space, read_write(space).hold("read"))

        await reader.leave()
        await writer.hold()
        assert not late.is_inside
        await all_of([writer, late])

    async def test_readers_behind_a_writer_get_in_together(self, space: Space, other: Space) -> None:
        """As many as stand together in the line, in every process."""
        writer = await entered(read_write(space).hold("write"))
        readers = [await waiting(space, read_write((space, other)[n % 2]).hold("read")) for n in range(4)]
        last = await waiting(space, read_write(other).hold("write"))

        await writer.leave()
        for reader in readers:
            await reader.hold()
        assert not last.is_inside
        await all_of([*readers, last])

    async def test_the_hold_says_its_mode(self, space: Space) -> None:
        """For the code that is handed a hold."""
        async with read_write(space).hold("read") as hold:
            assert hold.mode == "read"

    async def test_one_who_reads_cannot_wait_to_write(self, space: Space) -> None:
        """It would wait for itself to stop reading."""
        async with read_write(space).hold("read"):
            with pytest.raises(ReentryError):
                await passes(read_write(space).hold("write"))
        assert await leftovers(space) == []

    async def test_one_who_reads_cannot_read_again_behind_a_writer(self, space: Space, other: Space) -> None:
        """The writer waits for the reader, and the reader would wait for the writer."""
        async with read_write(space).hold("read"):
            writer = await waiting(space, read_write(other).hold("write"))
            with pytest.raises(ReentryError):
                await passes(read_write(space).hold("read"))
        await all_of([writer])

    async def test_one_who_reads_may_read_again(self, space: Space) -> None:
        """With nobody in between it need not wait."""
        async with read_write(space).hold("read"):
            await passes(read_write(space).hold("read"))
        assert await leftovers(space) == []

    async def test_a_family_brings_its_modes_along(self, space: Space, other: Space) -> None:
        """They are declared once, with the keys."""
        holder = await entered(space.mode_lock(GRAPH("a")).hold("read"))
        await passes(other.mode_lock(GRAPH("a")).try_hold("read"))
        with pytest.raises(WouldWaitError):
            await passes(other.mode_lock(GRAPH("a")).try_hold("write"))
        await holder.leave()
