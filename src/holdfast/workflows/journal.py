"""A loaded run's history as it grows: marks that are noted, and then written together.

They are written before the next effect begins, before the run is unloaded, and in the commit that ends it; so a step
costs one commit, and reading the time none. Every write is guarded by the owner's grant: whoever was taken for dead,
and is not, writes nothing any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from msgspec import Raw, Struct

from holdfast.keys import RecordKey
from holdfast.stores.group import verdict_of
from holdfast.stores.protocol import Check, Commit, Conflict, Put
from holdfast.workflows.records import CHUNKS, Chunk

if TYPE_CHECKING:
    from holdfast.stores.protocol import Change
    from holdfast.workflows.host import Host
    from holdfast.workflows.records import Mark, RunKeys


class Claim(Struct, frozen=True):
    """The right to drive a run: where the owner's grant lies, and its version, the fence.

    ``is_first``: it was made together with the run, so there can be no news for the run that is older than it.
    """

    key: RecordKey
    fence: int
    presence: str
    life_version: int
    is_first: bool = False


class Held(Struct, frozen=True):
    """The grant of a lock that the run holds."""

    fence: int
    name: str


@final
class Journal:
    """What a run has done that is not written yet, and the guards with which it is.

    Attributes:
        holds: The grants of locks that the run holds. A commit is refused if one of them is gone.
    """

    def __init__(self, host: Host, keys: RunKeys, claim: Claim, written: int) -> None:
        self._host, self._keys, self._claim = host, keys, claim
        self._written = written
        self._pending: list[Mark] = []
        self._alongside: dict[RecordKey, Change] = {}
        self._flushing: asyncio.Future[None] | None = None
        self.holds: Final[dict[RecordKey, Held]] = {}

    @property
    def position(self) -> int:
        """How many marks the history has, those that are not written included."""
        return self._written + len(self._pending)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        return bool(self._pending or self._alongside)

    @property
    def is_flushing(self) -> bool:
        """Whether something is being written."""
        return self._flushing is not None

    def note(self, mark: Mark, *alongside: Change) -> None:
        """Add a mark, and changes that belong into the commit that writes it."""
        self._pending.append(mark)
        for change in alongside:
            self._alongside[change.key] = change

    def add(self, *changes: Change) -> None:
        """Add changes to the next commit."""
        for change in changes:
            self._alongside[change.key] = change

    async def flush(self) -> Conflict | None:
        """Write everything that was noted so far; return what was in the way."""
        while self._flushing is not None:
            await asyncio.shield(self._flushing)
        if not self._pending and not self._alongside:
            return None
        marks, alongside = self._pending, self._alongside
        self._pending, self._alongside = [], {}
        done = self._flushing = asyncio.get_running_loop().create_future()
        is_written = False
        try:
            answer = await self._host.space.commit(*self.guards(), *self._chunks(marks), *alongside.values())
            self._host.saw(answer.at)
            is_written = isinstance(answer, Commit)
            return answer if isinstance(answer, Conflict) else None
        except asyncio.CancelledError as cancelled:
            is_written = isinstance(verdict_of(cancelled), Commit)
            raise
        finally:
            if is_written:
                self._written += len(marks)
            else:
                self._pending, self._alongside = marks + self._pending, alongside | self._alongside
            self._flushing = None
            done.set_result(None)

    def guards(self) -> tuple[Change, ...]:
        """Return the guards of every commit: the owner's grant, and the grants of locks that the run holds."""
        own = Check(self._claim.key, self._claim.fence)
        if not self.holds:
            return (own,)
        return (own, *(Check(key, held.fence) for key, held in self.holds.items()))

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        while self._flushing is not None:
            await asyncio.shield(self._flushing)

    def rest(self) -> tuple[Change, ...]:
        """Take out everything that is not written yet, for a commit that does more than that and is the last one."""
        changes = (*self._chunks(self._pending), *self._alongside.values())
        self._written += len(self._pending)
        self._pending, self._alongside = [], {}
        return changes

    def _chunks(self, marks: list[Mark]) -> tuple[Change, ...]:
        if not marks:
            return ()
        position = self._written
        if sum(len(mark.value) for mark in marks if isinstance(mark.value, Raw)) < CHUNKS.max_bytes // 4:
            return (Put(self._keys.chunk(position), CHUNKS.encode_own(Chunk(tuple(marks)))),)
        return tuple(
            Put(self._keys.chunk(position + n), CHUNKS.encode_own(Chunk((mark,)))) for n, mark in enumerate(marks)
        )
