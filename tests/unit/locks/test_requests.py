"""One step of a line, as far as leases are concerned: it is the step's own time that counts."""

from __future__ import annotations

from holdfast.clock import Instant, later
from holdfast.locks.entries import Entry, Until
from holdfast.locks.line import Granted, Line, Rules
from holdfast.locks.requests import Answer, Enter, Refused, Renew, Request, step

NOW = Instant(1_000_000)
LATER = later(NOW, 5)
EMPTY = Line(Rules(1))


def entry(name: str) -> Entry:
    """Return an entry whose own anchor is long over."""
    return Entry(name, name, Until(Instant(1)), Instant(0))


def ask(line: Line, request: Request, now: Instant) -> tuple[Line, Answer]:
    """Take a step for one request."""

    def alive(one: Entry) -> bool:
        return not isinstance(one.anchor, Until) or one.anchor.at > now

    line, (answer,) = step(line, [request], now, alive)
    return line, answer


def test_a_lease_runs_from_the_time_of_the_step() -> None:
    """Whatever anchor the caller brings, the lease is counted from the store's time."""
    _, answer = ask(EMPTY, Enter(entry("a"), waits=False, lease=10), NOW)

    assert isinstance(answer, Granted)
    assert answer.holder.entry.anchor == Until(later(NOW, 10))


def test_a_renewal_counts_from_the_time_of_the_step() -> None:
    """A holder gets a new end and keeps its grant."""
    line, granted = ask(EMPTY, Enter(entry("a"), waits=False, lease=10), NOW)
    line, renewed = ask(line, Renew("a", 10), LATER)

    assert isinstance(granted, Granted)
    assert isinstance(renewed, Granted)
    assert renewed.holder.entry.anchor == Until(later(LATER, 10))
    assert renewed.holder.granted_at == granted.holder.granted_at


def test_a_lease_that_is_over_is_not_renewed() -> None:
    """At the very instant of its end it is gone, though nobody has taken it; and renewing takes nothing."""
    line, _ = ask(EMPTY, Enter(entry("a"), waits=False, lease=5), NOW)
    line, answer = ask(line, Renew("a", 10), LATER)

    assert isinstance(answer, Refused)
    assert line.holders == ()


def test_renewing_what_another_holds_changes_nothing() -> None:
    """Only the holder's own id renews."""
    held, _ = ask(EMPTY, Enter(entry("a"), waits=False, lease=10), NOW)
    line, answer = ask(held, Renew("b", 10), LATER)

    assert answer == Refused(held)
    assert line == held
