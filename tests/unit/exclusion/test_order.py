"""The order in which keys are taken: declared orders are enforced, contradictory ones reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.errors import LockOrderError, WouldWaitError
from standfast.events import Event, LockOrderInverted
from standfast.exclusion import Exclusion, LockOrderWarning
from standfast.exclusion import order as lock_order
from standfast.exclusion.order import MAX_NOTED, LockOrder, families_before
from standfast.keys import KeyFamily
from tests.unit.exclusion.scene import OTHER, PLAIN, Scene, ended

if TYPE_CHECKING:
    from standfast.keys import Key

FIRST = KeyFamily("test-first")
SECOND = KeyFamily("test-second", after=(FIRST,))
THIRD = KeyFamily("test-third", after=(SECOND,))
APART = KeyFamily("test-apart")


async def nest(exclusion: Exclusion, *keys: Key) -> None:
    """Take keys on top of each other, and let go of them all."""
    if keys:
        async with exclusion.hold(keys[0]):
            await nest(exclusion, *keys[1:])


class Heard(list[LockOrderInverted]):
    """A hook that keeps what it is told."""

    def __call__(self, event: Event) -> None:
        """Keep it."""
        assert isinstance(event, LockOrderInverted)
        self.append(event)


# --- declared -----------------------------------------------------------------------------------------------------


async def test_keys_can_be_taken_in_the_declared_order() -> None:
    """Steps may be left out."""
    await nest(Exclusion(), FIRST(), SECOND(), THIRD())
    await nest(Exclusion(), FIRST(), THIRD())


async def test_taking_keys_against_the_declared_order_is_refused() -> None:
    """The error names both keys and both places, and nothing was taken."""
    exclusion = Exclusion()
    async with exclusion.hold(SECOND("x")):
        with pytest.raises(LockOrderError, match=r"test-first\(y\) must be taken before test-second\(x\)") as caught:
            async with exclusion.hold(FIRST("y")):
                pytest.fail("it comes too late")
        assert caught.value.held_at.startswith(f"{__file__}:")
        assert caught.value.wanted_at.startswith(f"{__file__}:")
        assert [state.key for state in exclusion.inspect()] == [SECOND("x")]


async def test_the_declared_order_reaches_through_other_families() -> None:
    """First before second and second before third means first before third."""
    assert families_before(THIRD) == {FIRST, SECOND}
    with pytest.raises(LockOrderError):
        await nest(Exclusion(), THIRD(), FIRST())


async def test_the_declared_order_holds_under_any_other_key() -> None:
    """It does not matter what else was taken in between."""
    with pytest.raises(LockOrderError):
        await nest(Exclusion(), SECOND(), APART(), FIRST())


async def test_the_declared_order_binds_try_hold_as_well() -> None:
    """A rule is a rule, even for a task that would not wait."""
    exclusion = Exclusion()
    async with exclusion.hold(SECOND()):
        with pytest.raises(LockOrderError):
            await exclusion.try_hold(FIRST()).__aenter__()


async def test_the_order_is_each_tasks_own() -> None:
    """What another task holds does not matter."""
    scene = Scene(SECOND())
    async with ended(scene):
        await scene.enter("other")
        await nest(scene.exclusion, FIRST())


# --- observed -----------------------------------------------------------------------------------------------------


async def test_contradictory_orders_of_two_families_are_reported() -> None:
    """The hook is told both keys and all four places, before the two ever meet."""
    heard = Heard()
    exclusion = Exclusion(hooks=[heard])
    await nest(exclusion, PLAIN("a"), OTHER("b"))
    assert heard == []
    await nest(exclusion, OTHER("c"), PLAIN("d"))
    [event] = heard
    assert (event.held, event.wanted) == (OTHER("c"), PLAIN("d"))
    places = event.held_from, event.wanted_from, event.opposite_held_from, event.opposite_wanted_from
    assert all(place.startswith(f"{__file__}:") for place in places)


async def test_a_contradiction_is_reported_once_for_each_pair_of_places() -> None:
    """The same places again say nothing new; another place does."""
    heard = Heard()
    exclusion = Exclusion(hooks=[heard])
    for _ in range(3):
        await nest(exclusion, PLAIN("a"), OTHER("a"))
        await nest(exclusion, OTHER("a"), PLAIN("a"))
    assert len(heard) == 1
    async with exclusion.hold(PLAIN("a")), exclusion.hold(OTHER("a")):
        pass
    assert len(heard) == 2


async def test_a_contradiction_over_several_families_is_reported() -> None:
    """A before B, B before C, C before A: three tasks can wait for each other in a circle."""
    heard = Heard()
    exclusion = Exclusion(hooks=[heard])
    await nest(exclusion, PLAIN(), OTHER())
    await nest(exclusion, OTHER(), APART())
    assert heard == []
    await nest(exclusion, APART(), PLAIN())
    assert [(event.held, event.wanted) for event in heard] == [(APART(), PLAIN())]


async def test_contradictory_orders_of_two_keys_of_a_family_are_reported() -> None:
    """Within a family the very same two keys must come in both orders."""
    heard = Heard()
    exclusion = Exclusion(hooks=[heard])
    await nest(exclusion, PLAIN("a"), PLAIN("b"))
    await nest(exclusion, PLAIN("c"), PLAIN("a"))
    assert heard == []
    await nest(exclusion, PLAIN("b"), PLAIN("a"))
    assert [(event.held, event.wanted) for event in heard] == [(PLAIN("b"), PLAIN("a"))]


async def test_without_a_hook_a_contradiction_is_a_warning() -> None:
    """It points at the line that asked for the second key, and names the other places."""
    exclusion = Exclusion()
    await nest(exclusion, PLAIN("a"), OTHER("b"))
    with pytest.warns(LockOrderWarning, match=r"test-plain\(d\) was asked for at .* opposite order was used at") as got:
        await nest(exclusion, OTHER("c"), PLAIN("d"))
    assert got[0].filename == __file__


async def test_a_warning_that_is_an_error_leaves_nothing_held() -> None:
    """Under ``-W error`` the block is not entered, and the key is not taken."""
    exclusion = Exclusion()
    await nest(exclusion, PLAIN("a"), OTHER("b"))
    with pytest.raises(LockOrderWarning):
        await nest(exclusion, OTHER("c"), PLAIN("d"))
    assert exclusion.inspect() == ()


async def test_what_never_waits_is_no_contradiction() -> None:
    """A task that would rather be refused than wait can be part of no deadlock."""
    exclusion = Exclusion()
    await nest(exclusion, PLAIN("a"), OTHER("b"))
    async with exclusion.hold(OTHER("b")), exclusion.try_hold(PLAIN("a")):
        pass


async def test_a_failing_hook_does_not_disturb_the_holder() -> None:
    """The key is taken all the same."""

    def fail(_event: Event) -> None:
        raise LookupError

    exclusion = Exclusion(hooks=[fail])
    await nest(exclusion, PLAIN("a"), OTHER("b"))
    async with exclusion.hold(OTHER("b")), exclusion.hold(PLAIN("a")):
        assert len(exclusion.inspect()) == 2


async def test_the_memory_of_orders_is_bounded() -> None:
    """However many keys of a family are nested, only the newest are remembered."""
    exclusion = Exclusion()
    for number in range(2 * MAX_NOTED):
        await nest(exclusion, PLAIN("outer", str(number)), PLAIN("inner", str(number)))
    order = exclusion._table.check_order.__self__  # type: ignore[attr-defined]  # it is a method of the order
    assert len(order._keys) == MAX_NOTED
    assert len(order._seen) <= MAX_NOTED


async def test_a_known_order_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more places nest keys than are remembered, a hold still costs no walk through all orders."""
    searched: list[tuple[KeyFamily, KeyFamily]] = []

    def search(_order: LockOrder, start: KeyFamily, end: KeyFamily) -> None:
        searched.append((start, end))

    monkeypatch.setattr(lock_order, "MAX_NOTED", 1)
    monkeypatch.setattr(LockOrder, "_path", search)
    exclusion = Exclusion()
    for _ in range(3):
        await nest(exclusion, PLAIN(), OTHER(), APART())
    assert searched == [(OTHER, PLAIN), (APART, PLAIN), (APART, OTHER)]


async def test_a_refused_try_notes_nothing() -> None:
    """An order that never came to be is not held against anybody."""
    scene = Scene(PLAIN("a"))
    async with ended(scene):
        await scene.enter("holder")
        async with scene.exclusion.hold(OTHER("b")):
            with pytest.raises(WouldWaitError):
                await scene.exclusion.try_hold(PLAIN("a")).__aenter__()
        await scene.leave("holder")
        await nest(scene.exclusion, PLAIN("a"), OTHER("b"))
