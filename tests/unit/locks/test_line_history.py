"""Who held a key before, and how each hold ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import InvalidArgumentError
from standfast.locks.line_history import HISTORIES, KEPT, LineHistory
from standfast.locks.locks import HELD_TOO_LONG, Holding
from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

KEPT_ALL = sf.KeyFamily("line-history-all", history=3)
PLAIN = sf.KeyFamily("line-history-plain")


@pytest.fixture
async def space() -> AsyncIterator[sf.Space]:
    """A space in memory."""
    async with sf.open("memory://") as opened:
        yield opened


async def test_a_release_is_kept_for_a_family_that_asks_for_it(space: sf.Space) -> None:
    """Owner, fence, note and times of the hold; newest first."""
    async with space.mutex(KEPT_ALL("a")).hold(owner="ann", note="by ann"):
        pass
    async with space.mutex(KEPT_ALL("a")).hold(owner="bob", note="by bob") as hold:
        pass

    newest, oldest = await space.history(KEPT_ALL("a"))

    assert (newest.owner, newest.note, newest.end, newest.fence) == ("bob", "by bob", "released", hold.fence)
    assert oldest.owner == "ann"
    assert oldest.since <= oldest.ended_at <= newest.since <= newest.ended_at
    assert newest.held_for >= 0


async def test_a_release_is_not_kept_for_other_keys(space: sf.Space) -> None:
    """They pay nothing for it."""
    async with space.mutex(PLAIN("a")).hold(), space.mutex("text").hold():
        pass

    assert await space.history(PLAIN("a")) == await space.history("text") == ()


async def test_a_hand_over_is_kept_like_a_release(space: sf.Space) -> None:
    """Also between waiters of one process, which are answered in one step."""
    lock, order = space.mutex(KEPT_ALL("a")), list[str]()

    async def hold(name: str) -> None:
        async with lock.hold(owner=name):
            order.append(name)

    await asyncio.gather(*(hold(f"task {number}") for number in range(3)))

    assert [each.owner for each in await space.history(KEPT_ALL("a"))] == order[::-1]


async def test_only_the_latest_are_kept(space: sf.Space) -> None:
    """The record does not grow; a family's number below the usual one does not lessen it."""
    for number in range(KEPT + 5):
        async with space.mutex(KEPT_ALL("a")).hold(owner=str(number)):
            pass

    assert [each.owner for each in await space.history(KEPT_ALL("a"))] == [
        str(number) for number in reversed(range(5, KEPT + 5))
    ]


async def test_an_eviction_is_kept_for_every_key(space: sf.Space) -> None:
    """With the fence that became void."""
    async with space.mutex("door").hold(owner="ann", on_lost="tell") as hold:
        await space.mutex("door").force_release((await space.explain("door")).holders[0].entry)

    [past] = await space.history("door")

    assert (past.owner, past.end, past.fence) == ("ann", "evicted", hold.fence)


async def test_a_hold_that_took_too_long_is_kept_as_expired(space: sf.Space) -> None:
    """It ended when its time was over, whenever the line was looked at."""
    async with space.mutex("door").hold(max_hold="50ms", on_lost="tell") as hold:
        await hold.lost.wait()  # by the clock of this process, which may be a moment early
        while (await space.read(space.key("any"))).at <= hold.since + 50_000:
            pass
    async with space.mutex("door").hold():
        pass

    [past] = await space.history("door")

    assert (past.end, past.ended_at) == ("expired", hold.since + 50_000)


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "mode lock"])
@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_a_hold_that_its_process_gives_up_in_time_is_kept_as_expired(
    space: sf.Space, kind: str, *, is_waited_for: bool
) -> None:
    """Also if the clock of the process is a moment ahead of the store's, as it is by the way of the answer."""
    holds: dict[str, Callable[..., Holding]] = {
        "mutex": space.mutex("door").hold,
        "semaphore": space.semaphore("door", permits=1).hold,
        "mode lock": partial(space.mode_lock("door", alone=("write",)).hold, "write"),
    }
    alone = holds[kind]
    followers = list[asyncio.Task[None]]()

    async def follow() -> None:
        async with alone(owner="bob"):
            pass

    async with alone(owner="ann", max_hold="1 hour", on_lost="tell") as hold:
        if is_waited_for:
            followers.append(asyncio.create_task(follow()))
            while not (await space.explain("door")).waiting:  # noqa: ASYNC110 -- the line itself is asked
                await asyncio.sleep(0)
        hold.lose(HELD_TOO_LONG)
    await asyncio.gather(*followers)

    assert [(each.owner, each.end) for each in await space.history("door")] == [("ann", "expired")]


async def test_modes_and_weights_are_kept(space: sf.Space) -> None:
    """The history of a semaphore and of a mode lock says how it was held."""
    pool, graph = sf.KeyFamily("history-pool", history=5), sf.KeyFamily("history-graph", modes=("pull",), history=5)
    async with space.semaphore(pool(), permits=3).hold(2), space.mode_lock(graph()).hold("pull"):
        pass

    assert (await space.history(pool()))[0].weight == 2
    assert (await space.history(graph()))[0].mode == "pull"


async def test_a_run_is_named_in_the_history() -> None:
    """A lock of a run is kept like one of a process."""
    async with sf.Engine("memory://", workflows=[_holds]) as engine:
        await (await engine.start(_holds, id="order-7")).result()

        [past] = await engine.space.history(KEPT_ALL("run"))

    assert (past.run, past.end) == ("order-7", "released")


@sf.workflow
async def _holds(ctx: sf.Context) -> None:
    async with ctx.mutex(KEPT_ALL("run")):
        pass


async def test_explain_shows_the_history_of_a_free_key(space: sf.Space) -> None:
    """In the value, the JSON and the text."""
    async with space.mutex(KEPT_ALL("a")).hold(owner="ann"):
        pass

    told = await space.explain(KEPT_ALL("a"))

    assert [each.owner for each in told.history] == ["ann"]
    assert told.as_json()["history"][0]["end"] == "released"
    assert "held before: ann, released" in told.as_text()


async def test_explain_shows_the_history_beside_a_holder(space: sf.Space) -> None:
    """Who holds it, and who did before."""
    async with space.mutex(KEPT_ALL("a")).hold(owner="ann"):
        pass
    async with space.mutex(KEPT_ALL("a")).hold(owner="bob"):
        told = await space.explain(KEPT_ALL("a"))

    assert (told.holders[0].owner, told.history[0].owner) == ("bob", "ann")


PROGRAM = """
import asyncio, sys
import standfast as sf

async def main():
    async with sf.open(sys.argv[1]) as space:
        async with space.mutex("door").hold(owner="victim"):
            print("held", flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_holder_that_was_killed_is_kept_as_killed(tmp_path: Path) -> None:
    """By a real ``kill -9``, on a store that sees a process die."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    process = await forked_exec(sys.executable, "-c", PROGRAM, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    async with sf.open(url) as space:
        fence = (await space.explain("door")).holders[0].fence
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        async with space.mutex("door").hold(timeout="20s") as hold:
            [past] = await space.history("door")

    assert (past.owner, past.end, past.fence) == ("victim", "killed", fence)
    assert hold.fence > past.fence


async def test_a_history_expires() -> None:
    """The record of a line that is not used any more goes by itself."""
    async with sf.open("memory://") as space:
        async with space.mutex(KEPT_ALL("a")).hold():
            pass
        key = space.key_for("past", KEPT_ALL("a"))
        record = (await space.read(key)).get(key)

    assert record is not None
    assert record.expires_at is not None
    assert record.expires_at == HISTORIES.decode(record.value).holds[0].ended_at + 30 * 86_400_000_000


def test_a_stored_history_is_read_for_ever() -> None:
    """As the first version has written it."""
    stored = b'1:{"holds":[{"entry":"e","owner":"ann","end":"killed","fence":7,"since":1,"ended_at":2}]}'

    assert HISTORIES.decode(stored).holds[0].owner == "ann"
    assert HISTORIES.encode(LineHistory(HISTORIES.decode(stored).holds)) == stored


@pytest.mark.parametrize("history", [-1, 101, True, "3"])
def test_a_family_keeps_a_sensible_number(history: int) -> None:
    """At most a hundred: they share one record."""
    with pytest.raises(InvalidArgumentError, match="history"):
        sf.KeyFamily("line-history-wrong", history=history)
