"""What must be true of arbitrated requests, looked at after every commit and at every body that begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from tests.simulation.request_lines import LineWatch

if TYPE_CHECKING:
    from standfast.stores.backend import Applied
    from standfast.stores.memory import MemoryRecords
    from tests.simulation.lock_process import Process


class Visit(Struct):
    """One request, as it fared. ``ending`` is what it came to: ``"completed"``, or the name of an error."""

    id: str
    key: str
    action: str
    process: Any
    rules: Any
    turn: Any = None
    is_inside: bool = False
    has_committed: bool = False
    ending: str = ""
    was_stopped: bool = False
    is_to_stop: bool = False

    def believes(self) -> bool:
        """Tell whether it goes by its own knowledge on having its turn."""
        lives = self.is_inside and not self.process.is_dead
        if not lives or self.turn.is_lost:
            return False
        presence = getattr(self.turn, "presence", None)
        return presence is None or presence.left() > 0


@final
class RequestWatch:
    """Looks at every commit, and at every body that begins or ends."""

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory
        self.problems: Final[list[str]] = []
        self.visits: Final[dict[str, Visit]] = {}
        self.running: Final[dict[str, str]] = {}
        self._lines: Final = LineWatch(memory, self.demand)

    def demand(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    # --- every commit --------------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Applied) -> None:
        """Look at what a commit of ``process`` has left behind; its effects first, by the lines before it."""
        for parts in [key.parts for key in applied.changed]:
            if parts[2] == "effect":
                self._saw_effect(process, *parts[3:])
        self._lines.saw(applied.changed)

    def _saw_effect(self, process: Process, key: str, name: str, what: str) -> None:
        """What is committed by a turn is committed before the next one begins."""
        visit = self.visits[name]
        self.demand(self.running.get(key) == name, f"stale commit: {name} committed after its successor on {key}")
        self.demand(visit.process is process, f"stale commit: {name} was committed by {process.name}")
        if what == "last":
            self.demand(not visit.is_to_stop, f"stale commit: {name} ended well after it was asked to stop")
            self.demand(not visit.has_committed, f"commit: {name} ended twice")
            visit.has_committed = True

    # --- every body ----------------------------------------------------------------------------------------------

    def begins(self, visit: Visit) -> None:
        """A body begins: then no other of its key believes that it has its turn."""
        alike = [each for each in self.visits.values() if each.key == visit.key]
        others = [each.id for each in alike if each.believes() and not self._was_revoked(each)]
        self.demand(not others, f"exclusion: {visit.id} runs on {visit.key} together with {others}")
        visit.is_inside = True
        self.running[visit.key] = visit.id

    def _was_revoked(self, visit: Visit) -> bool:
        """Tell whether one was asked to stop and did not hear of it: then it lost its grant after a grace."""
        entry = getattr(visit.turn, "entry_id", "")
        return any(key.parts[2:] == ("stop", entry) for key in self._memory._records)

    def ended(self, visit: Visit) -> None:
        """A request has come to its end: what was committed fits what its caller was told."""
        if visit.process.is_dead:
            return
        if visit.ending == "completed":
            self.demand(visit.has_committed, f"commit: {visit.id} has completed and its end is not there")
        if visit.ending in ("RequestSupersededError", "RequestInterruptedError", "RequestRejectedError"):
            self.demand(not visit.has_committed, f"commit: {visit.id} was told {visit.ending} and its end is there")

    def superseded(self, visit: Visit, by: str) -> None:
        """One was told that a newer one took its place: then that one is of the same action and key, and does so.

        One that lost its place gives way by its own rules: here, unlike in an app, an action has several of them.
        """
        newer = self.visits.get(by)
        fits = newer is not None and (newer.key, newer.action) == (visit.key, visit.action) and newer is not visit
        takes = newer is not None and {newer.rules.supersedes, visit.rules.supersedes} != {"none"}
        self.demand(fits and takes, f"stop: {visit.id} was told that {by} took its place")

    def cancelled(self, visit: Visit) -> None:
        """One was told that it was asked to stop: then it was."""
        self.demand(visit.was_stopped, f"stop: {visit.id} ended for a stop that was not for it")
