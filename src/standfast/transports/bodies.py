"""Reading the body of a request: no more than a limit, no longer than a while, as it is."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from standfast.errors import BodyTooLargeError, BodyTooSlowError, UnsupportedBodyError
from standfast.offload import Lane
from standfast.transports.alarms import Alarm
from standfast.transports.begun import Begun

if TYPE_CHECKING:
    from starlette.types import Message, Receive

    from standfast.transports.headers import Headers

LARGE: Final = 1_000_000
"""Bytes from which JSON is read beside the loop: below, that takes less than going there and back."""

_lane: Final = Lane("json")


async def read_body(headers: Headers, receive: Receive, limit: int, time: float) -> bytes:
    """Return the body, byte for byte.

    Raises:
        UnsupportedBodyError: It is compressed. A few bytes could become gigabytes.
        BodyTooLargeError: It has more bytes than ``limit``, or says that it has.
        BodyTooSlowError: It did not arrive within ``time``, or broke off.
    """
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedBodyError("a compressed body is not taken here")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > len(str(limit)) or int(length) > limit):
        raise BodyTooLargeError(limit)
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
            raise BodyTooLargeError(limit)
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
            raise BodyTooSlowError(time) from None
        raise
    finally:
        off()


_alarm: Final = lru_cache(maxsize=16)(Alarm)


@final
class _Slow:
    """Who reads a body, and is stopped if that takes too long."""

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
            raise BodyTooSlowError(time)
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(limit)
        chunks.append(chunk)
        more = message.get("more_body", False)
        if more:
            message = await receive()
    return b"".join(chunks)


def content_type(headers: Headers) -> str:
    """Return the kind of the body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Tell whether a content type stands for JSON."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def read_json(body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON can be
    """Return what JSON says; what is large is read beside the loop, so that nobody else waits for it.

    Raises:
        UnsupportedBodyError: It is no JSON, or nested too deeply.
    """
    return await _lane.run(_read, body) if len(body) > LARGE else _read(body)


def _read(body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON can be
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnsupportedBodyError("the body is no JSON") from None  # the cause quotes from it
