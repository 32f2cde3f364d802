"""Slots: each owner has states of its own, and nobody builds their keys by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import InvalidArgumentError
from standfast.locks import AtomicState, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.scope import Scope

OWNERS: list[Callable[[Slots, str], AtomicState[Any]]] = [
    lambda slots, key: slots.workflow("transfer", key),
    lambda slots, key: slots.workflow("refund", key),
    lambda slots, key: slots.execution("run-1", key),
    lambda slots, key: slots.execution("run-2", key),
    lambda slots, key: slots.run("run-1", key),
    lambda slots, key: slots.run("run-2", key),
    lambda slots, key: slots.shared(key),
]


async def test_the_same_key_of_two_owners_is_two_states(scope: Scope) -> None:
    """Workflow types, executions, runs and the space as a whole never meet."""
    slots = Slots(scope)
    for number, owner in enumerate(OWNERS):
        await owner(slots, "lock").set(number)
    assert [await owner(slots, "lock").get() for owner in OWNERS] == list(range(len(OWNERS)))


async def test_an_administrator_finds_the_slot_that_a_workflow_uses(scope: Scope) -> None:
    """Two accessors of one space, given the same names, are one state, whatever stands in them."""
    await Slots(scope).workflow("transfer", "account-42:lock").set("held")
    assert await Slots(scope).workflow("transfer", "account-42:lock").get() == "held"
    assert await Slots(scope).workflow("transfer:account-42", "lock").get() is None


async def test_a_slot_takes_what_a_state_takes(scope: Scope) -> None:
    """Type, initial value and number of tries are handed on."""
    counter = Slots(scope).shared("visits", type=int, initial=3, max_retries=5)
    assert await counter.increment() == 4


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("key", ["", "k" * 257, "__proto__", "constructor", "prototype", 5, None])
async def test_a_key_that_is_none_is_refused(
    scope: Scope, owner: Callable[[Slots, str], AtomicState[Any]], key: Any
) -> None:
    """Keys are texts of 1 to 256 characters and not reserved."""
    with pytest.raises(InvalidArgumentError, match="key"):
        owner(Slots(scope), key)


@pytest.mark.parametrize("name", ["", "n" * 257, "__proto__", 5])
async def test_an_owner_without_a_name_is_refused(scope: Scope, name: Any) -> None:
    """So that nothing is cleared or shared by accident."""
    slots = Slots(scope)
    for call in (slots.workflow, slots.execution, slots.run):
        with pytest.raises(InvalidArgumentError):
            call(name, "key")
    for clear in (slots.clear_execution, slots.clear_run):
        with pytest.raises(InvalidArgumentError):
            await clear(name)


async def test_a_key_of_256_characters_works(scope: Scope) -> None:
    """In whatever script, as long as every store can take it."""
    slots = Slots(scope)
    await slots.workflow("w" * 256, "k" * 256).set(1)
    assert await slots.shared("\N{LATIN SMALL LETTER E WITH ACUTE}" * 256).increment() == 1
    with pytest.raises(InvalidArgumentError):
        slots.shared("\N{GRINNING FACE}" * 256)


@pytest.mark.parametrize("kind", ["execution", "run"])
async def test_clearing_removes_the_states_of_one_owner_and_no_other(scope: Scope, kind: str) -> None:
    """All of them, several pages if need be, with the markers of deleted ones."""
    slots = Slots(scope)
    slot, clear = getattr(slots, kind), getattr(slots, f"clear_{kind}")
    for number in range(150):
        await slot("run-1", f"k{number}").set(number)
    await slot("run-1", "k0").delete()
    for owner in OWNERS[:2] + OWNERS[6:]:
        await owner(slots, "k1").set("kept")
    await slot("run-10", "k1").set("kept")

    assert await clear("run-1") == 150
    assert await slot("run-1", "k1").get() is None
    assert await slot("run-1", "k0").transact(lambda _value, version, _at: ("again", version)) == 0
    assert [await owner(slots, "k1").get() for owner in OWNERS[:2] + OWNERS[6:]] == ["kept"] * 3
    assert await slot("run-10", "k1").get() == "kept"
    assert await clear("run-3") == 0
