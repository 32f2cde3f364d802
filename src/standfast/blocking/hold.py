"""A hold: a durable lock that one thread holds for the length of a ``with`` block, and its options."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, cast, final

from standfast.blocking._portal import BackgroundCall, call, owner_of_thread
from standfast.durations import optional_seconds
from standfast.errors import InvalidArgumentError, StoreClosedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from standfast.blocking._portal import Background
    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.locks import Hold as AsyncHold
    from standfast.locks import HoldOptions as AsyncHoldOptions
    from standfast.stores.protocol import Check

P = ParamSpec("P")
T = TypeVar("T")


@final
class Hold:
    """What is held, as the body of ``with lock.hold() as hold`` sees it. Any thread may ask it.

    Attributes:
        key: The key, as text.
        fence: A number that is larger than that of every earlier hold of this key (of this slot, if there are several
            permits). Pass it with every write to what the lock protects, and refuse smaller ones there.
        mode: In which mode it is held; empty for locks without modes.
        since: Since when, by the store's time.
        called_from: Where in the code it was taken.
        lost: Wait for it in another thread to hear that the lock is no longer held, or ask :attr:`is_lost`.
    """

    __slots__ = ("_background", "_hold", "called_from", "fence", "key", "lost", "mode", "since")

    def __init__(self, background: Background, hold: AsyncHold, left: asyncio.Event) -> None:
        self._background, self._hold = background, hold
        self.key: Final[str] = hold.key
        self.fence: Final[int] = hold.fence
        self.mode: Final[str] = hold.mode
        self.since: Final[Instant] = hold.since
        self.called_from: Final[str] = hold.called_from
        self.lost: Final = Lost(background, self._is_lost, hold.lost, left)

    @property
    def guard(self) -> Check:
        """A change that lets a commit of the same space happen only while this is held: fencing in one step."""
        return self._hold.guard

    @property
    def reason(self) -> str:
        """Why it was lost; empty while it is held."""
        return self._hold.reason

    @property
    def is_lost(self) -> bool:
        """Whether the lock is no longer held, as far as this process can tell; also when its lease is over by now.

        Raises:
            StoreClosedError: This is a forked child: the parent holds the lock.
        """
        return self._is_lost()

    def _is_lost(self) -> bool:
        self._background.guard.check()
        if self._hold.reason:
            return True
        return self._hold.presence.left() <= 0 and call(self._background, self._ask)

    async def _ask(self) -> bool:
        return self._hold.is_lost

    def check(self) -> None:
        """Raise if the lock is no longer held. Call it before what must not be done without it; it costs a microsecond.

        Raises:
            LeaseLostError: The lock is no longer held, or its lease may have lapsed meanwhile.
            StoreClosedError: This is a forked child: the parent holds the lock.
        """
        if self.is_lost:
            self._hold.check()

    def __repr__(self) -> str:
        return repr(self._hold)


@final
class Lost:
    """Set when a lock is no longer held, though its block has not been left. Like a ``threading.Event``."""

    __slots__ = ("_background", "_is_lost", "_left", "_lost")

    def __init__(
        self, background: Background, is_lost: Callable[[], bool], lost: asyncio.Event, left: asyncio.Event
    ) -> None:
        self._background, self._is_lost, self._lost, self._left = background, is_lost, lost, left

    def is_set(self) -> bool:
        """Return True if the lock is lost."""
        return self._is_lost()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the lock is lost and tell so; False when ``timeout`` is over, or the block was left before."""
        limit = optional_seconds(timeout, what="timeout")
        self._background.guard.check()
        return call(self._background, lambda: self._wait(limit))

    async def _wait(self, limit: float | None) -> bool:
        waits = {asyncio.ensure_future(self._lost.wait()), asyncio.ensure_future(self._left.wait())}
        try:
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return self._lost.is_set()


class AsyncHolding(Protocol):
    """What is asked of the async side: anything that is entered and left, and is a hold in between."""

    async def __aenter__(self) -> AsyncHold: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@final
class Holding:
    """A durable lock to be held for the length of a ``with`` block, or of each call of a function.

    Nothing happens until the block is entered. One of these serves one block at a time.
    """

    __slots__ = ("_background", "_holding", "_left", "_make")

    def __init__(self, make: Callable[[], tuple[Background, AsyncHolding]]) -> None:
        make()  # so that a mistake is told here, where it was made
        self._make: Final = make
        self._background: Background | None = None
        self._holding: AsyncHolding | None = None
        self._left = asyncio.Event()

    def __enter__(self) -> Hold:
        if self._holding is not None and self._background is not None and not self._background.guard.crossed:
            raise UsageError(f"the hold of {self._holding!r}", "is in use already", "make a new hold for each block")
        background, holding = self._make()
        entering = BackgroundCall(background, holding.__aenter__, lambda _: holding.__aexit__(None, None, None))
        try:
            left = asyncio.Event()
            hold = Hold(background, entering.result(), left)
            self._background, self._holding, self._left = background, holding, left
        except BaseException:
            self._background = self._holding = None
            entering.abandon()
            raise
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        background, holding = self._background, self._holding
        if background is None or holding is None:
            raise UsageError("the hold of a lock", "was left without being entered", "make a new hold for each block")
        if background.guard.crossed:
            self._background = self._holding = None
            if kind is None:
                raise StoreClosedError(
                    repr(holding), "the parent of this forked child holds it; the child has left the block without it"
                )
            return
        left = self._left

        async def leave() -> None:
            left.set()
            await holding.__aexit__(kind, error, trace)

        leaving = BackgroundCall(background, leave, shielded=True)
        try:
            leaving.result()
        except BaseException:
            leaving.abandon()
            raise
        finally:
            self._background = self._holding = None  # not before: it would be forgotten by an interruption until here

    def __del__(self) -> None:
        """Give back what an interruption has kept from being left: one that came before the loop was asked for it."""
        background, holding = getattr(self, "_background", None), getattr(self, "_holding", None)
        if background is not None and holding is not None and not background.guard.crossed and background.is_alive:
            BackgroundCall(background, lambda: holding.__aexit__(KeyboardInterrupt, None, None)).begin()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call takes the lock anew and holds it until the call ends."""
        if inspect.iscoroutinefunction(function):
            raise UsageError(
                function.__qualname__,
                "blocks, and an event loop runs in this thread",
                "use the lock of an async space, or call it through asyncio.to_thread",
            )

        @wraps(function)
        def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            with Holding(self._make):
                return function(*args, **kwargs)

        return holding

    def __repr__(self) -> str:
        return f"<Holding {self._holding!r}>"


OnLost: TypeAlias = Literal["raise", "tell"]


"""What becomes of a hold that is lost: leaving the block raises, or ``hold.lost`` is all that tells."""


class HoldOptions(TypedDict, total=False):
    """How a lock is taken and held; the same for every kind of lock.

    Attributes:
        timeout: How long to wait at most; by default for as long as it takes.
        lease: How long others wait for this process if it is not heard of any more; by default the space's. It is
            renewed by itself: it limits neither the wait nor the hold.
        max_hold: After how long the lock is taken away, however alive the holder is.
        on_lost: A thread cannot be cancelled, so a body whose lock is lost runs on; call ``hold.check()`` where it
            matters. By default (``"raise"``) leaving the block raises :class:`~standfast.errors.LeaseLostError`;
            ``"tell"`` leaves it at ``hold.lost``.
        owner: For whom, in the eyes of deadlock detection; by default the current thread.
        note: A few words for people who look at the line.
    """

    timeout: Duration | None
    lease: Duration | None
    max_hold: Duration | None
    on_lost: OnLost
    owner: str | None
    note: str


def as_async(options: HoldOptions) -> AsyncHoldOptions:
    """Return the options for the async lock, with the current thread as the owner if no other is named."""
    given = dict(cast("dict[str, Any]", options))
    on_lost = given.pop("on_lost", "raise")
    if on_lost not in ("raise", "tell"):
        problem = "a thread cannot be cancelled; choose 'raise' or 'tell'"
        raise InvalidArgumentError("the on_lost of a lock", problem, ascii(on_lost)[:40])
    # What "cancel" would cancel is the call that took the lock, which is over by then. Leaving raises.
    given["on_lost"] = "cancel" if on_lost == "raise" else "tell"
    if given.get("owner") is None:
        given["owner"] = owner_of_thread()
    return cast("AsyncHoldOptions", given)
