"""Who may see a request: who sent it, who has its session, who shares its run, and operators of the tenant.

An id is no credential: it is shown in refusals, and gets into logs. To everybody else a request is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from holdfast.clock import later
from holdfast.errors import RequestNotFoundError
from holdfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from holdfast.flows.arrival import Principal
    from holdfast.flows.handle import Handle
    from holdfast.flows.ownership import Owners
    from holdfast.flows.records import RequestRecord
    from holdfast.scope import Scope
    from holdfast.stores.protocol import Snapshot

OPERATOR: Final = "operator"
"""The role that lets a principal see and cancel all requests of its tenant."""

SHARED_FOR: Final = 31 * 86_400.0
"""Seconds for which it is kept who shares a run: longer than any request takes, and is kept."""


@final
class Seeing:
    """Says who may see which request.

    Args:
        scope: Where it is written who shares a run.
        owners: Who has which session.
    """

    def __init__(self, scope: Scope, owners: Owners) -> None:
        self._scope, self._owners = scope, owners

    async def may_cancel(self, principal: Principal, handle: Handle) -> bool:
        """Tell whether a request is the principal's to cancel; if not, it shares the run, and may follow it.

        Raises:
            RequestNotFoundError: It is nothing to the principal.
        """
        record = handle.record
        if is_own(principal, record) or (record.session and await self._owners.has(principal, record.session)):
            return True
        if not await self._shares(principal, handle):
            raise RequestNotFoundError(handle.id)
        return False

    async def share(self, principal: Principal, handle: Handle) -> None:
        """Note that a principal shares the run of a request: from now on it may follow it by its id."""
        if is_own(principal, handle.record):
            return
        if handle.unstored is not None:
            handle.unstored.sharers = {*(handle.unstored.sharers or ()), principal.user}
            return
        key = handle.keys.sharer(principal.user)

        def decide(seen: Snapshot) -> Decision[None]:
            put = Put(key, b"1:{}", seen.version(key), expires_at=later(seen.at, SHARED_FOR))
            return Decision(None, () if seen.version(key) else (put,))

        await self._scope.update([key], decide)

    async def _shares(self, principal: Principal, handle: Handle) -> bool:
        if handle.unstored is not None:
            return principal.user in (handle.unstored.sharers or ())
        key = handle.keys.sharer(principal.user)
        return (await self._scope.read(key)).get(key) is not None


def is_own(principal: Principal, record: RequestRecord) -> bool:
    """Tell whether a principal has sent a request of its tenant, or may do with all of them as it likes.

    Those who have no name are one user: whoever of them knows the id.
    """
    return record.user == principal.user or OPERATOR in principal.roles
