"""The net under the hints: now and then somebody looks whether anything was committed, hint or not."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final, final

from standfast.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores.backend import Ear
    from standfast.stores.sqlite.database import Database

SLOW_CHECK: Final = 1.0
"""How many seconds a lost hint can go unnoticed."""


@final
class SlowCheck:
    """Tells everyone who listens on one handle to look at everything, when something was committed.

    One look serves them all, however many they are; without anyone there is none.
    """

    __slots__ = ("_database", "_ears", "_loop", "_seen", "_timer")

    def __init__(self, database: Database) -> None:
        self._database: Final = database
        self._loop: Final = asyncio.get_running_loop()
        self._ears: Final[dict[object, Ear]] = {}
        self._seen = 0
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, ear: Ear) -> Callable[[], None]:
        """Tell ``ear`` when something was committed, until the returned function is called."""
        token = object()
        if self._timer is None:
            self._seen = self._version()
            self._timer = self._loop.call_later(SLOW_CHECK, self._look)
        self._ears[token] = ear
        return functools.partial(self._forget, token)

    def _forget(self, token: object) -> None:
        self._ears.pop(token, None)
        if not self._ears and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(SLOW_CHECK, self._look)
        version = self._version()
        if version != self._seen:
            self._seen = version
            for ear in tuple(self._ears.values()):
                ear.hear(None)

    def _version(self) -> int:
        try:
            return self._database.data_version()
        except StoreError:  # whoever reads next is told properly; here it only means: do look
            return -1
