"""What a lock of a run leaves in its history, and how it is cleaned up from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Struct

from standfast.clock import Instant
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.records import Site
from standfast.locks.driving.run_entries import RunEntries
from standfast.stores.protocol import Check
from standfast.workflows.storing.records import RunKeys
from standfast.workflows.working.claiming import marks_of

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.workflows.running.host import Host


class LockWish(Struct, frozen=True):
    """What is asked for.

    Attributes:
        name: The key, for people.
        address: Where its line lies.
        site: What kind of line it is.
        operation: What the operation is called: ``mutex``, ``semaphore``, ``mode_lock``.
        timeout: How long to wait at most.
    """

    name: str
    address: tuple[str, ...]
    site: Site
    operation: str
    mode: str = ""
    weight: int = 1
    timeout: float | None = None
    max_hold: float | None = None
    note: str = ""


class Asked(Struct, frozen=True, omit_defaults=True):
    """What the first mark of a lock tells: enough to leave the line without the run's code."""

    address: tuple[str, ...]
    kind: str
    name: str
    owner: str
    permits: int | None = None
    alone: tuple[str, ...] = ()

    @property
    def site(self) -> Site:
        """What kind of line it is."""
        return Site(self.kind, Rules(self.permits, self.alone))


class Granting(Struct, frozen=True, omit_defaults=True):
    """What the second mark of a lock tells: its grant."""

    fence: int
    slot: int
    granted_at: Instant
    ends_at: Instant | None = None


ASKED: Final = msgspec.json.Decoder(Asked)
GRANTING: Final = msgspec.json.Decoder(Granting)


@final
class RunHold:
    """A lock that a run holds, for the length of an ``async with`` block.

    Attributes:
        key: The key.
        fence: Larger than that of every earlier holder. Give it to whatever the lock protects.
        granted_at: Since when, by the store's time.
        ends_at: When it is taken away at the latest; None: never.
        guard: A change that lets a commit, or a write to a state of the same space, happen only while this is held.
    """

    __slots__ = ("ends_at", "fence", "granted_at", "guard", "key", "slot")

    def __init__(self, key: str, held: Granting, grant: RecordKey) -> None:
        self.key, self.fence, self.slot = key, held.fence, held.slot
        self.granted_at, self.ends_at = held.granted_at, held.ends_at
        self.guard: Final = Check(grant, held.fence)

    def __repr__(self) -> str:
        return f"<RunHold {self.key} with fence {self.fence}>"


async def release_all(host: Host, run_id: str) -> int:
    """Leave every line that a run may stand in by its own code, for one that ends without it; return how many.

    Call it when the run has ended, or can do nothing any more. Doing it twice is harmless.
    """
    asked: dict[str, Asked] = {}
    for mark in await marks_of(host.space, RunKeys(host.space, run_id)):
        if mark.kind == "lock":
            asked[mark.id] = ASKED.decode(mark.value or b"{}")
        elif mark.kind == "released":
            asked.pop(mark.id, None)
    entries = RunEntries(host.lines)
    for operation, each in asked.items():
        await entries.leave(each.address, each.site, f"{run_id}:{operation}", owner=each.owner)
    return len(asked)
