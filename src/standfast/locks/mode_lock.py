"""A mode lock: holders of one mode share, those of different modes exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, final

from standfast.errors import InvalidLockArgumentError, UnknownModeError
from standfast.keys import Key
from standfast.locks.algebra.line import UNLIMITED, Rules
from standfast.locks.driving.records import Site
from standfast.locks.locking import DurableLock
from standfast.locks.options import LONGEST_MODE, check_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.locks.driving.hold import Holding
    from standfast.locks.driving.lines import Lines
    from standfast.locks.options import HoldOptions


@final
class ModeLock(DurableLock):
    """A lock with modes, in all processes on the store. Get it from ``space.mode_lock``.

    Holders in the same mode share it, unless the mode is listed as ``alone``. A read/write lock is
    ``space.mode_lock(key, modes=("read",), alone=("write",))``. Nobody passes one that asked earlier, not even in the
    mode of the present holders, so no mode is starved.

    >>> async with sf.open("memory://") as space:
    ...     graph = space.mode_lock("graph", modes=("read",), alone=("write",))
    ...     async with graph.hold("read"):
    ...         pass
    """

    __slots__ = ("_modes",)

    def __init__(self, lines: Lines, key: Key | str, modes: Iterable[str], alone: Iterable[str], lease: float) -> None:
        shared, single = _checked(modes), _checked(alone)
        if isinstance(key, Key) and not shared and not single:
            shared, single = key.family.modes, key.family.alone
        if not shared and not single:
            problem = "declare some: modes=('read',), alone=('write',), or on the key's family"
            raise InvalidLockArgumentError("modes", "nothing", problem)
        self._modes = tuple(check_text(mode, "mode", LONGEST_MODE) for mode in (*shared, *single))
        super().__init__(lines, key, Site("mode lock", Rules(UNLIMITED, tuple(sorted(single)))), lease)

    def hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it in ``mode`` for the length of an ``async with`` block; options as for a mutex.

        Raises:
            UnknownModeError: The mode was not declared.
        """
        return self._holding(options, mode=self._known(mode))

    def try_hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if it can be had at once; never wait."""
        return self._holding(options, mode=self._known(mode), waits=False)

    def _known(self, mode: str) -> str:
        if mode not in self._modes:
            raise UnknownModeError(str(self.key), mode, self._modes)
        return mode


def checked_mode(lock: ModeLock, mode: str) -> str:
    """Return a mode that a lock has; refuse any other."""
    return lock._known(mode)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- of this module


def _checked(modes: Iterable[str]) -> tuple[str, ...]:
    found = tuple(modes) if not isinstance(modes, str) else ()
    if isinstance(modes, str) or not all(isinstance(each, str) and each for each in found):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidLockArgumentError("modes", ascii(modes)[:60], "they are a tuple of texts that are not empty")
    return found
