"""Liveness: how a process is seen to live or to have died, and how forks are noticed.

A process gives a *liveness token* to those that wait for it. Where others see a process by its session on a server, a
lost session is not a death. It begins a *grace*: waiters let it pass, and a process that lives proves that within it,
by attaching its token to a new session. By its own clock it stops a margin earlier; then it is taken for dead, and that
token is over for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from typing import TYPE_CHECKING, Final, final
from weakref import WeakSet

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK
from standfast.errors import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores.protocol import Store


# --- refusing what was opened before a fork: the child shares its files and sockets, and must not use them ---------

_guards: WeakSet[ForkGuard] = WeakSet()
_before: list[Callable[[], None]] = []
_in_parent: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []


def _before_fork() -> None:
    for action in _before:
        action()


def _after_fork_in_parent() -> None:
    for action in _in_parent:
        action()


def _after_fork_in_child() -> None:
    for guard in _guards:
        guard.crossed = True
    with contextlib.ExitStack() as stack:  # all of them, also if one fails
        for action in reversed(_in_child):
            stack.callback(action)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def run_around_fork(before: Callable[[], None], in_parent: Callable[[], None]) -> None:
    """Run ``before`` ahead of every fork from now on, and ``in_parent`` after it where the process goes on."""
    _before.append(before)
    _in_parent.append(in_parent)


def run_in_forked_child(action: Callable[[], None]) -> None:
    """Run ``action`` in every child that this process forks from now on."""
    _in_child.append(action)


@final
class ForkGuard:
    """Knows if this is the process that it was made in.

    Attributes:
        crossed: Whether this is a forked child of that process. It is set by the fork: every commit asks for it.
    """

    __slots__ = ("__weakref__", "_name", "crossed")

    def __init__(self, name: str) -> None:
        self._name = name
        self.crossed = False
        _guards.add(self)

    def check(self) -> None:
        """Raise if the process has been forked since."""
        if self.crossed:
            raise StoreClosedError(
                self._name, "it was opened before this process was forked; open it anew in the child"
            )


# --- tokens: what a process may do while others cannot see that it lives --------------------------------------------

GRACE: Final = 1.2
"""For how many seconds a token has to be seen unattached before its process counts as dead, unless it says another."""

HEADSTART: Final = 0.3
"""How many seconds before that a process that has lost its session stops counting on being taken for alive."""

VALID: Final = GRACE - HEADSTART

SEEN: Final = 1.0
"""Seconds for which a token must be attached to be seen so by every process that looks."""

LONGEST_GAP: Final = 0.8
"""With more seconds between two looks, a token may have been attached in between for long enough to count."""

LONGEST_RESTART: Final = 10.0
"""For how many seconds a server that refuses all sessions may put the grace off."""

ATTACHED_WITHIN: Final = 2.0
"""Seconds after which a presence does without a token that could not be attached."""


def now() -> float:
    """Return seconds that pass for this machine, also while the process is stopped or the machine asleep."""
    return SYSTEM_CLOCK.elapsed() / MICROSECONDS


@final
class TokenState:
    """The life of one token as its own process sees it: attached, lost and attached again, until it is over for good.

    It reads no clock: every method is told the time, in seconds.
    """

    __slots__ = ("_attached_at", "_excused_at", "_lost_at", "_valid", "is_attached", "is_over")

    def __init__(self, grace: float = GRACE) -> None:
        self._valid: Final = grace - HEADSTART
        self.is_attached = self.is_over = False
        self._attached_at = self._excused_at = -math.inf
        self._lost_at = math.inf

    def attach(self, at: float) -> bool:
        """Say that it is attached since before ``at``; False if that is too late."""
        if self.left(at) <= 0:
            return False
        self.is_attached, self._attached_at = True, at
        return True

    def lose(self, at: float) -> None:
        """Say that the session is lost."""
        if self.is_attached and (self._lost_at == math.inf or at - self._attached_at >= SEEN):
            self._lost_at = at  # otherwise others may have seen nothing of it since it was lost before
        self.is_attached = False

    def excuse(self, at: float) -> None:
        """Say that the server refuses all sessions at the moment, so that other processes see nothing either."""
        self._excused_at = at

    def left(self, at: float) -> float:
        """Return the seconds for which the process counts on being taken for alive; nothing or less: it is over."""
        if self.is_over:
            return -1.0
        if self.is_attached:
            return math.inf
        excused_at = min(self._excused_at, self._lost_at + LONGEST_RESTART)
        left = max(self._lost_at, excused_at) + self._valid - at
        self.is_over = left <= 0
        return left


@final
class Suspicion:
    """What one process has seen of another's token. It reads no clock either."""

    __slots__ = ("_asked_at", "_grace", "_since", "is_certain")

    def __init__(self, grace: float = GRACE) -> None:
        self._grace: Final = grace
        self._since = math.inf
        self._asked_at = -math.inf
        self.is_certain = False

    @property
    def is_there(self) -> bool:
        """Whether there is anything to suspect."""
        return self._since != math.inf

    def look(self, *, is_attached: bool, asked_at: float, answered_at: float) -> None:
        """Take an answer of the server into account."""
        if is_attached:
            self._since = math.inf
        elif not self.is_there or answered_at - self._asked_at > LONGEST_GAP:
            self._since = answered_at
        elif asked_at - self._since >= self._grace:
            self.is_certain = True  # for good: its process knows by now that it is over
        self._asked_at = asked_at

    def forget(self) -> None:
        """Begin anew: after a while without a session there may have been anything."""
        self._since = math.inf


@final
class ProcessLiveness:
    """The liveness token of this process, which its threads share.

    Args:
        token: The text by which others know it.
        grace: How long others wait for it to be attached again.
    """

    __slots__ = ("_listeners", "_lock", "_state", "token")

    def __init__(self, token: str, grace: float = GRACE) -> None:
        self.token: Final = token
        self._lock: Final = threading.Lock()
        self._state: Final = TokenState(grace)
        self._listeners: tuple[Callable[[], None], ...] = ()
        _proofs[token] = self

    @property
    def is_attached(self) -> bool:
        """Whether others can see now that this process lives."""
        return self._state.is_attached

    def left(self) -> float:
        """Return for how many seconds this process counts on being taken for alive; nothing or less: it is over."""
        if self._state.is_attached:
            return math.inf
        with self._lock:
            return self._state.left(now())

    def attach(self) -> bool:
        """Say that it is attached; False if that came too late, and then it never will be."""
        with self._lock:
            is_attached = self._state.attach(now())
        self._tell()
        return is_attached

    def lose(self, at: float = math.inf) -> None:
        """Say that the session is lost, since ``at`` if that is earlier: its process may have been stopped."""
        with self._lock:
            self._state.lose(min(at, now()))
        self._tell()

    def excuse(self) -> None:
        """Say that the server refuses all sessions at the moment."""
        with self._lock:
            self._state.excuse(now())

    # --- subscribing ---------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on the running loop when it is attached or lost; return what ends that."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not tell)

        with self._lock:
            self._listeners = (*self._listeners, tell)
        return end

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def until_attached(self, seconds: float = math.inf) -> bool:
        """Wait until it is attached; False if it is over, or ``seconds`` have passed."""
        changed, gives_up_at = asyncio.Event(), now() + seconds
        end = self.listen(changed.set)
        try:
            while not self._state.is_attached and (left := min(self.left(), gives_up_at - now())) > 0:
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else left):
                        await changed.wait()
        finally:
            end()
        return self._state.is_attached


_proofs: Final[dict[str, ProcessLiveness]] = {}  # they are kept: one for each time that this process was cut off


def liveness_of(token: str) -> ProcessLiveness | None:
    """Return the proof behind a token of this process; None: it needs none."""
    return _proofs.get(token)


async def visible_token(store: Store) -> str:
    """Return the token of this process when others can see it; empty if that takes too long."""
    token = store.liveness_token()
    proof = liveness_of(token)
    return token if proof is None or proof.is_attached or await proof.until_attached(ATTACHED_WITHIN) else ""
