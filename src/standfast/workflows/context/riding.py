"""Operations that change something in the store: the change and its mark are one commit.

Two marks are made of such an operation. The first is written together with the change, and with everything that was
noted before it. The second is noted when the code goes on, and says only that: other branches may have gone on while
the first was being written, and are to do so again, in the same order, when the run is replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from msgspec import UNSET, Raw

from standfast.errors import StoreError
from standfast.stores.protocol import Check, Conflict, Put
from standfast.workflows.running.control import Unload
from standfast.workflows.running.losing import raise_lost
from standfast.workflows.storing.records import CHUNKS, Mark, packed_chunk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch
    from standfast.workflows.running.journal import Journal, Taken
    from standfast.workflows.storing.records import RunKeys

T = TypeVar("T")

MOST_ALONG: Final = 20
"""How many other changes a ride takes along; if there are more, they are written first."""

LARGEST: Final = CHUNKS.max_bytes - 4_000
"""The most bytes of a mark's value: there must be room for the rest of its record."""


class RideRefusedError(Exception):
    """A guard does not hold: nothing was written."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


@final
class Ride:
    """What lies in a run's journal, on its way into a commit that does more.

    Attributes:
        keys: Every key that it looks at or changes.
        before: When the commit must be done.
    """

    __slots__ = ("_alongside", "_chunks", "_guards", "_holds", "_taken", "added", "before", "keys", "versions")

    def __init__(self, journal: Journal, run: RunKeys, taken: Taken, line: tuple[str, ...]) -> None:
        own, *_ = journal.guards()
        holds = {key: held for key, held in journal.holds.items() if not line or held.line != line}
        self._taken, self._holds = taken, holds
        self._guards: Final = (own, *(Check(key, held.fence) for key, held in holds.items()))
        last = taken.position + len(taken.marks)
        self._chunks: Final = (run.chunk(taken.position), run.chunk(last))
        ends = [held.ends_at for held in holds.values() if held.ends_at is not None]
        self.before: Final[Instant | None] = min(ends, default=None)
        guarded = [guard.key for guard in self._guards]
        self.keys: Final = tuple(dict.fromkeys((*guarded, *self._chunks, *taken.alongside)))
        self.added: int | None = None
        self.versions: Mapping[RecordKey, int] = {}

    def check(self, seen: Snapshot) -> None:
        """Refuse to go on if a guard does not hold in a snapshot of all keys."""
        fixed = (*self._guards, *self._taken.alongside.values())
        wrong = {each.key: seen.get(each.key) for each in fixed if seen.version(each.key) != each.expected}
        if wrong or (self.before is not None and self.before <= seen.at):
            raise RideRefusedError(Conflict(seen.at, wrong))

    def changes(self, *marks: Mark) -> tuple[Change, ...]:
        """Return everything that was noted, the guards, and more marks, as changes."""
        self.added = len(marks)
        return (*self.others(), *self.written(*marks))

    def others(self) -> tuple[Change, ...]:
        """Return everything but the marks."""
        return (*self._guards, *self._taken.alongside.values())

    def written(self, *marks: Mark) -> tuple[Change, ...]:
        """Return what was noted, and more marks, as parts of the history."""
        self.added = len(marks)
        both = (*self._taken.marks, *marks)
        if not both:
            return ()
        if _size(both) < LARGEST // 2 or not self._taken.marks or not marks:
            return (Put(self._chunks[0], packed_chunk(both)),)
        return (
            Put(self._chunks[0], packed_chunk(self._taken.marks)),
            Put(self._chunks[1], packed_chunk(marks)),
        )


async def ride(
    activation: Activation,
    branch: Branch,
    operation: str,
    send: Callable[[Ride], Awaitable[T]],
    *,
    line: tuple[str, ...] = (),
    leaving: bool = False,
) -> T:
    """Let ``send`` commit something together with what was noted so far. If it is refused, it is sent again.

    Args:
        activation: The run.
        branch: Where the operation is.
        operation: Its id: a lock that is lost is raised there.
        send: Commits. It calls :meth:`Ride.changes` if the marks are part of it.
        line: The line that the commit is a step of: its own records cannot guard it.
        leaving: It is done also if a lock is lost.
    """
    journal = activation.journal
    if journal is None:
        raise Unload
    while True:
        if not leaving and branch.lost is not None:
            raise_lost(activation, branch, operation)
        await activation.check_may_act()
        conflict: Conflict | None = None
        if journal.is_heavy(min(MOST_ALONG, activation.host.space.at_most(100) // 4)):
            await activation.flush()
        taken = await journal.begin()
        sent = Ride(journal, activation.keys, taken, line)
        try:
            return await send(sent)
        except RideRefusedError as refused:
            sent.added = None
            conflict = refused.conflict
        except StoreError:
            sent.added = None
        except BaseException:
            sent.added = None
            raise
        finally:
            journal.end(taken, sent.added, sent.versions)
        if conflict is None:
            await _keep(activation)
            raise Unload
        activation.refused(conflict)


async def _keep(activation: Activation) -> None:
    """Write what was noted before a ride that came to nobody knows what; the run is loaded again from its records."""
    await activation.flush()  # refused, if it was written
    activation.abandon()


def go_on(activation: Activation, operation: str, value: bytes | None = None) -> Mark:
    """Note that the code goes on here, after a ride."""
    if activation.is_unloading:
        raise Unload
    mark = Mark("went_on", operation, activation.host.now(), UNSET if value is None else Raw(value))
    activation.note(mark)
    return mark


def _size(marks: tuple[Mark, ...]) -> int:
    return sum(len(mark.value) for mark in marks if isinstance(mark.value, Raw))


def known(answer: Any) -> Mapping[RecordKey, int]:  # noqa: ANN401 -- a Commit, a Decided, a Worked, or a Conflict
    """Return the versions that a commit has written, if it tells."""
    return getattr(answer, "versions", None) or {}
