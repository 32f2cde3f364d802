"""What must be true of requests of flows, looked at after every commit and whenever an action is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.flows.records import REQUESTS, SESSIONS
from tests.simulation.flow_stage import SUPERSEDING
from tests.simulation.request_lines import LineWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import standfast as sf
    from standfast.flows.records import RequestRecord
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied
    from standfast.stores.memory import MemoryRecords
    from tests.simulation.flow_letters import Letter, Sending
    from tests.simulation.lock_process import Process


class Run(Struct):
    """A call of an action, in a process."""

    id: str
    action: str
    session: str
    names: tuple[str, ...]
    process: Any
    request: Any
    is_inside: bool = True


@final
class FlowWatch:
    """Looks at every commit, and at every call of an action.

    Attributes:
        sendings: What was taken on, by the request that it became.
        unwanted: The requests that somebody asked to stop.
        abandoned: The letters whose sender went away at some time.
        shaken: The processes with which something went wrong, though they live.
        records: How each request is, as far as was written.
        written: With which commit it was first written that a request is there.
        overlap: What a tick does while the one before it runs.
        patient: The actions whose requests wait for their turn, however long that takes.
        free: The actions whose requests need no turn.
    """

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory
        self.problems: Final[list[str]] = []
        self._lines: Final = LineWatch(memory, self.demand)
        self._order = 0
        self.sendings: Final[dict[str, list[tuple[Letter, Sending]]]] = {}
        self.unwanted: Final[set[str]] = set()
        self.abandoned: Final[set[str]] = set()
        self.shaken: Final[set[str]] = set()
        self.records: Final[dict[str, RequestRecord]] = {}
        self.written: Final[dict[str, int]] = {}
        self._commits = 0
        self.overlap = "allow"
        self.patient: tuple[str, ...] = ()
        self.free: tuple[str, ...] = ()
        self._runs: Final[dict[str, Run]] = {}
        self._running: Final[dict[str, Run]] = {}
        self._kept: Final[dict[str, list[str]]] = {}
        self.on_claim: Callable[[Process], None] = lambda _: None
        self.has_unwritten = False  # whether requests whose callers wait leave nothing in the store

    def demand(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    def tick(self) -> int:
        """Return the number of what a sender does or hears now."""
        self._order += 1
        return self._order

    def accepted(self, letter: Letter, sending: Sending) -> None:
        """A request was taken on."""
        self.sendings.setdefault(sending.id, []).append((letter, sending))

    def names_in(self, session: str) -> list[str]:
        """Return what was left in a session, in order."""
        return self._kept.get(session, [])

    # --- every commit --------------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Applied) -> None:
        """Look at what a commit of ``process`` has left behind."""
        self._commits += 1
        for key in applied.changed:
            kind, parts = key.parts[2], key.parts[3:]
            if kind == "request":
                self._saw_request(process, key, parts[-1])
            elif kind == "event" and key in self._memory._records:
                self._saw_word(process, parts[-2])
            elif kind == "session":
                self._saw_session(process, key, parts[-1])
        self._lines.saw(applied.changed)
        if any(key.parts[2] == "own" and key in self._memory._records for key in applied.changed):
            self.on_claim(process)

    def _saw_request(self, process: Process, key: RecordKey, request_id: str) -> None:
        """A request ends once; one that ends well does so where it runs, while it has its turn."""
        record, before = self._memory._records.get(key), self.records.get(request_id)
        if record is None:
            return
        after = self.records[request_id] = REQUESTS.decode(record.value)
        self.written.setdefault(request_id, self._commits)
        if before is not None and before.has_ended:
            told = f"end: {request_id} ended {before.status}, and then {after.status}"
            self.demand(after.status == before.status, told)
        elif after.status == "completed":
            self._check_turn(process, request_id, "ended well")

    def _saw_word(self, process: Process, request_id: str) -> None:
        self._check_turn(process, request_id, "told something")

    def _saw_session(self, process: Process, key: RecordKey, session: str) -> None:
        record, before = self._memory._records.get(key), self._kept.get(session, [])
        after = [] if record is None else SESSIONS.decode(record.value).state.get("names", [])
        self._kept[session] = after
        self.demand(after[: len(before)] == before, f"session: what was in {session} is not there any more")
        for name in after[len(before) :]:
            self.demand(name not in before, f"once: {name} was done twice")
            runs = [each for each in self._runs.values() if name in each.names]
            mine = [each for each in runs if each.process is process]
            self.demand(mine, f"session: {process.name} left {name} in {session}, and never ran it")
            for run in mine[-1:]:
                self._check_turn(process, run.id, "changed its session")

    def _check_turn(self, process: Process, request_id: str, what: str) -> None:
        run = self._runs.get(request_id)
        if run is None:
            self.demand(False, f"stale commit: {request_id} {what} before it began")
            return
        self.demand(run.process is process, f"stale commit: {request_id} {what} in {process.name}, and runs elsewhere")
        mine = run.action in self.free or self._running.get(run.session) is run
        self.demand(mine, f"stale commit: {request_id} {what} after its successor began")

    # --- every call ----------------------------------------------------------------------------------------------

    def begins(self, process: Process, request: sf.Request, names: Sequence[str]) -> Run:
        """An action is called: then nobody else of its key is at it, and nobody who came before still waits."""
        run = Run(request.id, request.action, request.session_id, tuple(names), process, request)
        before = self._runs.get(run.id)
        if before is not None and before.request.attempt > request.attempt:
            return run  # it stalled where it was to begin, and others have taken it up: it must commit nothing
        self._check_alone(run)
        if run.action not in self.free:
            self._check_order(run)
            self._running[run.session] = run
        self._runs[run.id] = run
        return run

    def _check_alone(self, run: Run) -> None:
        others = [each.id for each in self._runs.values() if self._is_at_it(each, run)]
        self.demand(not others, f"exclusion: {run.id} ({run.action}) runs together with {others}")

    def _is_at_it(self, other: Run, run: Run) -> bool:
        """Tell whether another run has the same key and every reason to think that it has its turn."""
        if not other.is_inside or other.process.is_dead or other.process.name in self.shaken:
            return False
        if run.action == other.action == "ticked" and self.overlap != "allow":
            return True  # a tick that is to stop has its place until it has ended
        is_free = run.action in self.free or other.action in self.free
        return not is_free and other.session == run.session and not self._is_to_stop(other)

    def _is_to_stop(self, run: Run) -> bool:
        if run.request.is_cancelled or run.id in self.unwanted:
            return True
        if run.action == "ticked":
            return self.overlap == "restart"
        return run.action == "restarted" and len(self._of("restarted", run.session)) > 1

    def _of(self, action: str, session: str) -> set[str]:
        """Return the requests that were taken on, whether or not their senders have heard so by now."""
        sent = ((each, letter.action, letter.session) for each, [(letter, _), *_] in self.sendings.items())
        written = ((each, record.action, record.session) for each, record in self.records.items())
        return {each for each, *whose in (*sent, *written) if whose == [action, session]}

    def _check_order(self, run: Run) -> None:
        """Whoever was told that it waits before this one was sent has had its turn, if nothing went wrong with it."""
        mine = [sending.sent for _, sending in self.sendings.get(run.id, ()) if sending.is_new]
        sent = min(mine, default=self._order)  # others may share it who came later, though nobody has heard of it
        for request_id, [(letter, sending), *_] in self.sendings.items():
            if letter.action not in self.patient or letter.session != run.session or request_id in self._runs:
                continue
            gone = sending.process.is_dead or sending.process.name in self.shaken or request_id in self.unwanted
            if gone or letter.name in self.abandoned or not sending.is_new or sending.told:
                continue
            ended = request_id in self.records and self.records[request_id].has_ended
            passed = mine and sending.answered < sent and not ended
            self.demand(not passed, f"FIFO: {run.id} ({run.action}) passed {request_id} ({letter.action})")

    # --- the end -------------------------------------------------------------------------------------------------

    def may_end(self, request_id: str, status: str) -> bool:
        """Tell whether there is a reason for a request to have ended like that."""
        letter, sending = self.sendings[request_id][0]
        names = {each.name for each, _ in self.sendings[request_id]}
        match status:
            case "completed":
                return True
            case "cancelled":
                return request_id in self.unwanted or bool(names & self.abandoned)
            case "superseded":
                return letter.action in SUPERSEDING
            case "refused":
                return letter.action == "queued"
            case "interrupted":  # whoever shares the run of one whose caller waits, shares its end
                return not self.records[request_id].durable
            case _:  # a caller who waits is told at once if the store fails
                return letter.attended and (letter.action == "retried" or sending.process.name in self.shaken)
