"""Removing what ended requests leave behind besides their records, which go by themselves: the runs of durable ones.

Sessions go by themselves as well, a while after their last use. Those that were written before there was such a while
get one when a server has been open for a time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from standfast.clock import later, seconds_between
from standfast.errors import RequestNotFoundError, RunNotFoundError, RunUnfinishedError, StandfastError
from standfast.flows.call import tenant_in
from standfast.flows.records import KEPT, SESSION_KEPT, RequestKeys
from standfast.flows.viewing import look, settle
from standfast.stores.protocol import Put
from standfast.workflows.operating.retention import purge
from standfast.workflows.storing.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Container

    from standfast.scope import Scope
    from standfast.workflows.engine import Engine
    from standfast.workflows.operating.information import RunInfo

EVERY: Final = 600.0
"""Seconds between two looks for runs that have ended long ago."""

PAGE: Final = 100


async def sweep_for_ever(engine: Engine, workflows: Container[str], session_kept: float = SESSION_KEPT) -> None:
    """Sweep now and then."""
    have_an_end = False
    while True:
        await asyncio.sleep(EVERY)
        with suppress(StandfastError):  # the next round finds what is left
            await sweep(engine, workflows)
            if not have_an_end:
                await give_an_end(engine.space, session_kept)
                have_an_end = True


async def give_an_end(scope: Scope, kept: float) -> int:
    """Let sessions, and whose they are, end after a while that were written to be kept for ever; tell how many."""
    changed = 0
    for kind in ("owner", "session"):
        start, end = scope.key(kind).within()
        while True:
            page = await scope.scan(start, end, limit=PAGE)
            for record in page.records.values():
                if record.expires_at is None:
                    until = later(page.at, kept)
                    await scope.commit(Put(record.key, record.value, record.version, expires_at=until))
                    changed += 1
            if page.more is None:
                break
            start = page.more
    return changed


async def sweep(engine: Engine, workflows: Container[str], kept: float = KEPT) -> int:
    """Purge the runs of requests that ended long ago; return how many there were."""
    after, purged = None, 0
    while True:
        page = await engine.list(status=ENDED, limit=PAGE, after=after)
        for run in page.runs:
            is_old = seconds_between(run.changed_at, engine.host.now()) >= kept
            if is_old and run.workflow in workflows:
                purged += await _purge(engine, run)
        if page.next is None:
            return purged
        after = page.next


async def _purge(engine: Engine, run: RunInfo) -> int:
    """Purge a run; before that its request is written down as ended, so that its record goes as well."""
    tenant = tenant_in(run.tags)
    try:
        if tenant is not None:
            keys = RequestKeys(engine.space, tenant, run.id)
            with suppress(RequestNotFoundError):
                await settle(engine.space, keys, await look(engine.space, keys))
        return await purge(engine.host, run.id, force=False)
    except (RunNotFoundError, RunUnfinishedError):
        return 0
