"""Opening what serving takes, and closing it again, in the order in which one thing needs another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from standfast.errors import ArbiterUnavailableError, InvalidFlowError
from standfast.flows.arbiters.local import LocalArbiter
from standfast.flows.arbiters.shared import SharedArbiter
from standfast.flows.attending import CLOSING
from standfast.flows.cancelling import SERVER
from standfast.flows.chaining import Chains
from standfast.flows.serving import Server
from standfast.flows.sweeping import sweep_for_ever
from standfast.space import Space
from standfast.space import open as open_space
from standfast.workflows.engine import Engine, is_open, open_with, withdraw
from standfast.workflows.starting.sending import cancel as cancel_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.flows.tenants import TenantLimits
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.schedules.specification import Schedule

ArbiterKind: TypeAlias = Literal["shared", "local"]

GRACE: Final = 10.0
"""Seconds that requests get to end when a dispatcher closes."""


@final
class Opening:
    """What a dispatcher has open. It can be opened again.

    Args:
        engine: What drives durable requests, see :class:`~standfast.flows.dispatch.Dispatcher`.
        workflows: Those of all actions, by name.
        arbiter: Where the lines of keys lie.
        name: Of the service.
        patience: Seconds to wait for another server to end, if the arbiter is local.
        tenants: What each tenant may have at most.

    Attributes:
        is_closing: Nobody is admitted any more.
    """

    def __init__(
        self,
        engine: Engine | Space | str,
        workflows: Mapping[str, Workflow[..., Any]],
        arbiter: ArbiterKind,
        name: str,
        patience: float,
        tenants: TenantLimits,
    ) -> None:
        if arbiter not in ("shared", "local"):
            raise InvalidFlowError("arbiter", f"{arbiter!r:.60} is neither 'shared' nor 'local'")
        self._given, self._workflows, self._kind = engine, workflows, arbiter
        self._name, self._patience, self._tenants = name, patience, tenants
        self._space: Space | None = None
        self._opened: Engine | None = None
        self._server: Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.is_closing = False

    def serving(self) -> Server:
        """Return what serves.

        Raises:
            ArbiterUnavailableError: Nothing does.
        """
        if self._server is None:
            raise ArbiterUnavailableError("the dispatcher is not open")
        return self._server

    # --- opening -------------------------------------------------------------------------------------------------

    async def open(self, schedules: Sequence[Schedule]) -> None:
        """Begin to serve; schedules are made, or changed, before the first of them fires."""
        if self._server is not None:
            raise InvalidFlowError("the dispatcher", "it is open already")
        self.is_closing = False
        try:
            engine = await self._begin(schedules)
        except BaseException:
            await self.aclose(0)
            raise
        sweeping = sweep_for_ever(engine, self._workflows, self._tenants.session_kept)
        self._sweeping = asyncio.get_running_loop().create_task(sweeping)

    async def _begin(self, schedules: Sequence[Schedule]) -> Engine:
        given = self._given
        if isinstance(given, Engine):
            engine, space = given, None
        else:
            space = given if isinstance(given, Space) else await open_space(given)
            self._space = None if space is given else space
            engine = Engine(space)
        if is_open(engine):
            await self._serve(engine)
            engine.register(*self._workflows.values())
        else:
            engine.register(*self._workflows.values())
            self._opened = engine
            await open_with(engine, self._serve)  # nothing is driven before there is an arbiter to ask
        await engine.schedules.declare(schedules)
        return engine

    async def _serve(self, engine: Engine) -> None:
        space, host = engine.space, engine.host

        async def stop_run(run_id: str, reason: str) -> None:
            await cancel_run(host, run_id, reason)

        def on_serving(*, is_serving: bool) -> None:
            """Leave durable requests to whoever arbitrates them."""
            change = engine.register if is_serving else partial(withdraw, engine)
            change(*self._workflows.values())

        options: Any = {"app": self._name, "patience": self._patience, "on_serving": on_serving}
        options |= {"most_keys": self._tenants.keys}
        arbiter = (
            SharedArbiter(space, stop_run=stop_run)
            if self._kind == "shared"
            else LocalArbiter(space, stop_run=stop_run, **options)
        )
        chains = await Chains.load(space)
        await arbiter.__aenter__()
        self._server = Server(engine, arbiter, chains, self._tenants)
        await self._server.listen()

    # --- closing -------------------------------------------------------------------------------------------------

    async def let_end(self, grace: float) -> None:
        """Let the requests end that run here; those that take longer are told to stop, and end interrupted."""
        if self._server is not None:
            await _let_end(self._server, grace)

    async def aclose(self, grace: float) -> None:
        """Admit nobody any more, let requests end, hand durable ones back, and only then let go."""
        self.is_closing = True
        server = self._server
        engine, self._opened = self._opened, None
        space, self._space = self._space, None
        async with AsyncExitStack() as last_first:  # whatever fails, the rest is closed
            if space is not None:
                last_first.push_async_callback(space.aclose)
            if engine is not None:
                last_first.push_async_callback(engine.aclose, grace=0)
            if server is not None:
                last_first.push_async_callback(self._stop_serving, server)
            if engine is not None and engine.worker is not None:  # what drives durable requests needs the arbiter
                last_first.push_async_callback(engine.worker.stop, grace)
            await self._stop_admitting(server, grace)

    async def _stop_admitting(self, server: Server | None, grace: float) -> None:
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
        if server is not None:
            await _let_end(server, grace)

    async def _stop_serving(self, server: Server) -> None:
        self._server = None
        try:
            await server.arbiter.aclose()
        finally:
            await server.aclose()


async def _let_end(server: Server, grace: float) -> None:
    """Wait for the requests that run here; those that take too long are cancelled."""
    waiting = {attended.over for attended in server.unfinished}
    server.tell_waits(grace)
    if waiting and grace:
        await asyncio.wait(waiting, timeout=grace)
    for attended in server.unfinished:
        attended.stop(CLOSING, SERVER)
    if left := {attended.over for attended in server.unfinished}:
        await asyncio.wait(left, timeout=GRACE)
