"""One step of a line: the dead fall, requests are answered in order, and it is the step's own time that counts."""

from __future__ import annotations

from standfast.clock import Instant, later
from standfast.locks.line import Entry, Granted, Line, OfPresence, Rules, Until, Waiting
from standfast.locks.line_records import (
    Advanced,
    Answer,
    Enter,
    Leave,
    Left,
    NotGranted,
    Reap,
    Renew,
    Request,
    Resize,
    WaitsForItself,
    step,
)

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

    assert isinstance(answer, NotGranted)
    assert line.holders == ()


def test_renewing_what_another_holds_changes_nothing() -> None:
    """Only the holder's own id renews."""
    held, _ = ask(EMPTY, Enter(entry("a"), waits=False, lease=10), NOW)
    line, answer = ask(held, Renew("b", 10), LATER)

    assert answer == NotGranted(held)
    assert line == held


# --- what the other requests come to ----------------------------------------------------------------------------------


def owned(name: str, owner: str, mode: str = "", weight: int = 1) -> Entry:
    """Return an entry that lives for as long as it is wanted to."""
    return Entry(name, owner, OfPresence("p.1"), Instant(0), mode=mode, weight=weight)


def test_requests_are_answered_in_order_and_the_front_moves_up_after_each() -> None:
    """Of one step: enter, enter, leave; the second holds in the end."""
    requests: list[Request] = [Enter(owned("a", "a")), Enter(owned("b", "b")), Leave("a")]
    line, answers = step(EMPTY, requests, NOW, lambda _: True)

    assert [type(answer) for answer in answers] == [Granted, Waiting, Left]
    assert [holder.entry.id for holder in line.holders] == ["b"]


def test_the_dead_fall_before_anything_is_answered() -> None:
    """One who asks in the step that finds a dead holder gets in at once."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), NOW)
    line, answers = step(line, [Enter(owned("b", "b"))], LATER, lambda entry: entry.id != "a")

    assert isinstance(answers[0], Granted)
    assert [holder.entry.id for holder in line.holders] == ["b"]


def test_when_it_entered_is_the_time_of_the_step() -> None:
    """Whatever the caller says."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), LATER)
    assert line.holders[0].entry.entered_at == LATER


def test_one_who_was_there_before_keeps_its_age() -> None:
    """Whether it gets in at once, or waits."""
    line, _ = ask(EMPTY, Enter(owned("a", "a"), since=NOW), LATER)
    line, _ = ask(line, Enter(owned("b", "b"), since=NOW), LATER)
    assert (line.holders[0].entry.entered_at, line.waiters[0].entry.entered_at) == (NOW, NOW)


def test_one_who_does_not_wait_is_not_in_the_line() -> None:
    """It is refused, and shown who was in the way."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), NOW)
    after, answer = ask(line, Enter(owned("b", "b"), waits=False), NOW)

    assert answer == NotGranted(line)
    assert after == line


def test_one_who_would_wait_for_itself_is_not_in_the_line() -> None:
    """Its owner holds what it asks for."""
    line, _ = ask(EMPTY, Enter(owned("a", "me")), NOW)
    after, answer = ask(line, Enter(owned("b", "me")), NOW)

    assert answer == WaitsForItself(line)
    assert after == line


def test_one_who_would_wait_for_a_waiter_that_waits_for_it_is_refused() -> None:
    """A writer waits for the reader, who asks to read once more, behind the writer."""
    line = Line(Rules(None, ("write",)))
    line, _ = ask(line, Enter(owned("a", "me", "read")), NOW)
    line, _ = ask(line, Enter(owned("b", "another", "write")), NOW)
    _, answer = ask(line, Enter(owned("c", "me", "read")), NOW)
    assert isinstance(answer, WaitsForItself)


def test_an_owner_may_wait_for_others() -> None:
    """It holds one of three permits and asks for another: those who keep it out are others."""
    line = Line(Rules(3))
    line, _ = ask(line, Enter(owned("a", "me")), NOW)
    line, _ = ask(line, Enter(owned("b", "another", weight=2)), NOW)
    _, answer = ask(line, Enter(owned("c", "me")), NOW)
    assert isinstance(answer, Waiting)


def test_asking_again_is_no_reentry() -> None:
    """The same acquisition asks whether it is its turn: it keeps its place, or its grant."""
    line, _ = ask(EMPTY, Enter(owned("a", "me")), NOW)
    _, answer = ask(line, Enter(owned("a", "me")), LATER)
    assert isinstance(answer, Granted)
    assert answer.holder.granted_at == NOW


def test_leaving_says_what_it_was() -> None:
    """Holding, waiting, or not there; leaving again changes nothing."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), NOW)
    line, _ = ask(line, Enter(owned("b", "b")), NOW)
    line, waited = ask(line, Leave("b"), NOW)
    line, held = ask(line, Leave("a"), NOW)
    _, gone = ask(line, Leave("a"), NOW)

    assert waited == Left(was_holding=False, was_waiting=True)
    assert held == Left(was_holding=True, was_waiting=False)
    assert gone == Left(was_holding=False, was_waiting=False)


def test_a_resize_lets_in_all_that_fit() -> None:
    """In the same step."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), NOW)
    for name in ("b", "c", "d"):
        line, _ = ask(line, Enter(owned(name, name)), NOW)
    line, _ = ask(line, Resize(3), NOW)
    assert [holder.entry.id for holder in line.holders] == ["a", "b", "c"]


def test_poking_changes_nothing_if_nobody_died() -> None:
    """It only looks."""
    line, _ = ask(EMPTY, Enter(owned("a", "a")), NOW)
    after, answer = ask(line, Reap(), LATER)
    assert (after, answer) == (line, Advanced(line))
