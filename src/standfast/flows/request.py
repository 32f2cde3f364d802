"""What a request is: what its action sees of it, and what can be known about it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, final

import msgspec
from msgspec import Struct, field

from standfast.clock import Instant
from standfast.errors import InvalidInputError, RequestKeyError
from standfast.exits import FAILURES, failure_of
from standfast.flows.shares import sharer_of
from standfast.logs import FieldsLogger
from standfast.workflows.failures import log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.flows.session import Session
    from standfast.log_hook import Fact
    from standfast.policies import Key, KeyFunction, Policy
    from standfast.workflows.definition import Workflow
    from standfast.workflows.run import Run


# --- what arrives: who asks, for which action, with what. A trusted transport says so ------------------------------

Address: TypeAlias = tuple[str, ...]
"""Where the line of a key lies; see :mod:`standfast.flows.request`."""

Transport: TypeAlias = Literal["http", "webhook", "chat", "mcp", "schedule", "local"]
OnDisconnect: TypeAlias = Literal["cancel", "continue"]

LONGEST_TENANT: Final = 100
LONGEST_ID: Final = 200
"""In bytes of UTF-8: with these, every key that follows from a request fits into every store."""
LONGEST_IDEMPOTENCY_KEY: Final = 200
HIGHEST_PRIORITY: Final = 100
"""And the lowest is as far below 0."""


def check_id(what: str, text: str, longest: int = LONGEST_ID) -> None:
    """Refuse what cannot be part of a key. The error names what it is, never the text.

    Raises:
        InvalidInputError: It is no text, not printable, or too long.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidInputError(what, f"it is a {type(text).__name__}; it must be text")
    if not text.isprintable():
        raise InvalidInputError(what, "it has characters that are not printable")
    if len(text) > longest or (not text.isascii() and len(text.encode()) > longest):
        raise InvalidInputError(what, f"it is longer than {longest} bytes")


def check_priority(priority: int) -> None:
    """Refuse what is no small whole number.

    Raises:
        InvalidInputError: It is none.
    """
    if type(priority) is not int or abs(priority) > HIGHEST_PRIORITY:
        raise InvalidInputError("the priority", f"it must be an int from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}")


class Principal(Struct, frozen=True):
    """Who asks. A trusted transport makes it from credentials, never from the body of a request.

    Attributes:
        tenant: Whose data it is: nothing of one tenant is ever seen by another.
        user: Who it is; empty if the caller has no name.
        roles: What the user may do, see the ``roles`` of an action.

    Raises:
        InvalidInputError: A text is too long, not printable, or a tenant is missing.
    """

    tenant: str = "default"
    user: str = ""
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what could not be part of a key."""
        check_id("the tenant", self.tenant, LONGEST_TENANT)
        if not self.tenant:
            raise InvalidInputError("the tenant", "it is empty; it must be named")
        check_id("the user", self.user)


NOBODY: Final = Principal()


class Call(Struct, frozen=True, kw_only=True):
    """What a trusted transport hands to a dispatcher. Nothing of it but ``inputs`` comes from the body of a request.

    A key function gets one as well, and finds in ``inputs`` what the action will be called with, by name and checked.

    Attributes:
        flow: The kind of the flow.
        action: The name of the action.
        inputs: What to call it with: values by name, or a JSON object as bytes.
        principal: Who asks.
        session: Which conversation it belongs to; empty for none.
        transport: What it came by.
        metadata: What else the transport knows, such as ``{"webhook": {"deliveryId": ...}}``.
        idempotency_key: Requests of one tenant and user with the same key are one request, for a while.
        attended: The caller waits for the result on its own connection.
        chain: The keys that are held by callers waiting for this request, the outermost first; what comes from outside
            is signed, see :attr:`Request.signed_chain <standfast.flows.request.Request.signed_chain>`.
        on_disconnect: What happens when such a caller goes away; by default what the action says.
        priority: Who goes first among those that wait for a limit of the action; by default what the action says. The
            transport decides it, never the caller. A durable request waits in the order of arrival, whatever it is.
        trace: The trace context of the caller, see :mod:`standfast.trace_context`; empty if it has none.
    """

    flow: str
    action: str
    inputs: Mapping[str, Any] | bytes = field(default_factory=dict[str, Any])
    principal: Principal = NOBODY
    session: str = ""
    transport: Transport = "local"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idempotency_key: str = ""
    attended: bool = True
    chain: tuple[Address, ...] = ()
    on_disconnect: OnDisconnect | None = None
    priority: int | None = None
    trace: str = ""

    def __post_init__(self) -> None:
        """Refuse what could not be part of a key."""
        if self.session != "":  # most have none; and what is no text is no empty one
            check_id("the session", self.session)
        if self.idempotency_key != "":
            check_id("the idempotency key", self.idempotency_key, LONGEST_IDEMPOTENCY_KEY)
        if self.priority is not None:
            check_priority(self.priority)

    @property
    def tenant(self) -> str:
        """The principal's tenant."""
        return self.principal.tenant

    @property
    def user(self) -> str:
        """The principal's user; empty if it has no name."""
        return self.principal.user

    @property
    def sharer(self) -> str:
        """As whom it is counted within its tenant."""
        return sharer_of(self.principal.user, self.transport)


# --- the seam between a request and what runs it -------------------------------------------------------------------
#
# A dispatcher has one for requests that it runs, :class:`~standfast.flows.task.DispatcherBackend`, and a test for those
# that it rehearses, :class:`~standfast.testing.flows.Rehearsal`.


class RequestBackend(Protocol):
    """What a dispatcher does for a request that it runs."""

    @property
    def stopping(self) -> str:
        """Why the request was asked to stop; empty if it was not."""
        ...

    @property
    def session(self) -> Session:
        """The state of its conversation."""
        ...

    @property
    def module(self) -> str:
        """The module of its action, which its log records are named after."""
        ...

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell the followers of the request."""
        ...

    def signed(self, address: Address) -> Address:
        """Return a key as it is sent to other processes."""
        ...

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002 -- the word that users know
    ) -> Run[Any]:
        """Start a workflow, under an id that follows from the request's if none is given."""
        ...

    async def run_once(
        self, key: str, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a function, or return what was recorded of its result."""
        ...


# --- what a request is: what its action sees of it, and what can be known about it ---------------------------------

P = ParamSpec("P")
R = TypeVar("R")

Status: TypeAlias = Literal[
    "waiting",  # in the line of its key, or in a burst or batch that has not begun
    "running",
    "completed",
    "failed",  # the action raised
    "cancelled",  # by a caller that may
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


class RequestExplanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
        policy: How requests of one key are kept apart: ``queue``, ``reject``, ``debounce`` ...
        verdict: What was decided when it came, if it has a record: ``run`` (at once), ``queued`` (it had to wait),
            ``started`` (as a durable run), ``collected`` (into a burst or a batch).
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
    explanation: RequestExplanation | None = None
    result: Any = None
    error: str = ""
    error_type: str = ""
    error_status: int = 0
    by: str = ""
    cancelled_by: str = ""
    superseded: tuple[str, ...] = ()
    overlap: bool = False
    policy: str = ""
    verdict: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ENDED


class EmittedEvent(Struct, frozen=True):
    """Something that a request told on its way.

    Attributes:
        number: 1, 2, 3 and so on, without gaps: a follower that has seen one asks for those after it.
        name: What it is: ``"message"`` unless the action said otherwise. The last one is ``"request.ended"``; after
            ``"request.restarted"`` the action begins again, and tells anew what came before. Names that begin like
            this are the dispatcher's.
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
        chain: The keys that must be free of callers that wait for what this request calls, its own key last.
    """

    _arrival: Call
    _backend: RequestBackend
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
        """What to hand on to a service that must not act twice: what the caller gave, else one of the request's own.

        It is the same in every attempt of this request, and in no other request.
        """
        return self._arrival.idempotency_key or f"request:{self.id}"

    @property
    def session(self) -> Session:
        """The state of the conversation: what is done to it is staged, and kept if the action ends well."""
        return self._backend.session

    @property
    def tenant(self) -> str:
        """Whose data it is."""
        return self._arrival.principal.tenant

    @property
    def user(self) -> str:
        """Who asks; empty if the caller has no name."""
        return self._arrival.principal.user

    @property
    def log(self) -> FieldsLogger:
        """A logger with the methods of ``logging.Logger``, whose records say of which request they are.

            request.log.info("asked the model for %d words", count)

        They have ``request``, ``action`` and ``attempt`` in ``record.standfast``.
        """
        return FieldsLogger(logging.getLogger(self._backend.module), self._log_fields)

    def _log_fields(self) -> dict[str, Fact]:
        return {"request": self.id, "action": f"{self.flow}.{self.action}", "attempt": self.attempt}

    @property
    def is_cancelled(self) -> bool:
        """Whether it was asked to stop: by a user, by a newer request, or because the caller is gone."""
        return bool(self._backend.stopping)

    def check(self) -> None:
        """Raise ``asyncio.CancelledError`` if the request was asked to stop: for long work without an ``await``."""
        if reason := self._backend.stopping:
            raise asyncio.CancelledError(reason)

    @property
    def signed_chain(self) -> tuple[Address, ...]:
        """Its chain, for other processes: only what was signed in this store counts in this store."""
        return tuple(map(self._backend.signed, self.chain))

    def emit(self, event: Any, name: str = "message") -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell the followers of the request, at once and in order.

        Args:
            event: JSON-shaped data.
            name: What it is. Names that begin with ``"request."`` are the dispatcher's own.

        Raises:
            InvalidInputError: The name is not printable, too long or the dispatcher's own.
        """
        if not isinstance(name, str) or not _EVENT_NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise InvalidInputError(f"event {name!a:.100}", "a name must be 1 to 50 letters, digits, or any of _ . -")
        if name.startswith(OWN_EVENTS):
            problem = f"names that begin with {OWN_EVENTS!r} are emitted by the dispatcher"
            raise InvalidInputError(f"event {name!r}", problem)
        self._backend.emit(name, event)

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
        return await self._backend.start(workflow, args, kwargs or {}, id)

    async def run_once(self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do something once for a request, also if the request is run again after a crash or an error.

        Its result is recorded when it has returned. If the process dies in between, it is done again.

        Args:
            key: What tells it from others of the same request.
            function: What to do; its result has to be JSON-shaped, or of the type that it declares.
            args: What to call it with.
            kwargs: Also that.
        """
        result: R = await self._backend.run_once(key, function, args, kwargs)
        return result

    def __repr__(self) -> str:
        return f"<request {self.id} of {self.flow}.{self.action}>"


# --- from a request to its key: which line it stands in, and how that is called ------------------------------------
#
# The address of a line begins with ``"request"`` and the tenant, then says what kind of key it is. Each part stays a
# part when it is stored (see :mod:`standfast.keys`), so no two keys share an address: not of two tenants, of two kinds
# of keys, or of two flows. A session's key is the same in all flows.

_log: Final = logging.getLogger("standfast.flows")

REQUEST: Final = "request"
"""The kind of such a line, and the first part of its address: those of locks begin with a number."""


def address_of(policy: Policy, arrival: Call, inputs: Mapping[str, Any] | None = None) -> Address | None:
    """Return the address of the line that a request has to stand in; None: nothing is arbitrated.

    Args:
        policy: The policy of its action.
        arrival: What arrived.
        inputs: What a key function finds in ``arrival.inputs``: the checked inputs by name.

    Raises:
        RequestKeyError: A key function raised, or returned something else than text.
        InvalidInputError: It returned text that cannot be a key.
    """
    key, tenant = policy.key, arrival.principal.tenant
    if key == "session":
        return (REQUEST, tenant, "session", arrival.session) if arrival.session else None
    if key == "user":
        return (REQUEST, tenant, "user", arrival.principal.user) if arrival.principal.user else None
    if key == "tenant":
        return (REQUEST, tenant, "tenant")
    if key == "none":
        return None
    value = _ask(key, arrival if inputs is None else msgspec.structs.replace(arrival, inputs=inputs))
    return None if value is None else (REQUEST, tenant, "custom", arrival.flow, value)


def partition_of(key: Key, arrival: Call, inputs: Mapping[str, Any] | None = None) -> tuple[str, ...] | None:
    """Return what a limit counts a request by: nothing for all together; None: it does not count.

    Callers that have no name, and those without a session, count together, so that none gets past a limit that way.

    Raises:
        RequestKeyError: A key function raised, or returned something else than text.
        InvalidInputError: It returned text that cannot be a key.
    """
    tenant = arrival.principal.tenant
    if key == "none":
        return ()
    if key == "tenant":
        return (tenant, "tenant")
    if key == "user":
        return (tenant, "user", arrival.principal.user)
    if key == "session":
        return (tenant, "session", arrival.session)
    value = _ask(key, arrival if inputs is None else msgspec.structs.replace(arrival, inputs=inputs))
    return None if value is None else (tenant, "key", value)


def label_of(address: Address) -> str:
    """Return a key in words, as refusals show it, without the tenant: ``"session 's-1'"``."""
    if len(address) == len((REQUEST, "tenant", "kind", "id")):  # of a session or a user: nearly all
        return f"{address[2]} {address[3]!r}"
    kind, *rest = address[2:]
    return f"key {rest[1]!r} of {rest[0]}" if kind == "custom" else " ".join([kind, *map(repr, rest)])


def _ask(function: KeyFunction, arrival: Call) -> str | None:
    """Return what a key function says, if it can be a key."""
    where = f"flow {arrival.flow!r}, action {arrival.action!r}"
    try:
        value = function(arrival)
    except FAILURES as raised:
        error = failure_of(raised)
        log_failure(_log, f"the key function of {where}", error, flow=arrival.flow, action=arrival.action)
        raise RequestKeyError(where, f"raised {type(raised).__name__}") from error
    if value is None:
        return None
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise RequestKeyError(where, f"returned a {type(value).__name__}; it must return text, or None for no key")
    text = str.__str__(value)  # a subclass of text could compare as it likes
    if problem := _problem(text):
        raise InvalidInputError(where, f"the key function returned text that {problem}")
    return text


def _problem(text: str) -> str:
    if not text:
        return "is empty; it must return None for no key"
    if not text.isprintable():
        return "has characters that are not printable"
    return f"is longer than {LONGEST_ID} bytes" if len(text.encode()) > LONGEST_ID else ""
