"""A call over HTTP: its body, what its headers ask for, waiting for its result, and the seam to the dispatcher."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import msgspec

from standfast.errors import HttpError
from standfast.flows.deadlock import SIGNED
from standfast.flows.request import Call
from standfast.threads import Lane
from standfast.trace_context import read_headers
from standfast.web.asgi import FOR_DATA, Alarm, Begun, until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.types import Message, Receive, Scope, Send

    from standfast.flows.flow import Action
    from standfast.flows.request import Address, EmittedEvent, Principal, Request, RequestExplanation, RequestInfo
    from standfast.web.asgi import Headers, Rest


# --- which keys are held by callers that wait for a request, as a header: so none waits for itself across servers --

HEADER: Final = "Standfast-Chain"
LONGEST: Final = 8_192
MOST: Final = 32
"""How many requests may wait for each other in a row."""

_CHAIN: Final = msgspec.json.Decoder(tuple[tuple[str, ...], ...])


def chain_headers(request: Request) -> dict[str, str]:
    """Return the header that an action sends along when it calls another Standfast application and waits.

    With it, a request that would wait for a key that one of its callers holds is refused at once, with
    :class:`~standfast.errors.WaitsForItselfError`, and does not wait for its time to run out. Keys are signed: those of
    another store, and those that are made up, refuse nothing.
    """
    if not request.chain:
        return {}
    sent = [address[1:] for address in request.signed_chain]
    return {HEADER: base64.urlsafe_b64encode(msgspec.json.encode(sent)).decode()}


def read_chain(header: str) -> tuple[Address, ...]:
    """Return what a header says, marked as coming from outside.

    Raises:
        HttpError: It says nothing that can be read.
    """
    if not header:
        return ()
    if len(header) > LONGEST:
        raise HttpError("invalid-header", f"the header {HEADER} has more than {LONGEST} characters")
    try:
        chain = _CHAIN.decode(base64.b64decode(header.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise HttpError("invalid-header", f"the header {HEADER} was not made by chain_headers()") from None
    if len(chain) > MOST:
        raise HttpError("invalid-header", f"the header {HEADER} names more than {MOST} keys")
    return tuple((SIGNED, *address) for address in chain)


# --- reading the body of a request: no more than a limit, no longer than a while, as it is -------------------------

LARGE: Final = 1_000_000
"""Bytes from which JSON is read in a thread: for less, the way there and back takes longer than reading."""

_lane: Final = Lane("json")


async def read_body(headers: Headers, receive: Receive, limit: int, time: float) -> bytes:
    """Return the body, byte for byte.

    Raises:
        HttpError: It is compressed. A few bytes could become gigabytes.
        HttpError: It has more bytes than ``limit``, or says that it has.
        HttpError: It did not arrive within ``time``, or broke off.
    """
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError("unsupported-body", "a compressed body is not taken here")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > len(str(limit)) or int(length) > limit):
        raise HttpError("body-too-large", f"the body has more than the {limit:,} bytes that are taken here")
    return await received(Begun(receive()), receive, limit, time)


async def received(first: Begun[Message], receive: Receive, limit: int, time: float) -> bytes:
    """Return the body, if nothing in the headers speaks against it; see :func:`read_body`.

    Args:
        first: Its first part, which most often is there already, and is all of it.
        receive: Returns the next.
        limit: How many bytes it has at most.
        time: How many seconds it takes at most.
    """
    if first.is_done and first.value["type"] == "http.request" and not first.value.get("more_body", False):
        body: bytes = first.value.get("body", b"")
        if len(body) > limit:
            raise HttpError("body-too-large", f"the body has more than the {limit:,} bytes that are taken here")
        return body
    task = asyncio.current_task()
    if task is None:
        return await _received(first, receive, limit, time)
    slow = _Slow(task)
    off = _alarm(time).set(slow.stop)
    try:
        return await _received(first, receive, limit, time)
    except asyncio.CancelledError:
        if slow.was_stopped and task.uncancel() <= slow.before:
            raise HttpError("body-too-slow", f"the body did not arrive within {time:g} s") from None
        raise
    finally:
        off()


_alarm: Final = lru_cache(maxsize=16)(Alarm)


@final
class _Slow:
    """The task that reads a body; it is cancelled if that takes too long."""

    __slots__ = ("_task", "before", "was_stopped")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task: Final = task
        self.before: Final = task.cancelling()
        self.was_stopped = False

    def stop(self) -> None:
        self.was_stopped = True
        self._task.cancel()


async def _received(first: Begun[Message], receive: Receive, limit: int, time: float) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    message = first.value if first.is_done else await first
    while more:
        if message["type"] != "http.request":
            raise HttpError("body-too-slow", f"the body did not arrive within {time:g} s")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise HttpError("body-too-large", f"the body has more than the {limit:,} bytes that are taken here")
        chunks.append(chunk)
        more = message.get("more_body", False)
        if more:
            message = await receive()
    return b"".join(chunks)


def content_type(headers: Headers) -> str:
    """Return the kind of the body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return True if a content type stands for JSON."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def read_json(body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON can be
    """Return what JSON says; a large body is read in a thread, so that no other request waits for it.

    Raises:
        HttpError: It is no JSON, or nested too deeply.
    """
    return await _lane.run(_read, body) if len(body) > LARGE else _read(body)


def _read(body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON can be
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError("unsupported-body", "the body is no JSON") from None  # the cause quotes from it


# --- what the headers of a request ask for. Everything else comes from the body, the path and the credentials ------

SESSION: Final = "Standfast-Session"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_WAIT: Final = re.compile(r'wait\s*=\s*"?([0-9]{1,6})"?')


class Preference(msgspec.Struct, frozen=True):
    """How a caller wants to be answered (RFC 7240)."""

    is_async: bool = False
    wait: float | None = None
    """Seconds to wait for a result before it is answered without one."""


NO_PREFERENCE: Final = Preference()


def read_preference(headers: Headers) -> Preference:
    """Return what ``Prefer`` asks for; unknown preferences are ignored, as the RFC says."""
    given = headers.get("prefer")
    if given is None:
        return NO_PREFERENCE
    asked = [part.strip().lower() for part in given.split(",")]
    waits = [int(match[1]) for part in asked if (match := _WAIT.fullmatch(part))]
    return Preference("respond-async" in asked, waits[0] if waits else None)


def read_after(headers: Headers, query: str | None) -> int:
    """Return the number of the last event that a caller has seen: ``Last-Event-ID``, or ``after`` in the address."""
    text = headers.get("last-event-id") or query or "0"
    if not (text.isascii() and text.isdigit()) or len(text) > 15:  # noqa: PLR2004 -- more events than there can be
        raise HttpError("invalid-header", "the header Last-Event-ID is not the number of an event")
    return int(text)


async def arrival_of(
    action: Action[..., Any], headers: Headers, body: bytes, principal: Principal, *, attended: bool
) -> Call:
    """Return what a caller asks of an action.

    Raises:
        HttpError: The body is not JSON, or does not say so: then a page elsewhere may have sent it.
        HttpError: A header cannot be read.
        InvalidInputError: A session or a key has too many characters, or odd ones.
    """
    if body and not is_json(content_type(headers)):
        raise HttpError("unsupported-body", "the body is not marked as JSON")
    return Call(
        flow=action.flow,
        action=action.name,
        inputs=body,  # more than can be read at once on the loop is refused by its length
        principal=principal,
        session=headers.get("standfast-session", ""),
        transport="http",
        idempotency_key=headers.get("idempotency-key", "").strip(' "'),
        attended=attended,
        chain=read_chain(headers.get("standfast-chain", "")),
        trace=trace_in(headers.get("traceparent", ""), headers.get("tracestate", "")),
    )


def trace_in(traceparent: str, tracestate: str) -> str:
    """Return what the headers say about the caller's trace, as it is stored; nothing if they are malformed."""
    found = read_headers(traceparent, tracestate) if traceparent else None
    return "" if found is None else found.stored


# --- waiting for what a request returns while its caller may go away, and telling it -------------------------------

T = TypeVar("T")

REQUEST: Final = "Standfast-Request"
WATCH_AFTER: Final = 0.05
"""Seconds before a caller is watched for going away. Most requests have ended by then."""

GONE: Final = "the caller went away"

_REQUEST: Final = REQUEST.lower().encode()
_JSON: Final = (b"content-type", b"application/json")
_REPLAYED: Final = (b"idempotency-replayed", b"true")
_ALWAYS: Final = ((b"cache-control", b"no-store"), *FOR_DATA)
_watching: Final = Alarm(WATCH_AFTER)


async def watched(work: Rest[T], action: Action[..., Any], handle: HandleLike, receive: Receive) -> T:
    """Wait for a result that was not there at once. A caller whose leaving cancels it is watched meanwhile.

    Args:
        work: What returns it.
        action: What was called.
        handle: The request.
        receive: Tells that the caller has gone.

    Raises:
        StandfastError: Why there is nothing.
    """
    if action.on_disconnect != "cancel" or not handle.is_new:
        return await work

    async def watch() -> None:
        await until_gone(receive)
        handle.abandon(GONE)

    watching: list[asyncio.Task[None]] = []
    off = _watching.set(lambda: watching.append(asyncio.ensure_future(watch())))
    try:
        return await work
    finally:
        off()
        if watching:
            watching[0].cancel()
            await asyncio.wait(watching)


async def unless_closing(work: Coroutine[Any, Any, T], closing: asyncio.Event) -> T | None:
    """Wait for something that continues without this server; None: the server stops first."""
    ended, stops = asyncio.ensure_future(work), asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({ended, stops}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None
    finally:
        ended.cancel()
        stops.cancel()
        await asyncio.gather(ended, stops, return_exceptions=True)


@final
class Result:
    """The most frequent answer: what an action returned, with all headers, so that the gate adds none.

    Attributes:
        start: The message that it begins with.
        body: The one that it ends with.
    """

    __slots__ = ("body", "start")

    def __init__(self, packed: bytes, request_id: str, *, is_replay: bool = False) -> None:
        length, own = (b"content-length", b"%d" % len(packed)), (_REQUEST, request_id.encode("latin-1"))
        headers = [length, _JSON, own, _REPLAYED, *_ALWAYS] if is_replay else [length, _JSON, own, *_ALWAYS]
        self.start: Final[Message] = {"type": "http.response.start", "status": 200, "headers": headers}
        self.body: Final[Message] = {"type": "http.response.body", "body": packed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- ASGI passes it to every application
        """Send it."""
        await send(self.start)
        await send(self.body)


# --- what transports need of a dispatcher, and nothing more: they translate, it decides ----------------------------


class HandleLike(Protocol):
    """A request that was taken on."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def is_new(self) -> bool:
        """False if it was sent before, or shares the run of another one."""
        ...

    @property
    def is_replay(self) -> bool:
        """True if its idempotency key was seen before, so that it stands for that request."""
        ...

    @property
    def runs_here(self) -> bool:
        """True if this process runs it: it ends, and says so, before the process does."""
        ...

    @property
    def is_taken_on(self) -> bool:
        """False before its result was asked for, if it runs only then; or if it was refused then."""
        ...

    @property
    def status(self) -> str:
        """Where it stood when it was taken on."""
        ...

    @property
    def position(self) -> int | None:
        """Its place in the line then."""
        ...

    @property
    def explanation(self) -> RequestExplanation | None:
        """Why it waits, if it does."""
        ...

    async def packed(self, timeout: float | None = None) -> bytes:
        """Wait for what the action returns, as JSON, or raise why there is nothing."""
        ...

    async def info(self) -> RequestInfo:
        """Return where it stands now."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[EmittedEvent]:
        """Yield its events after a number, and then those to come, until it has ended."""
        ...

    def abandon(self, reason: str) -> None:
        """Stop it because its caller has gone away. This is retried until it is recorded, and not waited for."""
        ...

    async def cancel(self, reason: str, cancelled_by: str = "") -> None:
        """Stop it, wherever it is; the record says who asked for it, by default the user who has this handle."""
        ...


class Simple(Protocol):
    """A request that the caller runs itself. It may still be refused on the way."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def packed(self) -> bytes | None:
        """What it returned, as JSON; None if it did not, or not yet."""
        ...

    def run_at_once(self) -> Coroutine[Any, Any, None]:
        """Run it; most requests need one step only."""
        ...

    def stay(self) -> None:
        """Prepare for more steps, after the first."""
        ...

    def handle(self) -> HandleLike:
        """Return its handle."""
        ...


class Dispatching(Protocol):
    """Where every request goes, whatever its transport."""

    def begin(self, action: Action[..., Any], arrival: Call) -> Simple | None:
        """Accept a request that the caller runs itself; None: it is not that simple, so dispatch it.

        It has no idempotency key, and the caller waits for the result.
        """
        ...

    def dispatch(self, arrival: Call, *, here: bool = False) -> Coroutine[Any, Any, HandleLike]:
        """Accept a request, or raise why not.

        With ``here``, the caller will wait for the result and do nothing else, so that may come out only then.
        """
        ...

    async def find(self, principal: Principal, request_id: str) -> HandleLike:
        """Return a request that the principal may see."""
        ...
