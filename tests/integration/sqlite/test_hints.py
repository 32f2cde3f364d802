"""Hints between processes: quick, cheap, and covered by a slow check when they are lost."""

from __future__ import annotations

import asyncio
import signal
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.clock import monotonic
from standfast.stores import Put, Wake
from standfast.stores.sqlite import backend
from standfast.stores.sqlite import backend as slow_check
from tests.integration.sqlite.programs.dialogue import key

if TYPE_CHECKING:
    from tests.integration.sqlite.children import Child
    from tests.integration.sqlite.conftest import Open, Start

ROUND_TRIPS = 200


def doorbells(path: Path) -> list[Path]:
    """Return the doorbells that are up."""
    return sorted(Path(f"{path}-wakes").iterdir())


def listener(start: Start, url: str, *prefix: str, watches: int = 1, slow_check: float = 60.0) -> Child:
    """Return a child that watches a prefix."""
    child = start("listen", url, watches, slow_check, *prefix)
    assert child.hear() == ["ready"]
    return child


async def test_a_hint_reaches_another_process_at_once(url: str, start: Start, opened: Open) -> None:
    """A change goes to another process and an answer comes back within milliseconds, commits and all."""
    store = await opened(url)
    echo = start("echo", url)
    assert echo.hear() == ["ready"]
    times: list[float] = []
    async with store.watch(key("pong")) as watch:
        for number in range(ROUND_TRIPS):
            began = monotonic()
            version = (await store.read(key("ping"))).version(key("ping"))
            await store.commit(Put(key("ping"), b"%d" % number, expected=version))
            answer = None
            while answer != b"%d" % number:
                assert await watch.wait(10), "no hint came"
                record = (await store.read(key("pong"))).get(key("pong"))
                answer = record and record.value
            times.append(monotonic() - began)

    print(f"round trip of two commits and two hints: p50 {statistics.median(times) * 1000:.2f} ms")
    assert statistics.median(times) < 0.02


@pytest.mark.parametrize("watches", [1, 200])
def test_an_idle_watcher_costs_next_to_nothing(url: str, start: Start, watches: int) -> None:
    """Waiting for a hint is no busy loop."""
    child = listener(start, url, "quiet", watches=watches, slow_check=slow_check.SLOW_CHECK)

    spent, heard = child.ask("wait", 2)

    assert heard == "nothing"
    assert float(spent) < 0.1


@pytest.mark.parametrize("name", ["x", "long " * 30, "é" * 200, "*/?.\x01", ""])
async def test_only_whom_it_concerns_hears_a_hint(url: str, start: Start, opened: Open, name: str) -> None:
    """A watch hears of its own prefix, however it is spelled, and not of others; a hint names the key."""
    store = await opened(url)
    child = start("listen_to", url, name)
    assert child.hear() == ["ready"]

    await store.commit(Put(key("other", name), b""), Put(key(f"{name}x"), b""))
    await store.commit(Put(key(name, "below"), b""))

    assert child.hear() == [key(name, "below").hex()]


async def test_a_wake_reaches_just_the_one_it_names(url: str, start: Start, opened: Open) -> None:
    """A wake is heard at its address, and says what to look at."""
    store = await opened(url)
    woken, other = listener(start, url, "presence", "one"), listener(start, url, "presence", "other")

    await store.commit(Put(key("lock"), b""), wake=[Wake(key("presence", "one"), key("lock"))])

    assert woken.ask("wait", 10)[1:] == ["test/lock"]
    assert other.ask("wait", 0)[1:] == ["nothing"]


async def test_many_watchers_hear_each_their_own(url: str, start: Start, opened: Open) -> None:
    """Among hundreds of watches in several processes, the ones that cover a key hear of it."""
    store = await opened(url)
    children = [listener(start, url, f"child-{n}", watches=100) for n in range(3)]

    for number in range(3):
        await store.commit(Put(key(f"child-{number}", "own-7", "deep"), b""))

    for number, child in enumerate(children):
        assert child.ask("wait", 10)[1:] == [f"test/child-{number}/own-7/deep"]


async def test_a_flood_of_hints_is_heard_as_look_at_everything(url: str, start: Start, opened: Open) -> None:
    """A watcher that was not listening while more hints came than fit is told to look at everything."""
    store = await opened(url)
    child = listener(start, url, "flood")
    child.stop()
    for number in range(300):
        await store.commit(Put(key("flood", f"{number}"), b""))
    child.send(signal.SIGCONT)

    assert child.ask("wait", 10)[1:] == ["everything"]


async def test_a_stopped_watcher_does_not_hold_up_a_committer(url: str, start: Start, opened: Open) -> None:
    """Ringing never waits: a watcher that is stopped costs the others nothing."""
    store = await opened(url)
    child = listener(start, url, "stopped")
    child.stop()

    began = monotonic()
    for number in range(100):
        await store.commit(Put(key("stopped", f"{number}"), b""))

    assert monotonic() - began < 5


async def test_a_lost_hint_is_found_by_the_slow_check(url: str, path: Path, start: Start, opened: Open) -> None:
    """Without its doorbell a watcher still hears of a change, a second or so later."""
    store = await opened(url)
    child = listener(start, url, "lost", slow_check=slow_check.SLOW_CHECK)
    for bell in doorbells(path):
        bell.unlink()

    began = monotonic()
    await store.commit(Put(key("lost"), b""))

    assert child.ask("wait", 10)[1:] == ["everything"]
    assert monotonic() - began < 2 * slow_check.SLOW_CHECK + 1


async def test_watching_works_without_the_folder_of_doorbells(url: str, path: Path, start: Start, opened: Open) -> None:
    """When the folder is deleted, watching and committing go on, with the slow check alone."""
    store = await opened(url)
    Path(f"{path}-wakes").rmdir()
    writer = start("obey", url)
    assert writer.hear()[0] == "done"
    Path(f"{path}-wakes").rmdir()

    async with store.watch(key("lost")) as watch:
        assert writer.ask("commit", "lost")[0] == "done"
        hint = await watch.wait(10)

    assert hint is not None
    assert not hint.complete


async def test_the_doorbells_of_a_killed_process_are_removed(url: str, path: Path, start: Start, opened: Open) -> None:
    """What a killed process leaves is removed by whoever rings in vain, and by whoever opens the store next."""
    store = await opened(url)
    rung, other = listener(start, url, "rung", watches=5), listener(start, url, "other", watches=5)
    assert len(doorbells(path)) == 10
    rung.kill()
    other.kill()

    async with asyncio.timeout(10):  # a doorbell that has only just been put up is left alone for a moment
        while len(doorbells(path)) == 10:
            await store.commit(Put(key("rung"), b"", expected=(await store.read(key("rung"))).version(key("rung"))))
        assert len(doorbells(path)) == 9
        while doorbells(path):
            await (await opened(url)).aclose()


async def test_the_doorbells_of_the_living_stay(url: str, path: Path, start: Start, opened: Open) -> None:
    """Opening the store takes down nobody's doorbell who is still there, even if it is stopped."""
    child = listener(start, url, "living", watches=5)
    child.stop()

    store = await opened(url)
    await store.commit(Put(key("living"), b""))

    assert len(doorbells(path)) == 5
    child.send(signal.SIGCONT)
    assert child.ask("wait", 10)[1:] == ["test/living"]


async def test_without_doorbells_the_slow_check_remains(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the platform has no doorbells, changes are still found."""
    monkeypatch.setattr(backend, "is_supported", lambda _: False)
    monkeypatch.setattr(slow_check, "SLOW_CHECK", 0.01)
    store = await opened(url)

    async with store.watch(key("a")) as watch:
        await store.commit(Put(key("b"), b""))
        hint = await watch.wait(timeout=10)

    assert hint is not None
    assert not hint.complete
