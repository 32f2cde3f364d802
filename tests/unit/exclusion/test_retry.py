"""Attempts under a key: a lost race starts over, everything else ends at once, and nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import InvalidArgumentError, RetryError, UsageError
from standfast.exclusion import Exclusion
from standfast.exclusion.retry import Attempt, Backoff, attempt_under
from tests.unit.exclusion.scene import PLAIN, Overlaps, ticks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

AT_ONCE = Backoff(0)


class LostError(Exception):
    """Somebody else was faster."""


class Losing:
    """Work that loses a number of races before it wins; it notes when its block was left."""

    def __init__(self, races: int, error: type[BaseException] = LostError) -> None:
        self.races, self.error = races, error
        self.log: list[str] = []

    async def __call__(self, attempt: Attempt) -> str:
        """Lose, or win if enough has been lost."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.log.append, f"cleaned {attempt.number}")
            await asyncio.sleep(0)
            if attempt.number <= self.races:
                raise self.error(attempt.number)
            return f"won {attempt.number}"


async def run(work: Callable[[Attempt], Awaitable[str]], attempts: int | None = 5) -> str:
    """Attempt something that may lose a race, without delays."""
    hold = Exclusion().hold(PLAIN("a"))
    return await attempt_under(hold, work, retry_on=LostError, attempts=attempts, backoff=AT_ONCE)


async def test_the_result_of_the_attempt_is_returned() -> None:
    """An attempt that wins at once is the only one."""
    work = Losing(0)
    assert await run(work) == "won 1"
    assert work.log == ["cleaned 1"]


async def test_a_lost_race_starts_over() -> None:
    """Each attempt is a fresh start, after the one before has cleaned up."""
    work = Losing(2)
    assert await run(work) == "won 3"
    assert work.log == ["cleaned 1", "cleaned 2", "cleaned 3"]


async def test_after_five_lost_races_the_last_one_is_raised() -> None:
    """That is the limit unless another is given."""
    work = Losing(9)
    with pytest.raises(LostError, match=r"^5$"):
        await run(work)
    assert len(work.log) == 5


async def test_the_limit_can_be_chosen() -> None:
    """One attempt means no retry; None means as many as it takes."""
    with pytest.raises(LostError, match=r"^1$"):
        await run(Losing(1), attempts=1)
    assert await run(Losing(50), attempts=None) == "won 51"


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, KeyboardInterrupt])
async def test_any_other_error_ends_the_attempts_at_once(error: type[BaseException]) -> None:
    """Only the named conflict is retried."""
    work = Losing(1, error)
    with pytest.raises(error):
        await run(work)
    assert work.log == ["cleaned 1"]


async def test_the_key_is_held_across_attempts_and_delays() -> None:
    """Nobody else gets in between, not even while the loser waits."""
    exclusion, held = Exclusion(), list[int]()

    async def sleep(_seconds: float) -> None:
        await ticks()
        held.append(len(exclusion.inspect(PLAIN("a")).holders))

    async def preflight() -> None:
        held.append(len(exclusion.inspect(PLAIN("a")).holders))

    hold = exclusion.hold(PLAIN("a"))
    await attempt_under(hold, Losing(3), retry_on=LostError, preflight=preflight, sleep=sleep)
    assert held == [1, 1, 1, 1]
    assert exclusion.inspect() == ()


async def test_tasks_of_one_process_never_attempt_at_once() -> None:
    """They would only lose races against each other."""
    exclusion, overlaps = Exclusion(), Overlaps()

    async def work(_attempt: Attempt) -> None:
        await overlaps.visit("x")

    await asyncio.gather(*(attempt_under(exclusion.hold(PLAIN("a")), work) for _ in range(5)))
    assert overlaps.most == 1


async def test_the_preflight_runs_once_and_its_failure_ends_everything() -> None:
    """It is no part of an attempt, so even the conflict is not retried there."""
    exclusion, work = Exclusion(), Losing(0)

    async def preflight() -> None:
        raise LostError

    with pytest.raises(LostError):
        await attempt_under(exclusion.hold(PLAIN("a")), work, retry_on=LostError, preflight=preflight)
    assert work.log == []
    assert exclusion.inspect() == ()


async def test_a_cancellation_during_a_delay_frees_the_key() -> None:
    """The loser waits for its next attempt when it is cancelled."""
    exclusion = Exclusion()
    work = attempt_under(exclusion.hold(PLAIN("a")), Losing(1), retry_on=LostError, backoff=Backoff(3600, longest=3600))
    task = asyncio.create_task(work)
    await ticks()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert exclusion.inspect() == ()


async def test_several_conflicts_can_be_named() -> None:
    """Subclasses count as well."""
    hold = Exclusion().hold(PLAIN("a"))
    kinds = (LostError, LookupError)
    assert await attempt_under(hold, Losing(2, KeyError), retry_on=kinds, backoff=AT_ONCE) == "won 3"


# --- delays -------------------------------------------------------------------------------------------------------


async def test_delays_are_a_random_part_of_a_span_that_doubles() -> None:
    """The span is 50 ms at first and never more than 2 seconds."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    hold = Exclusion().hold(PLAIN("a"))
    await attempt_under(hold, Losing(8), retry_on=LostError, attempts=None, sleep=sleep, chance=lambda: 0.5)
    assert slept == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_delays_of_rivals_differ() -> None:
    """Chance decides between nothing and the whole span."""
    backoff = Backoff("100ms", longest="1 second")
    assert [backoff.delay(2, chance) for chance in (0.0, 0.5, 1.0)] == [0.0, 0.1, 0.2]


def test_the_millionth_delay_is_no_longer_than_the_longest() -> None:
    """Doubling does not run away."""
    assert Backoff().delay(1_000_000, 1.0) == 2.0


def test_what_is_no_delay_is_refused() -> None:
    """A mistake in a backoff is found where it is made."""
    with pytest.raises(InvalidArgumentError, match="longest delay"):
        Backoff(longest="for ever")


# --- asking for a retry -------------------------------------------------------------------------------------------


async def test_an_attempt_can_ask_to_start_over() -> None:
    """Without a conflict of its own, it raises what ``retry`` gives it."""

    async def work(attempt: Attempt) -> str:
        if attempt.number < 3:
            raise attempt.retry("not yet")
        return f"won {attempt.number}"

    assert await run(work) == "won 3"


async def test_the_last_retry_asked_for_is_raised() -> None:
    """When no attempt is left, the caller learns the reason."""

    async def work(attempt: Attempt) -> str:
        raise attempt.retry("never good enough")

    with pytest.raises(RetryError, match="attempt 5 asked for another one: never good enough"):
        await run(work)


async def test_a_retry_asked_of_an_attempt_that_is_over_is_refused() -> None:
    """A stray request would reach nobody."""
    kept: list[Attempt] = []

    async def work(attempt: Attempt) -> str:
        kept.append(attempt)
        return "won"

    await run(work)
    with pytest.raises(UsageError, match="attempt 1 is over"):
        kept[0].retry()


@pytest.mark.parametrize("answer", [lambda asked: asked, lambda _: "won"], ids=["returned", "forgotten"])
async def test_a_retry_that_is_not_raised_is_refused(answer: Callable[[RetryError], str]) -> None:
    """It must not pass for the result, nor be dropped in silence."""

    async def work(attempt: Attempt) -> str:
        return answer(attempt.retry())

    with pytest.raises(UsageError, match="attempt 1 asked to be made anew but did not raise"):
        await run(work)


async def test_a_retry_that_was_raised_and_caught_is_nobodys_business() -> None:
    """The work may change its mind."""

    async def work(attempt: Attempt) -> str:
        with contextlib.suppress(RetryError):
            raise attempt.retry()
        return "won after all"

    assert await run(work) == "won after all"


async def test_a_retry_goes_to_the_attempt_it_was_asked_of() -> None:
    """Attempts within attempts: the inner one does not take what is meant for the outer one."""
    tried: list[tuple[int, int]] = []

    async def outer(outside: Attempt) -> str:
        async def inner(inside: Attempt) -> str:
            tried.append((outside.number, inside.number))
            if outside.number == 1:
                raise outside.retry()
            return "won"

        return await run(inner)

    assert await run(outer) == "won"
    assert tried == [(1, 1), (2, 1)]


async def test_an_attempt_knows_its_number_and_how_long_it_has_been() -> None:
    """Enough for work that wants to give up by time."""
    seen: list[Attempt] = []

    async def work(attempt: Attempt) -> str:
        seen.append(attempt)
        return await Losing(2)(attempt)

    await run(work)
    assert [attempt.number for attempt in seen] == [1, 2, 3]
    assert 0 <= seen[0].elapsed <= seen[1].elapsed <= seen[2].elapsed
    assert repr(seen[0]) == "<Attempt 1 (over)>"


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, -1, 2.5, True, "3"])
async def test_what_is_no_number_of_attempts_is_refused(attempts: int) -> None:
    """None would be made, or, with a limit that is never met, attempts without end."""
    with pytest.raises(InvalidArgumentError, match="1 or more, or None"):
        await run(Losing(0), attempts=attempts)


@pytest.mark.parametrize("kind", [BaseException, asyncio.CancelledError, "LostError", None])
async def test_only_exceptions_can_be_retried(kind: type[Exception]) -> None:
    """Retrying a cancellation would swallow it."""
    with pytest.raises(InvalidArgumentError, match="a kind of Exception"):
        await attempt_under(Exclusion().hold(PLAIN("a")), Losing(0), retry_on=kind)
