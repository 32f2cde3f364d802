"""What the settings of a server mean for what a store promises, and whether an address is fit to listen at."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.postgresql.connecting import dial, hang_up

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.postgresql.options import Options

PROBLEM: Final = (
    "fsync or full_page_writes is off on the server; only with both a commit survives a crash of its machine"
)


class NotDurableWarning(UserWarning):
    """The server is set to answer before a commit is on its disk: a crash of its machine can undo what was answered.

    Set ``fsync = on`` and ``full_page_writes = on``, as they are by default.
    """


def tell_weakness(name: str, hooks: Hooks) -> None:
    """Warn of a server that keeps what was committed only while its machine runs."""
    if hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=PROBLEM))
    warnings.warn(NotDurableWarning(f"{name}: {PROBLEM}"), stacklevel=2)


async def check_listening(options: Options, name: str) -> None:
    """Refuse an address for ``listen=`` that is a pooler itself: hints would never come, and nobody would know."""
    if options.listening is None:
        return
    session = await dial(options.listening, structs.replace(options, pooler="auto"), name)
    await hang_up(session.connection)
    if not session.is_direct:
        raise UnsuitableStoreError(name, "listen= names a pooler; name the server itself")
