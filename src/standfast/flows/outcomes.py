"""What a durable request writes: nothing of it holds unless this worker drives its run, and it has its turn.

Its outcome is one commit: the record with the result, what was done to the session, its idempotency key, and that it
counts no longer as unfinished.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

from msgspec import structs

from standfast.errors import StoreError
from standfast.flows.arbiters.protocol import Beside
from standfast.flows.calling import session_put
from standfast.flows.idempotency import kept_until_end, place_of
from standfast.flows.newest import newest_key, newest_put, run_with_newer
from standfast.flows.records import REQUESTS, RequestKeys, session_key
from standfast.flows.storage import Weighed
from standfast.flows.viewing import final_put
from standfast.stores.protocol import Check, Delete
from standfast.workflows.running.insisting import insist

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from standfast.flows.arbiters.protocol import Turn
    from standfast.flows.call import Call
    from standfast.flows.records import RequestRecord
    from standfast.flows.serving import Server
    from standfast.flows.session import Operation
    from standfast.flows.tasks import Task
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.running.activation import Activation

T = TypeVar("T")

KEYS_AT_ONCE: Final = 50
"""How many idempotency keys of a burst are changed in one commit."""


class DeposedError(Exception):
    """Another worker drives the run by now. Only raised and caught in durable requests."""


@final
class Outcomes:
    """The commits of one durable request.

    Args:
        server: Where its step runs.
        activation: Its run.
        task: The request.
        calls: What it stands for: more than one if they were collected; the last is its own.

    Attributes:
        keys: Where its records lie.
        turn: Its turn, once it has it.
    """

    def __init__(self, server: Server, activation: Activation, task: Task, calls: Sequence[Call]) -> None:
        self._server, self._activation, self._calls = server, activation, calls
        self._last: Final = calls[-1]
        self._newest: Final = newest_key(server.space, task.action, self._last)
        self.keys: Final = RequestKeys(server.space, self._last.tenant, task.id)
        self.turn: Turn | None = None

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, and again if it fails, as long as this process is taken for alive."""
        try:
            return await insist(self._activation, ask)
        except StoreError:
            if self.turn is not None:
                self.turn.keep()  # the step is to come again
            raise

    async def record(self) -> RequestRecord | None:
        """Return what is written of the request, if it is still known."""
        found = (await self._server.space.read(self.keys.record)).get(self.keys.record)
        return None if found is None else REQUESTS.decode(found.value)

    async def newer(self) -> str:
        """Return the run of a newer event than this one's, if there was one; empty if not."""
        if self._newest is None:
            return ""
        by = await self.insist(partial(run_with_newer, self._server.space, self._newest, self._last.at))
        return by if by and by != self.keys.id else ""

    # --- commits -------------------------------------------------------------------------------------------------

    async def commit(self, beside: Beside) -> Mapping[RecordKey, int]:
        """Write something on the way."""
        guarded = self._guarded(beside)
        return await (self._server.update(guarded) if self.turn is None else self.turn.update(guarded))

    async def finish(self, record: RequestRecord, operations: tuple[Operation, ...]) -> None:
        """Write down how it ended, in the commit that ends its turn."""
        weighed, turn = Weighed(self._outcome(record, operations)), self.turn
        beside = self._guarded(weighed.beside)
        await self.insist(partial(self._server.update if turn is None else turn.finish, beside))
        self.kept(weighed.grown)
        if len(self._calls) > 1:
            await self._let_keys_go(record.keep)

    def kept(self, size: int) -> None:
        """Take note that so many bytes more are kept of its tenant."""
        self._server.tenants.storage.add(self.keys.tenant, size)

    async def lose(self, record: RequestRecord) -> None:
        """Write down how it ended that has no turn, or has lost it."""
        await self.insist(partial(self._server.update, self._guarded(self._outcome(record, ()))))

    async def _let_keys_go(self, keep: float) -> None:
        """Let the idempotency keys of the others of a burst go when this request is forgotten; else they go later."""
        space = self._server.space
        keys = [place_of(space, call.arrival) for call in self._calls[:-1] if call.idempotency_key]
        most = space.at_most(KEYS_AT_ONCE)
        with suppress(StoreError):
            for start in range(0, len(keys), most):
                await self._server.update(_ending(tuple(keys[start : start + most]), self.keys.id, keep))

    def _guarded(self, beside: Beside) -> Beside:
        """Let changes happen only while this worker drives the run."""
        claim = self._activation.claim
        if claim is None:
            raise DeposedError

        def decide(position: int, seen: Snapshot) -> Sequence[Change]:
            if seen.version(claim.key) != claim.fence:
                raise DeposedError
            changes = beside.decide(position, seen)
            return (*changes, Check(claim.key, claim.fence)) if changes else ()

        return Beside((*beside.keys, claim.key), decide)

    def _outcome(self, record: RequestRecord, operations: tuple[Operation, ...]) -> Beside:
        space, keys, kept = self._server.space, self.keys, self._server.tenants.limits.session_kept
        session = session_key(space, self._last.tenant, self._last.session)
        claim = (place_of(space, self._last.arrival),) if self._last.idempotency_key else ()
        newest = self._newest if record.status == "completed" else None

        def decide(_: int, seen: Snapshot) -> Sequence[Change]:
            found = seen.get(keys.record)
            if found is None or (there := REQUESTS.decode(found.value)).has_ended:
                return ()
            told = structs.replace(record, cancelled_by=record.cancelled_by or there.cancelled_by)
            over = told if record.status == "cancelled" else record
            changes: list[Change] = [final_put(keys, over, found.version, seen.at)]
            for key in claim:
                changes += kept_until_end(key, keys.id, record.keep, seen)
            if version := seen.version(keys.unfinished):
                changes.append(Delete(keys.unfinished, version))
            changes += [session_put(session, operations, seen, kept)] if operations else []
            return changes if newest is None else [*changes, newest_put(newest, self._last.at, keys.id, seen)]

        named = (keys.record, keys.unfinished, *claim, session if operations else None, newest)
        return Beside(tuple(key for key in named if key is not None), decide)


def _ending(keys: tuple[RecordKey, ...], request_id: str, keep: float) -> Beside:
    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        return [put for key in keys for put in kept_until_end(key, request_id, keep, seen)]

    return Beside(keys, decide)
