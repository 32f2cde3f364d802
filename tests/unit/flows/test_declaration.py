"""Every policy with everything else that an action can say: it works, or is refused with the reason of the table."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast as sf
from standfast import policies
from standfast.errors import (
    DeclarationError,
    RequestCancelledError,
    StandfastError,
    TooManyRequestsError,
)
from standfast.flows.declaration import REFUSED, TRAITS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.flows.declaration import Trait
    from standfast.flows.handle import Handle
    from standfast.policies import Policy

SOON: Final = 10.0
POLICIES: Final[dict[str, Policy]] = {
    "allow": sf.Allow(),
    "queue": sf.Queue(),
    "reject": sf.Reject(),
    "debounce": sf.Debounce("5ms"),
    "restart": sf.Restart(),
    "batch": sf.Batch(1, "10s"),
    "join": sf.Join(),
    "latest": sf.Latest(),
}
OPTIONS: Final[dict[Trait, dict[str, Any]]] = {
    "limit": {"limits": sf.Limit(1)},
    "limit of the policy's key": {"limits": sf.Limit(1, key="session")},
    "limit that rejects": {"limits": sf.Limit(1, on_limit="reject")},
    "rate": {"limits": sf.Rate(1, "1 hour")},
    "idempotency": {"idempotency_window": "2 hours"},
    "priority": {"limits": sf.Limit(1), "priority": 1},
    "durable": {"durable": True},
    "not durable": {"durable": False},
    "retry": {"retry": sf.Retry(attempts=2, delay=0.01)},
    "interrupted": {"interrupted": "fail"},
    "cancel on disconnect": {"on_disconnect": "cancel"},
    "continue on disconnect": {"on_disconnect": "continue"},
}
ALL: Final = list(product(POLICIES, TRAITS))
WORKING: Final = [(policy, trait) for policy, trait in ALL if policy not in REFUSED[trait]]


class Bench:
    """An action with one policy and one trait, and what it has done."""

    def __init__(self, policy: Policy, options: dict[str, Any]) -> None:
        self.begun: list[str] = []
        self.most = self._now = 0
        self.may_end = asyncio.Event()
        self.news = asyncio.Event()
        self.failures = 0
        self.flow = sf.Flow("bench")
        is_batch = isinstance(policy, sf.Batch)

        async def one(request: sf.Request, name: str) -> str:
            return await self._work(request, name)

        async def many(request: sf.Request, names: list[str]) -> str:
            return await self._work(request, names[0])

        self._input = "names" if is_batch else "name"
        self.action = self.flow.action(name="work", concurrency=policy, **options)(many if is_batch else one)

    async def _work(self, _request: sf.Request, name: str) -> str:
        self.begun.append(name)
        self.news.set()
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await self.may_end.wait()
        finally:
            self._now -= 1
        if self.failures:
            self.failures -= 1
            raise ValueError(name)
        return f"did {name}"

    def arrival(self, name: str, **more: Any) -> sf.Call:
        """Return a request in a session of its own."""
        more.setdefault("session", f"session of {name}")
        return sf.Call(flow="bench", action="work", inputs={self._input: name}, **more)

    async def until_begun(self, name: str) -> None:
        """Wait until that one has begun."""
        async with asyncio.timeout(SOON):
            while name not in self.begun:
                self.news.clear()
                await self.news.wait()


async def result(handle: Handle) -> Any:
    """Return what a request came to, soon."""
    return await handle.result(timeout=SOON)


async def one_at_a_time(bench: Bench, server: sf.Dispatcher) -> None:
    """Two that do not collide run one after the other."""
    handles = [await server.dispatch(bench.arrival(name)) for name in "ab"]
    bench.may_end.set()
    assert [await result(each) for each in handles] == ["did a", "did b"]
    assert bench.most == 1


async def refused_without_room(bench: Bench, server: sf.Dispatcher) -> None:
    """The second is refused while the first runs."""
    first = await server.dispatch(bench.arrival("a"))
    await bench.until_begun("a")
    with pytest.raises(TooManyRequestsError):
        await server.dispatch(bench.arrival("b"))
    bench.may_end.set()
    assert await result(first) == "did a"


async def refused_over_the_rate(bench: Bench, server: sf.Dispatcher) -> None:
    """The second of an hour is refused."""
    bench.may_end.set()
    assert await result(await server.dispatch(bench.arrival("a"))) == "did a"
    with pytest.raises(TooManyRequestsError):
        await server.dispatch(bench.arrival("b"))


async def answered_twice(bench: Bench, server: sf.Dispatcher) -> None:
    """A request that is sent twice is done once."""
    bench.may_end.set()
    first = await server.dispatch(bench.arrival("a", idempotency_key="k"))
    assert await result(first) == "did a"
    again = await server.dispatch(bench.arrival("a", idempotency_key="k"))
    assert (again.is_replay, await result(again), bench.begun) == (True, "did a", ["a"])


async def by_priority(bench: Bench, server: sf.Dispatcher) -> None:
    """Of those who wait for the limit, the most important goes first."""
    handles = [await server.dispatch(bench.arrival("a"))]
    await bench.until_begun("a")
    handles += [await server.dispatch(bench.arrival("b", priority=0)), await server.dispatch(bench.arrival("c"))]
    bench.may_end.set()
    assert [await result(each) for each in handles] == ["did a", "did b", "did c"]
    assert bench.begun == ["a", "c", "b"]


async def is_a_run(bench: Bench, server: sf.Dispatcher) -> None:
    """An attended request is a run all the same."""
    bench.may_end.set()
    handle = await server.dispatch(bench.arrival("a"))
    assert (handle.is_durable, await result(handle)) == (True, "did a")


async def is_no_run(bench: Bench, server: sf.Dispatcher) -> None:
    """An attended request is none."""
    bench.may_end.set()
    handle = await server.dispatch(bench.arrival("a"))
    assert (handle.is_durable, await result(handle)) == (False, "did a")


async def tried_again(bench: Bench, server: sf.Dispatcher) -> None:
    """One that nobody waits for is tried again."""
    bench.may_end.set()
    bench.failures = 1
    assert await result(await server.dispatch(bench.arrival("a", attended=False))) == "did a"
    assert bench.begun == ["a", "a"]


async def not_to_be_retried(bench: Bench, server: sf.Dispatcher) -> None:
    """It is written down that it is not to be run twice."""
    bench.may_end.set()
    handle = await server.dispatch(bench.arrival("a"))
    assert (handle.record.retryable, await result(handle)) == (False, "did a")


async def leave(bench: Bench, handle: Handle) -> None:
    """Begin to wait, and go away when it runs."""
    waiting = asyncio.ensure_future(handle.result())
    await bench.until_begun("a")
    await asyncio.sleep(0)  # so that it waits, too
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    bench.may_end.set()


async def cancelled_with_its_caller(bench: Bench, server: sf.Dispatcher) -> None:
    """It ends with the caller."""
    handle = await server.dispatch(bench.arrival("a"))
    await leave(bench, handle)
    with pytest.raises(RequestCancelledError):
        await result(handle)


async def goes_on(bench: Bench, server: sf.Dispatcher) -> None:
    """It ends as if nothing had happened."""
    handle = await server.dispatch(bench.arrival("a"))
    await leave(bench, handle)
    assert await result(handle) == "did a"


WORKS: Final[dict[Trait, Callable[[Bench, sf.Dispatcher], Awaitable[None]]]] = {
    "limit": one_at_a_time,
    "limit of the policy's key": one_at_a_time,
    "limit that rejects": refused_without_room,
    "rate": refused_over_the_rate,
    "idempotency": answered_twice,
    "priority": by_priority,
    "durable": is_a_run,
    "not durable": is_no_run,
    "retry": tried_again,
    "interrupted": not_to_be_retried,
    "cancel on disconnect": cancelled_with_its_caller,
    "continue on disconnect": goes_on,
}


@pytest.mark.parametrize("trait", TRAITS)
def test_everything_that_can_be_said_is_tried(trait: Trait) -> None:
    """The table has all of it, for policies that there are, and each of these is tried."""
    assert POLICIES.keys() == policies.POLICIES.keys()
    assert set(REFUSED[trait]) <= set(POLICIES)
    assert trait in WORKS
    assert trait in OPTIONS


@pytest.mark.parametrize(("policy", "trait"), [each for each in ALL if each not in WORKING])
def test_what_makes_no_sense_is_refused_with_the_reason_of_the_table(policy: str, trait: Trait) -> None:
    """When the action is declared, at its place."""
    with pytest.raises(DeclarationError) as refused:
        Bench(POLICIES[policy], OPTIONS[trait])

    assert refused.value.what == "flow 'bench', action 'work'"
    assert f"cannot be combined with the policy {policy!r}: {REFUSED[trait][policy]}" in refused.value.problem


@pytest.mark.parametrize("arbiter", ["local", "shared"])
@pytest.mark.parametrize(("policy", "trait"), WORKING)
async def test_what_makes_sense_works(policy: str, trait: Trait, arbiter: Any) -> None:
    """With lines in memory and in the store."""
    options = OPTIONS[trait]
    if (policy, trait) == ("allow", "limit of the policy's key"):
        options = {"limits": sf.Limit(1, key="none")}  # which is the key of that policy
    bench = Bench(POLICIES[policy], options)
    async with sf.Dispatcher("memory://", [bench.flow], arbiter=arbiter) as server:
        await WORKS[trait](bench, server)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"durable": True, "limits": sf.Limit(1), "priority": 1}, "wait in the store in the order"),
        ({"priority": 1}, "the action has none that lets requests wait"),
        ({"priority": 1, "limits": sf.Rate(1, "1 second")}, "the action has none that lets requests wait"),
        ({"priority": 1, "limits": sf.Limit(1, on_limit="reject")}, "the action has none"),
        ({"priority": 101, "limits": sf.Limit(1)}, "the priority: it must be an int from -100 to 100"),
        ({"limits": [sf.Limit(1), sf.Limit(2)]}, "two limits count 'none'"),
        ({"limits": [sf.Rate(1, 1, key="user"), sf.Rate(2, 1, key="user")]}, "two limits count 'user'"),
        ({"limits": ["five"]}, "'five' is no limit"),
        ({"concurrency": "queue", "limits": sf.Limit(1, max_queued=5)}, "refused after it has waited"),
        ({"durable": True, "on_disconnect": "cancel"}, "cannot be combined with durable=True"),
    ],
)
def test_what_could_have_no_effect_is_refused(options: dict[str, Any], reason: str) -> None:
    """Whoever declares it is told why."""

    async def work(request: sf.Request) -> None: ...

    with pytest.raises(DeclarationError, match=f"^flow 'f', action 'work': .*{reason}"):
        sf.Flow("f").action(**options)(work)


def limited(limit: sf.Limit) -> object:
    """Return an action with a limit."""

    async def work(request: sf.Request) -> None: ...

    return sf.Flow("f").action(limits=limit)(work)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sf.Limit(0), "max is 0"),
        (lambda: limited(sf.Limit(1, on_limit="join")), "on_limit='join' is for workflows"),
        (lambda: limited(sf.Limit(1, on_limit="reject", max_queued=1)), "max_queued belongs to on_limit='queue'"),
        (lambda: sf.Limit(1, key="planet"), "the key 'planet' is none"),  # type: ignore[arg-type]  # which is what is tested
        (lambda: sf.Limit(1, name="a b"), "name is 'a b'"),
        (lambda: sf.Rate(0, "1 second"), "max is 0"),
        (lambda: sf.Rate(1, "1 second", burst=0), "burst is 0"),
        (lambda: sf.Rate(1, "30 days", burst=1_000_000), "it would never be full"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(make: Callable[[], object], reason: str) -> None:
    """When it is made, or where an action declares what only workflows can do."""
    with pytest.raises(DeclarationError, match=reason):
        make()


def test_limits_of_one_name_that_differ_are_refused_by_the_app() -> None:
    """Both places are named."""
    flow = sf.Flow("f")

    async def work(request: sf.Request) -> None: ...

    flow.action(name="one", limits=sf.Limit(1, name="gpu"))(work)
    flow.action(name="two", limits=sf.Limit(2, name="gpu"))(work)
    with pytest.raises(
        DeclarationError, match=r"action 'two': its limit 'gpu' is .* and that of flow 'f', action 'one'"
    ):
        sf.Dispatcher("memory://", [flow])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("durable", [True, False])
async def test_every_request_has_an_idempotency_key_to_hand_on(policy: str, durable: bool) -> None:  # noqa: FBT001 -- a parameter of pytest
    """That of its caller, or one of its own: the same in each attempt, and in no other request."""
    if not durable and policy in REFUSED["not durable"]:
        pytest.skip("it is refused")
    flow, seen = sf.Flow("keys"), list[tuple[str, str]]()

    async def one(request: sf.Request, name: str) -> str:
        seen.append((request.id, request.idempotency_key))
        if len(seen) == 1:
            raise ConnectionError(name)
        return name

    async def many(request: sf.Request, names: list[str]) -> str:
        return await one(request, names[0])

    retry: dict[str, Any] = (
        {"retry": sf.Retry(attempts=2, delay="1ms")} if policy not in REFUSED["retry"] and durable else {}
    )
    is_batch = policy == "batch"
    flow.action(name="work", concurrency=POLICIES[policy], durable=durable, **retry)(many if is_batch else one)
    given = {"names": "a"} if is_batch else {"name": "a"}
    async with sf.Dispatcher("memory://", flows=[flow]) as dispatcher:
        for key in ("", "mine", ""):
            asked = sf.Call(flow="keys", action="work", inputs=given, session="s", idempotency_key=key)
            handle = await dispatcher.dispatch(asked)
            with contextlib.suppress(StandfastError):
                await handle.result(timeout=SOON)
            async with asyncio.timeout(SOON):  # a run leaves its line just after its request has ended
                while handle.record.address and (await dispatcher.arbiter.look(handle.record.address)).holder:  # noqa: ASYNC110 -- in the store
                    await asyncio.sleep(0.002)
    own = [(request_id, key) for request_id, key in seen if key != "mine"]
    assert all(key == f"request:{request_id}" for request_id, key in own)
    assert len({key for _, key in seen}) == 3
    if retry:
        assert seen[0] == seen[1]
