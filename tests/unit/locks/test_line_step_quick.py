"""The short way comes to exactly what the long way comes to."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.locks.line import UNLIMITED, Anchor, Entry, Holder, OfPresence, OfRun, Rules, Until, Waiter
from standfast.locks.line_records import (
    GRANTS,
    HEADS,
    WAITERS,
    Enter,
    Grant,
    Head,
    Leave,
    LineFacts,
    LineKeys,
    LineView,
    LockSpec,
    Reap,
    Renew,
    Request,
    is_alive,
    step,
    wakes_after,
)
from standfast.locks.line_step import quick_step
from standfast.scope import Scope, address_of
from standfast.stores import Record, Snapshot
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = Instant(1_000_000)
LATER, EARLIER = Instant(2_000_000), Instant(500_000)


def entry(name: str, anchor: Anchor | None = None, **fields: int) -> Entry:
    """Return an entry that lives as long as its presence, unless told otherwise."""
    return structs.replace(Entry(name, name, anchor or OfPresence("p.1"), EARLIER), **fields)


def heads() -> Iterator[tuple[Head | None, tuple[Waiter, ...]]]:
    """Yield lines of every kind: empty, held in all ways, waited for, kept by an operator."""
    yield None, ()
    waiter = Waiter(entry("w"), 3)
    anchors: tuple[Anchor, ...] = (OfPresence("p.1"), Until(LATER), Until(NOW), OfRun("r"))
    for anchor, ends_at, slot in itertools.product(anchors, (None, NOW, LATER), (0, 1)):
        held = Head("life", "mutex", Rules(1), (Holder(entry("a", anchor), slot, EARLIER, ends_at),), 3, 3)
        yield held, ()
        yield structs.replace(held, pinned=True), ()
        yield structs.replace(held, next_ticket=4), (waiter,)
    two = (Holder(entry("a"), 0, EARLIER), Holder(entry("b"), 1, EARLIER))
    yield Head("life", "semaphore", Rules(2), two), ()
    yield Head("life", "mutex", Rules(1), (), 3, 3, pinned=True), ()


REQUESTS: tuple[Request, ...] = (
    Enter(entry("n")),
    Enter(entry("n"), waits=False),
    Enter(entry("n", weight=3)),
    Enter(entry("n", max_hold=5)),
    Enter(entry("n"), lease=5.0),
    Enter(entry("n"), since=EARLIER),
    Leave("a"),
    Leave("a", slot=0),
    Leave("n"),
    Leave("a", by_force=True),
    Leave("a", only_waiting=True),
    Renew("a", 5.0),
    Reap(),
)


@pytest.fixture
async def keys() -> LineKeys:
    """The keys of some line."""
    store = await open_store("memory://")
    await store.aclose()
    return LineKeys(Scope(store), address_of("key"))


def snapshot(keys: LineKeys, head: Head | None, waiters: tuple[Waiter, ...]) -> Snapshot:
    """Return the line as a store shows it."""
    found = {} if head is None else {keys.head: HEADS.encode(head)}
    for holder in () if head is None else head.holders:
        found[keys.grant(holder.slot)] = GRANTS.encode(Grant(holder.entry.id, holder.entry.owner, holder.granted_at))
    found |= {keys.ticket(waiter.ticket): WAITERS.encode(waiter) for waiter in waiters}
    return Snapshot(NOW, {key: Record(key, value, 7 + at) for at, (key, value) in enumerate(found.items())})


@pytest.mark.parametrize("dead", [frozenset[str](), frozenset({"p.1"})], ids=["alive", "dead"])
@pytest.mark.parametrize("spec", [LockSpec("mutex", Rules(1)), LockSpec("mode lock", Rules(UNLIMITED, ("w",)))])
def test_the_short_way_ends_where_the_long_way_does(keys: LineKeys, spec: LockSpec, dead: frozenset[str]) -> None:
    """On every kind of line, for every request: the same line, answer, changes and wakes."""
    facts = LineFacts(dead=dead, new_life="new")
    given = frozenset((keys.head, *map(keys.grant, range(3)), *map(keys.ticket, range(8))))
    taken = 0
    for (head, waiters), request in itertools.product(heads(), REQUESTS):
        seen = snapshot(keys, head, waiters)
        quick = quick_step(keys, seen, given, spec, facts, request)
        if quick is None:
            continue
        view = LineView(keys, seen, given, spec, facts)
        line, answers = step(view.line, [request], NOW, partial(is_alive, facts, NOW))
        in_sight = structs.replace(line, waiters=line.waiters[-1:], horizon=quick.line.horizon)
        assert (quick.line, (quick.answer,)) == (in_sight, answers)
        assert {*map(repr, quick.changes)} == {*map(repr, view.changes(line))}
        assert [*wakes_after(view, line, ["a"])] == [*quick.wakes] * (type(request) is Leave)
        assert {each.key: getattr(each, "value", b"") for each in quick.changes} == {
            each.key: getattr(each, "value", b"") for each in view.changes(line)
        }
        taken += 1
    assert taken >= (3 if dead else 8)


def test_the_short_way_needs_the_same_keys(keys: LineKeys) -> None:
    """A grant that was not read is not written: the long way says that it is missing."""
    request, spec, facts = Enter(entry("n")), LockSpec("mutex", Rules(1)), LineFacts(new_life="new")
    empty = Snapshot(NOW, {})
    assert quick_step(keys, empty, frozenset({keys.head}), spec, facts, request) is None
    assert quick_step(keys, empty, frozenset({keys.head, keys.grant(0)}), spec, facts, request) is not None
