"""Waiting for the ends of runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import standfast as sf
from standfast.stores.protocol import Notification, Put
from standfast.stores.watch import BackendWatch
from standfast.workflows import queries as awaiting
from standfast.workflows.queries import Endings
from standfast.workflows.records import RUN_STATES, RunState

if TYPE_CHECKING:
    import pytest

    from standfast.space import Space

AT = sf.clock.Instant(1)


async def test_an_end_whose_hint_is_lost_is_found_while_others_end_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look by the clock is not put off by hints about other runs."""
    monkeypatch.setattr(awaiting, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(awaiting, "FEW", 0)
    async with sf.open("memory://") as space:
        key = space.key("life", "r-1")
        await space.commit(Put(key, RUN_STATES.encode(RunState("running", workflow="w", version="", changed_at=AT))))
        endings = Endings(space, loaded={"r-1"})  # so that hints about it are passed over
        waiting, other = asyncio.ensure_future(endings.of("r-1")), asyncio.ensure_future(endings.of("noise"))
        many = asyncio.Event()
        noise = asyncio.ensure_future(_move_all_the_time(space, many))
        await many.wait()  # it was looked at before, and waits for hints by now
        version = (await space.read(key)).version(key)
        over = RunState("completed", workflow="w", version="", changed_at=AT)
        await space.commit(Put(key, RUN_STATES.encode(over), version))

        assert (await asyncio.wait_for(waiting, 10)).status == "completed"
        noise.cancel()
        other.cancel()


async def test_runs_that_are_driven_or_claimed_here_wake_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those that are not waited for: their ends are told, or matter to none."""
    monkeypatch.setattr(awaiting, "LOOK_EVERY", 60.0)
    monkeypatch.setattr(awaiting, "FEW", 0)
    async with sf.open("memory://") as space:
        names = ("driven", "claimed", "elsewhere")
        await _begin(space, *names)
        hints: list[Notification | None] = []
        wait = BackendWatch.wait

        async def note(watch: BackendWatch, timeout: float) -> Notification | None:
            hints.append(await wait(watch, timeout))
            return hints[-1]

        monkeypatch.setattr(BackendWatch, "wait", note)
        endings = Endings(space, loaded={"driven"})
        endings.claiming.add("claimed")
        waiting = {name: asyncio.ensure_future(endings.of(name)) for name in names}
        await _until_followed(endings, monkeypatch)
        await _end(space, "driven", "claimed", "none waits for")
        await _end(space, "elsewhere")
        assert (await asyncio.wait_for(waiting["elsewhere"], 10)).status == "completed"
        assert [sorted(key.parts[-1] for key in hint.about) for hint in hints if hint is not None] == [["elsewhere"]]

        endings.end_claim("claimed")  # the commit was refused: another process has it
        assert (await asyncio.wait_for(waiting["claimed"], 10)).status == "completed"
        assert not waiting["driven"].done()
        waiting["driven"].cancel()


def _state(status: Literal["running", "completed"]) -> bytes:
    return RUN_STATES.encode(RunState(status, workflow="w", version="", changed_at=AT))


async def _begin(space: Space, *names: str) -> None:
    await space.commit(*(Put(space.key("life", name), _state("running")) for name in names))


async def _end(space: Space, *names: str) -> None:
    for name in names:
        key = space.key("life", name)
        await space.commit(Put(key, _state("completed"), (await space.read(key)).version(key)))


async def _until_followed(endings: Endings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until both of its tasks have looked at every run: then one of them waits for notifications."""
    look, looks, followed = endings._look_at, 0, asyncio.Event()

    async def count(run_ids: list[str]) -> None:
        nonlocal looks
        await look(run_ids)
        looks += 1
        if looks == 2:
            followed.set()

    with monkeypatch.context() as patched:
        patched.setattr(endings, "_look_at", count)
        await followed.wait()


async def _move_all_the_time(space: Space, many: asyncio.Event) -> None:
    number, key = 0, space.key("life", "noise")
    while True:
        number += 1
        await space.commit(Put(key, _state("running"), (await space.read(key)).version(key)))
        if number == 5:
            many.set()
        await asyncio.sleep(0.005)
