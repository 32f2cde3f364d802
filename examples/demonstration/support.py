"""The last scene: a support chat is served; a customer writes in a burst, and a webhook fires twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from demonstration.processes import PATIENCE
from demonstration.serving import CHAT, served, watched
from demonstration.timeline import Timeline, Track

if TYPE_CHECKING:
    from pathlib import Path

    from demonstration.findings import Report
    from demonstration.screen import Screen
    from demonstration.serving import Answer, Served

BURST: Final = ("Hello?", "My parcel is late.", "Where is it?", "Anybody there?", "Never mind, it is here!")
PARCEL: Final = "parcel-7"
SHOWN: Final = 2.0
"""Seconds that the picture is wide, and more if it takes longer."""

AGAIN: Final = 0.04


@dataclass
class Scene:
    """What was sent to the server, and what has become of it."""

    server: Served
    screen: Screen
    ledger: Path
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    tracks: dict[str, Track] = field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    deliveries: list[str] = field(default_factory=list)

    async def write_in_a_burst(self) -> None:
        """Say it all, without waiting for an answer."""
        session = ""
        for number, text in enumerate(BURST, start=1):
            answer = await self.server.say(text, session)
            session = answer.session
            self.messages.append(answer.body["request"])
            self.tracks[answer.body["request"]] = Track(f"message {number}", note=text)

    async def fire_twice(self) -> None:
        """Deliver one event twice at the same moment, and then another one about the same parcel."""
        twice = await asyncio.gather(*(self.server.deliver("event-1", PARCEL) for _ in range(2)))
        twice.sort(key=lambda answer: str(answer.body["status"]))  # the one that was accepted first, whichever it is
        for answer in (*twice, await self.server.deliver("event-2", PARCEL)):
            self._note(answer)

    def _note(self, answer: Answer) -> None:
        status = str(answer.body["status"])
        self.deliveries.append(status)
        if status == "accepted":
            self.tracks[answer.body["requestId"]] = Track("webhook", note="accepted: it runs", colour="magenta")
            return
        seconds = (datetime.now(UTC) - self.began).total_seconds()
        why = "it came before" if status == "duplicate" else "one is under way"
        note = self.screen.paint(f"dropped: {why}", "yellow")
        self.tracks[f"{status} {len(self.deliveries)}"] = Track("webhook", asked=seconds, left=seconds, note=note)

    async def follow(self) -> None:
        """Ask where everything stands until all of it has ended."""
        asked = [each for each in self.tracks if " " not in each]
        while len([each for each in self.infos.values() if "endedAt" in each]) < len(asked):
            for request_id in asked:
                if "endedAt" not in self.infos.get(request_id, {}):
                    self._saw(request_id, await self.server.look(request_id))
            self.draw()
            await asyncio.sleep(AGAIN)

    def _saw(self, request_id: str, info: dict[str, Any]) -> None:
        self.infos[request_id] = info
        track = self.tracks[request_id]
        track.asked, track.entered, track.left = (
            (datetime.fromisoformat(info[name]) - self.began).total_seconds() if name in info else None
            for name in ("receivedAt", "startedAt", "endedAt")
        )

    def picture(self) -> list[str]:
        """Draw who waited and who ran."""
        latest = max((each.left or 0.0 for each in self.tracks.values()), default=0.0)
        timeline = Timeline(max(SHOWN, latest), list(self.tracks.values()))
        timeline.began -= (datetime.now(UTC) - self.began).total_seconds()
        return timeline.rows(self.screen)

    def draw(self) -> None:
        """Draw it over the picture before."""
        self.screen.draw(self.picture())


async def play_support(folder: Path, screen: Screen, report: Report) -> None:
    """Play the scene and compare what happened with what was promised."""
    screen.say(
        "", screen.paint("7  A support chat is served: a burst of messages, and a webhook that fires twice", "bold")
    )
    async with served(folder) as server:
        screen.say(f"   serving {server.address}{CHAT}/ with SQLite")
        scene = Scene(server, screen, folder / "carrier.log")
        async with asyncio.timeout(PATIENCE):
            await scene.write_in_a_burst()
            await scene.fire_twice()
            await scene.follow()
        screen.keep(scene.picture())
    judge(scene, report)


def judge(scene: Scene, report: Report) -> None:
    """Compare what the server told with what was promised."""
    tracks = [scene.tracks[each] for each in scene.messages]
    times = [(track.entered or 0.0, track.left or 0.0) for track in tracks]
    in_turn = all(before[1] <= after[0] for before, after in pairwise(times))
    answers = [str(scene.infos[each].get("result", "")) for each in scene.messages]
    in_order = all(f"answer {number} " in answer for number, answer in enumerate(answers, start=1))
    landed = max(track.asked or 0.0 for track in tracks) - min(track.asked or 0.0 for track in tracks)
    waited = sum((track.entered or 0.0) - (track.asked or 0.0) > AGAIN for track in tracks)
    report.figures |= {"messages_landed_ms": 1000 * landed, "messages_waited": waited}
    report.add(
        "Answers in one conversation are given one by one, in order.",
        f"{len(BURST)} messages were in within {1000 * landed:.0f} ms. {len(BURST) - waited} ran at once and {waited} "
        f"waited; no two answers were under way at a time, and each knew those before it.",
        kept=in_turn and in_order,
    )
    looked_up = len(scene.ledger.read_text(encoding="utf-8").splitlines())
    told = ", ".join(sorted(scene.deliveries))
    report.add(
        "A webhook that fires twice runs once.",
        f"Three deliveries about one parcel were answered: {told}. It was looked up {looked_up} time.",
        kept=sorted(scene.deliveries) == ["accepted", "duplicate", "skipped"] and looked_up == 1,
    )


async def keep_serving(folder: Path, screen: Screen) -> None:
    """Serve the same chat until it is ended, and a dashboard beside it."""
    async with served(folder) as server, watched(folder) as dashboard:
        screen.say_whole(f"Talk to it at {screen.paint(server.page, 'bold')} (Ctrl-C ends it)")
        screen.say_whole(f"Watch it at {screen.paint(dashboard, 'bold')} (this address opens one browser, once)")
        await asyncio.Event().wait()
