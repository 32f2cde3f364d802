"""What is known of a request that runs here, or has: it lies in memory, and its record is made when somebody looks.

Nearly all requests whose caller waits leave nothing in the store, end at once, and are never asked about.
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Self, cast

from msgspec import Struct

from standfast.clock import Instant
from standfast.flows.action import Action
from standfast.flows.arrival import Address, Principal, Transport
from standfast.flows.emitting import Memory
from standfast.flows.records import RequestKeys, RequestRecord
from standfast.flows.tasks import Task, record_of
from standfast.flows.viewing import ended

if TYPE_CHECKING:
    from standfast.flows.serving import Server  # noqa: TC004 -- none of this is ever read from data


NOTHING: Final = cast("Task", None)
"""Stands for what a request brought, once it has ended: nobody looks at it any more."""


class Brief(Struct, frozen=True, gc=False):
    """All that is kept of nearly every request that has ended here: little, since there are thousands of them.

    What a request leaves in memory is cold when the next one needs the room, and is paid for by that one.
    """

    id: str
    action: Action[..., Any]
    address: Address | None
    principal: Principal
    session: str
    transport: Transport
    packed: bytes
    received_at: Instant
    started_at: Instant
    ended_at: Instant


class KnownHere(Struct, eq=False):
    """What is known of one request. :class:`~standfast.flows.attending.Attended` runs it.

    Attributes:
        id: Its id.
        action: What it runs.
        address: The line in which it needs a turn; None: it needs none.
        principal: Who asked.
        session: In which conversation.
        transport: What it came by.
        is_stored: Whether others can see it.
        value: What it returned; None also if that was long ago, see :meth:`in_brief`.
        packed: The same, as JSON; None: it has returned nothing.
        problem: What it raised.
        refusal: Why it was not taken on.
        is_entered: It is certain that it is taken on.
        has_begun: It runs, or did.
        is_over: It has ended.
        ended_at: When.
        sharers: The other users who share its run, if there are any and nothing of it is stored.
    """

    _server: Server
    _task: Task
    id: str
    action: Action[..., Any]
    address: Address | None
    principal: Principal
    session: str
    transport: Transport
    _received_at: Instant
    is_stored: bool = False
    value: Any = None
    packed: bytes | None = None
    problem: BaseException | None = None
    refusal: BaseException | None = None
    is_entered: bool = False
    has_begun: bool = False
    is_over: bool = False
    ended_at: Instant = Instant(0)
    sharers: set[str] | None = None
    _started_at: Instant = Instant(0)
    _record: RequestRecord | None = None
    _keys: RequestKeys | None = None
    _memory: Memory | None = None
    _over: asyncio.Future[RequestRecord] | None = None

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.principal.tenant

    @property
    def user(self) -> str:
        """Who asked; empty if nobody is known by name."""
        return self.principal.user

    @property
    def keys(self) -> RequestKeys:
        """Where its records lie, if it has any."""
        if self._keys is None:
            self._keys = RequestKeys(self._server.space, self.tenant, self.id)
        return self._keys

    @property
    def memory(self) -> Memory:
        """What it tells, if it has no record."""
        if self._memory is None:
            self._memory = Memory()
            if self.is_over:
                self._memory.close()
        return self._memory

    @property
    def record(self) -> RequestRecord:
        """How it is."""
        if self._record is None:  # nobody has looked yet
            self._record = self._first_record()
        return self._record

    def _first_record(self) -> RequestRecord:
        at, began = self._received_at, self._started_at if self.address else self._received_at
        if not began:
            return record_of(self.action, self, self.address, at, "waiting")
        record = record_of(self.action, self, self.address, at, "running", started_at=began, attempt=1)
        return record if self.packed is None else ended(record, "completed", self.ended_at, result=self.packed)

    @property
    def over(self) -> asyncio.Future[RequestRecord]:
        """Done when it has ended."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._over.set_result(self.record)
        return self._over

    # --- being kept in mind --------------------------------------------------------------------------------------

    @property
    def weight(self) -> int:
        """How many bytes are kept of it, as JSON: its result, and what it has told."""
        result = 0 if self.packed is None else len(self.packed)
        return result if self._memory is None else result + self._memory.weight

    def in_brief(self) -> Self | Brief:
        """Return what is to be kept: all but what only those need who wait for it now.

        What it returned is there as JSON, and how it failed in words. As an object, either may refer to anything: an
        error refers to all that was in the hands of the action.
        """
        if self.packed is not None and self._record is None and self._memory is None and self.sharers is None:
            times = (self._received_at, self._started_at, self.ended_at)
            origin = (self.principal, self.session, self.transport)
            return Brief(self.id, self.action, self.address, *origin, self.packed, *times)
        whole = copy(self)
        whole.value = whole.problem = None
        return whole

    @classmethod
    def of(cls, server: Server, task: Task, *, is_stored: bool = False) -> Self:
        """Return a request that has just arrived."""
        who = task.arrival
        origin = (who.principal, who.session, who.transport)
        return cls(server, task, task.id, task.action, task.address, *origin, server.now(), is_stored)

    @classmethod
    def again(cls, server: Server, brief: Brief) -> Self:
        """Return a request again of which little was kept."""
        origin = (brief.principal, brief.session, brief.transport)
        known = cls(server, NOTHING, brief.id, brief.action, brief.address, *origin, brief.received_at)
        known._started_at, known.ended_at, known.packed = brief.started_at, brief.ended_at, brief.packed
        known.is_entered = known.has_begun = known.is_over = True
        return known

    # --- its end -------------------------------------------------------------------------------------------------

    def _complete(self, value: Any, packed: bytes, at: Instant) -> None:  # noqa: ANN401 -- whatever the action returned
        self.value, self.packed, self.ended_at, self.is_over = value, packed, at, True
        if self._record is not None:
            self._record = ended(self._record, "completed", at, result=packed)
        if self._over is not None or self._memory is not None:
            self._tell()

    def _close(self, record: RequestRecord) -> None:
        self._record, self.ended_at, self.is_over = record, record.ended_at, True
        self._tell()

    def _tell(self) -> None:
        """Tell those who wait for its end."""
        if self._over is not None and not self._over.done():
            self._over.set_result(self.record)
        if self._memory is not None:
            self._memory.close()
