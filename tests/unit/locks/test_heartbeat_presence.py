"""A presence is believed in for a lease after each renewal, and never again once it has lapsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import MICROSECONDS, later
from standfast.locks.heartbeat import PRESENCES, Presence, this_process
from standfast.scope import Scope
from standfast.stores import Decision, Put
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from standfast.testing import VirtualClock

LEASE = 10.0


@pytest.fixture
def presence(scope: Scope, clock: VirtualClock) -> Presence:
    """A presence that was not made yet."""
    return Presence(scope, 1, this_process(LEASE, "a liveness token"), clock)


async def is_there(scope: Scope, presence: Presence) -> bool:
    """Tell whether others see it."""
    return (await scope.read(presence.key)).get(presence.key) is not None


async def test_others_see_who_is_present(scope: Scope, presence: Presence) -> None:
    """The record says which process it is, and expires one lease later, by the store's time."""
    assert await presence.renew(scope.store)

    seen = await scope.read(presence.key)
    record = seen.records[presence.key]
    assert PRESENCES.decode(record.value) == this_process(LEASE, "a liveness token")
    assert record.expires_at == later(seen.at, LEASE)


async def test_it_lapses_at_the_very_instant(scope: Scope, presence: Presence, clock: VirtualClock) -> None:
    """A microsecond before it is there; then it is not."""
    await presence.renew(scope.store)
    clock.advance(LEASE - 1 / MICROSECONDS)
    assert await is_there(scope, presence)
    clock.advance(1 / MICROSECONDS)
    assert not await is_there(scope, presence)


async def test_its_process_stops_relying_on_it_earlier(scope: Scope, presence: Presence, clock: VirtualClock) -> None:
    """A tenth of the lease is left unused, for clocks that differ and things that take a while."""
    await presence.renew(scope.store)
    assert presence.left() == pytest.approx(0.9 * LEASE)
    clock.advance(0.9 * LEASE)
    assert presence.left() <= 0
    assert await is_there(scope, presence)


async def test_a_renewal_begins_a_new_lease(scope: Scope, presence: Presence, clock: VirtualClock) -> None:
    """As long as it is renewed in time, it stays."""
    for _ in range(5):
        assert await presence.renew(scope.store)
        clock.advance(0.8 * LEASE)
    assert await is_there(scope, presence)


async def test_a_presence_that_lapsed_is_not_renewed(scope: Scope, presence: Presence, clock: VirtualClock) -> None:
    """Not even if nobody has noticed: "it is gone" must not cease to be true."""
    await presence.renew(scope.store)
    clock.advance(LEASE)

    assert not await presence.renew(scope.store)
    assert presence.over
    assert presence.left() < 0
    assert not await is_there(scope, presence)


async def test_a_presence_that_was_ended_is_not_renewed(scope: Scope, presence: Presence) -> None:
    """Whoever ends it, itself or one who saw the process die."""
    await presence.renew(scope.store)
    await presence.end(scope.store)

    assert not await is_there(scope, presence)
    assert not await presence.renew(scope.store)
    await presence.end(scope.store)


async def test_a_slow_renewal_counts_from_before_it_was_sent(clock: VirtualClock) -> None:
    """The answer comes three seconds late: the deadline is too early by that much, and never too late."""
    scope = Scope(await open_store("memory://", clock=clock))
    presence = Presence(scope, 1, this_process(LEASE, ""), clock)
    update = scope.store.update

    async def slow(*asked: Any) -> Any:
        decided: Any = await update(*asked)
        clock.advance(3)
        return decided

    scope.store.update = slow  # type: ignore[method-assign, assignment]  # the store of this test
    await presence.renew(scope.store)
    assert presence.left() == pytest.approx(0.9 * LEASE - 3)
    await scope.aclose()


async def test_presences_of_one_process_have_names_of_their_own(scope: Scope, clock: VirtualClock) -> None:
    """And two openings never share one, whatever their processes are called."""
    other = Scope(scope.store)
    presences = [Presence(each, n, this_process(LEASE, ""), clock) for each in (scope, other) for n in (1, 2)]
    assert len({each.name for each in presences}) == len({each.key for each in presences}) == 4


async def test_what_somebody_else_wrote_there_is_no_matter(scope: Scope, presence: Presence) -> None:
    """A first renewal whose answer was lost is repeated: it finds its own record, and prolongs it."""
    key = presence.key
    await scope.update([key], lambda _: Decision(None, (Put(key, PRESENCES.encode(this_process(LEASE, ""))),)))
    assert await presence.renew(scope.store)


@pytest.mark.parametrize(
    ("argument", "program"),
    [("/srv/app/report.py", "report.py"), ("/lib/standfast/__main__.py", "standfast"), ("-c", "-c"), ("", "")],
)
def test_a_process_is_named_by_its_program(monkeypatch: pytest.MonkeyPatch, argument: str, program: str) -> None:
    """One that was started with ``python -m`` by its package, not by the file that all of them have."""
    monkeypatch.setattr("sys.argv", [argument])
    assert this_process(1.0, "").program == program
