"""What is known of requests that leave nothing in the store: as much as is asked for, as long as it is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import standfast as sf
from standfast.clock import later
from standfast.errors import RequestFailedError, RequestNotFoundError
from standfast.flows.records import KEPT
from standfast.flows.server import REMEMBERED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.handle import Handle
    from standfast.flows.request import RequestInfo

DESK = sf.Flow("desk")


class Letter(msgspec.Struct, weakref=True):
    """Something that a request brings."""

    text: str


class Pause:
    """Where requests wait until a test lets them go on."""

    here, may_go_on = asyncio.Event(), asyncio.Event()
    letters: list[weakref.ref[Letter]] = []  # noqa: RUF012 -- made anew for each test


@DESK.action(concurrency="queue")
async def read(_request: sf.Request, letter: Letter) -> int:
    """Wait, and tell how long a letter is."""
    Pause.letters.append(weakref.ref(letter))
    Pause.here.set()
    await Pause.may_go_on.wait()
    return len(letter.text)


@DESK.action
async def write(request: sf.Request, size: int, fail: bool = False) -> list[Letter]:  # noqa: FBT001, FBT002 -- inputs have names
    """Write a letter, tell about it, and drop it if so told."""
    letter = Letter("x" * size)
    Pause.letters.append(weakref.ref(letter))
    request.emit({"text": letter.text})
    if fail:
        raise ValueError("it fell down")
    return [letter]


@pytest.fixture
async def desk() -> AsyncIterator[sf.Dispatcher]:
    """Serve the desk."""
    Pause.here, Pause.may_go_on, Pause.letters = asyncio.Event(), asyncio.Event(), []
    async with sf.Dispatcher("memory://", [DESK], arbiter="local") as dispatcher:
        yield dispatcher


async def sent(desk: sf.Dispatcher, session: str = "s") -> Handle:
    """Send a letter, to be read by the task that waits for it."""
    inputs = b'{"letter":{"text":"dear"}}'
    return await desk.dispatch(sf.Call(flow="desk", action="read", inputs=inputs, session=session), here=True)


async def written(desk: sf.Dispatcher, size: int, *, fail: bool = False) -> str:
    """Have a letter written, wait for the end, and return the id of the request."""
    inputs = {"size": size, "fail": fail}
    handle = await desk.dispatch(sf.Call(flow="desk", action="write", inputs=inputs), here=True)
    with suppress(RequestFailedError):
        await handle.packed()
    return handle.id


def facts(info: RequestInfo) -> dict[str, Any]:
    """Return what two requests of the same kind have in common."""
    return {name: value for name, value in msgspec.structs.asdict(info).items() if name != "id" and name[-3:] != "_at"}


async def test_a_request_ends_the_same_whether_or_not_it_was_looked_at(desk: sf.Dispatcher) -> None:
    """While it waits, while it runs, or never before its end."""
    looked_at, other = await sent(desk, "s-1"), await sent(desk, "s-2")
    assert (await looked_at.info()).status == "waiting"
    both = [asyncio.ensure_future(each.packed()) for each in (looked_at, other)]
    await Pause.here.wait()
    assert (await looked_at.info()).status == "running"
    Pause.may_go_on.set()
    assert await asyncio.gather(*both) == [b"4", b"4"]
    infos = [await each.info() for each in (looked_at, other)]
    assert facts(infos[0]) | {"session": ""} == facts(infos[1]) | {"session": ""}
    assert all(0 < info.received_at <= info.started_at <= info.ended_at for info in infos)


async def test_what_a_request_brought_is_let_go_when_it_has_ended(desk: sf.Dispatcher) -> None:
    """What is kept of it for an hour is what became of it."""
    handle = await sent(desk)
    Pause.may_go_on.set()
    await handle.packed()
    gc.collect()
    assert [letter() for letter in Pause.letters] == [None]
    assert (await handle.info()).result == 4


async def test_what_an_action_had_in_its_hands_when_it_failed_is_let_go(desk: sf.Dispatcher) -> None:
    """How it failed is kept in words: the error itself refers to everything that the action had."""
    request_id = await written(desk, 10, fail=True)
    gc.collect()
    assert [letter() for letter in Pause.letters] == [None]
    handle = await desk.find(sf.Principal(), request_id)
    assert (handle.status, (await handle.info()).error_type) == ("failed", "ValueError")
    with pytest.raises(RequestFailedError):
        await handle.result()


async def test_a_large_result_is_kept_as_json_alone(desk: sf.Dispatcher) -> None:
    """Whoever asks for it again gets it again."""
    request_id = await written(desk, 10_000)
    gc.collect()
    assert [letter() for letter in Pause.letters] == [None]
    assert await (await desk.find(sf.Principal(), request_id)).result() == [Letter("x" * 10_000)]


async def test_what_is_kept_of_large_requests_has_an_end(desk: sf.Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and events count; the oldest is forgotten first, and small ones count as nothing."""
    monkeypatch.setattr("standfast.flows.server.ROOM", 50_000)
    ids = [await written(desk, size) for size in (10_000, 10_000, 10, 10_000)]
    assert [desk._serving().find("default", each) is not None for each in ids] == [False, True, True, True]
    ids = [await written(desk, 10) for _ in range(100)]
    assert all(desk._serving().find("default", each) is not None for each in ids)
    last = await written(desk, 40_000)
    assert desk._serving().find("default", last) is None
    assert desk._serving()._ended._weight == 0


async def test_a_request_can_be_asked_about_for_an_hour(desk: sf.Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the store's time, also if nothing else has happened meanwhile."""
    handle, server = await sent(desk), desk._serving()
    Pause.may_go_on.set()
    await handle.packed()
    ended_at = (await handle.info()).ended_at
    monkeypatch.setattr(server, "now", lambda: later(ended_at, KEPT))
    assert (await desk.info(sf.Principal(), handle.id)).status == "completed"
    monkeypatch.setattr(server, "now", lambda: later(ended_at, KEPT + 1))
    with pytest.raises(RequestNotFoundError):
        await desk.find(sf.Principal(), handle.id)


async def test_nobody_finds_a_request_of_another_tenant(desk: sf.Dispatcher) -> None:
    """Not by its id either."""
    handle = await sent(desk)
    Pause.may_go_on.set()
    await handle.packed()
    with pytest.raises(RequestNotFoundError):
        await desk.find(sf.Principal("another", roles=frozenset({"operator"})), handle.id)


async def test_so_many_that_have_ended_are_kept_in_mind(desk: sf.Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first."""
    monkeypatch.setattr("standfast.flows.server.REMEMBERED", 3)
    assert REMEMBERED == 10_000
    Pause.may_go_on.set()
    handles = [await sent(desk) for _ in range(5)]
    for each in handles:
        await each.packed()
    known = [desk._serving().find("default", each.id) is not None for each in handles]
    assert known == [False, False, True, True, True]
