"""The first that waits tells the one that holds, where no store decides who is next."""

from __future__ import annotations

import pytest
from msgspec import structs

from standfast.locks.line import Entry, Holder, OfPresence, Rules, Waiter
from standfast.locks.line_records import Enter, Head, LineFacts, LineKeys, LockSpec
from standfast.locks.line_step import StepInput, decide_step
from standfast.stores import Wake
from standfast.stores.protocol import Capabilities
from tests.unit.locks.test_line_step_quick import EARLIER, keys, snapshot

__all__ = ["keys"]

SERVER = Capabilities("etcd", atomic=True, durable=True, reach="network", wakes="push")


def told(
    keys: LineKeys, limits: Capabilities, *, own: str = "q", waiting: int = 0, long_way: bool = False
) -> list[Wake]:
    """Let one of another process join behind a holder of the process ``p``; return whom that wakes."""
    entries = [Entry(name, name, OfPresence(f"{name[0]}.1"), EARLIER) for name in ("p", "w", "q")]
    holder, waiter, joining = entries
    head = Head("life", "mutex", Rules(1), (Holder(holder, 0, EARLIER),), 3 + waiting, 3)
    given = frozenset((keys.head, *map(keys.grant, range(2)), *map(keys.ticket, range(8))))
    requests = [Enter(joining)]
    if long_way:
        requests.append(Enter(structs.replace(joining, id="r", owner="r")))
    asked = StepInput(
        keys,
        requests,
        LockSpec("mutex", Rules(1)),
        given,
        LineFacts(new_life="new"),
        (),
        keys.presence(f"{own}.1"),
        limits,
    )
    seen = snapshot(keys, head, tuple(Waiter(waiter, 3 + number) for number in range(waiting)))
    return [*decide_step(asked, seen).wake]


@pytest.mark.parametrize("long_way", [False, True])
def test_the_first_that_waits_tells_the_holder(keys: LineKeys, long_way: bool) -> None:  # noqa: FBT001 -- by pytest
    """Its process looks at the line while it holds, and hands it over in one round trip."""
    assert Wake(keys.presence("p.1"), keys.head) in told(keys, SERVER, long_way=long_way)


def test_those_behind_it_tell_nobody(keys: LineKeys) -> None:
    """The one that is next sees them."""
    assert told(keys, SERVER, waiting=1) == []


@pytest.mark.parametrize(
    "limits",
    [
        structs.replace(SERVER, alternatives=True),
        structs.replace(SERVER, wakes="poll"),
        structs.replace(SERVER, reach="machine"),
    ],
)
def test_a_store_that_hands_over_or_cannot_tell_is_not_asked_to(keys: LineKeys, limits: Capabilities) -> None:
    """Nor one beside which a look costs nothing."""
    assert told(keys, limits) == []


def test_a_process_does_not_tell_itself(keys: LineKeys) -> None:
    """It has seen who joins."""
    assert told(keys, SERVER, own="p") == []
