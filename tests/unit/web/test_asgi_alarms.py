"""One timer for many waits of the same length."""

from __future__ import annotations

import asyncio
from functools import partial

from standfast.web.asgi import Alarm


def _one_turn(alarm: Alarm, heard: list[str]) -> None:
    async def wait() -> None:
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        alarm.set(lambda: over.set_result("rang"))
        heard.append(await over)

    asyncio.run(wait())


async def test_alarms_ring_in_the_order_in_which_they_were_set() -> None:
    """Each rings once, and none before one that was set earlier."""
    alarm, heard, over = Alarm(0.001), list[int](), asyncio.get_running_loop().create_future()
    for number in range(5):
        alarm.set(partial(heard.append, number))
    alarm.set(lambda: over.set_result(None))
    await over
    assert heard == [0, 1, 2, 3, 4]


async def test_an_alarm_that_was_turned_off_does_not_ring() -> None:
    """Those that were set before and after it do."""
    alarm, heard, over = Alarm(0.001), list[int](), asyncio.get_running_loop().create_future()
    for number in range(3):
        off = alarm.set(partial(heard.append, number))
        if number == 1:
            off()
    alarm.set(lambda: over.set_result(None))
    await over
    assert heard == [0, 2]


async def test_one_that_is_set_later_rings_later() -> None:
    """The timer is set again for whoever is not due yet."""
    alarm, heard, over = Alarm(0.01), list[str](), asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.005, lambda: alarm.set(lambda: over.set_result(None)))
    alarm.set(lambda: heard.append("first"))
    await over
    assert heard == ["first"]


def test_an_alarm_serves_one_event_loop_after_another() -> None:
    """What a loop that is closed has left behind stops nobody."""
    alarm, heard = Alarm(0.001), list[str]()

    async def leave() -> None:
        alarm.set(lambda: heard.append("never"))

    loop = asyncio.new_event_loop()
    loop.time = lambda: 0.0  # type: ignore[method-assign]  # nothing rings in it, however slow the machine is
    loop.run_until_complete(leave())
    loop.close()
    _one_turn(alarm, heard)
    assert heard == ["rang"]


async def test_an_alarm_rings_in_a_loop_beside_the_one_that_it_belongs_to() -> None:
    """Two servers in two threads can share it."""
    alarm, heard = Alarm(0.001), list[str]()
    over = asyncio.get_running_loop().create_future()
    alarm.set(lambda: over.set_result(None))
    await asyncio.to_thread(_one_turn, alarm, heard)
    await over
    assert heard == ["rang"]
