"""LocalSubscriptions tell exactly those who subscribe, on their own loops."""

from __future__ import annotations

import asyncio
import threading

from standfast.keys import RecordKey
from standfast.stores import Record, Wake
from standfast.stores.watch import LocalSubscriptions

KEY = RecordKey("ns", "a", "b")


class _Subscriber:
    """Remembers what it heard, and on which thread."""

    def __init__(self) -> None:
        self.heard: list[RecordKey | None] = []
        self.threads: set[int] = set()
        self.rang = asyncio.Event()

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        assert moved is None
        self.heard.append(about)
        self.threads.add(threading.get_ident())
        self.rang.set()


async def test_a_change_is_heard_at_its_key_and_above_but_not_beside() -> None:
    """Prefixes are whole parts: ``(ns, a)`` hears ``(ns, a, b)``, and ``(ns, a, bc)`` does not."""
    subscriptions, at, above, beside, longer = (
        LocalSubscriptions(),
        _Subscriber(),
        _Subscriber(),
        _Subscriber(),
        _Subscriber(),
    )
    subscriptions.subscribe([KEY], at)
    subscriptions.subscribe([RecordKey("ns")], above)
    subscriptions.subscribe([RecordKey("ns", "c")], beside)
    subscriptions.subscribe([RecordKey("ns", "a", "bc")], longer)

    subscriptions.notify([KEY], [])

    assert (at.heard, above.heard, beside.heard, longer.heard) == ([KEY], [KEY], [], [])


async def test_a_wake_goes_to_its_address_and_says_what_it_is_about() -> None:
    """Only who watches the address hears it; the hint names the other key."""
    subscriptions, addressed, other = LocalSubscriptions(), _Subscriber(), _Subscriber()
    subscriptions.subscribe([RecordKey("ns", "presence", "1")], addressed)
    subscriptions.subscribe([RecordKey("ns", "presence", "2")], other)

    subscriptions.notify([], [Wake(RecordKey("ns", "presence", "1"), KEY)])

    assert (addressed.heard, other.heard) == ([KEY], [])


async def test_who_has_stopped_listening_hears_nothing_and_costs_nothing() -> None:
    """Unsubscribing leaves no trace in the table."""
    subscriptions, subscriber = LocalSubscriptions(), _Subscriber()
    forget = subscriptions.subscribe([KEY, RecordKey("ns")], subscriber)

    forget()
    subscriptions.notify([KEY], [])

    assert subscriber.heard == []
    assert not subscriptions.by_prefix


async def test_an_ear_is_called_on_its_own_loop_when_another_thread_rings() -> None:
    """A commit in one thread wakes a watch in another, on that one's loop."""
    subscriptions, subscriber = LocalSubscriptions(), _Subscriber()
    subscriptions.subscribe([KEY], subscriber)

    threading.Thread(target=subscriptions.notify, args=([KEY], [])).start()
    await subscriber.rang.wait()

    assert subscriber.threads == {threading.get_ident()}


async def test_an_ear_whose_loop_is_closed_is_passed_over() -> None:
    """A watch that was never closed does not break the commits of others."""
    subscriptions, subscriber = LocalSubscriptions(), _Subscriber()

    async def subscribe() -> None:
        subscriptions.subscribe([KEY], subscriber)

    await asyncio.to_thread(asyncio.run, subscribe())
    subscriptions.notify([KEY], [])
    subscriptions.notify_all()

    assert subscriber.heard == []
