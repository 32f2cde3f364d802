"""Schedules of actions: each tick is one request, under the policy of its action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

import standfast as sf
from standfast.errors import DeclarationError
from standfast.events import TickFired
from standfast.flows.arbiter import in_memory as abandoned
from standfast.testing.workflows import WorkflowEnvironment
from standfast.testing.workflows.mortal_store import Death, Mortality
from tests.unit.flows.office import FIRST, ROBOT, SECOND, THIRD, Office, minute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from standfast.flows.dispatcher import ArbiterKind
    from standfast.policies import Policy


@pytest.fixture(params=["memory", "sqlite"])
async def env(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkflowEnvironment]:
    """A store, with time that passes when a test says so."""
    store = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'office.db'}"
    async with WorkflowEnvironment(store=store) as env:
        yield env


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_tick_is_a_request_that_knows_its_schedule(env: WorkflowEnvironment, arbiter: ArbiterKind) -> None:
    """It has the inputs, the principal and the session of the schedule, and can be found by its id."""
    office = Office(sf.Queue())
    async with office.open(env, office.nightly(session="s"), arbiter=arbiter) as dispatcher:
        await minute(env, office, begun=1)
        handle = await dispatcher.find(ROBOT, FIRST)
        assert await handle.result(timeout=10) == "tidied attic"
        [seen] = office.requests
        assert (seen.transport, seen.user, seen.session_id) == ("schedule", "robot", "s")
        assert seen.metadata == {"schedule": {"id": "nightly", "nominalAt": "2025-06-15T15:07:40Z"}}
        assert seen.idempotency_key == FIRST == seen.id


async def test_servers_that_race_for_each_tick_take_it_on_once(env: WorkflowEnvironment) -> None:
    """Two servers see the same ticks at the same moment: every tick is one request."""
    office = Office()
    async with office.open(env, office.nightly("allow"), servers=2) as dispatcher:
        for number in range(1, 6):
            await minute(env, office, begun=number)
        await env.advance("30 seconds")
        info = await dispatcher.engine.schedules.get("nightly")
    assert len(office.began) == len(set(office.began)) == info.started == 5
    assert sum(isinstance(event, TickFired) for event in office.told) == 5


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_tick_is_skipped_while_the_one_before_runs(env: WorkflowEnvironment, arbiter: ArbiterKind) -> None:
    """That is so unless something else was said; hooks are told, and the schedule counts them."""
    office = Office()
    office.may_end.clear()
    async with office.open(env, office.nightly(), arbiter=arbiter) as dispatcher:
        await minute(env, office, begun=1)
        await minute(env, office, begun=1)
        assert office.skipped() == ["a run of this schedule is unfinished"]
        assert (await dispatcher.engine.schedules.get("nightly")).skipped == 1
        office.may_end.set()
        await (await dispatcher.find(ROBOT, FIRST)).result(timeout=10)
        await minute(env, office, begun=2)
        assert office.began == [FIRST, THIRD]


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_tick_waits_its_turn_if_that_was_said(env: WorkflowEnvironment, arbiter: ArbiterKind) -> None:
    """With on_overlap="queue" nothing is dropped, and one runs at a time."""
    office = Office(sf.Queue(timeout="1 day"))
    office.may_end.clear()
    async with office.open(env, office.nightly("queue", session="s"), arbiter=arbiter) as dispatcher:
        await minute(env, office, begun=1)
        await minute(env, office, begun=1)
        assert office.began == [FIRST]
        waiting = await dispatcher.find(ROBOT, SECOND)
        assert (await waiting.info()).status == "waiting"
        office.may_end.set()
        assert await waiting.result(timeout=10) == "tidied attic"
        assert office.skipped() == []


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_tick_cancels_the_one_before_if_that_was_said(env: WorkflowEnvironment, arbiter: ArbiterKind) -> None:
    """With on_overlap="restart" the newest tick runs, when the older one has ended."""
    office = Office()
    office.may_end.clear()
    async with office.open(env, office.nightly("restart"), arbiter=arbiter) as dispatcher:
        await minute(env, office, begun=1)
        await minute(env, office, begun=2)
        assert (await dispatcher.info(ROBOT, FIRST)).status == "cancelled"
        office.may_end.set()
        assert await (await dispatcher.find(ROBOT, SECOND)).result(timeout=10) == "tidied attic"


async def test_ticks_overlap_if_that_was_said(env: WorkflowEnvironment) -> None:
    """With on_overlap="allow" they run side by side."""
    office = Office()
    office.may_end.clear()
    async with office.open(env, office.nightly("allow")):
        await minute(env, office, begun=1)
        await minute(env, office, begun=2)
        assert office.began == [FIRST, SECOND]


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_the_policy_of_the_action_holds_for_ticks_too(env: WorkflowEnvironment, arbiter: ArbiterKind) -> None:
    """While somebody else has the key of an action that rejects, a tick is refused, told to hooks and counted."""
    office = Office(sf.Reject())
    office.may_end.clear()
    async with office.open(env, office.nightly("allow", session="s"), arbiter=arbiter) as dispatcher:
        other = sf.Call(flow="office", action="tidy", session="s", principal=sf.Principal("acme", "ann"))
        held = await dispatcher.dispatch(other)
        await minute(env, office, begun=1)
        assert (await dispatcher.engine.schedules.get("nightly")).refused == 1
        [reason] = office.skipped()
        assert "RequestRejectedError" in reason
        office.may_end.set()
        await held.result(timeout=10)
        await minute(env, office, begun=2)
        assert office.began[1:] == [SECOND]


async def test_a_tick_shares_the_run_that_is_in_flight_if_the_action_joins(env: WorkflowEnvironment) -> None:
    """It starts nothing of its own, and says whose run it shares."""
    office = Office(sf.Join())
    office.may_end.clear()
    async with office.open(env, office.nightly("allow", session="s")):
        await minute(env, office, begun=1)
        await minute(env, office, begun=1)
        assert office.skipped() == [f"it joined the run {FIRST!r}"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_tick_is_not_lost_with_the_server_that_takes_it_on(when: Literal["before", "after"]) -> None:
    """A server that dies at any commit around its ticks leaves each of them to the other one, as one request."""
    for number in range(1, 7):
        office, dead = Office(), set[str]()
        async with WorkflowEnvironment() as env, office.mortal(env, Mortality("first", dead)) as first:
            async with office.mortal(env, Mortality("second", dead)) as second:
                first.life.dies = Death(when, first.life.commits + number)
                for tick in (FIRST, SECOND, THIRD):
                    await env.advance("1 minute")
                    await office.until_begun(tick)
                    found = await second.dispatcher.find(ROBOT, tick)
                    assert await found.result(timeout=10) == "tidied attic", number
            assert first.life.is_dead


async def test_ticks_that_nobody_was_there_for_are_made_up_for_if_that_was_said(env: WorkflowEnvironment) -> None:
    """Each is a request with the time that it was meant for."""
    office = Office(sf.Queue(timeout=None))
    schedule = office.nightly("queue", backfill=True, session="s")
    async with office.open(env, schedule):
        await minute(env, office, begun=1)
    await env.crash()
    await env.advance("1 minute")
    async with office.open(env, schedule):
        await minute(env, office, begun=3)
    assert office.began == [FIRST, SECOND, THIRD]


async def test_a_tick_that_is_discarded_while_it_waits_keeps_no_place(
    env: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits behind a tick whose schedule was paused gets its turn, also where lines lie in memory."""
    monkeypatch.setattr(abandoned, "LOOK_EVERY", 0.01)
    office = Office(sf.Queue(timeout="1 day"))
    office.may_end.clear()
    async with office.open(env, office.nightly("queue", session="s"), arbiter="local") as dispatcher:
        await minute(env, office, begun=1)
        await minute(env, office, begun=1)
        await dispatcher.engine.schedules.pause("nightly")
        behind = sf.Call(flow="office", action="tidy", session="s", principal=ROBOT)
        handle = await dispatcher.dispatch(behind)
        office.may_end.set()
        assert await handle.result(timeout=10) == "tidied hall"
        assert (await dispatcher.info(ROBOT, SECOND)).status == "cancelled"


# --- declaring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        (None, {"inputs": {"floor": 3}}, "floor"),
        (None, {"on_overlap": "cancel"}, "on_overlap"),
        (None, {"id": "x" * 61}, "at most 60"),
        (sf.Debounce("1s"), {}, "debounce"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(policy: Policy | None, options: dict[str, Any], says: str) -> None:
    """The error names the action, the schedule and the reason."""
    schedule_id = options.pop("id", "nightly")
    with pytest.raises(DeclarationError, match=f"(?s)office.*tidy.*{schedule_id[:20]}.*{says}"):
        Office(policy).tidy.schedule(schedule_id, every="1 minute", **options)


def test_a_schedule_needs_a_time() -> None:
    """As any schedule does."""
    with pytest.raises(DeclarationError):
        Office().tidy.schedule("nightly")


def test_a_schedule_is_declared_once_and_of_an_action_that_is_served() -> None:
    """Two with one id are refused, and those of flows that are not there."""
    office, other = Office(), sf.Flow("other")
    with pytest.raises(DeclarationError, match="two with this id"):
        sf.Dispatcher("memory://", [office.flow], schedules=[office.nightly(), office.nightly()])
    with pytest.raises(DeclarationError, match="no action"):
        sf.Dispatcher("memory://", [other], schedules=[office.nightly()])
