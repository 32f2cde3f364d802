"""Who may see a request: who sent it, who has its session, who shares its run, operators and viewers of the tenant.

What a webhook or a schedule has sent by itself is no user's, unless a user has its session. An id is no credential: it
is shown in refusals, so that a refused caller can follow the request that has the key, and gets into logs. Others of
the tenant see how a request is and since when, and nothing of what is in it. To other tenants it is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

import msgspec
from msgspec import UNSET, Struct

from standfast.clock import later
from standfast.flows.ownership import is_of_endpoint
from standfast.stores.protocol import Decision, Put
from standfast.workflows.storing.records import ITEMS, RunKeys

if TYPE_CHECKING:
    from standfast.flows.arrival import Principal
    from standfast.flows.handle import Handle
    from standfast.flows.ownership import Owners
    from standfast.flows.records import RequestRecord
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.storing.records import Item

OPERATOR: Final = "operator"
"""The role that lets a principal see and cancel all requests of its tenant."""

VIEWER: Final = "viewer"
"""The role that lets a principal see all requests of its tenant, and cancel none but its own."""

COLLECTED: Final = ("debounce", "batch")
"""The policies that put requests into one run before it begins."""

PAGE: Final = 500

SHARED_FOR: Final = 31 * 86_400.0
"""Seconds for which it is kept who shares a run: longer than any request takes, and is kept."""


Sight: TypeAlias = Literal["own", "contents", "status"]
"""What a principal may do with a request: all, follow it, or see how it is."""


class _By(Struct):
    """Who has sent a request of a burst."""

    user: str = ""


@final
class Seeing:
    """Says who may see which request.

    Args:
        scope: Where it is written who shares a run.
        owners: Who has which session.
    """

    def __init__(self, scope: Scope, owners: Owners) -> None:
        self._scope, self._owners = scope, owners

    async def sight(self, principal: Principal, handle: Handle) -> Sight:
        """Return what a principal of the request's tenant may see of it, and do with it."""
        record = handle.record
        if OPERATOR in principal.roles or (
            is_own(principal, record) and not is_of_endpoint(record.transport, record.user)
        ):
            return "own"
        if record.session and await self._owners.has(principal, record.session):
            return "own"
        if sees_all(principal) or await self._shares(principal, handle):
            return "contents"
        return "status"

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


async def is_shared(scope: Scope, handle: Handle) -> bool:
    """Tell whether another user than the one who sent a request shares its run, or is in the burst that it began."""
    if handle.unstored is not None:
        return bool(handle.unstored.sharers)
    if (await scope.scan(*handle.keys.sharers.within(), limit=1)).records:
        return True
    start, end = RunKeys(scope, handle.id).inbox()
    while handle.record.policy in COLLECTED:  # who has just come may not have been noted yet
        page = await scope.scan(start, end, limit=PAGE)
        items = (ITEMS.decode(each.value) for each in page.records.values())
        if any(_user_of(item) != handle.record.user for item in items):
            return True
        if page.more is None:
            break
        start = page.more
    return False


def _user_of(item: Item) -> str:
    return msgspec.json.decode(b"{}" if item.value is UNSET else item.value, type=_By).user


def sees_all(principal: Principal) -> bool:
    """Tell whether a principal may see all requests of its tenant, and who has sent them."""
    return not principal.roles.isdisjoint((OPERATOR, VIEWER))


def is_own(principal: Principal, record: RequestRecord) -> bool:
    """Tell whether a principal has sent a request of its tenant, or may do with all of them as it likes.

    Those who have no name are one user: whoever of them knows the id.
    """
    return record.user == principal.user or OPERATOR in principal.roles
