"""Runs of workflows stand in the lines of requests, together with those who wait on their own connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import pytest

import standfast as sf
from standfast.errors import (
    QueueFullError,
    RequestInterruptedError,
    RequestRejectedError,
    RequestSupersededError,
    RunCancelledError,
    RunNotFoundError,
)
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import SUPERSEDED_BY, JoinsError, Stop, queue_rules_of
from standfast.policies import Queue
from standfast.workflows.definition import Workflow
from tests.conformance.arbiter_visits import HASTY, JOIN, QUEUE, REJECT, RESTART, SOON, Visit, ask, fresh_name, putting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.arbiter.protocol import Arbiter, Ask, QueueRules, RequestTurn
    from standfast.workflows.records import Standing


@final
class Durable:
    """An engine whose one workflow runs a request, which has its turn until the test lets it end."""

    def __init__(self) -> None:
        self.workflow: Final = self._workflow()
        self.engine: Final = sf.Engine("memory://", workflows=[self.workflow], namespace=fresh_name())
        self.asks: Final[dict[str, Ask]] = {}
        self.turns: Final[dict[str, RequestTurn]] = {}
        self._begun: Final[dict[str, asyncio.Event]] = {}
        self._ends: Final[dict[str, asyncio.Event]] = {}
        self.arbiter: Arbiter

    async def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run, as an arbiter does."""
        await self.engine.cancel(run_id, reason)

    def _workflow(self) -> Workflow[[str], str]:
        async def respond(ctx: sf.Context, name: str) -> str:
            return await ctx.step("respond", self._step, name)

        return Workflow(
            respond,
            name="respond",
            version="",
            limits=(),
            timeout=None,
            replay="warn",
            raises=(RequestSupersededError,),
            standings=self._standings,
        )

    def _standings(self, packed: bytes) -> tuple[Standing, ...]:
        [name] = self.workflow.signature.bind(packed).args
        return self.arbiter.standings(self.asks[name])

    async def _step(self, name: str) -> str:
        async with self.arbiter.inside(self.asks[name]) as turn:
            self.turns[name] = turn
            self._begun[name].set()
            await self._ends[name].wait()
            await turn.finish(putting(self.engine.space.key("session", name), b"done"))
        return name

    async def start(self, name: str, rules: QueueRules = QUEUE, **more: str) -> str:
        """Start a run for a request, and return the id of the one that was started or joined."""
        asked = self.asks[name] = ask(name, rules, **more)
        self._begun[name], self._ends[name] = asyncio.Event(), asyncio.Event()
        run = await self.arbiter.start(asked, lambda: self.engine.start(self.workflow, name, id=name))
        return run.id

    async def runs(self, name: str) -> RequestTurn:
        """Wait until it has its turn."""
        async with asyncio.timeout(SOON):
            await self._begun[name].wait()
        return self.turns[name]

    async def end(self, name: str) -> str:
        """Let it end, and return its result."""
        self._ends[name].set()
        return str(await self.engine.result(name, timeout=SOON))


@pytest.fixture
async def shared() -> AsyncIterator[Durable]:
    """With lines in the store."""
    durable = Durable()
    async with durable.engine, SharedArbiter(durable.engine.space, stop_run=durable.cancel) as durable.arbiter:
        yield durable


@pytest.fixture
async def local() -> AsyncIterator[Durable]:
    """With lines in memory. Nothing is left of them."""
    durable = Durable()
    async with durable.engine, LocalArbiter(durable.engine.space, stop_run=durable.cancel) as arbiter:
        durable.arbiter = arbiter
        yield durable
        assert arbiter.keys_in_use == 0


@pytest.fixture(params=["shared", "local"])
def durable(request: pytest.FixtureRequest) -> Durable:
    """Each of them."""
    found: Durable = request.getfixturevalue(request.param)
    return found


async def test_runs_and_callers_wait_in_one_line(durable: Durable) -> None:
    """A run waits for a caller, and a caller for a run, in the order of arrival."""
    first = await Visit(durable.arbiter, ask("r1")).runs()
    await durable.start("r2")
    third = await Visit(durable.arbiter, ask("r3")).waits()
    assert third.position == 2
    await first.end()
    await durable.runs("r2")
    assert not third.inside.is_set()
    assert await durable.end("r2") == "r2"
    assert await (await third.runs()).end() == "r3"


async def test_a_run_that_lost_its_place_gives_way_to_a_newer_request(local: Durable) -> None:
    """Its server died, and the next one has let another request in since: the newest wins."""
    busy = await Visit(local.arbiter, ask("busy", action="chat.other")).runs()
    new = await Visit(local.arbiter, ask("new", RESTART)).waits()
    with pytest.raises(RequestSupersededError, match="'new'"):
        async with local.arbiter.inside(ask("old", RESTART)):
            pass
    await busy.end()
    assert await (await new.runs()).end() == "new"


async def test_a_run_that_is_not_started_supersedes_nobody(durable: Durable) -> None:
    """Whoever runs is not stopped for nothing."""

    async def refuse() -> None:
        raise KeyError

    first = await Visit(durable.arbiter, ask("r1", RESTART)).runs()
    with pytest.raises(KeyError):
        await durable.arbiter.start(ask("r2", RESTART), refuse)
    assert not first.stopped.is_set()
    assert await first.end() == "r1"


async def test_runs_that_lost_their_places_do_not_supersede_each_other(local: Durable) -> None:
    """Nobody knows who of them came first."""
    async with local.arbiter.inside(ask("r1", RESTART)) as first, asyncio.TaskGroup() as group:
        second = group.create_task(_have_turn(local.arbiter, ask("r2", RESTART)))
        await asyncio.sleep(0)
        assert (first.stop, second.done()) == (None, False)
        await first.finish()


async def _have_turn(arbiter: Arbiter, asked: Ask) -> None:
    async with arbiter.inside(asked) as turn:
        await turn.finish()


async def test_one_rejected_by_a_run_is_told_that_it_is_durable(durable: Durable) -> None:
    """So it is safe to drop: the run goes on whatever happens to its process."""
    await durable.start("r1")
    await durable.runs("r1")
    with pytest.raises(RequestRejectedError) as refused:
        await Visit(durable.arbiter, ask("r2", REJECT)).ended()
    assert (refused.value.request_id, refused.value.holder_is_durable) == ("r1", True)
    await durable.end("r1")


async def test_a_run_that_is_rejected_is_not_started(durable: Durable) -> None:
    """It is told who was in its way, as the commit saw it."""
    first = await Visit(durable.arbiter, ask("r1")).runs()
    with pytest.raises(RequestRejectedError) as refused:
        await durable.start("r2", REJECT)
    assert first.turn is not None
    assert (refused.value.request_id, refused.value.since) == ("r1", first.turn.since)
    assert not refused.value.holder_is_durable
    with pytest.raises(RunNotFoundError):
        await durable.engine.result("r2", timeout=0)
    await first.end()


async def test_runs_count_among_those_who_wait(durable: Durable) -> None:
    """A full queue refuses a run like a caller."""
    short = queue_rules_of(Queue(max_waiting=1))
    first = await Visit(durable.arbiter, ask("r1", short)).runs()
    await durable.start("r2", short)
    with pytest.raises(QueueFullError) as refused:
        await durable.start("r3", short)
    assert refused.value.waiting == 1
    await first.end()
    await durable.runs("r2")
    await durable.end("r2")


async def test_a_restart_cancels_a_run_and_says_for_whom(durable: Durable) -> None:
    """The run ends cancelled, with a reason that names the newer request."""
    await durable.start("r1", RESTART)
    await durable.runs("r1")
    second = await Visit(durable.arbiter, ask("r2", RESTART)).runs()
    assert second.turn is not None
    assert [each.id for each in second.turn.superseded] == ["r1"]
    with pytest.raises(RunCancelledError) as cancelled:
        await durable.engine.result("r1", timeout=SOON)
    assert cancelled.value.reason == f"{SUPERSEDED_BY}r2"
    await second.end()


async def test_a_run_supersedes_a_caller_and_knows_it(durable: Durable) -> None:
    """In whichever process it is driven: that is written down."""
    first = await Visit(durable.arbiter, ask("r1", RESTART)).runs()
    await durable.start("r2", RESTART)
    with pytest.raises(RequestSupersededError):
        await first.ended()
    turn = await durable.runs("r2")
    assert [each.id for each in turn.superseded] == ["r1"]
    assert await durable.end("r2") == "r2"


async def test_a_run_whose_place_was_revoked_commits_nothing(shared: Durable) -> None:
    """Its step goes on, but its commit is refused."""
    await shared.start("r1")
    turn = await shared.runs("r1")
    assert await shared.arbiter.evict(ask("").address, "r1")
    second = await Visit(shared.arbiter, ask("r2", REJECT)).runs()
    with pytest.raises(RequestInterruptedError):
        await turn.update(putting(shared.engine.space.key("session", "r1"), b"late"))
    await second.end()


async def test_a_durable_join_answers_with_the_run_in_flight(shared: Durable) -> None:
    """Nothing is started; behind another action it queues, and is joined there."""
    await shared.start("r1", JOIN)
    assert await shared.start("r2", JOIN) == "r1"
    await shared.start("r3", JOIN, action="chat.other")
    assert await shared.start("r4", JOIN, action="chat.other") == "r3"
    for name in ("r1", "r3"):
        await shared.runs(name)
        assert await shared.end(name) == name


async def test_a_durable_join_on_a_local_arbiter_is_told_the_run_in_flight(local: Durable) -> None:
    """As a caller is."""
    await local.start("r1", JOIN)
    with pytest.raises(JoinsError) as joined:
        await local.start("r2", JOIN)
    assert joined.value.who.id == "r1"
    await local.runs("r1")
    await local.end("r1")


async def test_a_run_can_be_stopped_while_it_waits(durable: Durable) -> None:
    """It ends cancelled with the reason, and nobody waits for it."""
    first = await Visit(durable.arbiter, ask("r1")).runs()
    await durable.start("r2")
    assert await durable.arbiter.stop(ask("").address, "r2", Stop(reason="enough"))
    with pytest.raises(RunCancelledError) as cancelled:
        await durable.engine.result("r2", timeout=SOON)
    assert cancelled.value.reason == "enough"
    await first.end()
    await (await Visit(durable.arbiter, ask("r3", REJECT)).runs()).end()


async def test_a_place_kept_for_a_run_that_never_came_can_be_forgotten(local: Durable) -> None:
    """The next one has its turn."""
    await local.arbiter.start(ask("r1"), lambda: asyncio.sleep(0))
    second = await Visit(local.arbiter, ask("r2")).waits()
    local.arbiter.forget("r1")
    local.arbiter.forget("r1")
    assert await (await second.runs()).end() == "r2"


async def test_a_stubborn_caller_is_revoked_for_a_run(durable: Durable) -> None:
    """After the grace, as for a caller."""
    first = await Visit(durable.arbiter, ask("r1", HASTY), stubborn=True).runs()
    await durable.start("r2", HASTY)
    await durable.runs("r2")
    assert await durable.end("r2") == "r2"
    with pytest.raises(RequestSupersededError):
        await first.end()
