"""Where bars, boxes and arrows stand."""

from __future__ import annotations

from standfast.clock import MICROSECONDS
from standfast.web.dashboard.diagrams import LABELS, WIDTH, Stretch, WaitEdge, WaitNode, draw, graph

HOUR = 3_600 * MICROSECONDS


def test_idle_time_is_folded_and_work_keeps_its_share() -> None:
    """Two days of sleep between two seconds of work take less room than the work."""
    sleep = Stretch("sleep", "wait", MICROSECONDS, 48 * HOUR, "slept")
    work = [
        Stretch("a", "work", 0, MICROSECONDS, "worked"),
        Stretch("b", "work", 48 * HOUR, 48 * HOUR + MICROSECONDS, "worked"),
    ]
    drawn = draw([work[0], sleep, work[1]])
    widths = {bar.stretch.row: bar.width for bar in drawn.bars}
    assert widths["sleep"] < widths["a"] / 2
    assert abs(widths["a"] - widths["b"]) < 2
    assert len(drawn.gaps) == 1
    assert all(bar.x >= LABELS and bar.x + bar.width <= WIDTH for bar in drawn.bars)


def test_attempts_of_one_step_share_a_row() -> None:
    """A step that failed twice is one row with three bars."""
    tries = [Stretch("ship", "work", n * 10, n * 10 + 5, "worked", has_failed=n < 2) for n in range(3)]
    drawn = draw(tries)
    assert [name for _, name in drawn.rows] == ["ship"]
    assert [bar.stretch.has_failed for bar in drawn.bars] == [True, True, False]


def test_a_circle_is_found_and_marked_and_others_are_not() -> None:
    """Of those who wait, only those in the circle are red."""
    nodes = [WaitNode(name, "owner", name) for name in ("x", "a", "b")]
    edges = [WaitEdge("x", "a"), WaitEdge("a", "b"), WaitEdge("b", "a")]
    drawn = graph(nodes, edges)
    assert set(drawn.circle) == {"a", "b"}
    assert [box.in_circle for box in drawn.boxes] == [False, True, True]
    assert [arrow.in_circle for arrow in drawn.arrows] == [False, True, True]
    assert graph(nodes, edges[:2]).circle == ()
