"""Whose conversation a session is: the first who uses it has it, and no other user of the tenant gets in.

An id of a session is no credential. It is checked against who asks before a place is taken in its line, so that a
stranger can neither read a conversation nor keep its owner waiting.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import ForbiddenError, InvalidArrivalError
from standfast.flows.arrival import check_id
from standfast.flows.records import SESSION_KEPT, session_key
from standfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from standfast.flows.arrival import Principal
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot

SPEAKS_FOR_ITSELF: Final = frozenset({"http", "chat", "mcp"})
"""The transports whose principal is who talks. What comes by others is said on behalf of many."""

REMEMBERED: Final = 10_000
"""How many owners a process remembers."""

_RANDOM_BYTES: Final = 16
_MADE_LENGTH: Final = 2 * _RANDOM_BYTES
_HEX: Final = frozenset("0123456789abcdef")


RENEWED: Final = 0.1
"""After which part of their time what is kept of a session is written anew, if it is used."""


class OwnerRecord(Struct, frozen=True):
    """Who has a session. It is kept for a while after the last use, and so is the session's state."""

    user: str


OWNERS: Final[Codec[OwnerRecord]] = Codec(OwnerRecord, what="the owner of a session")


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
        self._known: Final[OrderedDict[tuple[str, str], tuple[str, float]]] = OrderedDict()

    def are_known(self, principal: Principal, session: str) -> bool:
        """Tell, without asking the store, that a session is somebody's to use."""
        known = self._known.get((principal.tenant, session))
        if known is None or known[0] not in ("", principal.user):
            return False
        return asyncio.get_running_loop().time() < known[1]

    async def check(self, principal: Principal, session: str) -> None:
        """Refuse somebody who is not the owner of a session. One that nobody has is everybody's.

        Raises:
            ForbiddenError: Another user of the tenant has it.
        """
        key = self._key(principal, session)
        found = (await self._scope.read(key)).get(key)
        if found is not None:
            _compare(OWNERS.decode(found.value).user, principal)

    async def has(self, principal: Principal, session: str) -> bool:
        """Tell whether a session is somebody's to use. One that nobody has is nobody's."""
        if self.are_known(principal, session):
            return True
        key = self._key(principal, session)
        found = (await self._scope.read(key)).get(key)
        return found is not None and OWNERS.decode(found.value).user in ("", principal.user)

    async def claim(self, principal: Principal, session: str) -> None:
        """Make somebody the owner of a session that has none; refuse if it has another.

        Raises:
            ForbiddenError: Another user of the tenant has it.
        """
        key, state = self._key(principal, session), session_key(self._scope, principal.tenant, session)

        def decide(seen: Snapshot) -> Decision[str]:
            found = seen.get(key)
            if found is None:
                record = OWNERS.encode_own(OwnerRecord(principal.user))
                return Decision(principal.user, (Put(key, record, expires_at=later(seen.at, self._kept)),))
            owner = OWNERS.decode(found.value).user
            if owner not in ("", principal.user) or not self._is_to_be_renewed(found, seen):
                return Decision(owner)
            there = [each for each in (found, seen.get(state)) if each is not None]
            return Decision(owner, tuple([self._renewed(each, seen) for each in there]))

        owner = (await self._scope.update([key, state], decide)).answer
        _compare(owner, principal)
        until = asyncio.get_running_loop().time() + self._kept * RENEWED
        self._known[principal.tenant, session] = owner, until
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _is_to_be_renewed(self, record: Record, seen: Snapshot) -> bool:
        return record.expires_at is None or record.expires_at < later(seen.at, self._kept * (1 - RENEWED))

    def _renewed(self, record: Record, seen: Snapshot) -> Put:
        return Put(record.key, record.value, record.version, expires_at=later(seen.at, self._kept))

    def _key(self, principal: Principal, session: str) -> RecordKey:
        return self._scope.key("owner", principal.tenant, session)


def _compare(owner: str, principal: Principal) -> None:
    """Compare the owner with who asks. Of a session whose owner has no name, the id is all there is to know."""
    if owner not in ("", principal.user):
        raise ForbiddenError("this session of another user")
