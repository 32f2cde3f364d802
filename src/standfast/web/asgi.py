"""What all parts of the application need of ASGI: host names, headers read once, shared timers, first steps at once.

Nothing here knows of flows.
"""

from __future__ import annotations

import asyncio
import ipaddress
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast, final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from starlette.types import Receive, Scope


# --- names of this machine. They say where a server listens; no caller is let in because of one --------------------


@lru_cache(maxsize=1_024)
def is_loopback(address: str) -> bool:
    """Return True if an address, or the name of a host, is this machine's own. A unix socket has no address."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host in a ``Host`` header, without its port and brackets, in lower case."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_origin_of(origin: str, host: str) -> bool:
    """Return True if pages of an origin are served by the host that a ``Host`` header names."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:  # it is no origin at all
        return False


# --- one timer for many waits of the same length: most of them are over long before it rings -----------------------


@final
class Alarm:
    """Calls back after a number of seconds, unless it is turned off.

    A timer of the event loop for each request would cost more than all else that is done to read one.

    Args:
        seconds: How long each wait is.
    """

    __slots__ = ("_due", "_loop", "_seconds", "_thread", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._due: Final[dict[Callable[[], object], float]] = {}  # in the order in which they are due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call ``ring`` when the time is up; return a function that turns it off."""
        loop = self._loop
        # A thread runs one loop at a time; to ask which takes a call of the system before Python 3.12.
        if loop is None or self._thread != get_ident() or not loop.is_running():
            loop = asyncio.get_running_loop()
            if self._loop is not None and self._due and not self._loop.is_closed():
                return loop.call_later(self._seconds, callback).cancel  # it belongs to a loop in another thread
            self._loop, self._thread, self._timer = loop, get_ident(), None
            self._due.clear()
        self._due[callback] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._run_due, loop)
        return lambda: self._due.pop(callback, None)

    def _run_due(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._timer, now = None, loop.time()
        for callback, due in tuple(self._due.items()):
            if due > now:
                self._timer = loop.call_at(due, self._run_due, loop)
                return
            if self._due.pop(callback, None) is not None:
                callback()


# --- taking the first step of a coroutine at once: most of them do not have to wait --------------------------------

T = TypeVar("T")


class Rest(Generic[T]):
    """The rest of a coroutine whose first step was taken and has to wait; await it in the same task.

    Args:
        steps: What takes the steps.
        waits_for: What the first of them waits for.
    """

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, steps: Generator[Any, Any, T], waits_for: object) -> None:
        self._steps: Final = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waits_for = self._steps, self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as problem:  # noqa: BLE001 -- whatever is raised where it waits is its own to handle
                try:
                    waits_for = steps.throw(problem)
                except StopIteration as done:
                    return cast("T", done.value)
            else:
                return (yield from steps)


@final
class Begun(Rest[T]):
    """A coroutine whose first step was taken; await it for the rest if it is not done.

    What is done at once needs no timers and no tasks that watch. They would cost more than all else that is done for
    most requests.

    Attributes:
        is_done: It did not have to wait.
        value: What it returned then.
    """

    __slots__ = ("is_done", "value")

    def __init__(self, work: Awaitable[T]) -> None:
        steps = work.__await__()
        try:
            super().__init__(steps, next(steps))
            self.is_done = False
        except StopIteration as done:
            self.is_done = True
            self.value: T = done.value


# --- the headers of a request, read once, and those of every answer ------------------------------------------------

Headers: TypeAlias = "Mapping[str, str]"
"""Headers by their names in lower case. Of several with one name the first counts, everywhere."""

RawHeaders: TypeAlias = "Mapping[bytes, bytes]"
"""The same, as they came."""

FOR_DATA: Final = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
"""Headers for what an action returned. It is data, which browsers must not show as a page or as part of one."""

SECURITY: Final = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    *FOR_DATA,
)
"""Headers for every other answer."""

HEADERS: Final = "standfast.headers"
"""Where the headers of a request are kept in its scope."""


def raw_headers(scope: Scope) -> RawHeaders:
    """Return the headers of a request or WebSocket as they came. Most are answered before any of them becomes text."""
    return dict(reversed(scope["headers"]))


def headers_of(scope: Scope) -> Headers:
    """Return the headers of a request or WebSocket as text."""
    known: Headers | None = scope.get(HEADERS)
    if known is None:
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers(scope).items()}
        scope[HEADERS] = known
    return known


async def until_gone(receive: Receive) -> None:
    """Return when the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def route_path(scope: Scope) -> str:
    """Return the path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path
