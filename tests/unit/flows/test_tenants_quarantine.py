"""A tenant whose requests end their servers gets no more of them until somebody has looked."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.errors import TooManyQuarantinedError
from standfast.flows import tenants as quarantine
from standfast.flows.tenants import Quarantine
from standfast.locks.heartbeat import Presence
from standfast.stores.protocol import Put
from standfast.workflows.claims import reclaim, workers_of
from standfast.workflows.records import READY, quarantined_with
from tests.conformance.arbiter_visits import fresh_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.dispatcher import ArbiterKind
    from standfast.flows.handle import Handle

ACME, OTHER = sf.Principal("acme"), sf.Principal("other")
OPERATOR = sf.Principal("acme", "olga", frozenset({"operator"}))
SOON = 10.0


class Lab:
    """A server on a store in memory, that can be taken for dead."""

    def __init__(self, arbiter: ArbiterKind = "shared") -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.flow = sf.Flow("lab")
        self.engine = sf.Engine(f"memory://{fresh_name()}", worker=sf.admin.WorkerLimits(quarantine_after=1))

        async def try_out(request: sf.Request) -> str:
            del request
            self.begun.set()
            await self.may_end.wait()
            return "fine"

        self.flow.action(try_out)
        self.flow.action(name="queued", concurrency="queue")(try_out)
        tenants = sf.web.TenantLimits(quarantined=2)
        self.dispatcher = sf.Dispatcher(self.engine, [self.flow], arbiter=arbiter, tenants=tenants)

    @property
    def count(self) -> Quarantine:
        """What counts."""
        return self.dispatcher._serving().tenants.quarantine

    async def send(self, principal: sf.Principal = ACME, **more: Any) -> Handle:
        """Send a durable request."""
        given: dict[str, Any] = {"action": "try_out", "attended": False, **more}
        return await self.dispatcher.dispatch(sf.Call(flow="lab", principal=principal, **given))

    async def poison(self, **more: Any) -> Handle:
        """Send a request that ends its server."""
        self.begun.clear()
        handle = await self.send(**more)
        await self.begun.wait()
        await self.discard()
        return handle

    async def discard(self) -> None:
        """Let the server be taken for dead."""
        for name, worker in (await workers_of(self.engine.space)).items():
            await reclaim(self.engine.runtime, name, worker)

    async def fill(self) -> list[Handle]:
        """Let the tenant have as many in quarantine as may be, and the server know it."""
        handles = [await self.poison(), await self.poison(principal=sf.Principal("acme", "bea"))]
        await self.known()
        return handles

    async def known(self) -> None:
        """Let the server know how many are in quarantine."""
        with suppress(TooManyQuarantinedError):
            await self.count.check("acme")
        await asyncio.gather(*self.count._counting)

    async def listed(self) -> int:
        """Count what says that a request of the tenant is quarantined."""
        start, end = quarantined_with(self.engine.space, "tenant:acme").within()
        return len((await self.engine.space.scan(start, end, limit=10)).records)


@pytest.fixture(params=["shared", "local"])
async def lab(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """One in which quarantined requests are counted each time."""
    monkeypatch.setattr(quarantine, "AGAIN", 0.0)
    monkeypatch.setattr(quarantine, "EVERY", 0.0)
    monkeypatch.setattr(Presence, "was_starved", property(lambda _: True))  # else it says that it lives
    lab = Lab(request.param)
    async with lab.dispatcher:
        yield lab
        lab.may_end.set()


async def test_a_tenant_whose_requests_end_their_servers_gets_no_more_of_them(lab: Lab) -> None:
    """It is told what to do; other tenants, and requests whose callers wait, are not concerned."""
    await lab.fill()
    with pytest.raises(TooManyQuarantinedError, match="an operator has to retry or cancel them") as refused:
        await lab.send()
    lab.may_end.set()
    others = [await lab.send(OTHER), await lab.send(attended=True)]

    assert [await each.result(timeout=SOON) for each in others] == ["fine", "fine"]
    assert (refused.value.status, refused.value.limit) == (429, 2)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # noqa: S301 -- what was just pickled here


async def test_a_user_whose_requests_end_their_servers_does_not_stop_its_tenant(lab: Lab) -> None:
    """The next of its own is refused; those of others are taken on."""
    lab.dispatcher._serving().tenants.quarantine._most = 3  # one more than there is
    for _ in range(2):
        await lab.poison()
        await lab.known()
    with pytest.raises(
        TooManyQuarantinedError, match="quarantined durable requests of this user, which ended their servers, is 2"
    ):
        await lab.send()
    lab.may_end.set()
    assert await (await lab.send(sf.Principal("acme", "bea"))).result(timeout=SOON) == "fine"


@pytest.mark.parametrize("way", ["retry", "cancel", "purge"])
async def test_when_an_operator_has_decided_more_are_taken_on(lab: Lab, way: str) -> None:
    """At once, and nothing is left that says that there was a quarantine."""
    first, _ = await lab.fill()
    lab.may_end.set()
    match way:
        case "retry":
            await lab.engine.retry(first.id)
            assert await first.result(timeout=SOON) == "fine"
        case "cancel":
            await lab.dispatcher.cancel(OPERATOR, first.id)
        case _:
            await lab.engine.purge(first.id, force=True)

    assert await (await lab.send()).result(timeout=SOON) == "fine"
    assert await lab.listed() == 1


async def test_a_server_that_has_just_come_knows_before_it_takes_one_on(lab: Lab) -> None:
    """A server that was ended by such requests would take on the next of them otherwise."""
    await lab.fill()
    engine = sf.Engine(lab.engine.space, drive=False)
    async with sf.Dispatcher(engine, [lab.flow], tenants=sf.web.TenantLimits(quarantined=2)) as newcomer:
        with pytest.raises(TooManyQuarantinedError):
            await newcomer.dispatch(sf.Call(flow="lab", action="try_out", principal=ACME, attended=False))


async def test_what_is_listed_and_not_quarantined_any_more_does_not_count(lab: Lab) -> None:
    """It is forgotten when it is found."""
    root = quarantined_with(lab.engine.space, "tenant:acme")
    for name in ("gone", "lost"):
        await lab.engine.space.commit(Put(root.child(name), READY))
    await lab.send()

    assert await lab.listed() == 0


@pytest.mark.parametrize(("most", "counts"), [(2, 1), (None, 0)])
async def test_they_are_not_counted_for_each_request(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, most: int | None, counts: int
) -> None:
    """But when a server first serves a tenant, and now and then; never, if any number may be there."""
    monkeypatch.setattr(quarantine, "EVERY", 5.0)
    count, counted = Quarantine(lab.engine.space, most), list[str]()
    look = count._count

    async def noted(tenant: str, *more: Any) -> None:
        counted.append(tenant)
        await look(tenant, *more)

    monkeypatch.setattr(count, "_count", noted)
    await asyncio.gather(*(count.check("acme") for _ in range(5)))
    await count.check("acme")
    assert len(counted) == counts


async def test_whoever_sends_one_over_http_is_told_to_ask_an_operator(lab: Lab) -> None:
    """With 429, and when to try again."""
    await lab.fill()
    limits = sf.web.AppLimits(tenants=sf.web.TenantLimits(quarantined=2))
    app = sf.App(sf.Engine(lab.engine.space), flows=[lab.flow], limits=limits, authenticate=lambda _: ACME)
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/flows/lab/try_out", headers={"Prefer": "respond-async"})
    assert (answer.status_code, "operator" in answer.json()["detail"]) == (429, True)
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("lab", ["shared"], indirect=True)
@pytest.mark.parametrize("attended", [True, False])
async def test_whoever_waits_behind_a_quarantined_request_is_told_so(lab: Lab, *, attended: bool) -> None:
    """And that the one in front runs, as long as it does; then it is known whom to ask an operator about."""
    holder = await lab.send(action="queued", session="s")
    behind = await lab.send(action="queued", session="s", attended=attended)
    await lab.begun.wait()
    before = await lab.dispatcher.explain(ACME, behind.id)
    await lab.discard()
    after = await lab.dispatcher.explain(ACME, behind.id)

    assert before is not None
    assert after is not None
    assert [(each.holder, each.holder_status) for each in (before, after)] == [
        (holder.id, "running"),
        (holder.id, "quarantined"),
    ]
    await lab.dispatcher.cancel(OPERATOR, holder.id)
