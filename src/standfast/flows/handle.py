"""A handle on a request: what can be known of it and done with it, and which callers may."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import UNSET, Struct, structs

from standfast.clock import later
from standfast.durations import seconds
from standfast.errors import (
    ForbiddenError,
    RequestNotFoundError,
    RequestSharedError,
    ResultTimeoutError,
    StandfastError,
    WaitsForItselfError,
)
from standfast.flows.arbiter.protocol import Stop
from standfast.flows.concurrency_limits import sole_limit_slots_of
from standfast.flows.events import MemoryEventSource, follow, follow_stored, until_ended
from standfast.flows.records import CancelRecord, StoredRequest
from standfast.flows.request import label_of
from standfast.flows.task import CHAIN
from standfast.flows.tenants import Owners, is_of_endpoint
from standfast.flows.view import (
    CALLER,
    OPERATOR,
    VIEWER,
    info_of,
    is_own,
    kind_of,
    look,
    note_asker,
    problem_of,
    sees_all,
    sender_of,
    settle,
    status_of,
)
from standfast.log_hook import as_logfmt
from standfast.stores.protocol import Decision, Put
from standfast.workflows.messages import cancel as cancel_run
from standfast.workflows.records import ITEMS, RunKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.durations import Duration
    from standfast.flows.flow import Action
    from standfast.flows.inline import InlineRequest
    from standfast.flows.records import RequestKeys, RequestRecord
    from standfast.flows.request import EmittedEvent, OnDisconnect, Principal, RequestExplanation, RequestInfo, Status
    from standfast.flows.server import RequestServer
    from standfast.flows.view import Sight
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot


# --- stopping a request whose caller has gone away: none waits for it, so it is tried until it is known ------------

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries: doubled from the first to the longest."""

LONGEST: Final = 600.0
"""Seconds after which a store that does not answer is left alone: by then most requests have ended by themselves."""

_log: Final = logging.getLogger("standfast.flows")
_SAYS_NO: Final = (ForbiddenError, RequestNotFoundError, RequestSharedError)


async def cancel_in_the_end(server: RequestServer, handle: Handle, reason: str) -> bool:
    """Ask a request to stop, and again while the store does not answer; return True if that is settled.

    It is once the request was asked, has ended, is gone, or goes on for others who share its run. A server that closes
    tries no longer: its attended requests end with it.
    """
    pause, waited = FIRST_PAUSE, 0.0
    while True:
        try:
            await handle.cancel(reason, CALLER)
        except _SAYS_NO:
            return True
        except StandfastError as problem:
            if not waited:
                facts = {"event": "cancel-delayed", "request": handle.id, "problem": type(problem).__name__}
                _log.warning("%s", as_logfmt({**facts, "fix": "none: it is tried again while the store is away"}))
            if server.is_closing or waited >= LONGEST:
                return False
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE)
        else:
            return True


# --- A handle on a request: what can be known of it, and done with it, by a caller that may ask --------------------

GONE: Final = "its caller went away"


@final
class Handle:
    """A request, as its sender or another caller that may ask for it sees it. It may run anywhere.

    Attributes:
        id: Its id.
        is_new: Whether the call that returned this handle began it. If not, it was sent before, or shares another
            one's run.
        is_replay: Whether it was sent before, with the same idempotency key.
        explanation: Why it waits, if it did when this handle was made.
        may_cancel: Whether it is the asker's own; if not, another user has sent it, and the asker follows it only.
        sees_all: Whether the asker is told who has sent it although it is not its own.
        sees_contents: Whether the asker is told more than how it is and since when.
        is_operators: Whether the asker may cancel it also if others share its run.
        asker: Who that is, if it is not its sender.
    """

    __slots__ = (
        "_action",
        "_attended",
        "_known",
        "_on_disconnect",
        "_server",
        "asker",
        "explanation",
        "id",
        "is_new",
        "is_operators",
        "is_replay",
        "may_cancel",
        "sees_all",
        "sees_contents",
    )

    def __init__(
        self,
        server: RequestServer,
        known: InlineRequest | StoredRequest,
        action: Action[..., Any] | None,
        *,
        is_new: bool = False,
        is_replay: bool = False,
        explanation: RequestExplanation | None = None,
        on_disconnect: OnDisconnect = "continue",
        may_cancel: bool = True,
    ) -> None:
        self._server, self._action = server, action
        self._known = known
        self._attended: Final = None if isinstance(known, StoredRequest) else known
        self._on_disconnect: Final = on_disconnect
        self.id: Final = known.id
        self.is_new: Final = is_new
        self.is_replay: Final = is_replay
        self.may_cancel = may_cancel
        self.is_operators = self.sees_all = False
        self.sees_contents = True
        self.asker = ""
        self.explanation: Final = explanation

    def __repr__(self) -> str:
        return f"<request {self.id} {self.status}>"

    @property
    def status(self) -> Status:
        """How it is, if it runs here; otherwise how it was when it was last looked at."""
        return self.record.status

    @property
    def position(self) -> int | None:
        """How many were before it in the line when this handle was made, the one that runs not counted."""
        return None if self.explanation is None else self.explanation.position

    @property
    def is_durable(self) -> bool:
        """Whether it goes on when its server dies."""
        return self.record.durable

    @property
    def runs_here(self) -> bool:
        """Whether this process runs it, so that it ends no later than this process does."""
        return self._attended is not None

    @property
    def is_taken_on(self) -> bool:
        """Whether it is certain that it runs or waits for its turn; False if it is run when its result is asked for."""
        return self._attended is None or self._attended.is_entered

    @property
    def record(self) -> RequestRecord:
        """What is known of it, as far as this process was told."""
        return self._known.record

    @property
    def keys(self) -> RequestKeys:
        """Where its records lie, if it has any."""
        return self._known.keys

    @property
    def unstored(self) -> InlineRequest | None:
        """The request itself, if nothing of it lies in the store."""
        return None if self._attended is None or self._attended.is_stored else self._attended

    # --- its end -------------------------------------------------------------------------------------------------

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ANN401 -- whatever the action returns
        """Return what the action returned, waiting for its end.

        If the task that waits here is cancelled, because the caller has gone away, the request is cancelled too if its
        action says so; see ``on_disconnect``.

        Args:
            timeout: How long to wait at most. The request goes on whether or not a caller waits.

        Raises:
            RequestFailedError: The action raised; that is the ``__cause__``.
            RequestCancelledError: It was cancelled.
            RequestSupersededError: A newer one took its place.
            RequestInterruptedError: Its server went away.
            QueueTimeoutError: Its turn did not come in time.
            WaitsForItselfError: The caller holds the key that it waits for, or the only room at a limit.
            ResultTimeoutError: It had not ended in time.
            ForbiddenError: It is of another user, and only its status is shown.
        """
        record = await self._end(timeout)
        if self._attended is not None and self._attended.value is not None:
            return self._attended.value
        packed = b"null" if record.result is UNSET else bytes(record.result)
        return msgspec.json.decode(packed) if self._action is None else self._action.result.unpack(packed)

    async def packed(self, timeout: Duration | None = None) -> bytes:
        """Return what the action returned as JSON, waiting for its end; see :meth:`result`."""
        attended = self._attended
        if attended is not None and timeout is None and not attended.has_begun:  # the way of nearly all
            if attended.address is not None:
                self._check_chain()
            await attended.run_here()
            if attended.packed is not None:
                return attended.packed
        record = await self._end(timeout)
        return b"null" if record.result is UNSET else bytes(record.result)

    async def _end(self, timeout: Duration | None) -> RequestRecord:
        """Return how it ended; raise if it has no result."""
        if not self.sees_contents:
            raise ForbiddenError("the result of a request that another user has sent", (OPERATOR, VIEWER))
        self._check_chain()
        try:
            record = await (self._ended() if timeout is None else self._ended_within(timeout))
        except asyncio.CancelledError:  # the caller has gone away
            if self._on_disconnect == "cancel" and not self.record.has_ended:
                if self._attended is not None:
                    self._attended.stop(GONE, CALLER)
                else:
                    self.abandon()
            raise
        if record.status == "completed":
            return record
        if not self.may_cancel:
            record = structs.replace(record, cancelled_by=kind_of(record.cancelled_by))
        problem = problem_of(self.id, record, self._server.known)
        cause = None if self._attended is None else self._attended.problem
        raise problem from (problem.__cause__ if cause is None or type(cause) is type(problem) else cause)

    async def _ended_within(self, timeout: Duration) -> RequestRecord:
        limit = seconds(timeout, what="timeout")
        self._begin()
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                return await self._ended()
        except TimeoutError:
            if not waiting.expired():
                raise
            raise ResultTimeoutError(self.id, limit, self.status) from None

    def _begin(self) -> None:
        """Run it in a task of its own, if it was left to the task that waits for it."""
        if self._attended is not None and not self._attended.has_begun:
            self._server.take(self._attended)

    def _check_chain(self) -> None:
        chain, address = CHAIN.get(), self._known.address
        if not chain or self.record.has_ended:
            return
        if address is not None and address in chain:
            raise WaitsForItselfError(label_of(address), self.id)
        if self._action is not None and self._action.has_room_limits:
            record = self.record
            for slot in sole_limit_slots_of(self._action, self.keys.tenant, record.user, record.session):
                if slot.address in chain:
                    raise WaitsForItselfError(slot.label, self.id)

    async def _ended(self) -> RequestRecord:
        attended = self._attended
        if attended is not None:
            if not attended.has_begun:
                await attended.run_here()
            record = attended.record if attended.is_over else await asyncio.shield(attended.over)
            if attended.refusal is not None:
                raise attended.refusal
            return record
        view = await until_ended(self._server.space, self.keys)
        if view.is_derived:
            await settle(self._server.space, self.keys, view)
        self._known = StoredRequest(self.keys, view.record)
        return view.record

    # --- looking -------------------------------------------------------------------------------------------------

    async def info(self) -> RequestInfo:
        """Return how it is.

        Raises:
            RequestNotFoundError: It is not known any more.
        """
        if self._attended is None:
            view = await self._server.look(self.keys)
            if view.is_derived:
                await settle(self._server.space, self.keys, view)
            self._known = StoredRequest(self.keys, view.record)
        record = self.record
        if not self.sees_contents:
            return status_of(self.id, record)
        explanation = await self._server.explain(self.id, record) if record.status == "waiting" else None
        info = info_of(self.id, record, explanation)
        if self.may_cancel or self.sees_all:
            return info
        return structs.replace(info, user="", session="", cancelled_by=kind_of(info.cancelled_by))

    def events(self, after: int = 0) -> AsyncIterator[EmittedEvent]:
        """Return what it has told after an event, then what it tells, and its end: ``async for event in ...``.

        If only its status is shown, that is all: one event, when it has ended.

        A caller that was cut off asks again with the number of the last event it has seen: none is missing or doubled.

        Raises:
            RequestNotFoundError: On iterating: it is not known any more.
        """
        attended, space = self._attended, self._server.space
        sight: Sight = "own" if self.may_cancel or self.sees_all else "contents" if self.sees_contents else "status"
        self._begin()
        if attended is None or attended.is_stored:
            return follow_stored(space, self.keys, after, sight)
        return follow(MemoryEventSource(attended.memory, lambda: attended.record), after, sight)

    # --- stopping it ---------------------------------------------------------------------------------------------

    def abandon(self, reason: str = GONE) -> None:
        """Ask it to stop because its caller has gone away. While the store does not answer, it is tried again.

        This does not wait for that. If others share its run, it goes on for them.
        """
        self._server.own(cancel_in_the_end(self._server, self, reason))

    async def cancel(self, reason: str = "it was asked to", cancelled_by: str = "") -> None:
        """Ask it to stop, wherever it waits or runs. One that has ended is left as it is.

        Args:
            reason: Why, in words.
            cancelled_by: Who asks, see :attr:`~standfast.flows.request.RequestInfo.cancelled_by`. By default the user
                who has this handle.

        Raises:
            ForbiddenError: Another user has sent it, and the caller may follow it only: it shares its run, or has the
                role of a viewer.
            RequestSharedError: Other users share its run, which goes on for them.
            RequestNotFoundError: It is not known any more.
        """
        if not self.may_cancel:
            raise ForbiddenError("cancelling a request that another user has sent", (OPERATOR,))
        if not self.is_operators and not self.record.has_ended and await is_shared(self._server.space, self):
            raise RequestSharedError(self.id)
        who = cancelled_by or self.asker or sender_of(self.record.user)
        if self._attended is not None:
            self._attended.stop(reason, who)
            return
        server = self._server
        record = (await look(server.space, self.keys)).record
        if record.has_ended:
            return
        if record.durable:
            await note_asker(server.space, self.keys, who)
            await cancel_run(server.engine.runtime, self.id, reason)
            server.arbiter.forget(self.id)
            await settle(server.space, self.keys, await look(server.space, self.keys))
        elif record.address:
            await server.arbiter.stop(record.address, self.id, Stop(reason=reason, cancelled_by=who))
        elif record.server:
            await server.stop_elsewhere(self.keys, record.server, CancelRecord(reason, who))


# --- who else may see a request: who has its session, and who shares its run -----------------------------------------

COLLECTED: Final = ("debounce", "batch")
"""The policies that put requests into one run before it begins."""

PAGE: Final = 500

SHARED_FOR: Final = 31 * 86_400.0
"""Seconds for which it is kept who shares a run: longer than any request takes, and is kept."""


class _By(Struct):
    """Who has sent a request of a burst."""

    user: str = ""


@final
class Visibility:
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
        if sees_all(principal):
            return "contents"
        if handle.unstored is not None:
            return "contents" if principal.user in (handle.unstored.sharers or ()) else "status"
        key = handle.keys.sharer(principal.user)
        return "status" if (await self._scope.read(key)).get(key) is None else "contents"

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


async def is_shared(scope: Scope, handle: Handle) -> bool:
    """Return True if another user than the one who sent a request shares its run, or is in the burst that it began."""
    if handle.unstored is not None:
        return bool(handle.unstored.sharers)
    if (await scope.scan(*handle.keys.sharers.within(), limit=1)).records:
        return True
    start, end = RunKeys(scope, handle.id).inbox()
    while handle.record.policy in COLLECTED:  # who has just come may not have been noted yet
        page = await scope.scan(start, end, limit=PAGE)
        calls = (ITEMS.decode(each.value).value for each in page.records.values())
        users = (msgspec.json.decode(b"{}" if call is UNSET else call, type=_By).user for call in calls)
        if any(user != handle.record.user for user in users):
            return True
        if page.more is None:
            break
        start = page.more
    return False
