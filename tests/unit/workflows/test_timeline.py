"""Where the time of a run went, by its records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import Raw

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.errors import RunNotFoundError
from standfast.workflows.failures import Failure
from standfast.workflows.records import CHUNKS, Driven, Header, HistoryEvent, RunState, Standing
from standfast.workflows.timeline import Timeline, timeline_lines, timeline_of
from tests.unit.workflows.engines import act, engine, until

if TYPE_CHECKING:
    from standfast.workflows.records import Status

BEGAN = 1_000_000 * MICROSECONDS


def at(seconds: float) -> Instant:
    """Return an instant, by the seconds since the run was started."""
    return Instant(BEGAN + round(seconds * MICROSECONDS))


def event(kind: str, id: str, seconds: float, took: float = 0, **facts: Any) -> HistoryEvent:  # noqa: A002 -- as in the event
    """Return an event."""
    return HistoryEvent(kind, id, at(seconds), took=round(took * MICROSECONDS), **facts)


def drawn(*events: HistoryEvent, ends: float, status: Status = "completed", **facts: Any) -> Timeline:
    """Return the timeline of a run that ended then, or is looked at then."""
    lines = facts.pop("lines", ())
    header = Header("w", "", Raw(b"{}"), at(0), lines=lines, begins_at=facts.pop("begins_at", None))
    state = RunState(status, "w", "", at(facts.pop("changed", ends)), claims=1, **facts)
    return timeline_of("r", header, state, events, at(ends))


def spans(timeline: Timeline) -> list[tuple[str, str, float, float]]:
    """Return what there is of a timeline, in seconds since the start."""
    return [
        (span.kind, span.id, (span.began_at - BEGAN) / MICROSECONDS, (span.ended_at - BEGAN) / MICROSECONDS)
        for span in timeline.spans
    ]


def test_a_step_is_work_for_as_long_as_its_code_ran() -> None:
    """What came before it is the wait for a worker, and what follows its own code."""
    timeline = drawn(event("step", "a", 5, took=2, driven=Driven("p", at(3), "host")), ends=6)

    assert spans(timeline) == [("worker", "", 0, 3), ("work", "a", 3, 5)]
    assert timeline.seconds == {"worker": 3, "work": 2, "code": 1}
    assert (timeline.spans[1].worker, timeline.spans[1].host) == ("p", "host")


def test_attempts_are_spans_with_their_errors_and_the_pauses_between_them() -> None:
    """The pause ends when it was to end; what comes after is the wait for a worker."""
    failed = Failure("builtins.ValueError", "no")
    timeline = drawn(
        event("tried", "a", 1, took=1, failure=failed, until=at(4), driven=Driven("p", at(0))),
        event("step", "a", 7, took=1, driven=Driven("q", at(6))),
        ends=7,
    )

    assert spans(timeline) == [
        ("work", "a", 0, 1), ("retry", "a", 1, 4), ("worker", "a", 4, 6), ("work", "a", 6, 7),
    ]  # fmt: skip
    assert [(span.attempt, span.error, span.worker) for span in timeline.spans if span.kind == "work"] == [
        (1, "builtins.ValueError: no", "p"),
        (2, "", "q"),
    ]


@pytest.mark.parametrize(
    ("events", "kind", "there"),
    [
        ((event("sleep", "x", 0, until=at(4)), event("slept", "x", 6)), "timer", 4),
        ((event("signal", "x", 6, due=at(4)),), "signal", 4),
        ((event("waits", "x", 0, until=at(9)), event("signal", "x", 6, due=at(4))), "signal", 4),
        ((event("lock", "x", 0), event("held", "x", 6, value=Raw(b'{"granted_at":%d}' % at(4)))), "lock", 4),
        ((event("child", "x", 0), event("child_done", "x", 6, due=at(4))), "child", 4),
        ((event("until", "x", 6),), "condition", 6),
    ],
)
def test_each_wait_ends_when_that_was_there_which_it_was_for(
    events: tuple[HistoryEvent, ...], kind: str, there: float
) -> None:
    """From then on the run waited for a worker."""
    first = msgspec.structs.replace(events[0], driven=Driven("p", at(0)))
    expected = [(kind, "x", 0, there)] + ([("worker", "x", there, 6)] if there < 6 else [])
    assert spans(drawn(first, *events[1:], ends=6)) == expected


def test_the_wait_before_the_first_claim_has_its_own_kinds() -> None:
    """For the time of the start, for a limit, and for a worker."""
    step = event("step", "a", 10, took=2, driven=Driven("p", at(8)))
    limit = Standing(("limit", "w"), "limit", 1, "queue", "w")

    assert spans(drawn(step, ends=10, begins_at=at(5)))[:2] == [("start", "", 0, 5), ("worker", "", 5, 8)]
    assert spans(drawn(step, ends=10, lines=(limit,)))[0] == ("limit", "", 0, 8)


def test_branches_overlap_and_work_counts_before_waits() -> None:
    """The seconds of all kinds together are as long as the run took."""
    timeline = drawn(
        event("sleep", "g1.0/sleep", 0, until=at(9), driven=Driven("p", at(0))),
        event("step", "g1.1/a", 4, took=3),
        event("slept", "g1.0/sleep", 9),
        ends=10,
    )
    assert timeline.seconds == {"timer": 6, "work": 3, "code": 1}
    assert sum(timeline.seconds.values()) == timeline.took


@pytest.mark.parametrize(
    ("waits_for", "kind"),
    [
        ("the signal 'go'", "signal"),
        ("a predicate", "condition"),
        ("an operator, to retry or cancel it", "operator"),
        ("a worker", "worker"),
    ],
)
def test_a_run_that_has_not_ended_shows_what_it_waits_for(waits_for: str, kind: str) -> None:
    """Until the moment of the look."""
    step = event("step", "a", 2, took=2, driven=Driven("p", at(0)))
    timeline = drawn(step, ends=20, changed=3, status="suspended", waits_for=waits_for)
    last = timeline.spans[-1]

    assert (last.kind, last.is_open, last.seconds) == (kind, True, 18)
    assert timeline.took == 20


@pytest.mark.parametrize(("took", "began"), [(1.0, 51), (0, 40)])
def test_the_time_until_an_operator_retries_a_run_is_no_wait_for_a_worker(took: float, began: float) -> None:
    """It waits for the operator from its end on, and for a worker from the retry on."""
    timeline = drawn(
        event("step", "a", 2, took=2, driven=Driven("p", at(0))),
        event("step", "b", 52, took=took, driven=Driven("q", at(50))),
        ends=52,
        stops=((at(5), at(40)),),
    )
    worker = [("worker", "b", 40, 50)] if took else []
    assert spans(timeline) == [("work", "a", 0, 2), ("operator", "", 5, 40), *worker, ("work", "b", began, 52)]


def test_a_wait_that_was_interrupted_by_an_end_goes_on_after_the_retry() -> None:
    """Of the time between, the operator was waited for."""
    timeline = drawn(
        event("waits", "go", 1, driven=Driven("p", at(0))),
        event("signal", "go", 60, due=at(59)),
        ends=60,
        stops=((at(5), at(40)),),
    )
    waits = [("signal", "go", 1, 5), ("operator", "", 5, 40), ("signal", "go", 40, 59), ("worker", "go", 59, 60)]
    assert spans(timeline) == waits


async def test_a_retried_run_tells_how_long_it_waited_for_the_operator() -> None:
    """From its failure to the retry; a failed run that is retried twice has two such times."""
    fails = [True, True]

    @sf.workflow
    async def fragile(ctx: sf.Context) -> str:
        return await ctx.step(attempt)

    async def attempt() -> str:
        if fails:
            fails.pop()
            raise LookupError("no tea left")
        return "tea"

    async with sf.Engine("memory://", workflows=[fragile]) as opened:
        run = await opened.start(fragile, id="r")
        failed_at: list[Instant] = []
        for _ in range(2):
            with pytest.raises(sf.errors.RunFailedError):
                await run.result()
            failed_at.append((await opened.get("r")).changed_at)
            await opened.retry("r")
        assert await run.result() == "tea"
        timeline = await opened.timeline("r")
    waited = [span for span in timeline.spans if span.kind == "operator"]
    assert [span.began_at for span in waited] == failed_at
    assert timeline.seconds.keys() >= {"operator"}
    assert all(span.began_at >= waited[-1].ended_at for span in timeline.spans if span.kind in ("worker", "work"))


def test_a_history_of_an_older_version_is_drawn_as_well_as_it_can_be() -> None:
    """A step without its length is taken for work since what came before it."""
    timeline = drawn(event("step", "a", 2), event("step", "b", 5), ends=5)
    assert spans(timeline) == [("worker", "", 0, 2), ("work", "a", 2, 2), ("work", "b", 2, 5)]
    assert CHUNKS.decode(b'1:{"marks":[{"kind":"step","id":"a","at":1}]}').events[0].driven is None


def test_a_run_without_a_history_is_drawn() -> None:
    """One that waits for a worker, and one that has ended without an operation."""
    assert spans(drawn(ends=3))[0] == ("worker", "", 0, 3)
    assert drawn(ends=3, status="pending", waits_for="a worker").seconds == {"worker": 3}


def test_the_text_fits_the_terminal_and_has_the_longest_spans() -> None:
    """Of many spans some are left out, and that is said."""
    events = [event("step", f"step-{number}" * 20, number + 1, took=0.5) for number in range(30)]
    lines = timeline_lines(drawn(*events, ends=31), width=80, most=10)

    assert max(map(len, lines[1:])) <= 80
    assert len(lines) == 12
    assert lines[-1].strip().startswith("and 21 shorter ones")


@sf.workflow
async def steps_and_waits(ctx: sf.Context) -> None:
    """Work, wait for a signal, and work."""
    await ctx.step("first", act, "first")
    await ctx.wait_signal("go")
    await ctx.step("second", act, "second")


async def test_a_run_that_was_taken_over_says_who_did_what(url: str) -> None:
    """Each worker is named by what it recorded first, and the wait for the signal ends when it was sent."""
    async with engine(url, workflows=[steps_and_waits]) as first:
        await first.start(steps_and_waits, id="r")
        await until(first, "r", "suspended")
        one = first.runtime.worker
    async with engine(url, workflows=[steps_and_waits]) as second:
        await second.signal("r", "go")
        await second.result("r")
        two, timeline = second.runtime.worker, await second.timeline("r")
        with pytest.raises(RunNotFoundError):
            await second.timeline("nobody")
    assert one is not None
    assert two is not None
    work = [span for span in timeline.spans if span.kind == "work"]
    assert [(span.id, span.worker) for span in work] == [("first", one.presence), ("second", two.presence)]
    assert all(span.host for span in work)
    assert "signal" in {span.kind for span in timeline.spans}
