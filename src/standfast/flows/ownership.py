"""Whose conversation a session is: who makes it has it, and no other user of the tenant gets in.

That is a user, a webhook or a schedule. What the application itself declared, a webhook or a schedule, may speak in any
session of its tenant; a session that it makes is its own, unless it acts for a user by name.

An id of a session is no credential. It is checked against who asks before a place is taken in its line, so that a
stranger can neither read a conversation nor keep its owner waiting.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from operator import methodcaller
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import ForbiddenError, InvalidArrivalError
from standfast.flows.arrival import check_id
from standfast.flows.records import SESSION_KEPT, session_key
from standfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.flows.arrival import Arrival, Principal
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot

SPEAKS_FOR_ITSELF: Final = frozenset({"http", "chat", "mcp"})
"""The transports whose principal is who talks. What comes by others is said on behalf of many."""

ENDPOINTS: Final = frozenset({"webhook", "schedule"})
"""The transports of what the application declared, and no user sends."""

REMEMBERED: Final = 10_000
"""How many owners a process remembers."""

_RANDOM_BYTES: Final = 16
_MADE_LENGTH: Final = 2 * _RANDOM_BYTES
_HEX: Final = frozenset("0123456789abcdef")


RENEWED: Final = 0.1
"""After which part of their time what is kept of a session is written anew, if it is used."""


class OwnerRecord(Struct, frozen=True, omit_defaults=True):
    """Who has a session. It is kept for a while after the last use, and so is the session's state.

    Attributes:
        user: The user; empty: whoever knows the id. Of an endpoint its name, such as ``"webhook:github"``.
        is_endpoint: It is no user's.
    """

    user: str
    is_endpoint: bool = False

    def is_usable_by(self, principal: Principal) -> bool:
        """Return True if a user may use the session. Of one whose owner has no name, the id is all there is to know."""
        return not self.is_endpoint and self.user in ("", principal.user)


OWNERS: Final[Codec[OwnerRecord]] = Codec(OwnerRecord, what="the owner of a session")


def is_of_endpoint(transport: str, user: str) -> bool:
    """Return True if a webhook or a schedule has sent a request by itself, and not for a user by name."""
    return transport in ENDPOINTS and (not user or user.startswith(f"{transport}:"))


def _maker_of(arrival: Arrival) -> OwnerRecord:
    """Return whose session it is that a webhook or a schedule makes."""
    if not is_of_endpoint(arrival.transport, arrival.user):
        return OwnerRecord(arrival.user)
    facts: Mapping[str, str] = arrival.metadata.get(arrival.transport, {})
    name = facts.get("name") or facts.get("id") or ""
    return OwnerRecord(f"{arrival.transport}:{name}", is_endpoint=True)


def new_session() -> str:
    """Return an id for a session that nobody can guess: 128 random bits."""
    return secrets.token_hex(_RANDOM_BYTES)


def is_made_here(session: str) -> bool:
    """Tell whether an id looks like those that :func:`new_session` makes."""
    return len(session) == _MADE_LENGTH and _HEX.issuperset(session)


def checked_session(principal: Principal, session: str) -> str:
    """Return an id that a caller chose. Whoever has no name may only use ids that cannot be guessed.

    Raises:
        InvalidArrivalError: It is empty, too long or not printable, or the caller has no name and the id is not one
            that was made here.
    """
    check_id("the session", session)
    if not session:
        raise InvalidArrivalError("the session", "is empty; leave it out to get a new one")
    if not principal.user and not is_made_here(session):
        raise InvalidArrivalError("the session", "was not made here; a caller without a name cannot choose its id")
    return session


@final
class Owners:
    """Who has which session. Those that were seen are remembered for a while, as far as there is room.

    Args:
        scope: Where it is written.
        kept: For how many seconds, after the last use.
    """

    def __init__(self, scope: Scope, kept: float = SESSION_KEPT) -> None:
        self._scope, self._kept = scope, kept
        self._known: Final[OrderedDict[tuple[str, str], tuple[OwnerRecord, float]]] = OrderedDict()

    def are_known(self, principal: Principal, session: str) -> bool:
        """Tell, without asking the store, that a session is somebody's to use."""
        known = self._remembered(principal.tenant, session)
        return known is not None and known.is_usable_by(principal)

    def has_to_claim(self, arrival: Arrival) -> bool:
        """Tell whether it has to be looked up in the store whose session it is that a request came in."""
        if arrival.transport in SPEAKS_FOR_ITSELF:
            return not self.are_known(arrival.principal, arrival.session)
        return arrival.transport in ENDPOINTS and self._remembered(arrival.tenant, arrival.session) is None

    def _remembered(self, tenant: str, session: str) -> OwnerRecord | None:
        known = self._known.get((tenant, session))
        return None if known is None or asyncio.get_running_loop().time() >= known[1] else known[0]

    async def check(self, principal: Principal, session: str) -> None:
        """Refuse somebody who is not the owner of a session. One that nobody has is everybody's.

        Raises:
            ForbiddenError: Another user of the tenant has it, or a webhook or a schedule.
        """
        key = self._key(principal.tenant, session)
        found = (await self._scope.read(key)).get(key)
        if found is not None:
            _compare(OWNERS.decode(found.value), principal)

    async def has(self, principal: Principal, session: str) -> bool:
        """Tell whether a session is somebody's to use. One that nobody has is nobody's."""
        if self.are_known(principal, session):
            return True
        key = self._key(principal.tenant, session)
        found = (await self._scope.read(key)).get(key)
        return found is not None and OWNERS.decode(found.value).is_usable_by(principal)

    async def claim_for(self, arrival: Arrival) -> None:
        """Make whoever sends a request the owner of its session, if that has none; refuse a user if it has another.

        Raises:
            ForbiddenError: Another user of the tenant has it, or a webhook or a schedule.
        """
        if arrival.transport in SPEAKS_FOR_ITSELF:
            await self.claim(arrival.principal, arrival.session)
        elif arrival.transport in ENDPOINTS:
            await self._claim(arrival.tenant, arrival.session, _maker_of(arrival), lambda _: True)

    async def claim(self, principal: Principal, session: str) -> None:
        """Make a user the owner of a session that has none; refuse if it has another.

        Raises:
            ForbiddenError: Another user of the tenant has it, or a webhook or a schedule.
        """
        is_usable = methodcaller("is_usable_by", principal)
        _compare(await self._claim(principal.tenant, session, OwnerRecord(principal.user), is_usable), principal)

    async def _claim(
        self, tenant: str, session: str, new: OwnerRecord, may_use: Callable[[OwnerRecord], bool]
    ) -> OwnerRecord:
        """Return who has a session then. It is kept longer if whoever asks may use it."""
        key, state = self._key(tenant, session), session_key(self._scope, tenant, session)

        def decide(seen: Snapshot) -> Decision[OwnerRecord]:
            found = seen.get(key)
            if found is None:
                return Decision(new, (Put(key, OWNERS.encode_own(new), expires_at=later(seen.at, self._kept)),))
            owner = OWNERS.decode(found.value)
            if not may_use(owner) or not self._is_to_be_renewed(found, seen):
                return Decision(owner)
            there = [each for each in (found, seen.get(state)) if each is not None]
            return Decision(owner, tuple([self._renewed(each, seen) for each in there]))

        owner = (await self._scope.update([key, state], decide)).answer
        self._known[tenant, session] = owner, asyncio.get_running_loop().time() + self._kept * RENEWED
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return owner

    def _is_to_be_renewed(self, record: Record, seen: Snapshot) -> bool:
        return record.expires_at is None or record.expires_at < later(seen.at, self._kept * (1 - RENEWED))

    def _renewed(self, record: Record, seen: Snapshot) -> Put:
        return Put(record.key, record.value, record.version, expires_at=later(seen.at, self._kept))

    def _key(self, tenant: str, session: str) -> RecordKey:
        return self._scope.key("owner", tenant, session)


def _compare(owner: OwnerRecord, principal: Principal) -> None:
    """Refuse a user who is not the owner."""
    if not owner.is_usable_by(principal):
        raise ForbiddenError(f"this session of {'an endpoint' if owner.is_endpoint else 'another user'}")
