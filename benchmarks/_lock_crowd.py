"""Processes that contend for one lock: started once, ordered about, and judged by what they report."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

READY_IN: Final = 0.05  # seconds from when the last process is ready to the begin
LATE: Final = 1_000_000
"""Nanoseconds by which one must have asked earlier than another for its being passed over to count."""


class Process:
    """A process that contends for locks."""

    def __init__(self, python: str, module: str) -> None:
        command = [python, "-m", module]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """The locks that it knows."""
        if self._names is None:
            self._names = self.hear()
        return self._names

    def order(self, role: str, lock: str, where: str, **more: object) -> None:
        """Tell it what to do; it opens the lock, says ``ready``, and waits for the begin."""
        assert lock in self.names
        self.tell(json.dumps({"role": role, "lock": lock, "where": where, **more}))

    def begin(self, at: int | None = None) -> None:
        """Tell it when to begin, once it is ready."""
        assert self.hear() == "ready"
        self.tell(str(time.monotonic_ns() if at is None else at))

    def tell(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> Any:  # noqa: ANN401 -- whatever JSON the process answers
        """Wait for a line of it."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self) -> int:
        """Kill it without a warning; return when."""
        at = time.monotonic_ns()
        self._process.kill()
        return at

    def dismiss(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead already
            self._process.stdin.close()

    def close(self) -> None:
        """Let it end, and see to it that it does."""
        self.dismiss()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Crowd:
    """Processes of one environment, which stay up between the rounds."""

    def __init__(self, python: str, module: str, size: int) -> None:
        self._python, self._module = python, module
        self.processes = [self.start() for _ in range(size)]
        for process in self.processes:
            assert process.names  # all are up, so that none is starting while something is measured

    def start(self) -> Process:
        """Start one more, which is the caller's to close."""
        return Process(self._python, self._module)

    @property
    def names(self) -> list[str]:
        """The locks that it knows."""
        return self.processes[0].names

    def _together(self, some: Sequence[Process]) -> list[Any]:
        """Let those who have their orders begin at once; return what they answer."""
        for process in some:
            assert process.hear() == "ready"
        at = time.monotonic_ns() + int(READY_IN * 1e9)
        for process in some:
            process.tell(str(at))
        return [process.hear() for process in some]

    def pairs(self, lock: str, where: str, seconds: float) -> float:
        """Return how often one process alone takes the lock in a second."""
        self.processes[0].order("pairs", lock, where, seconds=seconds)
        return float(self._together(self.processes[:1])[0])

    def side_by_side(self, lock: str, where: str, seconds: float, keys: int) -> float:
        """Return how often the tasks of one process take the locks of so many keys in a second, all together."""
        self.processes[0].order("side_by_side", lock, where, seconds=seconds, keys=keys)
        return float(self._together(self.processes[:1])[0])

    def storm(self, lock: str, where: str, size: int, seconds: float) -> Storm:
        """Let so many contend for the lock."""
        some = self.processes[:size]
        for process in some:
            process.order("storm", lock, where, seconds=seconds)
        answers = self._together(some)
        return judged(size, seconds, [Grant(me, *grant) for me, answer in enumerate(answers) for grant in answer])

    def ping_pong(self, lock: str, where: str, seconds: float, board: Path) -> float:
        """Return the milliseconds from one's release to the other's having it, p50."""
        board.write_bytes(bytes(32))
        for me, process in enumerate(self.processes[:2]):
            process.order("ping_pong", lock, where, seconds=seconds, me=me, board=str(board))
        answers = self._together(self.processes[:2])
        got = sorted(stamp for answer in answers for stamp in answer["got"])
        released = sorted(stamp for answer in answers for stamp in answer["released"])
        assert all(a < b for a, b in zip(released, got[1:], strict=False)), f"two had {lock} at once"
        gaps = [(b - a) / 1e6 for a, b in zip(released, got[1:], strict=False)]
        assert gaps, f"{lock} was never handed over"
        return float(statistics.median(gaps))

    def takeover(self, lock: str, where: str) -> float:
        """Kill who holds the lock; return the milliseconds until who waits for it has it."""
        holder, taker = self.start(), self.processes[0]
        try:
            holder.order("hold", lock, where)
            holder.begin()
            assert holder.hear() == "held"
            taker.order("take", lock, where)
            taker.begin()
            assert taker.hear() == "asking"
            time.sleep(0.15)
            killed_at = holder.kill()
            return float(taker.hear() - killed_at) / 1e6
        finally:
            holder.close()

    def close(self) -> None:
        """Let all of them end."""
        for process in self.processes:
            process.dismiss()
        for process in self.processes:
            process.close()


class Grant(NamedTuple):
    """One acquisition, in nanoseconds from the begin; ``proof`` is what the lock itself says about it."""

    process: int
    asked: int
    got: int
    released: int
    proof: Any


@dataclass(frozen=True)
class Storm:
    """What came of processes that took a lock as fast as they could.

    Attributes:
        rate: Acquisitions a second, all together.
        jain: Jain's index of fairness: 1 if all got the same, 1/n if one got everything.
        again: In how many of a hundred cases the lock went to the one who had just let go of it.
        out_of_order: In how many of a hundred cases somebody was passed over who had asked clearly earlier.
        out_of_line: The same by the fences and tickets that the lock gave out; None if it gives out none.
        hand_over: Milliseconds from the first release while one waited to its having the lock, p50.
    """

    rate: float
    jain: float
    again: float
    out_of_order: float
    out_of_line: float | None
    hand_over: float


def judged(size: int, seconds: float, grants: list[Grant]) -> Storm:
    """Return what came of a storm, from all grants in any order."""
    grants.sort(key=lambda grant: grant.got)
    assert all(a.released <= b.got for a, b in itertools.pairwise(grants)), "two had the lock at once"
    counts = [0] * size
    for grant in grants:
        counts[grant.process] += grant.got <= seconds * 1e9
    return Storm(
        rate=sum(counts) / seconds,
        jain=sum(counts) ** 2 / (size * max(1, sum(count**2 for count in counts))),
        again=100 * sum(a.process == b.process for a, b in itertools.pairwise(grants)) / len(grants),
        out_of_order=100 * _out_of_order(grants) / len(grants),
        out_of_line=None if grants[0].proof is None else 100 * _out_of_line(grants) / len(grants),
        hand_over=_hand_over(grants),
    )


def _out_of_order(grants: list[Grant]) -> int:
    passed, earliest = 0, 1 << 62
    for grant in reversed(grants):
        passed += earliest < grant.asked - LATE
        earliest = min(earliest, grant.asked)
    return passed


def _out_of_line(grants: list[Grant]) -> int:
    """Count those who came before somebody with a smaller ticket in the same life of the line."""
    proofs = [grant.proof for grant in grants]
    assert all(a[0] < b[0] for a, b in itertools.pairwise(proofs)), "the fences did not grow"
    passed, smallest = 0, dict[str, float]()
    for _, life, place in reversed(proofs):
        passed += smallest.get(life, place) < place
        smallest[life] = min(smallest.get(life, place), place)
    return passed


def _hand_over(grants: list[Grant]) -> float:
    released = sorted(grant.released for grant in grants)
    waited: list[float] = []
    position = 0
    for grant in sorted(grants, key=lambda each: each.asked):
        while position < len(released) and released[position] < grant.asked:
            position += 1
        if position < len(released) and released[position] < grant.got:
            waited.append((grant.got - released[position]) / 1e6)
    return statistics.median(waited) if waited else 0.0
