"""Random programs that contend for keys, run in a simulation and watched at every step."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from standfast.errors import HoldTimeoutError, WaitCycleError, WouldWaitError
from standfast.exclusion import Exclusion
from standfast.testing import simulate
from tests.unit.exclusion.scene import MODES, PLAIN

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from standfast.exclusion import Hold, KeyState
    from standfast.keys import Key

MODE_NAMES = (*MODES.modes, *MODES.alone)
FATES = ("normal", "cancelled", "timeout", "failure", "try")


class Actor(NamedTuple):
    """A task that comes at some time, holds some keys for some time, and meets some fate. Times are in ticks."""

    arrives: int
    keys: tuple[int, ...]
    mode: int
    stays: int
    fate: str
    fate_after: int


def random_actor(chance: random.Random, most_keys: int = 1) -> Actor:
    """Make up an actor."""
    return Actor(
        arrives=chance.randrange(12),
        keys=tuple(chance.sample(range(3), chance.randint(1, most_keys))),
        mode=chance.randrange(len(MODE_NAMES)),
        stays=chance.randrange(6),
        fate=chance.choice(FATES),
        fate_after=chance.randrange(12),
    )


def key_of(number: int) -> Key:
    """Return one of three keys; the first has modes."""
    return MODES("0") if number == 0 else PLAIN(str(number))


class ExpectedError(Exception):
    """The failure of an actor whose fate it is."""


class Program:
    """Runs actors on one exclusion and checks, whenever anything happens, that everything is in order."""

    def __init__(self) -> None:
        self.exclusion = Exclusion(hooks=[lambda _: None])
        self.asked: dict[tuple[str, Key], int] = {}
        self.outcomes: list[str] = []
        self._number = count()

    async def run(self, actors: Sequence[Actor]) -> None:
        """Let all of them act, and see that nothing is left."""
        tasks = [asyncio.create_task(self._act(actor), name=f"actor-{n}") for n, actor in enumerate(actors)]
        for actor, task in zip(actors, tasks, strict=True):
            if actor.fate == "cancelled":
                asyncio.get_running_loop().call_later(actor.arrives + actor.fate_after, task.cancel)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [error for error in ended if not isinstance(error, asyncio.CancelledError | None)] == []
        self.check()
        table = self.exclusion._table
        assert (table.entries, table.held, table.stuck) == ({}, {}, {})

    async def _act(self, actor: Actor) -> None:
        await asyncio.sleep(actor.arrives)
        try:
            await self._hold_keys(actor)
            self.outcomes.append("done")
        except (HoldTimeoutError, WouldWaitError, WaitCycleError, ExpectedError) as error:
            self.outcomes.append(type(error).__name__)
        finally:
            self.check()

    async def _hold_keys(self, actor: Actor) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for number in actor.keys:
                await self._enter(stack, actor, key_of(number))
            await asyncio.sleep(actor.stays)
            if actor.fate == "failure":
                raise ExpectedError

    async def _enter(self, stack: contextlib.AsyncExitStack, actor: Actor, key: Key) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.check()
        self.asked[task.get_name(), key] = next(self._number)
        try:
            await stack.enter_async_context(self._hold(actor, key))
        except WaitCycleError:
            assert self.is_cycle(task.get_name(), key)
            raise
        self.check()

    def _hold(self, actor: Actor, key: Key) -> Hold:
        mode = MODE_NAMES[actor.mode] if key.family is MODES else None
        if actor.fate == "try":
            return self.exclusion.try_hold(key, mode=mode)
        return self.exclusion.hold(key, mode=mode, timeout=actor.fate_after if actor.fate == "timeout" else None)

    def check(self) -> None:
        """See that everything is in order, right now."""
        for state in self.exclusion.inspect():
            check_sharing(state)
            self._check_order(state)

    def _check_order(self, state: KeyState) -> None:
        """Nobody who holds the key has passed anybody who waits, and the line is in order of asking."""
        inside = [self.asked[holder.task, state.key] for holder in state.holders]
        line = [self.asked[waiter.task, state.key] for waiter in state.waiters]
        assert line == sorted(line)
        assert not line or max(inside) < min(line)

    def is_cycle(self, name: str, key: Key) -> bool:
        """Tell by the picture alone whether waiting for ``key`` would lead back to the task ``name``."""
        states = self.exclusion.inspect()
        waits = {waiter.task: state.key for state in states for waiter in state.waiters}
        reached, to_follow = set[str](), [key]
        while to_follow:
            holders = {holder.task for holder in self.exclusion.inspect(to_follow.pop()).holders} - reached
            reached |= holders
            to_follow += [waits[holder] for holder in holders if holder in waits]
        return name in reached


def check_sharing(state: KeyState) -> None:
    """Several holders are all in one mode, and that one can be shared; a line without holders does not exist."""
    assert state.holders
    if len(state.holders) > 1:
        [mode] = {holder.mode for holder in state.holders}
        assert mode in state.key.family.modes


def run_program(seed: int, actors: Sequence[Actor]) -> list[str]:
    """Run actors in a simulation and return how they ended. A deadlock fails the simulation."""
    program = Program()
    simulate(seed, lambda: program.run(actors))
    return program.outcomes
