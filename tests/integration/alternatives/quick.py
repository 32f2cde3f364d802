"""The two choices of a mutex that servers have a quicker way for, in every state of a line, and what they come to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Conflict, Delete, Empty, MoveFirst, Present, Put, Stamped
from standfast.stores.protocol import STAMP_BYTES
from standfast.stores.remote.subscriptions import decode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from standfast.stores import GroupedStore, Record

GRANT, HEAD = RecordKey("n", "grant", "0"), RecordKey("n", "line")
QUEUE, INBOXES = RecordKey("n", "queue"), RecordKey("n", "inbox")
MINE = b'{"who":"me"}'


def enter(value: bytes = MINE) -> tuple[Alternative, ...]:
    """Take it, or join."""
    return (
        Alternative((Put(HEAD, b"held"), Stamped(GRANT, value))),
        Alternative((Present(HEAD), Append(QUEUE, value, RecordKey("p1"), stamped=True))),
    )


def leave(fence: int, head: int) -> tuple[Alternative, ...]:
    """Pass it on, or free it."""
    return (
        Alternative((MoveFirst(QUEUE, GRANT, fence, INBOXES),)),
        Alternative((Empty(QUEUE), Delete(HEAD, head), Delete(GRANT, fence))),
    )


STATES = {
    "nothing": "",
    "held": "GH",
    "held, and one waits": "GHt",
    "held, and two wait": "GHtt",
    "held, and the first cannot be moved": "GHut",
    "held, and the first is too long to be shown": "GHT",
    "a grant alone": "G",
    "a head alone": "H",
    "waiters alone": "tt",
    "an expired head": "Gh",
    "an expired grant": "gH",
    "an expired waiter before another": "GHet",
    "only an expired waiter": "GHe",
}

ASKED: dict[str, Callable[[Mapping[RecordKey, int]], Sequence[Alternative]]] = {
    "enter": lambda _: enter(),
    "leave": lambda at: leave(at.get(GRANT, 7), at.get(HEAD, 7)),
    "leave at an old fence": lambda at: leave(5, at.get(HEAD, 7)),
    "leave with an old head": lambda at: leave(at.get(GRANT, 7), 5),
    "enter without waiting": lambda _: enter()[:1],
    "enter under a time": lambda _: (Alternative(enter()[0].changes, before=Instant(1)), enter()[1]),
    "enter with two values": lambda _: (enter()[0], enter(b"other")[1]),
}


def laid(state: str) -> Iterator[tuple[RecordKey, bytes, int, int | None]]:
    """Yield the records of a state, each with a version of its own: key, value, version and expiry."""
    for n, letter in enumerate(state, 11):
        suffix = b"" if letter == "u" else bytes(RecordKey("p2"))
        key: bytes = {"g": GRANT, "h": HEAD}.get(letter.lower(), QUEUE + b"%016d\x00\x01" % n + suffix)
        value = b"%016d" % n + (b"x" * 6_000 if letter == "T" else b"waits")
        yield RecordKey.from_encoded(bytes(key)), value, n, 1 if letter in "ghe" else None


def _shown(record: Record | None, drawn: int) -> tuple[object, ...] | None:
    """Return a record without the time in it, and without the version if it was drawn."""
    if record is None:
        return None
    stamp = STAMP_BYTES if record.version == drawn else 0
    return bytes(record.value[stamp:]), "drawn" if record.version == drawn else record.version


async def outcome(store: GroupedStore, heard: asyncio.Queue[bytes], asked: Sequence[Alternative]) -> object:
    """Choose; return the answer, what is left, and what was notified, without times and drawn versions."""
    answer = await store.choose(*asked)
    left = (await store.scan(*RecordKey("n").within(), limit=50)).records
    if isinstance(answer, Conflict):
        lost = {key: _shown(each, 0) for key, each in answer.current.items()}
        return lost, {key: _shown(each, 0) for key, each in left.items()}
    drawn, told = answer.version, None
    if answer.moved is not None:
        async with asyncio.timeout(10):
            origin, wakes = decode_message(await heard.get())
        told = origin, [(wake.to, wake.about, _shown(wake.moved, drawn)) for wake in wakes or ()]
    return {
        "index": answer.index,
        "written": [_key(key, drawn) for key in answer.versions],
        "appended": answer.appended and _key(answer.appended, drawn),
        "moved": _shown(answer.moved, drawn),
        "from": answer.moved_from,
        "present": {key: _shown(each, 0) for key, each in answer.present.items()},
        "told": told,
        "left": {_key(key, drawn): _shown(each, drawn) for key, each in left.items()},
    }


def _key(key: RecordKey, drawn: int) -> bytes:
    return bytes(key).replace(b"%016d" % drawn, b"drawn") if drawn else bytes(key)


async def use(store: GroupedStore) -> None:
    """Take it and free it: from then on all of the server's own ways are prepared."""
    for _ in range(4):
        taken: Any = await store.choose(*enter())
        freed: Any = await store.choose(*leave(taken.version, taken.version))
        assert freed.index == 1
    await store.choose(Alternative((Empty(QUEUE),)))
