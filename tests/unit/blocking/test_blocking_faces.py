"""Both faces have the same names: what the async one offers, the blocking one offers."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, get_args

import pytest

import standfast
from standfast import blocking, locks, stores
from standfast.locks.run_locks import RunLease
from standfast.space import open as open_async
from standfast.workflows.schedules.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS: dict[str, tuple[Any, Any]] = {
    "Space": (standfast.Space, blocking.Space),
    "Mutex": (locks.Mutex, blocking.Mutex),
    "Semaphore": (locks.Semaphore, blocking.Semaphore),
    "ModeLock": (locks.ModeLock, blocking.ModeLock),
    "Hold": (locks.Hold, blocking.Hold),
    "Holding": (locks.Holding, blocking.Holding),
    "RateLimiter": (locks.RateLimiter, blocking.RateLimiter),
    "RunLocks": (locks.RunLocks, blocking.RunLocks),
    "RunLease": (RunLease, blocking.RunLease),
    "Slots": (locks.Slots, blocking.Slots),
    "AtomicState": (locks.AtomicState, blocking.AtomicState),
    "StateEvents": (locks.StateEvents, blocking.StateEvents),
    "DurableMutex": (locks.DurableMutex, blocking.DurableMutex),
    "DurableSemaphore": (locks.DurableSemaphore, blocking.DurableSemaphore),
    "Watch": (stores.Watch, blocking.Watch),
    "Engine": (standfast.Engine, blocking.Engine),
    "Run": (standfast.Run, blocking.Run),
    "Schedules": (Schedules, blocking.Schedules),
}
# Those whose annotations are the same words on both faces; locks have holds and options of their own.
SAME_WORDS = ["Engine", "Run", "Schedules"]

RENAMED = {"aclose": "close"}

# What the blocking face leaves out, and why.
LEFT_OUT = {
    "Space.store": "an async object; space.run(...) reaches it",
    "Space.hooks": "for the locks themselves",
    "Space.choose_unchecked": "for the locks themselves",
    "Space.commit_at_once": "for runs themselves",
    "Space.commit_unchecked": "for runs themselves",
    "Engine.hooks": "for what is served beside an engine; give hooks= to the engine",
    "RunLease.tell_acquired": "for the lock itself",
    "Space.acting_as": "for programs that act for many operators; open one with actor=",
    "Engine.acting_as": "for programs that act for many operators; open its store with actor=",
    "Engine.acts": "for the engine itself",
    "Space.at_most": "for what reads and commits in bulk below the space",
    "Hold.close": "for the lock itself",
    "Hold.known_at": "for the lock itself",
    "Hold.lose": "for the lock itself",
    "Hold.grant": "for the lock itself; hold.guard is made of it",
    "Hold.granted_at": "for the lock itself; users have hold.since",
    "Hold.presence": "for the lock itself",
    "RunLease.called_from": "for the lock itself",
    "RunLease.changing": "for the lock itself",
    "RunLease.end": "for the lock itself",
    "RunLease.expect": "for the lock itself",
    "RunLease.extend": "for the lock itself",
    "RunLease.grant": "for the lock itself; lease.guard is made of it",
    "RunLease.granted_at": "for the lock itself; users have lease.since",
    "RunLease.known_at": "for the lock itself",
    "RunLease.lose": "for the lock itself",
    "RunLease.presence": "for the lock itself",
    "Engine.drives": "for the engine itself",
    "Engine.has_room": "for the engine itself",
    "Engine.runtime": "for the engine itself",
    "Engine.worker": "for the engine itself",
}
ADDED = {
    "Space.run": "reaches what has no blocking name",
    "AtomicState.bound": "where locks by hand find the async state",
    "Engine.call": "reaches what has no blocking name",
}
# Parameters that only the async face has.
ONLY_ASYNC = {
    "DurableMutex.acquire": {"sleep"},
    "DurableSemaphore.acquire": {"sleep"},
}


async def attributes_of_a_space() -> set[str]:
    """Return what a space has that its class does not show."""
    async with standfast.open("memory://") as space:
        return set(vars(space))


# What things have that their classes do not show.
MADE: dict[type, Callable[[], set[str]]] = {
    standfast.Space: lambda: asyncio.run(attributes_of_a_space()),
    standfast.Engine: lambda: set(vars(standfast.Engine("memory://"))),
    blocking.Engine: lambda: set(vars(blocking.Engine("memory://"))),
    Schedules: lambda: set(vars(standfast.Engine("memory://").schedules)),
}


def names(kind: type) -> set[str]:
    """Return the public names of a class, those of its slots included."""
    slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
    hinted = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    made = MADE.get(kind, set[str])()
    found = {name for name in {*dir(kind), *slots, *hinted, *made} if not name.startswith("_")}
    return {RENAMED.get(name, name) for name in found}


def parameters(kind: type, name: str) -> list[tuple[str, object]]:
    """Return the names and defaults of a method's parameters."""
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.default) for each in found]


@pytest.mark.parametrize("name", PAIRS)
def test_no_name_is_forgotten(name: str) -> None:
    """Every public name of the async class is there without await, except those left out with a reason."""
    ours, theirs = PAIRS[name]
    missing = {f"{name}.{each}" for each in names(ours) - names(theirs)}
    added = {f"{name}.{each}" for each in names(theirs) - names(ours)}

    assert missing <= LEFT_OUT.keys()
    assert added <= ADDED.keys()


@pytest.mark.parametrize("name", PAIRS)
def test_calls_take_the_same_arguments(name: str) -> None:
    """Parameters have the same names, order and defaults on both faces."""
    ours, theirs = PAIRS[name]
    back = {new: old for old, new in RENAMED.items()}
    for each in names(theirs) & names(ours):
        method = getattr(theirs, each, None)
        if inspect.isfunction(method):
            left_out = ONLY_ASYNC.get(f"{name}.{each}", set())
            expected = [pair for pair in parameters(ours, back.get(each, each)) if pair[0] not in left_out]
            assert parameters(theirs, each) == expected, each


@pytest.mark.parametrize("name", SAME_WORDS)
def test_calls_say_the_same_about_what_they_take_and_return(name: str) -> None:
    """A type that changes on one face changes on the other: annotations are compared word for word."""
    ours, theirs = PAIRS[name]
    both = {each for each in names(theirs) & names(ours) if inspect.isfunction(getattr(theirs, each, None))}
    back = {new: old for old, new in RENAMED.items()}

    assert {each: getattr(theirs, each).__annotations__ for each in both} == {
        each: getattr(ours, back.get(each, each)).__annotations__ for each in both
    }


def test_making_an_engine_takes_the_same_arguments() -> None:
    """``blocking.Engine`` is made as ``sf.Engine`` is."""
    assert parameters(blocking.Engine, "__init__") == parameters(standfast.Engine, "__init__")
    assert blocking.Engine.__init__.__annotations__ == standfast.Engine.__init__.__annotations__


def test_opening_takes_the_same_arguments() -> None:
    """``blocking.open`` is called as ``sf.open`` is."""
    ours = inspect.signature(open_async).parameters
    theirs = inspect.signature(blocking.open).parameters

    assert {name: each.default for name, each in ours.items()} == {name: each.default for name, each in theirs.items()}


def test_holds_have_the_same_options() -> None:
    """No option of a hold is forgotten; ``on_lost`` alone has other values."""
    ours, theirs = locks.HoldOptions.__annotations__, blocking.HoldOptions.__annotations__

    assert ours.keys() == theirs.keys()
    assert get_args(blocking.OnLost) == ("raise", "tell")


def test_every_lock_of_the_package_has_a_blocking_face() -> None:
    """A class of ``standfast.locks`` with something to await is paired above."""
    awaited = {
        name
        for name in locks.__all__
        if inspect.isclass(kind := getattr(locks, name))
        and not issubclass(kind, BaseException | Warning)
        and any(inspect.iscoroutinefunction(each) for each in vars(kind).values())
    }

    assert awaited - PAIRS.keys() == {"LockByHand", "RunHolding"} & awaited


def test_everything_else_at_the_front_door_has_a_blocking_face() -> None:
    """A public class with something to await is paired above, or there is a reason why it is not."""
    kinds = {name: kind for name in standfast.__all__ if inspect.isclass(kind := getattr(standfast, name))}
    awaited = {
        name
        for name, kind in kinds.items()
        if any(inspect.iscoroutinefunction(getattr(kind, each, None)) for each in dir(kind))
    }
    without = {
        "App": "for servers, which are async",
        "Context": "for the code of workflows, which is async",
        "Dispatcher": "for servers, which are async; blocking code sends requests over HTTP",
        "Request": "for the code of actions, which is async",
    }

    assert awaited - PAIRS.keys() == without.keys()
