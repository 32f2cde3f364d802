"""Stopping a request whose caller has gone away: nobody waits for it, so it is tried until it is known."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from standfast.errors import ForbiddenError, RequestNotFoundError, RequestSharedError, StandfastError
from standfast.flows.cancelling import CALLER
from standfast.logs import as_logfmt

if TYPE_CHECKING:
    from standfast.flows.handle import Handle
    from standfast.flows.serving import Server

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries: doubled from the first to the longest."""

LONGEST: Final = 600.0
"""Seconds after which a store that does not answer is left alone: by then most requests have ended by themselves."""

_log: Final = logging.getLogger("standfast.flows")
_SAYS_NO: Final = (ForbiddenError, RequestNotFoundError, RequestSharedError)


async def cancel_in_the_end(server: Server, handle: Handle, reason: str) -> bool:
    """Ask a request to stop, and again while the store does not answer; tell whether that is settled.

    It is once the request was asked, has ended, is gone, or goes on for others who share its run. A server that closes
    tries no longer: its attended requests end with it.
    """
    pause, waited = FIRST_PAUSE, 0.0
    while True:
        try:
            await handle.cancel(reason, CALLER)
        except _SAYS_NO:
            return True
        except StandfastError as problem:
            if not waited:
                facts = {"event": "cancel-delayed", "request": handle.id, "problem": type(problem).__name__}
                _log.warning("%s", as_logfmt({**facts, "fix": "none: it is tried again while the store is away"}))
            if server.is_closing or waited >= LONGEST:
                return False
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE)
        else:
            return True
