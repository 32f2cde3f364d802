"""The two choices of a semaphore with slots that a server has a quicker way for, in every state of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Check, Count, Delete, Empty, MoveFirst, Present, Put, Stamped
from tests.integration.alternatives.quick import INBOXES, MINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from standfast.stores import GroupedStore

    Asked = Callable[[Mapping[RecordKey, int]], Sequence[Alternative]]

GATE, GRANTS, HEAD, QUEUE = (RecordKey("n", name) for name in ("gate", "grant", "line", "queued"))
SLOTS = [GRANTS.child(str(n)) for n in range(3)]
PERMITS = 2


def enter(order: str, *slots: int) -> tuple[Alternative, ...]:
    """Begin, take one of the slots, or join, in some order."""
    append = Append(QUEUE, MINE, RecordKey("p1"), stamped=True)
    ways = {
        "b": [Alternative((Put(HEAD, b"head"), Put(GATE, b"head"), Stamped(SLOTS[slots[0]], MINE)))],
        "t": [Alternative((Present(GATE), Stamped(SLOTS[slot], MINE))) for slot in slots],
        "j": [Alternative((Present(GATE), Count(GRANTS, PERMITS), append))],
    }
    return tuple(each for letter in order for each in ways[letter])


def leave(slot: int, fence: int, gate: int, *, may_be_last: bool = True) -> tuple[Alternative, ...]:
    """Be the last one, hand over, or leave another one behind."""
    is_open, grant = Check(HEAD, gate), SLOTS[slot]
    last = (Empty(QUEUE), Count(GRANTS, most=1), Delete(GATE, gate), Delete(grant, fence), Delete(HEAD, gate))
    ways = [
        Alternative((MoveFirst(QUEUE, grant, fence, INBOXES), is_open)),
        Alternative((Count(GRANTS, least=2), Empty(QUEUE), Delete(grant, fence), is_open)),
    ]
    return (Alternative(last), *ways) if may_be_last else tuple(ways)


STATES = (
    *("", "gh", "0", "g0", "h0", "gh0", "gh1", "gh01", "gh012", "gh12tt"),
    *("gh01t", "gh01tt", "gh01ut", "gh01T", "gh0t"),
    *("Gh01", "gH01", "gh0x1", "gh01x", "xgh0", "gh01et", "gh01e", "gh0e", "tt", "gh", "ght"),
)
"""Gate, head (capitals: expired), slots (after an x: expired), and tickets: u without a suffix, T long, e expired."""

ASKED: dict[str, Asked] = {
    "enter a free line": lambda _: enter("btj", 0),
    "take a slot": lambda _: enter("tjb", 0, 1),
    "take another slot": lambda _: enter("tjb", 2, 1, 0),
    "join": lambda _: enter("jtb", 1, 0),
    "take without waiting": lambda _: enter("tb", 1),
    "take or join": lambda _: enter("tj", 0),
    "leave": lambda at: leave(0, at.get(SLOTS[0], 7), at.get(GATE, 7)),
    "leave slot 1": lambda at: leave(1, at.get(SLOTS[1], 7), at.get(GATE, 7)),
    "leave others behind": lambda at: leave(0, at.get(SLOTS[0], 7), at.get(GATE, 7), may_be_last=False),
    "leave at an old fence": lambda at: leave(0, 5, at.get(GATE, 7)),
    "leave with an old gate": lambda at: leave(0, at.get(SLOTS[0], 7), 5),
}


def laid(state: str) -> Iterator[tuple[RecordKey, bytes, int, int | None]]:
    """Yield the records of a state: key, value, version and expiry. Gate and head are of one version."""
    is_over = False
    for n, letter in enumerate(state, 11):
        if letter == "x":
            is_over = True
            continue
        ends = 1 if is_over or letter in "GHe" else None
        is_over = False
        if letter in "ghGH":
            yield (GATE if letter in "gG" else HEAD), b"head", 10, ends
        elif letter.isdigit():
            yield SLOTS[int(letter)], b"%016d" % n + b"holds", n, ends
        else:
            suffix = b"" if letter == "u" else bytes(RecordKey("p2"))
            key = RecordKey.from_encoded(bytes(QUEUE) + b"%016d\x00\x01" % n + suffix)
            yield key, b"%016d" % n + (b"x" * 6_000 if letter == "T" else b"waits"), n, ends


async def use(store: GroupedStore) -> None:
    """Take a slot and give it back: from then on all of the server's own ways are prepared."""
    for _ in range(4):
        taken: Any = await store.choose(*enter("btj", 0))
        freed: Any = await store.choose(*leave(0, taken.version, taken.version))
        assert (taken.index, freed.index) == (0, 0)
    await store.choose(Alternative((Empty(QUEUE),)))
