"""Proofs of life: nobody is taken for dead who still counts on being taken for alive."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import threading
from typing import TYPE_CHECKING, final

import pytest

from standfast.stores.liveness import (
    GRACE,
    LONGEST_GAP,
    LONGEST_RESTART,
    SEEN,
    VALID,
    ProcessLiveness,
    Suspicion,
    TokenState,
    liveness_of,
)
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import Callable

LATENCY = 0.15
"""The most seconds that a message takes in the simulation, one way; twice that fits into the margin."""


def tied(at: float = 0.0) -> TokenState:
    """Return a tie that is tied."""
    tie = TokenState()
    assert tie.attach(at)
    return tie


def test_a_lost_session_leaves_some_time() -> None:
    """It is not a death: until its own deadline the process counts on being taken for alive."""
    tie = tied()
    tie.lose(10.0)

    assert tie.left(10.0 + VALID / 2) == pytest.approx(VALID / 2)
    assert tie.attach(10.0 + VALID / 2)
    assert tie.left(99.0) == math.inf


def test_whoever_ties_too_late_is_over_for_good() -> None:
    """Others may have acted on it by then."""
    tie = tied()
    tie.lose(10.0)

    assert not tie.attach(10.0 + VALID)
    assert tie.is_over
    assert not tie.attach(10.0)


def test_a_tie_that_hardly_anybody_saw_gains_no_time() -> None:
    """Somebody may have looked before and after, and seen it untied all the while."""
    tie = tied()
    tie.lose(10.0)
    tie.attach(10.1)
    tie.lose(10.1 + SEEN / 2)

    assert tie.left(10.1 + SEEN / 2) == pytest.approx(VALID - 0.1 - SEEN / 2)


def test_a_server_that_serves_nobody_puts_the_end_off_for_a_while() -> None:
    """While it restarts nobody sees anything; but somewhere else another server may have taken its place."""
    tie = tied()
    tie.lose(10.0)
    tie.excuse(10.0 + VALID / 2)
    assert tie.left(10.0 + VALID) > 0

    tie.excuse(99.0)
    assert tie.left(10.0 + LONGEST_RESTART + VALID) <= 0


def test_a_death_is_certain_when_the_grace_has_passed() -> None:
    """Not before, and from then on."""
    suspicion = Suspicion()
    for at in (0.0, 0.5, GRACE - 0.01):
        suspicion.look(is_attached=False, asked_at=at, answered_at=at)
        assert not suspicion.is_certain

    suspicion.look(is_attached=False, asked_at=GRACE, answered_at=GRACE)

    assert suspicion.is_certain


@pytest.mark.parametrize("interruption", ["tied", "gap", "forgotten"])
def test_the_grace_begins_anew_after_whatever_could_have_been_a_sign_of_life(interruption: str) -> None:
    """A tie, a pause in which there may have been one, or a lost session of one's own."""
    suspicion = Suspicion()
    suspicion.look(is_attached=False, asked_at=0.0, answered_at=0.0)
    if interruption == "tied":
        suspicion.look(is_attached=True, asked_at=0.5, answered_at=0.5)
    elif interruption == "forgotten":
        suspicion.forget()
    at = GRACE if interruption == "gap" else LONGEST_GAP
    for later in (at, at + LONGEST_GAP / 2, at + LONGEST_GAP):
        suspicion.look(is_attached=False, asked_at=later, answered_at=later)

    assert not suspicion.is_certain


@final
class Simulated:
    """A server, one process whose session gets lost, and one that watches it, in virtual time."""

    def __init__(self, chooser: random.Random, slow: float = 0.05) -> None:
        self._chooser, self._slow = chooser, slow
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0
        self.tie, self.suspicion = TokenState(), Suspicion()
        self._session = 0
        self._is_locked, self._is_up, self.is_dead, self.died_at = True, True, False, 0.0
        self.tie.attach(0.0)  # nobody knows of a liveness session before it was tied once
        self._in(self._some(3.0), lambda: self._cut(0))
        self._in(self._some(1.0), self._look)

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def _some(self, most: float) -> float:
        return self._chooser.uniform(0, most)

    def run(self, until: float) -> None:
        """Run what happens until then; whoever is taken for dead must know."""
        while self._events[0][0] < until and not self.suspicion.is_certain:
            self.now, _, event = heapq.heappop(self._events)
            event()
        if self.suspicion.is_certain:
            assert self.is_dead or self.tie.left(self.now) <= 0, f"it counts on {self.tie.left(self.now):.3f} s more"

    # --- the one who is watched

    def _connect(self) -> None:
        """Reach the server after a while; it locks, if it is up, and the answer takes a while, too."""
        self._in(self._some(0.4), self._reached)

    def _reached(self) -> None:
        if self.is_dead:
            return
        if not self._is_up:
            self._in(self._some(LATENCY), lambda: self.tie.excuse(self.now))
            self._connect()
            return
        self._session += 1
        session, self._is_locked = self._session, True
        self._in(self._some(LATENCY), lambda: self._tied(session))
        if self._chooser.random() < 0.9:
            self._in(self._chooser.choice([0.2, 1.0, 3.0]) * self._chooser.random(), lambda: self._cut(session))

    def _tied(self, session: int) -> None:
        if session == self._session and not self.is_dead and self._is_locked and not self.tie.attach(self.now):
            self._is_locked, self._session = False, session + 1  # it is over, and hangs up

    def _cut(self, session: int) -> None:
        if session == self._session:
            self._is_locked = False
            self._in(self._some(LATENCY), lambda: self._noticed(session))

    def _noticed(self, session: int) -> None:
        if session == self._session and not self.is_dead:
            self._session += 1
            self.tie.lose(self.now)
            if self.tie.left(self.now) > 0:
                self._connect()

    def die(self) -> None:
        """End the process."""
        self.is_dead, self._is_locked, self.died_at = True, False, self.now

    # --- the server

    def restart(self, seconds: float) -> None:
        """Be down for a while: all sessions are lost."""
        self._is_up = False
        self.suspicion.forget()
        self._cut(self._session)
        self._in(seconds, lambda: setattr(self, "_is_up", True))

    # --- the one who watches

    def _look(self) -> None:
        slow = self._chooser.random() < self._slow
        asked_at, way = self.now, self._some(0.9 if slow else LATENCY)
        self._in(way, lambda: self._looked(asked_at))

    def _looked(self, asked_at: float) -> None:
        is_attached, was_up = self._is_locked, self._is_up

        def answered() -> None:
            if was_up and self._is_up:
                self.suspicion.look(is_attached=is_attached, asked_at=asked_at, answered_at=self.now)
            self._in(self._some(0.2), self._look)

        self._in(self._some(LATENCY), answered)


@pytest.mark.heavy
def test_nobody_is_taken_for_dead_who_counts_on_being_alive() -> None:
    """However sessions are lost, found again and looked at, and whenever the server restarts."""
    given_up = 0
    for seed in rounds("graces", full=20_000, quick=500):
        chooser = random.Random(seed)
        world = Simulated(chooser)
        for _ in range(3):
            world.run(world.now + chooser.uniform(0, 5))
            if chooser.random() < 0.3:
                world.restart(chooser.uniform(0, 4))
        world.run(world.now + 10)
        given_up += world.suspicion.is_certain
    assert given_up, "nobody was ever taken for dead: this showed nothing"


@pytest.mark.heavy
def test_a_death_is_seen_soon_after_the_grace() -> None:
    """By somebody who looks all the time, on a server that is there."""
    for seed in rounds("deaths", full=2_000, quick=100):
        world = Simulated(random.Random(seed), slow=0)
        world.run(1.5)
        world.die()
        world.run(60.0)

        assert world.suspicion.is_certain
        assert world.now - world.died_at < GRACE + 1.2


async def test_whoever_waits_for_a_proof_is_woken_by_another_thread() -> None:
    """The session is looked after on a thread of its own."""
    proof = ProcessLiveness("somebody's")
    waiting = asyncio.create_task(proof.until_attached())
    await asyncio.sleep(0)
    assert not waiting.done()

    threading.Thread(target=proof.attach).start()

    assert await waiting
    assert liveness_of("somebody's") is proof


async def test_waiting_for_a_proof_ends_when_it_is_over() -> None:
    """There is nothing more to wait for."""
    proof = ProcessLiveness("somebody else's")
    proof.attach()
    proof.lose()

    assert not await proof.until_attached()
    assert proof.left() <= 0
