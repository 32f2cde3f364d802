"""The first two scenes: tasks of one process that want the same key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import standfast as sf
from demonstration.screen import padded
from demonstration.timeline import MODE_COLOURS, Timeline, Track

if TYPE_CHECKING:
    from demonstration.findings import Report
    from demonstration.screen import Screen

REPOSITORY: Final = sf.KeyFamily("repository")
GRAPH: Final = sf.KeyFamily("graph", modes=("pull", "observe"), alone=("exclusive",))
FRAMES_A_SECOND: Final = 20


class BrokenBuildError(Exception):
    """What goes wrong in one of the tasks."""


@dataclass(frozen=True)
class Part:
    """What a task is to do: when it comes, in which mode it holds the key and for how long, and how it ends."""

    name: str
    comes: float
    holds: float
    mode: str = ""
    fate: str = ""


@dataclass
class Scene:
    """Tasks on one key, and what became of them."""

    title: str
    key: sf.Key
    parts: list[Part]
    screen: Screen
    pace: float
    exclusion: sf.Exclusion = field(default_factory=sf.Exclusion)
    entered: list[str] = field(default_factory=list)
    together: set[frozenset[str]] = field(default_factory=set)
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracks = {part.name: Track(part.name, part.mode) for part in self.parts}

    async def play(self, seconds: float) -> None:
        """Let the tasks come one after another, and draw until all are done."""
        self.timeline = Timeline(seconds * self.pace, list(self.tracks.values()))
        legend = f"{self.screen.glyphs.wait} waits  {self.screen.glyphs.hold} holds"
        self.screen.say("", padded(self.screen.paint(self.title, "bold"), self.screen.width - len(legend) - 1) + legend)
        tasks = [asyncio.create_task(self._act(part), name=part.name) for part in self.parts]
        cancelling = [
            asyncio.create_task(self._cancel(task, part))
            for task, part in zip(tasks, self.parts, strict=True)
            if part.fate == "gives up"
        ]
        while not all(task.done() for task in tasks):
            self.screen.draw(self._picture())
            await asyncio.sleep(1 / FRAMES_A_SECOND)
        await asyncio.gather(*tasks, *cancelling)
        self.screen.keep(self._picture())

    async def _act(self, part: Part) -> None:
        track = self.tracks[part.name]
        await asyncio.sleep(part.comes * self.pace)
        track.asked = self.timeline.now()
        self.screen.note(f"{track.asked:5.2f} s  {part.name} asks")
        try:
            await self._hold(part, track)
        except asyncio.CancelledError:
            track.note = "was cancelled while waiting"
        except BrokenBuildError:
            track.note = f"{self._ordinal(part)}, failed inside"
        track.left = self.timeline.now()
        self.screen.note(f"{track.left:5.2f} s  {part.name} {track.note or 'leaves'}")

    async def _hold(self, part: Part, track: Track) -> None:
        async with self.exclusion.hold(self.key, mode=part.mode or None):
            track.entered = self.timeline.now()
            self.entered.append(part.name)
            self.inside.append(part.name)
            self.together.add(frozenset(self.inside))
            self.screen.note(f"{track.entered:5.2f} s  {part.name} holds {self.key}")
            try:
                await asyncio.sleep(part.holds * self.pace)
            finally:
                self.inside.remove(part.name)
            if part.fate == "fails":
                raise BrokenBuildError
            track.note = self._ordinal(part)

    async def _cancel(self, task: asyncio.Task[None], part: Part) -> None:
        await asyncio.sleep((part.comes + part.holds) * self.pace)
        task.cancel()

    def _ordinal(self, part: Part) -> str:
        place = self.entered.index(part.name) + 1
        return f"came in {place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place, 'th') }"

    def _picture(self) -> list[str]:
        """Draw the timeline, and below it who holds and who waits by the exclusion's own account."""
        screen, state = self.screen, self.exclusion.inspect(self.key)
        for holder in state.holders:
            self.tracks[holder.task].note = screen.paint("holds it now", MODE_COLOURS[holder.mode or ""])
        for waiter in state.waiters:
            self.tracks[waiter.task].note = screen.paint(f"waits, place {waiter.place}", "dim")
        return self.timeline.rows(screen)


def first_come() -> list[Part]:
    """Six tasks, of which one fails and one gives up."""
    return [
        Part("anna", 0.0, 0.45),
        Part("ben", 0.1, 0.45, fate="fails"),
        Part("carl", 0.2, 0.5, fate="gives up"),
        Part("dora", 0.3, 0.45),
        Part("emil", 0.4, 0.45),
        Part("fay", 0.5, 0.45),
    ]


def in_modes() -> list[Part]:
    """Pullers share, observers share, and what must be alone is alone."""
    return [
        Part("pull 1", 0.0, 0.6, "pull"),
        Part("pull 2", 0.05, 0.6, "pull"),
        Part("observe 1", 0.1, 0.5, "observe"),
        Part("observe 2", 0.15, 0.5, "observe"),
        Part("exclusive", 0.2, 0.45, "exclusive"),
        Part("pull 3", 0.25, 0.5, "pull"),
        Part("pull 4", 0.3, 0.5, "pull"),
    ]


def longest_hand_over(scene: Scene) -> float:
    """Return the most milliseconds that a key lay idle between two holders."""
    tracks = [scene.tracks[name] for name in scene.entered]
    gaps = [(after.entered or 0) - (before.left or 0) for before, after in pairwise(tracks)]
    return max(gaps) * 1000


async def play_first_come(screen: Screen, report: Report, pace: float) -> None:
    """Six tasks want one key."""
    title = "1  Six tasks of one process want the same key"
    scene = Scene(title, REPOSITORY("/srv/site"), first_come(), screen, pace)
    await scene.play(2.4)
    order = [part.name for part in scene.parts if part.fate != "gives up"]
    report.figures["hand_over_ms"] = longest_hand_over(scene)
    report.add(
        "First come, first served: a key goes straight to whoever has waited longest.",
        f"{len(order)} tasks came in in the order they asked, one at a time; no hand-over took over "
        f"{max(longest_hand_over(scene), 0.1):.1f} ms.",
        kept=scene.entered == order and all(len(crowd) == 1 for crowd in scene.together),
    )
    report.add(
        "A holder that fails and a waiter that gives up harm nobody.",
        "ben failed while he held the key, carl was cancelled while he waited; the next in line went on.",
        kept="carl" not in scene.entered and scene.entered[-1] == "fay" and not scene.exclusion.inspect(),
    )


async def play_modes(screen: Screen, report: Report, pace: float) -> None:
    """Seven tasks want one key in three modes."""
    title = "2  A key with modes: two are shared, one is alone"
    scene = Scene(title, GRAPH("knowledge"), in_modes(), screen, pace)
    await scene.play(2.4)
    modes = {part.name: part.mode for part in scene.parts}
    crowds = {frozenset(modes[name] for name in crowd) for crowd in scene.together}
    shared = sorted(sorted(crowd) for crowd in scene.together if len(crowd) > 1)
    report.add(
        "One mode is shared, different modes exclude each other, and nobody overtakes.",
        "Both pullers were in together, then both observers, then exclusive alone. pull 3 came while pull 1 was in, "
        "and still waited.",
        kept=all(len(crowd) == 1 for crowd in crowds)
        and shared == [["observe 1", "observe 2"], ["pull 1", "pull 2"], ["pull 3", "pull 4"]]
        and scene.entered == [part.name for part in scene.parts],
    )
