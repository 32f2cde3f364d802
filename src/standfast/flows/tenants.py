"""What one tenant may have at most, the owners of its sessions, and tenants that are quarantined.

Users share what their tenant may have, see :mod:`standfast.flows.shares`: who has some gets one more only while as many
are left to the others.

What waits is counted in each process. What lies in the store is counted over all of them: a process reads how many
there are when it first serves a tenant, adds what it takes on itself, and counts again, beside the requests, after a
tenth of what was left. So ten processes keep to a limit but for one request each, and more of them pass it by at most
that tenth for each further one. Bytes are counted by :mod:`standfast.flows.storage`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, Literal, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.durations import seconds
from standfast.errors import (
    ArbiterUnavailableError,
    ForbiddenError,
    InvalidInputError,
    TooManyQuarantinedError,
    TooManyRequestsError,
)
from standfast.flows.records import (
    REQUESTS,
    SESSION_KEPT,
    UNFINISHED,
    RequestKeys,
    idempotency_of,
    session_key,
    tags_of,
    unfinished_of,
)
from standfast.flows.request import check_id
from standfast.flows.shares import Counts, is_spent, sharer_of
from standfast.flows.storage import Storage
from standfast.locks.heartbeat import remove
from standfast.policies import Value, checked_count
from standfast.stores.protocol import Decision, Delete, Put
from standfast.workflows.records import RUN_STATES, RunKeys, quarantined_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from standfast.durations import Duration
    from standfast.flows.request import Call, Principal
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot


# --- whose conversation a session is: who makes it has it, and no other user of the tenant gets in -----------------
#
# That is a user, a webhook or a schedule. What the application itself declared, a webhook or a schedule, may speak in
# any session of its tenant; a session that it makes is its own, unless it acts for a user by name.
#
# An id of a session is no credential. It is checked against who asks before a place is taken in its line, so that a
# stranger can neither read a conversation nor keep its owner waiting.

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
        user: The user; empty: any caller that knows the id. Of an endpoint its name, such as ``"webhook:github"``.
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


def _maker_of(arrival: Call) -> OwnerRecord:
    """Return whose session it is that a webhook or a schedule makes."""
    if not is_of_endpoint(arrival.transport, arrival.user):
        return OwnerRecord(arrival.user)
    facts: Mapping[str, str] = arrival.metadata.get(arrival.transport, {})
    name = facts.get("name") or facts.get("id") or ""
    return OwnerRecord(f"{arrival.transport}:{name}", is_endpoint=True)


def new_session() -> str:
    """Return an id for a session that cannot be guessed: 128 random bits."""
    return secrets.token_hex(_RANDOM_BYTES)


def is_made_here(session: str) -> bool:
    """Return True if an id looks like those that :func:`new_session` makes."""
    return len(session) == _MADE_LENGTH and _HEX.issuperset(session)


def checked_session(principal: Principal, session: str) -> str:
    """Return an id that a caller chose. A caller without a name may only use ids that cannot be guessed.

    Raises:
        InvalidInputError: It is empty, too long or not printable, or the caller has no name and the id is not one
            that was made here.
    """
    check_id("the session", session)
    if not session:
        raise InvalidInputError("the session", "it is empty; leave it out to get a new one")
    if not principal.user and not is_made_here(session):
        raise InvalidInputError("the session", "it was not made here; a caller without a name cannot choose its id")
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
        """Tell, without asking the store, that a caller may use a session."""
        known = self._remembered(principal.tenant, session)
        return known is not None and known.is_usable_by(principal)

    def has_to_claim(self, arrival: Call) -> bool:
        """Return True if it has to be looked up in the store whose session it is that a request came in."""
        if arrival.transport in SPEAKS_FOR_ITSELF:
            return not self.are_known(arrival.principal, arrival.session)
        return arrival.transport in ENDPOINTS and self._remembered(arrival.tenant, arrival.session) is None

    def _remembered(self, tenant: str, session: str) -> OwnerRecord | None:
        known = self._known.get((tenant, session))
        return None if known is None or asyncio.get_running_loop().time() >= known[1] else known[0]

    async def check(self, principal: Principal, session: str) -> None:
        """Refuse a user who is not the owner of a session. One without an owner is open to all.

        Raises:
            ForbiddenError: Another user of the tenant has it, or a webhook or a schedule.
        """
        key = self._key(principal.tenant, session)
        found = (await self._scope.read(key)).get(key)
        if found is not None:
            _compare(OWNERS.decode(found.value), principal)

    async def has(self, principal: Principal, session: str) -> bool:
        """Return True if a caller may use a session. One without an owner is open to none."""
        if self.are_known(principal, session):
            return True
        key = self._key(principal.tenant, session)
        found = (await self._scope.read(key)).get(key)
        return found is not None and OWNERS.decode(found.value).is_usable_by(principal)

    async def claim_for(self, arrival: Call) -> None:
        """Make the sender of a request the owner of its session, if that has none; refuse a user if it has another.

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
        """Return who has a session then. It is kept longer if the caller may use it."""
        key, state = self._key(tenant, session), session_key(self._scope, tenant, session)

        def decide(seen: Snapshot) -> Decision[OwnerRecord]:
            found = seen.get(key)
            if found is None:
                return Decision(new, (Put(key, OWNERS.encode_own(new), expires_at=later(seen.at, self._kept)),))
            owner = OWNERS.decode(found.value)
            due_at = later(seen.at, self._kept * (1 - RENEWED))
            if not may_use(owner) or (found.expires_at is not None and found.expires_at >= due_at):
                return Decision(owner)
            there, until = [each for each in (found, seen.get(state)) if each is not None], later(seen.at, self._kept)
            return Decision(owner, tuple([Put(each.key, each.value, each.version, expires_at=until) for each in there]))

        owner = (await self._scope.update([key, state], decide)).answer
        self._known[tenant, session] = owner, asyncio.get_running_loop().time() + self._kept * RENEWED
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return owner

    def _key(self, tenant: str, session: str) -> RecordKey:
        return self._scope.key("owner", tenant, session)


def _compare(owner: OwnerRecord, principal: Principal) -> None:
    """Refuse a user who is not the owner."""
    if not owner.is_usable_by(principal):
        raise ForbiddenError(f"this session of {'an endpoint' if owner.is_endpoint else 'another user'}")


# --- A tenant whose requests end their servers gets no more of them until an operator has looked -------------------
#
# Each request that is quarantined has cost several servers. A process counts those of a tenant when it first serves it,
# and then now and then, beside the requests. A limit that is reached is counted anew before the next one is refused.

EVERY: Final = 5.0
"""Seconds after which they are counted again, if there may be more of them."""

AGAIN: Final = 1.0
"""Seconds after which a limit that is reached is counted anew."""

SAID: Final = 60.0
"""After how many seconds a caller that was refused may try again: it takes a person to change it."""

PAGE: Final = 100
"""How many tenants a process remembers."""


@final
class _TenantDeaths:
    """What is known of one tenant."""

    __slots__ = ("at", "counting", "numbers")

    def __init__(self) -> None:
        self.numbers, self.at = Counter[str](), float("-inf")
        self.counting: asyncio.Task[None] | None = None


@final
class Quarantine:
    """How many durable requests of each tenant are quarantined, as far as one process knows.

    Args:
        scope: Where they lie.
        most: How many there may be; None: any number.
    """

    def __init__(self, scope: Scope, most: int | None) -> None:
        self._scope, self._most = scope, most
        self._tenants: Final[OrderedDict[str, _TenantDeaths]] = OrderedDict()
        self._counting: Final[set[asyncio.Task[None]]] = set()

    async def check(self, tenant: str, sharer: str = "") -> None:
        """Refuse a durable request of a tenant that has too many in quarantine, or of a user with a share of them.

        Raises:
            TooManyQuarantinedError: It has.
        """
        most = self._most
        if most is None:
            return
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= REMEMBERED:
                self._tenants.popitem(last=False)
            known = self._tenants[tenant] = _TenantDeaths()
        is_full = is_spent(known.numbers[sharer], most - known.numbers.total())
        age = asyncio.get_running_loop().time() - known.at
        if age >= (AGAIN if is_full else EVERY):
            counting = known.counting or self._begin_to_count(tenant, known, most)
            if is_full or age == float("inf"):
                await _result_of(counting)
        own, total = known.numbers[sharer], known.numbers.total()
        if total >= most:
            raise TooManyQuarantinedError("durable requests of the tenant", most, SAID)
        if is_spent(own, most - total):
            raise TooManyQuarantinedError("durable requests of this user", own, SAID)

    def _begin_to_count(self, tenant: str, known: _TenantDeaths, most: int) -> asyncio.Task[None]:
        """Count in a task of its own, for all who want to know."""

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting = None
            self._counting.discard(task)
            if not task.cancelled():
                task.exception()  # told to the tasks that wait for it; others try again

        counting = known.counting = asyncio.get_running_loop().create_task(self._count(tenant, known, most))
        self._counting.add(counting)
        counting.add_done_callback(is_over)
        return counting

    async def _count(self, tenant: str, known: _TenantDeaths, most: int) -> None:
        found, (start, end) = Counter[str](), quarantined_with(self._scope, tags_of(tenant)[0]).within()
        while True:
            page = await self._scope.scan(start, end, limit=self._scope.at_most(PAGE))
            found += await self._count_lives(tenant, page.records)
            if page.more is None or found.total() >= most:
                break
            start = page.more
        known.numbers, known.at = found, asyncio.get_running_loop().time()

    async def _count_lives(self, tenant: str, listed: Mapping[RecordKey, Record]) -> Counter[str]:
        """Count those that are quarantined still by who sent them, and forget that the others were."""
        found = Counter[str]()
        for key in listed:
            life, sent = (
                RunKeys(self._scope, key.parts[-1]).state,
                RequestKeys(self._scope, tenant, key.parts[-1]).record,
            )
            seen = await self._scope.read(life, sent)
            record, request = seen.get(life), seen.get(sent)
            if record is None or RUN_STATES.decode(record.value).status != "quarantined":
                await self._scope.commit(Delete(key, listed[key].version))
                continue
            sender = None if request is None else REQUESTS.decode(request.value)
            found[sharer_of(sender.user, sender.transport) if sender else ""] += 1
        return found

    async def aclose(self) -> None:
        """Stop counting."""
        counting = tuple(self._counting)
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)


# --- what one tenant may have at most, so that none gets in the way of others. The rest is refused, and told the
# limit ---

MOST: Final = 10_000_000
MOST_BYTES: Final = 10**15
TENANTS_PAGE: Final = 500
"""Seconds after which a limit that is reached is counted anew, and a caller that was refused may try again."""

SHARE: Final = 10
"""Which part of what is left a process takes on before it counts again: a tenth."""

"""How many tenants a process remembers."""


@final
class TenantLimits(Value):
    """How much of each tenant there may be. One too many is refused (429), and the error names the limit.

    Args:
        waiting: Requests whose callers wait, and that wait for their turn or for room, in each process.
        durable: Durable requests that have not ended, over all processes. A burst or batch counts as one, and is as
            large as its policy says.
        keys: Keys that are in use at a time, if the arbiter is local.
        idempotency: Idempotency keys that are remembered, over all processes.
        quarantined: Durable requests that ended their servers and are quarantined, over all processes. A tenant that
            has that number gets no more durable ones until an operator has retried or cancelled some
            (:class:`~standfast.errors.TooManyQuarantinedError`). None: any number.
        bytes_kept: Bytes that the store keeps of the tenant, over all processes and users: what durable requests were
            sent with, results, events, idempotency keys and the state of sessions. One at that bound gets no more
            requests that would be written down, or that come in a session
            (:class:`~standfast.errors.TooManyBytesError`), until some have expired. None: any number.
        session_kept: How long the state of a session, and whose it is, are kept after their last use.

    Raises:
        DeclarationError: A number makes no sense.
        InvalidArgumentError: The time makes no sense.
    """

    __slots__ = ("bytes_kept", "durable", "idempotency", "keys", "quarantined", "session_kept", "waiting")

    def __init__(
        self,
        *,
        waiting: int = 1_000,
        durable: int = 10_000,
        keys: int = 10_000,
        idempotency: int = 100_000,
        quarantined: int | None = 20,
        bytes_kept: int | None = 10_000_000_000,
        session_kept: Duration = SESSION_KEPT,
    ) -> None:
        where = "TenantLimits"
        self.waiting: Final = checked_count(where, "waiting", waiting, MOST)
        self.durable: Final = checked_count(where, "durable", durable, MOST)
        self.keys: Final = checked_count(where, "keys", keys, MOST)
        self.idempotency: Final = checked_count(where, "idempotency", idempotency, MOST)
        most = None if quarantined is None else checked_count(where, "quarantined", quarantined, MOST)
        self.quarantined: Final = most
        room = None if bytes_kept is None else checked_count(where, "bytes_kept", bytes_kept, MOST_BYTES)
        self.bytes_kept: Final = room
        self.session_kept: Final = seconds(session_kept, what="session_kept", minimum=1.0)


@final
class Tenants:
    """The tenants of one process, and what they have.

    Args:
        scope: Where everything lies.
        limits: How much that may be.

    Attributes:
        limits: How much that may be.
        durable: Counts durable requests that have not ended.
        idempotency: Counts idempotency keys.
        quarantine: Counts durable requests that are quarantined.
        storage: Counts the bytes that are kept.
    """

    def __init__(self, scope: Scope, limits: TenantLimits) -> None:
        self.limits: Final = limits
        self._waiting: Final[dict[str, Counts]] = {}
        self._scope: Final = scope
        self.durable: Final = Census(
            "unfinished durable requests", limits.durable, self._count_durable, self._count_unended
        )
        self.idempotency: Final = Census(
            "idempotency keys", limits.idempotency, self._count_idempotency, self._count_idempotency
        )
        self.quarantine: Final = Quarantine(scope, limits.quarantined)
        self.storage: Final = Storage(scope, limits.bytes_kept)

    # --- waiters ---------------------------------------------------------------------------------------------------

    def wait(self, tenant: str, sharer: str) -> Literal[True]:
        """Count a request that waits from now on, and say so.

        Raises:
            TooManyRequestsError: As many of the tenant wait as may, or of the user its share of them.
        """
        waiting = self._waiting.get(tenant) or self._waiting.setdefault(tenant, Counts())
        own, left = waiting.of(sharer), self.limits.waiting - waiting.total
        if left <= 0:
            raise TooManyRequestsError("waiting requests of the tenant", self.limits.waiting, AGAIN)
        if is_spent(own, left):
            raise TooManyRequestsError("waiting requests of this user", own, AGAIN)
        waiting.add(sharer)
        return True

    def waits_no_longer(self, tenant: str, sharer: str) -> None:
        """Count a request no longer."""
        waiting = self._waiting[tenant]
        waiting.add(sharer, -1)
        if not waiting.total:
            del self._waiting[tenant]

    # --- what lies in the store ------------------------------------------------------------------------------------

    async def _count_durable(self, tenant: str) -> Counts:
        return await count(self._scope, unfinished_of(self._scope, tenant), self.limits.durable, _sharer_of)

    async def _count_idempotency(self, tenant: str) -> Counts:
        return await count(self._scope, idempotency_of(self._scope, tenant), self.limits.idempotency, _user_of)

    async def _count_unended(self, tenant: str) -> Counts:
        """Count durable requests one by one, and forget those whose runs have ended without telling."""
        found, (start, end) = Counts(), unfinished_of(self._scope, tenant).within()
        while True:
            page = await self._scope.scan(start, end, limit=self._scope.at_most(TENANTS_PAGE))
            lives = {key: RunKeys(self._scope, key.parts[-1]).state for key in page.records}
            seen = await self._scope.read(*lives.values()) if lives else None
            for key, record in page.records.items():
                life = None if seen is None else seen.get(lives[key])
                if life is None or RUN_STATES.decode(life.value).has_ended:
                    await remove(self._scope.store, key)
                else:
                    found.add(_sharer_of(record))
            if page.more is None or found.total >= self.limits.durable:
                return found
            start = page.more

    async def aclose(self) -> None:
        """Stop counting."""
        await self.durable.aclose()
        await self.idempotency.aclose()
        await self.quarantine.aclose()
        await self.storage.aclose()


async def count(scope: Scope, root: RecordKey, most: int, whose: Callable[[Record], str]) -> Counts:
    """Count the records under a key by whose they are, up to a number."""
    found, (start, end) = Counts(), root.within()
    while found.total < most:
        page = await scope.scan(start, end, limit=min(TENANTS_PAGE, most - found.total))
        for record in page.records.values():
            found.add(whose(record))
        if page.more is None:
            break
        start = page.more
    return found


def _sharer_of(unfinished: Record) -> str:
    return UNFINISHED.decode(unfinished.value).sharer


def _user_of(idempotency: Record) -> str:
    return idempotency.key.parts[-2]


@final
class _TenantCount:
    """What is known of one tenant: how many were counted, what came here since then, and what is coming."""

    __slots__ = ("added", "at", "coming", "counted", "counting")

    def __init__(self) -> None:
        self.counted, self.added, self.coming = Counts(), Counts(), Counts()
        self.at = float("-inf")
        self.counting: asyncio.Task[None] | None = None

    def of(self, sharer: str) -> int:
        """Return how many one has."""
        return self.counted.of(sharer) + self.added.of(sharer) + self.coming.of(sharer)

    @property
    def total(self) -> int:
        """How many all have."""
        return self.counted.total + self.added.total + self.coming.total


@final
class Census:
    """How much of something each tenant has, as far as one process knows.

    Args:
        what: What is counted, for people: ``"idempotency keys"``.
        most: How many there may be.
        look: Counts them in the store, quickly.
        look_closer: Counts them one by one, where it seems that there are too many.
    """

    def __init__(
        self,
        what: str,
        most: int,
        look: Callable[[str], Awaitable[Counts]],
        look_closer: Callable[[str], Awaitable[Counts]],
    ) -> None:
        self._what, self._most, self._look, self._look_closer = what, most, look, look_closer
        self._tenants: Final[OrderedDict[str, _TenantCount]] = OrderedDict()

    async def enter(self, tenant: str, sharer: str) -> None:
        """Count one more.

        Raises:
            TooManyRequestsError: As many are there as may be, or the user has its share of them.
        """
        known = self._tenants.get(tenant)
        if known is None:
            first = _TenantCount()
            await self._count(first, partial(self._look, tenant))
            if len(self._tenants) >= REMEMBERED:
                self._tenants.popitem(last=False)
            known = self._tenants.setdefault(tenant, first)
        if self._is_full(known, sharer):
            await self._check(tenant, sharer, known)
        known.coming.add(sharer)

    def settle(self, tenant: str, sharer: str, *, is_there: bool) -> None:
        """Note whether a request that was counted is in the store by now, or was not taken on after all."""
        known = self._tenants.get(tenant)
        if known is None or not known.coming.of(sharer):
            return
        known.coming.add(sharer, -1)
        known.added.add(sharer, int(is_there))
        if known.added.total * SHARE >= self._most - known.counted.total and known.counting is None:
            self._begin_to_count(known, partial(self._look, tenant))  # if it fails, what was counted here still counts

    def _is_full(self, known: _TenantCount, sharer: str) -> bool:
        return is_spent(known.of(sharer), self._most - known.total)

    async def _check(self, tenant: str, sharer: str, known: _TenantCount) -> None:
        """Refuse one too many. However many come at a time, they are counted once for all of them."""
        if known.counting is not None:
            await _result_of(known.counting)
        if self._is_full(known, sharer) and asyncio.get_running_loop().time() - known.at >= AGAIN:
            await _result_of(known.counting or self._begin_to_count(known, partial(self._look_closer, tenant)))
        if known.total >= self._most:
            raise TooManyRequestsError(f"{self._what} of the tenant", self._most, AGAIN)
        if self._is_full(known, sharer):
            raise TooManyRequestsError(f"{self._what} of this user", known.of(sharer), AGAIN)

    def _begin_to_count(self, known: _TenantCount, look: Callable[[], Awaitable[Counts]]) -> asyncio.Task[None]:
        """Count in a task of its own: two counts at a time would each take off what came here before them."""

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting = None
            if not task.cancelled():
                task.exception()  # told to the tasks that wait for it

        counting = known.counting = asyncio.get_running_loop().create_task(self._count(known, look))
        counting.add_done_callback(is_over)
        return counting

    async def _count(self, known: _TenantCount, look: Callable[[], Awaitable[Counts]]) -> None:
        """Take over what the store says; what came here while it was asked may be in it or not, and counts besides."""
        before = known.added.copy()
        known.counted = await look()
        known.added.take_off(before)
        known.at = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Stop counting."""
        counting = [known.counting for known in self._tenants.values() if known.counting is not None]
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)


async def _result_of(counting: asyncio.Task[None]) -> None:
    """Wait for a count, which goes on if the caller is cancelled."""
    await asyncio.wait({counting})
    if counting.cancelled():
        raise ArbiterUnavailableError("this server is closing")
    counting.result()
