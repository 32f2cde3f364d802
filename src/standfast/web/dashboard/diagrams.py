"""Drawings of runs and waits as plain values: where each bar, box and arrow stands. Templates write them as SVG.

Nothing here knows of the web or of a store, and no text is put into markup.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from standfast.clock import MICROSECONDS
from standfast.locks.inspect import length
from standfast.workflows.records import ENDED
from standfast.workflows.timeline import WAITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.workflows.queries import HistoryEntry
    from standfast.workflows.timeline import Span, Timeline


# --- the timeline of a run --------------------------------------------------------------------------------------------

BarKind: TypeAlias = Literal["work", "wait", "hold"]
WIDTH: Final = 1_000
LABELS: Final = 210
"""How much of the width is for the names on the left."""

ROW: Final = 24
HEAD: Final = 26
MOST_ROWS: Final = 200
"""How many rows are drawn; a longer timeline is drawn page by page."""

FOLD: Final = 0.12
"""How much of the time that is worked an idle stretch takes at the most; what is longer is folded."""


LOCKS: Final = frozenset({"lock", "held", "released", "lost"})
"""The kinds of entries of a history that say what a run held."""


class Stretch(Struct, frozen=True):
    """What is drawn as one bar.

    Attributes:
        row: What it belongs to: a step, a wait, a key that is held.
        kind: Whether it works, waits, or holds a lock.
        start: From when.
        end: Until when.
        words: What it was, in words.
        has_failed: Whether it ended with an error.
        is_open: Whether it goes on.
    """

    row: str
    kind: BarKind
    start: int
    end: int
    words: str
    has_failed: bool = False
    is_open: bool = False


class Bar(Struct, frozen=True):
    """A stretch as it is drawn."""

    stretch: Stretch
    x: float
    y: int
    width: float
    words: str


class Gap(Struct, frozen=True):
    """Idle time that is folded: where, and how long it was."""

    x: float
    width: float
    words: str


class DrawnTimeline(Struct, frozen=True):
    """A run as it is drawn."""

    bars: tuple[Bar, ...]
    gaps: tuple[Gap, ...]
    marks: tuple[tuple[float, str], ...]
    rows: tuple[tuple[int, str], ...]
    height: int
    total_rows: int


def stretches_of(timeline: Timeline, history: Sequence[HistoryEntry]) -> list[Stretch]:
    """Return what a run did, waited for and held, in the order in which that began.

    Args:
        timeline: What it did and waited for.
        history: Its history, or the part of it that is of :data:`LOCKS`.
    """
    names = {entry.id: str(fields_of(entry).get("name") or entry.id) for entry in history if entry.kind == "lock"}
    found = [_of_span(span, names) for span in timeline.spans]
    since: dict[str, int] = {}
    for entry in history:
        if entry.kind == "held":
            since[entry.id] = entry.at
        elif entry.kind in ("released", "lost") and entry.id in since:
            found.append(_held(names.get(entry.id, entry.id), since.pop(entry.id), entry.at, is_open=False))
    is_over = timeline.status in ENDED
    for key, start in since.items():
        found.append(_held(names.get(key, key), start, timeline.ended_at, is_open=not is_over))
    return sorted(found, key=lambda each: (each.start, each.end))


def _of_span(span: Span, names: dict[str, str]) -> Stretch:
    is_work = span.kind in ("work", "code")
    words = "worked" if span.kind == "work" else WAITS[span.kind]
    row = names.get(span.id) or span.id or WAITS[span.kind]
    if span.attempt > 1 or span.error:
        words = f"attempt {span.attempt}{f', {span.error}' if span.error else ''}"
    return Stretch(
        row, "work" if is_work else "wait", span.began_at, span.ended_at, words, bool(span.error), span.is_open
    )


def _held(name: str, start: int, end: int, *, is_open: bool) -> Stretch:
    return Stretch(f"holds {name}", "hold", start, end, "held", is_open=is_open)


def fields_of(entry: HistoryEntry) -> dict[str, Any]:
    """Return the value of an entry of a history if it is an object; else one without fields."""
    value: object = entry.value
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def draw(stretches: Sequence[Stretch], *, first: int = 0) -> DrawnTimeline:
    """Return stretches of a run as bars, one row for all of one operation, with long idle stretches folded."""
    names = list(dict.fromkeys(each.row for each in stretches))
    rows = {name: number for number, name in enumerate(names[first : first + MOST_ROWS])}
    shown = [each for each in stretches if each.row in rows]
    if not shown:
        return DrawnTimeline((), (), (), (), HEAD, len(names))
    axis = _Axis(shown)
    bars: list[Bar] = []
    for each in shown:
        x, took = axis.x(each.start), length(max(0.0, (each.end - each.start) / MICROSECONDS))
        words = f"{each.row}: {each.words}, {took}{' so far' if each.is_open else ''}"
        bars.append(Bar(each, x, HEAD + ROW * rows[each.row], max(3.0, axis.x(each.end) - x), words))
    marks = tuple((axis.x(at), length((at - axis.start) / MICROSECONDS)) for at in axis.ticks())
    labels = tuple((HEAD + ROW * number, name) for name, number in rows.items())
    return DrawnTimeline(tuple(bars), axis.gaps, marks, labels, HEAD + ROW * len(rows) + 6, len(names))


class _Axis:
    """Time as a place on the page: stretches in which nothing works are no longer than a share of the rest."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.start = min(each.start for each in stretches)
        points = sorted({at for each in stretches for at in (each.start, each.end)})
        changes: dict[int, int] = dict.fromkeys(points, 0)
        for each in stretches:
            if each.kind == "work":
                changes[each.start] += 1
                changes[each.end] -= 1
        pieces: list[tuple[int, int, bool]] = []
        at_work = 0
        for left, right in pairwise(points):
            at_work += changes[left]
            pieces.append((left, right, at_work > 0))
        busy = sum(right - left for left, right, is_busy in pieces if is_busy)
        longest = max(FOLD * busy, 1.0) if busy else float("inf")
        sizes = [float(right - left) if is_busy else min(right - left, longest) for left, right, is_busy in pieces]
        scale = (WIDTH - LABELS - 8) / (sum(sizes) or 1.0)
        self._places: list[tuple[int, float, float]] = []
        gaps: list[Gap] = []
        x = float(LABELS)
        for (left, right, is_busy), size in zip(pieces, sizes, strict=True):
            self._places.append((left, x, size * scale / max(1, right - left)))
            if not is_busy and right - left > longest:
                gaps.append(Gap(x, size * scale, length((right - left) / MICROSECONDS)))
            x += size * scale
        self._end, self._last = points[-1], x
        self.gaps = tuple(gap for gap in gaps if gap.width > 2)  # noqa: PLR2004 -- pixels that can be told apart

    def x(self, at: int) -> float:
        """Return where an instant is."""
        if at >= self._end:
            return round(self._last, 1)
        low, high = 0, len(self._places) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._places[middle][0] <= at else (low, middle - 1)
        left, x, scale = self._places[low]
        return round(x + max(0, at - left) * scale, 1)

    def ticks(self) -> list[int]:
        """Return some instants to write on the axis, not too near each other."""
        found: list[int] = []
        for left, x, _ in [*self._places, (self._end, self._last, 0.0)]:
            if x <= WIDTH - 60 and (not found or x - self.x(found[-1]) > 90):  # noqa: PLR2004 -- pixels that can be told apart
                found.append(left)
        return found


# --- who waits for whom -----------------------------------------------------------------------------------------------

BOX: Final = (220, 52)
SPACE: Final = (44, 22)


class WaitNode(Struct, frozen=True):
    """Something that waits, or is waited for."""

    id: str
    kind: Literal["run", "line", "owner", "request"]
    label: str
    detail: str = ""
    href: str = ""


class WaitEdge(Struct, frozen=True):
    """One that waits for another, and what it does so for."""

    source: str
    target: str
    label: str = ""


class Box(Struct, frozen=True):
    """A node as it is drawn."""

    node: WaitNode
    x: int
    y: int
    in_circle: bool


class Arrow(Struct, frozen=True):
    """An edge as it is drawn."""

    path: str
    label: str
    x: float
    y: float
    in_circle: bool


class WaitGraph(Struct, frozen=True):
    """Who waits for whom, as it is drawn."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int
    circle: tuple[str, ...] = ()


def graph(nodes: Sequence[WaitNode], edges: Sequence[WaitEdge]) -> WaitGraph:
    """Return nodes in columns, by how far they are from the first one; a circle is found and marked."""
    circle = _circle(nodes, edges)
    depth = {nodes[0].id: 0}
    pending = [nodes[0].id]
    for name in pending:
        for edge in edges:
            if edge.source == name and edge.target not in depth:
                depth[edge.target] = depth[name] + 1
                pending.append(edge.target)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for node in nodes:
        column = depth.get(node.id, 0)
        row = rows[column] = rows.get(column, -1) + 1
        x, y = 10 + column * (BOX[0] + SPACE[0]), 10 + row * (BOX[1] + SPACE[1])
        boxes[node.id] = Box(node, x, y, node.id in circle)
    steps = set(zip(circle, (*circle[1:], *circle[:1]), strict=True))
    lowest = max(box.y for box in boxes.values()) + BOX[1]
    arrows = tuple(
        _arrow(boxes[edge.source], boxes[edge.target], edge, lowest, in_circle=(edge.source, edge.target) in steps)
        for edge in edges
    )
    width = max(box.x for box in boxes.values()) + BOX[0] + 10
    bends = any(boxes[edge.target].x <= boxes[edge.source].x for edge in edges)
    return WaitGraph(tuple(boxes.values()), arrows, width, lowest + (46 if bends else 12), circle)


def _arrow(source: Box, target: Box, edge: WaitEdge, lowest: int, *, in_circle: bool) -> Arrow:
    y1, y2 = source.y + BOX[1] / 2, target.y + BOX[1] / 2
    if target.x > source.x:
        x1, x2 = source.x + BOX[0], target.x - 8
        middle = (x1 + x2) / 2
        path = f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
        return Arrow(path, edge.label, middle, (y1 + y2) / 2 - 6, in_circle)
    left, right, low = target.x + BOX[0] / 2, source.x + BOX[0] / 2, lowest + 28
    top, end = source.y + BOX[1], target.y + BOX[1] + 8
    path = f"M{right} {top} C{right} {low} {right} {low} {right - 30} {low} "
    path += f"L{left + 30} {low} C{left} {low} {left} {low} {left} {end}"
    return Arrow(path, edge.label, (left + right) / 2, low - 6, in_circle)


def _circle(nodes: Sequence[WaitNode], edges: Sequence[WaitEdge]) -> tuple[str, ...]:
    """Return the nodes of a circle, in order; nothing if there is none."""
    follow: dict[str, list[str]] = {}
    for edge in edges:
        follow.setdefault(edge.source, []).append(edge.target)
    for node in nodes:
        paths, seen = [[node.id]], {node.id}
        for path in paths:
            for target in follow.get(path[-1], ()):
                if target == node.id:
                    return tuple(path)
                if target not in seen:
                    seen.add(target)
                    paths.append([*path, target])
    return ()


# --- counts over time -------------------------------------------------------------------------------------------------

SPARK: Final = (300, 48)


class Sparkline(Struct, frozen=True):
    """Counts over time as bars: where each stands, how high it is, and what it counts. None: it was not counted."""

    bars: tuple[tuple[float, float, float, float, int], ...]
    width: int = SPARK[0]
    height: int = SPARK[1]


def sparkline(counts: Sequence[int | None]) -> Sparkline:
    """Return counts as bars over the whole width, the highest as high as there is room."""
    width, height = SPARK
    step = width / max(1, len(counts))
    most = max((each for each in counts if each is not None), default=0) or 1
    bars: list[tuple[float, float, float, float, int]] = []
    for place, each in enumerate(counts):
        if each is None:
            continue
        high = max(1.0, round(each / most * (height - 2), 1)) if each else 1.0
        bars.append((round(place * step, 1), round(height - high, 1), round(max(1.0, step - 2), 1), high, each))
    return Sparkline(tuple(bars))
