"""The line: who may hold together, who is next, and what becomes free."""

from __future__ import annotations

import msgspec
import pytest

from standfast.clock import Instant
from standfast.locks.line import (
    MOST_HOLDERS,
    UNLIMITED,
    Entry,
    Granted,
    Line,
    OfPresence,
    OfRun,
    Rules,
    TooHeavy,
    Until,
    Waiting,
    advance,
    enter,
    leave,
    renew,
    resize,
    sweep,
)

NOW = Instant(100)


def entry(name: str, weight: int = 1, mode: str = "", *, woken: bool = True, max_hold: float | None = None) -> Entry:
    """Return an entry that lives as long as the presence of its name."""
    return Entry(name, name, OfPresence(name), NOW, mode, weight, woken, max_hold)


def line_of(rules: Rules, *entries: Entry | str) -> Line:
    """Return a line that these have entered in order."""
    line = Line(rules)
    for each in entries:
        line, _ = enter(line, entry(each) if isinstance(each, str) else each, NOW)
    return line


def holding(line: Line) -> list[str]:
    """Return who holds."""
    return [holder.entry.id for holder in line.holders]


def waiting(line: Line) -> list[str]:
    """Return who waits, in order."""
    return [waiter.entry.id for waiter in line.waiters]


def without(line: Line, *dead: str) -> Line:
    """Return the line one step after some have died."""
    return advance(sweep(line, NOW, lambda each: each.id not in dead), NOW)


def test_what_becomes_free_goes_to_the_front() -> None:
    """A release hands over to the one who has waited longest."""
    line = advance(leave(line_of(Rules(), "a", "b", "c"), "a"), NOW)
    assert (holding(line), waiting(line)) == (["b"], ["c"])


def test_a_heavy_front_is_not_starved_by_light_ones_behind() -> None:
    """Permits that are free, but too few for the front, are kept for it."""
    line = line_of(Rules(3), "a", "b", entry("heavy", 3), "c")
    line = advance(leave(line, "a"), NOW)
    assert (holding(line), waiting(line)) == (["b"], ["heavy", "c"])

    assert holding(advance(leave(line, "b"), NOW)) == ["heavy"]


def test_an_entry_heavier_than_all_permits_is_refused() -> None:
    """It would wait for ever and hold up everyone, so it does not even stand in line."""
    line, answer = enter(line_of(Rules(3), "a"), entry("huge", 4), NOW)
    assert (answer, waiting(line)) == (TooHeavy(3), [])


def test_a_front_that_lost_its_chance_is_turned_away() -> None:
    """When permits are lowered below what the front needs, those behind it move up, and it is told when it asks."""
    line = line_of(Rules(3), "a", entry("heavy", 3), "b")
    line = advance(resize(line, 2), NOW)
    assert (holding(line), waiting(line)) == (["a", "b"], [])
    assert enter(line, entry("heavy", 3), NOW) == (line, TooHeavy(2))


def test_readers_share_and_a_writer_waits_its_turn() -> None:
    """One mode is shared, another excludes even itself, and no reader passes a waiting writer."""
    rules = Rules(UNLIMITED, alone=("write",))
    line = line_of(rules, *(entry(name, mode=name[0:-1]) for name in ("read1", "read2", "write1", "read3", "write2")))
    assert (holding(line), waiting(line)) == (["read1", "read2"], ["write1", "read3", "write2"])

    line = without(line, "read1", "read2")
    assert (holding(line), waiting(line)) == (["write1"], ["read3", "write2"])


def test_groups_exclude_each_other_and_share_among_themselves() -> None:
    """Entries of different modes never hold together, whatever the permits."""
    line = line_of(Rules(UNLIMITED), entry("a", mode="pull"), entry("b", mode="pull"), entry("c", mode="observe"))
    assert (holding(line), waiting(line)) == (["a", "b"], ["c"])


def test_lowering_permits_turns_nobody_out() -> None:
    """Fewer permits only stop new grants until enough have left."""
    line = resize(line_of(Rules(3), "a", "b", "c", "d"), 1)
    assert holding(line) == ["a", "b", "c"]
    assert holding(without(line, "a", "b")) == ["c"]
    assert holding(without(line, "a", "b", "c")) == ["d"]


def test_raising_permits_lets_in_all_who_fit_now() -> None:
    """Not one for each permit, but everyone up to the first that does not fit."""
    line = advance(resize(line_of(Rules(2), entry("a", 2), "b", entry("c", 2), entry("d", 2)), 5), NOW)
    assert (holding(line), waiting(line)) == (["a", "b", "c"], ["d"])


def test_more_than_fit_into_one_record_wait_whatever_the_permits() -> None:
    """Holders share a record: past its limit the next one waits, and gets its turn when one of them leaves."""
    line = line_of(Rules(UNLIMITED), *(f"e{number}" for number in range(MOST_HOLDERS + 1)))
    assert (len(line.holders), waiting(line)) == (MOST_HOLDERS, [f"e{MOST_HOLDERS}"])
    assert waiting(without(line, "e7")) == []


def test_dead_waiters_fall_together() -> None:
    """However many of them are in front, the first who is alive moves up in the same step."""
    ghosts = [f"ghost-{n}" for n in range(50)]
    line = without(line_of(Rules(), "a", *ghosts, "b"), "a", *ghosts)
    assert (holding(line), waiting(line)) == (["b"], [])


def test_a_waiter_that_takes_for_itself_is_not_passed() -> None:
    """What is free stays so until a polling front asks; then it holds."""
    line = without(line_of(Rules(), "a", entry("polls", woken=False), "b"), "a")
    assert (holding(line), waiting(line)) == ([], ["polls", "b"])

    line, answer = enter(line, entry("polls", woken=False), NOW)
    assert isinstance(answer, Granted)
    assert (holding(line), waiting(line)) == (["polls"], ["b"])


def test_asking_again_is_the_same_acquisition() -> None:
    """A holder keeps its grant and a waiter its place; only the anchor is renewed."""
    line = line_of(Rules(), "a", "b", "c")
    fresh = Entry("a", "a", Until(Instant(900)), Instant(500), weight=7)
    renewed, answer = enter(line, fresh, Instant(500))
    assert isinstance(answer, Granted)
    assert (answer.holder.granted_at, answer.holder.entry.weight, answer.holder.entry.anchor) == (NOW, 1, fresh.anchor)

    same, place = enter(renewed, entry("b"), Instant(500))
    assert (same, place) == (renewed, Waiting(0, 0))


def test_only_a_holder_can_renew() -> None:
    """Renewing gives a waiter and a stranger nothing, not even a place."""
    line = line_of(Rules(), "a", "b")
    assert renew(line, "b", OfRun("r")) == (line, None)
    assert renew(line, "stranger", OfRun("r")) == (line, None)

    _, granted = renew(line, "a", OfRun("r"))
    assert granted is not None
    assert granted.holder.entry.anchor == OfRun("r")


def test_a_hold_ends_at_its_limit_however_alive_its_owner_is() -> None:
    """The instant of the limit is no longer part of the hold."""
    line = line_of(Rules(), entry("a", max_hold=0.00005), "b")
    assert holding(sweep(line, Instant(149), lambda _: True)) == ["a"]
    assert holding(advance(sweep(line, Instant(150), lambda _: True), Instant(150))) == ["b"]


def test_the_lowest_free_slot_is_used_again() -> None:
    """Holders have slots of their own, as few as there are holders at once."""
    line = without(line_of(Rules(3), "a", "b", "c", "d"), "b")
    assert [(each.entry.id, each.slot) for each in line.holders] == [("a", 0), ("c", 2), ("d", 1)]


def test_leaving_changes_nothing_for_one_who_is_not_there() -> None:
    """Leaving twice is leaving once."""
    line = leave(line_of(Rules(), "a", "b"), "a")
    assert leave(line, "a") is line
    assert waiting(leave(line, "b")) == []


def hide(line: Line, shown: int) -> Line:
    """Return the line with only the first waiters in sight."""
    return msgspec.structs.replace(line, waiters=line.waiters[:shown], horizon=line.waiters[shown].ticket)


def test_nobody_is_granted_past_those_out_of_sight() -> None:
    """When all in sight have gone, one who joined behind the others still waits, and the line says to look again."""
    line, _ = enter(hide(line_of(Rules(), "a", "b", "hidden", "hidden too"), 1), entry("late"), NOW)
    line = without(line, "a", "b")

    assert (holding(line), waiting(line)) == ([], ["late"])
    assert line.is_cut_off
    assert line.front == 1


def test_one_known_out_of_sight_keeps_its_place() -> None:
    """Asking again and leaving work for a listed waiter behind the horizon; its place is the most it can be."""
    whole = line_of(Rules(), "a", "b", "c", "d", "e")
    seen = msgspec.structs.replace(hide(whole, 1), waiters=(whole.waiters[0], whole.waiters[3]))

    again, answer = enter(seen, entry("e"), NOW)
    assert (again, answer) == (seen, Waiting(3, 3))
    assert waiting(leave(seen, "e")) == ["b"]


def test_a_newcomer_waits_behind_those_out_of_sight() -> None:
    """A free permit and nobody in sight do not mean that nobody waits."""
    line = msgspec.structs.replace(hide(line_of(Rules(), "a", "b", "c"), 1), holders=(), waiters=())
    line, answer = enter(line, entry("late"), NOW)
    assert (holding(line), answer) == ([], Waiting(2, 1))


def test_a_stored_entry_weighs_something() -> None:
    """A weight of zero, which would pass everywhere, is refused when it is read."""
    data = msgspec.json.encode(msgspec.structs.replace(entry("a"), weight=0))
    with pytest.raises(msgspec.ValidationError, match="weight"):
        msgspec.json.decode(data, type=Entry)
