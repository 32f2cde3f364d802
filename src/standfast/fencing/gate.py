"""A gate for services that receive fences: it remembers the highest of each resource in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.codec import Codec
from standfast.errors import StaleFenceError
from standfast.fencing._checks import check_fence, check_resource
from standfast.stores.protocol import Decision, Delete, Put

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

_FENCES: Final[Codec[int]] = Codec(int, what="the highest fence of a resource")


@final
class FenceGate:
    """Admits requests by their fence, and refuses those of a holder that has been replaced.

    >>> async with sf.open("memory://") as space:
    ...     gate = FenceGate(space)
    ...     await gate.admit("invoice-7", 12)
    ...     await gate.admit("invoice-7", 11)
    Traceback (most recent call last):
        ...
    standfast.errors.StaleFenceError: fence 11 is stale at 'invoice-7', which has seen 12; another holder writes now

    The gate judges when it is asked. What the service does after it was admitted is done later, and a request with a
    higher fence may be admitted in between: finish one request of a resource before the next one is admitted (with an
    :class:`~standfast.Exclusion` or a lock of your own), or let the database itself compare with
    :class:`~standfast.fencing.SqlFenceGuard`.

    A gate keeps one small record for each resource for good, because a gate that forgets admits a stale writer; call
    :meth:`forget` for a resource that will never be written again.

    Args:
        scope: The space of the receiving service. It need not be that of the writers.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope

    async def admit(self, resource: str, fence: int) -> None:
        """Let a request with ``fence`` go on, or refuse it. The same fence is admitted as often as it comes.

        Raises:
            StaleFenceError: The resource has seen a higher fence. Refuse the request, for example with status 409.
            InvalidFenceError: The fence is no whole number from 1 to 2**53 - 1.
        """
        record, fence = self._record(resource), check_fence(fence)

        def decide(seen: Snapshot) -> Decision[None]:
            found = seen.get(record)
            highest = 0 if found is None else _FENCES.decode(found.value)
            if highest > fence:
                raise StaleFenceError(resource, fence, highest)
            if highest == fence:
                return Decision(None)
            return Decision(None, (Put(record, _FENCES.encode(fence), seen.version(record)),))

        await self._scope.update((record,), decide)

    async def highest(self, resource: str) -> int:
        """Return the highest fence that a resource has seen; 0 if none."""
        record = self._record(resource)
        found = (await self._scope.read(record)).get(record)
        return 0 if found is None else _FENCES.decode(found.value)

    async def forget(self, resource: str) -> None:
        """Forget a resource. From then on any fence is admitted to it."""
        record = self._record(resource)

        def decide(seen: Snapshot) -> Decision[None]:
            found = seen.get(record)
            return Decision(None, () if found is None else (Delete(record, found.version),))

        await self._scope.update((record,), decide)

    def _record(self, resource: str) -> RecordKey:
        return self._scope.key_for("fence", check_resource(resource))
