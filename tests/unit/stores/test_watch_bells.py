"""Bells tell exactly those who listen, on their own loops."""

from __future__ import annotations

import asyncio
import threading

from standfast.keys import RecordKey
from standfast.stores import Wake
from standfast.stores.watch import Bells

KEY = RecordKey("ns", "a", "b")


class _Ear:
    """Remembers what it heard, and on which thread."""

    def __init__(self) -> None:
        self.heard: list[RecordKey | None] = []
        self.threads: set[int] = set()
        self.rang = asyncio.Event()

    def hear(self, about: RecordKey | None) -> None:
        self.heard.append(about)
        self.threads.add(threading.get_ident())
        self.rang.set()


async def test_a_change_is_heard_at_its_key_and_above_but_not_beside() -> None:
    """Prefixes are whole parts: ``(ns, a)`` hears ``(ns, a, b)``, and ``(ns, a, bc)`` does not."""
    bells, at, above, beside, longer = Bells(), _Ear(), _Ear(), _Ear(), _Ear()
    bells.listen([KEY], at)
    bells.listen([RecordKey("ns")], above)
    bells.listen([RecordKey("ns", "c")], beside)
    bells.listen([RecordKey("ns", "a", "bc")], longer)

    bells.ring([KEY], [])

    assert (at.heard, above.heard, beside.heard, longer.heard) == ([KEY], [KEY], [], [])


async def test_a_wake_goes_to_its_address_and_says_what_it_is_about() -> None:
    """Only who watches the address hears it; the hint names the other key."""
    bells, addressed, other = Bells(), _Ear(), _Ear()
    bells.listen([RecordKey("ns", "presence", "1")], addressed)
    bells.listen([RecordKey("ns", "presence", "2")], other)

    bells.ring([], [Wake(RecordKey("ns", "presence", "1"), KEY)])

    assert (addressed.heard, other.heard) == ([KEY], [])


async def test_who_has_stopped_listening_hears_nothing_and_costs_nothing() -> None:
    """Unsubscribing leaves no trace in the table."""
    bells, ear = Bells(), _Ear()
    forget = bells.listen([KEY, RecordKey("ns")], ear)

    forget()
    bells.ring([KEY], [])

    assert ear.heard == []
    assert not bells.by_prefix


async def test_an_ear_is_called_on_its_own_loop_when_another_thread_rings() -> None:
    """A commit in one thread wakes a watch in another, on that one's loop."""
    bells, ear = Bells(), _Ear()
    bells.listen([KEY], ear)

    threading.Thread(target=bells.ring, args=([KEY], [])).start()
    await ear.rang.wait()

    assert ear.threads == {threading.get_ident()}


async def test_an_ear_whose_loop_is_closed_is_passed_over() -> None:
    """A watch that was never closed does not break the commits of others."""
    bells, ear = Bells(), _Ear()

    async def listen() -> None:
        bells.listen([KEY], ear)

    await asyncio.to_thread(asyncio.run, listen())
    bells.ring([KEY], [])
    bells.tell_everyone()

    assert ear.heard == []
