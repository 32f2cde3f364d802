"""What every durable lock can do: take its options, hold, and be looked at and operated on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

from standfast.durations import optional_seconds
from standfast.errors import InvalidLockArgumentError
from standfast.locks.driving.acquiring import Wish
from standfast.locks.driving.hold import Holding
from standfast.locks.driving.turning_out import turn_out
from standfast.locks.explaining.reading import LISTED, explain
from standfast.locks.options import KNOWN, LONGEST_NOTE, LONGEST_OWNER, check_lease, check_text
from standfast.scope import address_of

if TYPE_CHECKING:
    from types import FrameType

    from standfast.keys import Key
    from standfast.locks.driving.hold import OnLost
    from standfast.locks.driving.lines import Lines
    from standfast.locks.driving.records import Site
    from standfast.locks.driving.requests import Along
    from standfast.locks.explaining.explanation import Explanation
    from standfast.locks.options import HoldOptions

# The documented way to learn where we are called from, and cheap.
_frame = sys._getframe  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class DurableLock:
    """A lock on one key of a space. Use :class:`Mutex`, :class:`Semaphore` or :class:`ModeLock`."""

    __slots__ = ("_address", "_lease", "_lines", "_site", "key")

    def __init__(self, lines: Lines, key: Key | str, site: Site, lease: float) -> None:
        self.key: Final = key
        self._lines, self._site, self._lease = lines, site, lease
        self._address: Final = address_of(key)

    def _holding(
        self,
        options: HoldOptions,
        *,
        mode: str = "",
        weight: int = 1,
        waits: bool = True,
        depth: int = 2,
        along: Along | None = None,
        on_leave: Along | None = None,
    ) -> Holding:
        """Check the options, before anything is written, and return what to enter. The user is ``depth`` calls up."""
        unknown = options.keys() - KNOWN
        if unknown:
            raise InvalidLockArgumentError("option", ascii(min(unknown)), f"there are {', '.join(sorted(KNOWN))}")
        given = cast("dict[str, Any]", options)
        lease = given.get("lease")
        wish = Wish(
            str(self.key),
            self._address,
            self._site,
            self._lease if lease is None else check_lease(lease, self._lines.scope.store.capabilities),
            _place(_frame(depth)),
            check_text(given.get("owner"), "owner", LONGEST_OWNER) or None,
            mode,
            weight,
            waits,
            optional_seconds(given.get("timeout"), what="timeout"),
            optional_seconds(given.get("max_hold"), what="max_hold", minimum=0.001),
            check_text(given.get("note"), "note", LONGEST_NOTE),
            along,
            on_leave=on_leave,
        )
        return Holding(self._lines, wish, _on_lost(given.get("on_lost", "cancel")))

    async def force_release(self, entry_id: str) -> bool:
        """Turn out a holder or a waiter by its entry's id, for an operator; tell whether it was there.

        Its fence is void from then on: what it still writes with it is refused. If its process lives, its body is
        cancelled with :class:`~standfast.errors.LeaseLostError`; a waiter is told with
        :class:`~standfast.errors.WithdrawnError`. Get the id from :meth:`explain`.
        """
        return await turn_out(self._lines.scope, self._lines.line(self._address), self._site, entry_id)

    async def withdraw(self, entry_id: str) -> bool:
        """Turn out a waiter by its entry's id, for an operator; tell whether it waited. One that holds by now stays.

        If its process lives, it is told with :class:`~standfast.errors.WithdrawnError`.
        """
        line = self._lines.line(self._address)
        return await turn_out(self._lines.scope, line, self._site, entry_id, only_waiting=True)

    async def explain(self, *, limit: int = LISTED) -> Explanation:
        """Say who holds it and who waits, since when, and how long it may take. Nothing is changed by looking.

        Args:
            limit: How many waiters to list; the others are counted.
        """
        return await explain(self._lines.scope, self._address, limit=limit)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} in {self._lines.scope!r}>"


def site_of(lock: DurableLock) -> Site:
    """Return what kind of line a lock's is, for others who stand in it."""
    return lock._site  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- of this module


def _on_lost(value: object) -> OnLost:
    if value not in ("cancel", "tell"):
        raise InvalidLockArgumentError("on_lost", ascii(value)[:40], "choose 'cancel' or 'tell'")
    return value


def _place(frame: FrameType) -> str:
    """Return where user code stands; the blocking face of a lock is none of it."""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("standfast.blocking."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
