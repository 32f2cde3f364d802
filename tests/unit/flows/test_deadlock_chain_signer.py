"""Keys that come from outside: which of them count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import WaitsForItselfError
from standfast.flows.deadlock import SIGNED, ChainSigner
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from standfast.flows.request import Address

KEY: Address = ("request", "acme", "session", "s-1")


async def signed_by(dispatcher: sf.Dispatcher, stage: Stage) -> tuple[Address, ...]:
    """Return the chain that an action of a dispatcher sends along."""
    chain: asyncio.Future[tuple[Address, ...]] = asyncio.get_running_loop().create_future()

    async def nest(request: sf.Request, name: str) -> str:
        chain.set_result(request.signed_chain)
        return name

    stage.nest = nest
    await result(await dispatcher.dispatch(arrival("nested", "sends")))
    return chain.result()


async def test_a_key_that_was_signed_in_this_store_counts_in_all_its_processes() -> None:
    """A request that would wait for it is refused at once."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [stage.flow]) as one, sf.Dispatcher(url, [stage.flow]) as other:
        chain = await signed_by(one, stage)
        for dispatcher in (one, other):
            with pytest.raises(WaitsForItselfError):
                await dispatcher.dispatch(arrival("queued", "waits", chain=chain))


async def test_a_key_of_another_store_is_another_key() -> None:
    """Two applications have sessions of the same name; one may wait for the other. The way back is still known."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as one, sf.Dispatcher("memory://", [stage.flow]) as other:
        chain = await signed_by(one, stage)
        seen: list[tuple[Address, ...]] = []

        async def nest(request: sf.Request, name: str) -> str:
            seen.append(request.signed_chain)
            return name

        stage.nest = nest
        assert await result(await other.dispatch(arrival("nested", "is run", chain=chain))) == "is run"
        assert len(seen[0]) == 2
        with pytest.raises(WaitsForItselfError):
            await one.dispatch(arrival("queued", "comes back", chain=seen[0]))


@pytest.mark.parametrize("forged", [(SIGNED, *KEY), (SIGNED, "0" * 32, *KEY), (SIGNED,), (SIGNED, "ü", *KEY)])
async def test_a_key_that_somebody_made_up_refuses_nothing(forged: Address) -> None:
    """A caller cannot let the requests fail that an action makes on its behalf."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:

        async def nest(request: sf.Request, name: str) -> str:
            del request
            inner = await dispatcher.dispatch(arrival("queued", name))
            return str(await inner.result(SOON))

        stage.nest = nest
        sent = arrival("nested", "inner", session="another", chain=(forged,))
        assert await result(await dispatcher.dispatch(sent)) == "did inner"


async def test_a_key_is_signed_once() -> None:
    """What came from outside is handed on as it came, and comes back as it was sent."""
    async with sf.open("memory://") as space:
        chains = await ChainSigner.load(space)
        sent = chains.signed(KEY)
        assert chains.signed(sent) == sent
        assert chains.known(sent) == chains.known(KEY) == KEY
        assert (await ChainSigner.load(space)).known(sent) == KEY
