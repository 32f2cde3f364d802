"""What a hold of a free key returns: an awaitable that is already done.

It is awaited twice for every hold. A coroutine would cost more than all the locking, so there is none.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine

_nothing = iter(())


class _Done:
    __slots__ = ()

    __await__ = _nothing.__iter__  # an exhausted iterator is its own iterator, and stays exhausted


class _NoLoop:
    """All that a future asks of its loop when nobody ever waits for it."""

    def get_debug(self) -> bool:
        return False


def _done() -> object:
    if sys.version_info >= (3, 12):
        return _Done()
    future: asyncio.Future[None] = asyncio.Future(loop=cast("Any", _NoLoop()))  # the cheapest to await in 3.11
    future.set_result(None)
    return future


# Type checkers want an async context manager to return coroutines; ``async with`` takes whatever can be awaited.
DONE: Final = cast("Coroutine[Any, Any, None]", _done())
