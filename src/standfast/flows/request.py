"""What a request is: what its action sees of it, and what can be known about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import InvalidInputError
from standfast.flows.arrival import Address, Arrival
from standfast.flows.means import Means

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.flows.arrival import Principal, Transport
    from standfast.flows.session import Session
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.handle import Run

P = ParamSpec("P")
R = TypeVar("R")

Status: TypeAlias = Literal[
    "waiting",  # in the line of its key, or in a burst or batch that has not begun
    "running",
    "completed",
    "failed",  # the action raised
    "cancelled",  # by somebody who may
    "refused",  # its turn did not come in time, or there was no room
    "superseded",  # a newer request took its place
    "interrupted",  # its server went away while it ran, and it is not run again
    "collapsed",  # it became part of another request's run, which has the result
]

ENDED: Final = frozenset({"completed", "failed", "cancelled", "refused", "superseded", "interrupted", "collapsed"})
"""The statuses of a request that has ended."""

OWN_EVENTS: Final = "request."
"""How the names of events begin that the dispatcher tells."""
_EVENT_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,50}", re.ASCII)


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request waits or was refused: who has its key, since when, and how to follow.

    Attributes:
        key: The key in words: ``"session 's-1'"``. Never of another tenant.
        policy: The name of the policy; ``"limit"`` if it waits for room at a limit.
        holder: The id of the request that has the key; empty if it is free.
        holder_action: Which action that is: ``"support-chat.respond"``.
        holder_status: What that one does: ``"running"``, or ``"quarantined"``.
        since: Since when, an instant of store time in microseconds.
        position: How many are before this one in the line, the one that runs not counted; None if it does not wait.
        waiting: How many wait for the key in all.
    """

    key: str
    policy: str
    holder: str = ""
    holder_action: str = ""
    holder_status: str = ""
    since: Instant = Instant(0)
    position: int | None = None
    waiting: int = 0

    def __str__(self) -> str:
        if self.policy == "limit":
            return f"{self.key} has no room; {self.waiting} wait for it here"
        place = "" if self.position is None else f"; {self.position} before it in the line"
        held = (
            f"is taken by the request {self.holder!r} ({self.holder_status or 'running'})" if self.holder else "is free"
        )
        return f"{self.key} {held}{place}"


class RequestInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What can be known about a request while it waits and runs, and for an hour after it has ended.

    Attributes:
        id: Its id, which cannot be guessed.
        flow: The kind of the flow.
        action: The name of the action.
        status: Where it stands.
        user: Who asked.
        session: Which conversation it belongs to.
        transport: What it came by.
        received_at: When it was dispatched, an instant of store time in microseconds; so are the two below.
        started_at: When it began to run; 0 if it has not.
        ended_at: When it ended; 0 if it has not.
        attempt: How often it was begun.
        explanation: Why it waits, if it does.
        result: What the action returned, as JSON-shaped data, once it is completed.
        error: What went wrong, in words that are safe to show, if something did.
        error_type: The name of the exception's class.
        error_status: The HTTP status that says the same.
        by: The request that superseded or absorbed this one.
        cancelled_by: Who asked for it to stop, if it was cancelled: ``"user:ann"``, ``"operator:eve"``, ``"operator"``
            (at the command line), ``"caller"`` (it went away), ``"server"`` (it is stopping); empty if not known.
        superseded: The requests whose place it took.
        overlap: A request that it superseded had not ended when it began: their effects on the outside may overlap.
    """

    id: str
    flow: str
    action: str
    status: Status
    user: str = ""
    session: str = ""
    transport: str = "local"
    received_at: Instant = Instant(0)
    started_at: Instant = Instant(0)
    ended_at: Instant = Instant(0)
    attempt: int = 0
    explanation: Explanation | None = None
    result: Any = None
    error: str = ""
    error_type: str = ""
    error_status: int = 0
    by: str = ""
    cancelled_by: str = ""
    superseded: tuple[str, ...] = ()
    overlap: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ENDED


class Event(Struct, frozen=True):
    """Something that a request told on its way.

    Attributes:
        number: 1, 2, 3 and so on, without gaps: whoever has seen one asks for those after it.
        name: What it is: ``"message"`` unless the action said otherwise. The last one is ``"request.ended"``; names
            that begin like this are the dispatcher's.
        data: JSON-shaped data.
    """

    number: int
    name: str
    data: Any


@final
class Request(Struct, frozen=True, eq=False):
    """A request as its action sees it: the first argument of every action.

        @chat.action(concurrency="queue")
        async def respond(request: sf.Request, text: str) -> str:
            request.session.append("messages", text)
            async for word in model.answer(text):
                request.emit(word)
            ...

    Attributes:
        id: Its id, which cannot be guessed.
        attempt: 1, and more if it is run again after a crash or an error.
        inputs: The inputs of all requests that this run stands for, the oldest first and its own last: more than one
            after a burst that was debounced with ``collapse="all"``, or if it superseded others.
        chain: The keys that must be free of those who wait for what this request calls, its own key last.
    """

    _arrival: Arrival
    _means: Means
    id: str
    attempt: int = 1
    inputs: tuple[Mapping[str, Any], ...] = ()
    chain: tuple[Address, ...] = ()

    @property
    def flow(self) -> str:
        """The kind of the flow."""
        return self._arrival.flow

    @property
    def action(self) -> str:
        """The name of the action."""
        return self._arrival.action

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self._arrival.principal

    @property
    def session_id(self) -> str:
        """The id of the conversation; empty for none."""
        return self._arrival.session

    @property
    def transport(self) -> Transport:
        """What it came by."""
        return self._arrival.transport

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What else the transport knows about it."""
        return self._arrival.metadata

    @property
    def idempotency_key(self) -> str:
        """What to hand on to whoever must not do something twice: what the caller gave, else one of the request's own.

        It is the same in every attempt of this request, and in no other request.
        """
        return self._arrival.idempotency_key or f"request:{self.id}"

    @property
    def session(self) -> Session:
        """The state of the conversation: what is done to it is staged, and kept if the action ends well."""
        return self._means.session

    @property
    def tenant(self) -> str:
        """Whose data it is."""
        return self._arrival.principal.tenant

    @property
    def user(self) -> str:
        """Who asks; empty if nobody is known by name."""
        return self._arrival.principal.user

    @property
    def is_cancelled(self) -> bool:
        """Whether it was asked to stop: by somebody, by a newer request, or because the caller is gone."""
        return bool(self._means.stopping)

    def check(self) -> None:
        """Raise ``asyncio.CancelledError`` if the request was asked to stop: for long work without an ``await``."""
        if reason := self._means.stopping:
            raise asyncio.CancelledError(reason)

    @property
    def signed_chain(self) -> tuple[Address, ...]:
        """Its chain, for other processes: only what was signed in this store counts in this store."""
        return tuple(map(self._means.signed, self.chain))

    def emit(self, event: Any, name: str = "message") -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell those who follow the request, at once and in order.

        Args:
            event: JSON-shaped data.
            name: What it is. Names that begin with ``"request."`` are the dispatcher's own.

        Raises:
            InvalidInputError: The name is not printable, too long or the dispatcher's own.
        """
        self._means.emit(_checked_event_name(name), event)

    async def start(
        self,
        workflow: Workflow[..., R],
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002 -- the word that users know
    ) -> Run[R]:
        """Start a durable workflow, which goes on after this request has ended.

        Args:
            workflow: What to run.
            args: What it is called with, after its context.
            kwargs: What it is called with by name.
            id: The run's id. By default it follows from the request's id and how many runs it has started, so that a
                request that is run again does not start them again.
        """
        return await self._means.start(workflow, args, kwargs or {}, id)

    async def run_once(self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do something once for a request, also if the request is run again after a crash or an error.

        Its result is recorded when it has returned. If the process dies in between, it is done again.

        Args:
            key: What tells it from others of the same request.
            function: What to do; its result has to be JSON-shaped, or of the type that it declares.
            args: What to call it with.
            kwargs: Also that.
        """
        result: R = await self._means.run_once(key, function, args, kwargs)
        return result

    def __repr__(self) -> str:
        return f"<request {self.id} of {self.flow}.{self.action}>"


def _checked_event_name(name: str) -> str:
    if not isinstance(name, str) or not _EVENT_NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidInputError(f"event {name!a:.100}", "a name must be 1 to 50 letters, digits, or any of _ . -")
    if name.startswith(OWN_EVENTS):
        raise InvalidInputError(f"event {name!r}", f"names that begin with {OWN_EVENTS!r} are told by the dispatcher")
    return name
