"""Taking the first step of something at once."""

from __future__ import annotations

import asyncio

import pytest

from standfast.web.asgi import Begun


async def test_what_does_not_wait_is_done_at_once() -> None:
    """Without the event loop having a turn."""

    async def work() -> str:
        return "done"

    begun = Begun(work())
    assert (begun.is_done, begun.value) == (True, "done")


async def test_what_waits_goes_on_when_it_is_awaited() -> None:
    """From where it waits, and not from its beginning."""
    over, steps = asyncio.get_running_loop().create_future(), list[str]()

    async def work() -> str:
        steps.append("begun")
        told: str = await over
        await asyncio.sleep(0)
        return told

    begun = Begun(work())
    assert not begun.is_done
    asyncio.get_running_loop().call_soon(over.set_result, "told")
    assert await begun == "told"
    assert steps == ["begun"]


async def test_what_fails_at_once_raises_at_once() -> None:
    """Where it is begun."""

    async def work() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        Begun(work())


async def test_a_future_can_be_begun_as_well() -> None:
    """Servers may hand out anything that can be awaited."""
    over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    begun = Begun(over)
    over.set_result(7)
    assert await begun == 7


async def test_a_cancellation_reaches_what_waits() -> None:
    """It is raised there, and not only in whoever awaits it."""
    heard = list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def waits() -> None:
        await Begun(work())

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]


@pytest.mark.parametrize("waits_again", [False, True])
async def test_what_takes_a_cancellation_back_goes_on(*, waits_again: bool) -> None:
    """It may return then, or wait once more."""

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(3 * waits_again):
                await asyncio.sleep(0)
        return "went on"

    async def waits() -> str:
        return await Begun(work())

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "went on"
