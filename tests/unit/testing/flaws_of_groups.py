"""Flaws of updates, groups, hints and attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import structs

from standfast.errors import StoreError
from standfast.stores.backend import Applied, CommitRider, RiderBatch, UpdateRider
from standfast.stores.protocol import Commit, Conflict, Put, Record, Snapshot
from tests.unit.testing.flaws import flaw
from tests.unit.testing.tiny import Tiny

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, Rider
    from standfast.stores.protocol import Wake


# --- updates and groups ---------------------------------------------------------------------------------------------


@flaw
class _LastFirst(Tiny):
    """Riders are served in the wrong order."""

    def order(self, riders: Sequence[Rider]) -> list[int]:
        return super().order(riders)[::-1]


@flaw
class _UpdatesFirst(Tiny):
    """Updates are served before commits."""

    def order(self, riders: Sequence[Rider]) -> list[int]:
        return sorted(super().order(riders), key=lambda n: isinstance(riders[n], CommitRider))


@flaw
class _LostUpdates(Tiny):
    """Updates of one group all see the records from before it."""

    def apply_batch(self, batch: RiderBatch) -> Applied:
        self.before = dict(self.rows)
        return super().apply_batch(batch)

    def update(self, rider: UpdateRider) -> Any:
        present, self.rows = self.rows, self.before
        seen = self.snapshot(rider.keys)
        self.rows = present
        return super().update(UpdateRider(rider.keys, lambda _: rider.decide(seen)))

    def check(self, decision: Any, seen: Snapshot, rider: UpdateRider) -> None:
        """Let it pass."""


@flaw
class _UncheckedDecisions(Tiny):
    """A decision may change any key at any version."""

    def check(self, decision: Any, seen: Snapshot, rider: UpdateRider) -> None:
        """Let it pass."""


@flaw
class _OneFailsAll(Tiny):
    """An error in one decision fails the whole group."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@flaw
class _OneConflictForAll(Tiny):
    """One conflict makes the rest of the group lose."""

    def apply_batch(self, batch: RiderBatch) -> Applied:
        self.lost_already: Conflict | None = None
        return super().apply_batch(batch)

    def serve(self, rider: Rider) -> Outcome:
        outcome = self.lost_already or super().serve(rider)
        if isinstance(outcome, Conflict):
            self.lost_already = outcome
        return outcome


@flaw
class _LooksAreWrites(Tiny):
    """A decision without changes still writes."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        self.write(Put(key, old.value) for key in rider.keys if (old := self.present(key, self.now())))
        return outcome


@flaw
class _SwallowsErrors(Tiny):
    """An error in a decision is raised as another one."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        return StoreError(self.name, "failed") if isinstance(outcome, Exception) else outcome


@flaw
class _TornReads(Tiny):
    """A read of several keys is not one snapshot."""

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        records: dict[RecordKey, Record] = {}
        for key in keys:
            records.update(self.snapshot([key]).records)
            await asyncio.sleep(0)
        return Snapshot(self.now(), records)


@flaw
class _StaleReads(Tiny):
    """A read may be one commit behind."""

    def apply_batch(self, batch: RiderBatch) -> Applied:
        self.behind = dict(self.rows)
        return super().apply_batch(batch)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        present, self.rows = self.rows, getattr(self, "behind", self.rows)
        try:
            return self.snapshot(keys)
        finally:
            self.rows = present


# --- hints, attempts and limits -------------------------------------------------------------------------------------


@flaw
class _PrefixOfText(Tiny):
    """A watch hears of keys that only begin alike."""

    def hears(self, prefix: RecordKey, key: RecordKey) -> bool:
        return key.startswith(prefix[:-2])


@flaw
class _OnlyTheKeyItself(Tiny):
    """A watch does not notify of what lies below its prefix."""

    def hears(self, prefix: RecordKey, key: RecordKey) -> bool:
        return key == prefix


@flaw
class _NoWakes(Tiny):
    """Wakes are not sent."""

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:  # noqa: ARG002 -- not looking at it is the flaw
        super().notify(changed, ())


@flaw
class _HintsForConflicts(Tiny):
    """A commit that loses sends hints all the same."""

    def commit(self, rider: CommitRider) -> Commit | Conflict:
        verdict = super().commit(rider)
        if isinstance(verdict, Conflict):
            self.changed.extend(change.key for change in rider.changes)
        return verdict


@flaw
class _EarlyHints(Tiny):
    """Hints are sent before the commit can be seen."""

    async def apply(self, batch: RiderBatch) -> Applied:
        rows = dict(self.rows)
        applied = await super().apply(batch)
        written, self.rows = self.rows, rows
        self.notify(applied.changed, applied.wakes)
        for _ in range(5):
            await asyncio.sleep(0)
        self.rows = written
        return structs.replace(applied, changed=(), wakes=())

    def apply_now(self, batch: RiderBatch) -> Applied | None:  # noqa: ARG002 -- as the rule is called
        return None


@flaw
class _ClosedCanLand(Tiny):
    """An attempt that was closed can still land."""

    def apply_batch(self, batch: RiderBatch) -> Applied:
        self.attempts.pop(batch.attempt, None)
        return super().apply_batch(batch)


@flaw
class _LandedIsForgotten(Tiny):
    """An attempt that landed is settled as never written."""

    async def settle(self, attempt: str) -> Applied | None:
        self.attempts.setdefault(attempt, None)
        return None


@flaw
class _BoastsOfRoom(Tiny):
    """It declares more changes a commit than the contract allows."""

    capabilities = structs.replace(Tiny.capabilities, max_changes=1_000)


@flaw
class _NotAtomic(Tiny):
    """It declares that it is not atomic."""

    capabilities = structs.replace(Tiny.capabilities, atomic=False)
