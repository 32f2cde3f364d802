"""How many bytes are kept of each tenant: they are counted, bounded, and free again when records go."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import DeclarationError, StoreUnavailableError, TooManyBytesError
from standfast.flows import storage
from standfast.flows.records import session_key
from standfast.flows.storage import Storage
from standfast.keys import RecordKey
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Put
from standfast.testing import VirtualClock
from tests.conformance.arbiter_visits import fresh_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.flows.handle import Handle
    from standfast.stores.protocol import Snapshot

ACME, OTHER = sf.Principal("acme", "ann"), sf.Principal("other", "bob")
BOTH = pytest.mark.parametrize("arbiter", ["local", "shared"])
SOON = 15.0
LONG = "x" * 10_000

desk = sf.Flow("desk")


async def repeated(times: int) -> str:
    """Return something of that length."""
    return "x" * times


@desk.action
async def note(request: sf.Request, text: str = "", told: int = 0, long: int = 0, once: int = 0) -> str:
    """Tell something, keep something, and return something, as long as one wants."""
    if once:
        await request.run_once("call", repeated, once)
    if told:
        request.emit("x" * told, "told")
    if request.session_id:
        request.session.set("text", text)
    return "x" * long


@desk.action(concurrency=sf.Batch(100, "1 hour"))
async def together(request: sf.Request, text: list[str]) -> int:
    """Be collected."""
    del request
    return len(text)


@pytest.fixture(autouse=True)
def recounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tenants be counted as often as there is a reason."""
    monkeypatch.setattr(storage, "AGAIN", 0.0)


def server(url: Any, arbiter: Any = "shared", **limits: Any) -> sf.Dispatcher:
    """Return a server with such limits."""
    return sf.Dispatcher(url, [desk], arbiter=arbiter, tenants=sf.web.TenantLimits(**limits))


def arrival(action: str = "note", principal: sf.Principal = ACME, **more: Any) -> sf.Call:
    """Return a request of a tenant."""
    given: dict[str, Any] = {name: more.pop(name) for name in ("text", "told", "long", "once") if name in more}
    return sf.Call(flow="desk", action=action, inputs=given, principal=principal, **more)


def storage_of(dispatcher: sf.Dispatcher) -> Storage:
    """Return what counts."""
    return dispatcher._serving().tenants.storage


async def result(handle: Handle) -> Any:
    """Return what a request came to, soon."""
    return await handle.result(timeout=SOON)


async def counted(kept: Storage) -> None:
    """Wait until nothing is being counted."""
    while kept._counting:
        await asyncio.wait(tuple(kept._counting))


async def everything(space: sf.Space) -> int:
    """Return how many bytes lie in a space, whosever they are."""
    found, (start, end) = 0, RecordKey(space.namespace, space.tenant).within()
    while True:
        page = await space.scan(start, end, limit=100)
        found += sum(len(bytes(key)) + len(record.value) for key, record in page.records.items())
        if page.more is None:
            return found
        start = page.more


# --- what counts ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "more",
    [
        {"text": LONG, "attended": False},
        {"long": 10_000, "attended": False},
        {"told": 10_000, "attended": False},
        {"once": 10_000, "attended": False},
        {"long": 10_000, "idempotency_key": "k"},
        {"told": 10_000, "idempotency_key": "k"},
        {"text": LONG, "session": "s"},
        {"text": LONG, "session": "s", "attended": False, "transport": "webhook"},
        {"text": LONG, "action": "together", "attended": False, "session": "s"},
    ],
    ids=[
        "durable inputs",
        "durable result",
        "durable events",
        "durable calls",
        "answer",
        "events",
        "session",
        "session of a hook",
        "burst",
    ],
)
async def test_all_that_a_caller_leaves_in_the_store_counts(more: dict[str, Any], arbiter: Any) -> None:
    """As it is written, and the same when it is counted: all that lies in the store but for some small records."""
    async with server(f"memory://{fresh_name()}", arbiter) as one:
        kept = storage_of(one)
        empty = kept._of("acme")
        await counted(kept)
        handle = await one.dispatch(arrival(**more))
        if more.get("action") is None:
            await result(handle)
        noted, measured = empty.total, await kept.measure("acme")

        assert measured > 10_000
        assert measured == pytest.approx(await everything(one.engine.space), abs=3_000)
        assert noted == pytest.approx(measured, abs=1_500)
        assert await kept.measure("other") == 0


async def test_everything_that_is_collected_counts() -> None:
    """A burst is one request of the tenant, and has the inputs of all."""
    async with server(f"memory://{fresh_name()}") as one:
        for _ in range(5):
            await one.dispatch(arrival("together", text=LONG, session="s", attended=False))

        assert await storage_of(one).measure("acme") > 50_000


async def test_a_session_that_is_written_again_counts_once() -> None:
    """What is added is how much longer it got."""
    async with server(f"memory://{fresh_name()}") as one:
        kept = storage_of(one)
        known = kept._of("acme")
        await counted(kept)
        for _ in range(5):
            await result(await one.dispatch(arrival(text=LONG, session="s", transport="local")))

        assert known.total < 20_000


async def test_what_could_not_be_written_does_not_count() -> None:
    """Room is given back when there is an error."""
    async with sf.open("memory://") as space:
        kept = Storage(space, 1_000)
        with pytest.raises(StoreUnavailableError), kept.room_for("acme", 600):
            raise StoreUnavailableError("memory", "it is away for a moment")
        with kept.room_for("acme", 600), pytest.raises(TooManyBytesError), kept.room_for("acme", 600):
            pass
        await kept.aclose()


# --- refusing ---------------------------------------------------------------------------------------------------------


async def fill(dispatcher: sf.Dispatcher, **more: Any) -> int:
    """Send durable requests until one is refused; return how many were taken on."""
    for number in range(100):
        try:
            await result(await dispatcher.dispatch(arrival(text=LONG, attended=False, **more)))
        except TooManyBytesError:
            return number
    raise AssertionError("none was refused")


@BOTH
async def test_a_tenant_that_has_as_many_bytes_as_may_gets_no_more(arbiter: Any) -> None:
    """Nothing is written of what is refused; others, and what leaves nothing behind, go on."""
    async with server(f"memory://{fresh_name()}", arbiter, bytes_kept=100_000) as one:
        kept = storage_of(one)
        assert 7 <= await fill(one) <= 9
        await counted(kept)
        left = 100_000 - await kept.measure("acme")
        space = one.engine.space
        await space.commit(Put(session_key(space, "acme", "old"), b"x" * left))
        kept.add("acme", left)
        await counted(kept)
        before = await kept.measure("acme")
        for more in (
            {"attended": False},
            {"idempotency_key": "new"},
            {"session": "new"},
            {"session": "new", "transport": "http"},
            {"session": "new", "transport": "http", "idempotency_key": "new"},
        ):
            with pytest.raises(TooManyBytesError):
                await one.dispatch(arrival(text=LONG, **more))
        assert await kept.measure("acme") == before

        assert await result(await one.dispatch(arrival(long=3))) == "xxx"
        for more in ({"attended": False}, {"idempotency_key": "new"}, {"session": "new"}):
            await result(await one.dispatch(arrival(principal=OTHER, text=LONG, **more)))


@BOTH
async def test_whoever_runs_a_simple_request_itself_is_refused_as_well(arbiter: Any) -> None:
    """If it comes in a session, whose state it may write."""
    async with server(f"memory://{fresh_name()}", arbiter, bytes_kept=1_000) as one:
        note_action = one.flows.find("desk", "note")
        storage_of(one).add("acme", 2_000)
        with pytest.raises(TooManyBytesError):
            await one.dispatch(arrival(session="s"), here=True)
        if arbiter == "local":
            with pytest.raises(TooManyBytesError):
                one.begin(note_action, arrival(session="s"))
            begun = one.begin(note_action, arrival())
            assert begun is not None
            await begun.run_here()


async def test_a_repetition_is_answered_however_much_is_kept() -> None:
    """It writes nothing."""
    async with server(f"memory://{fresh_name()}", bytes_kept=50_000) as one:
        first = arrival(long=10_000, idempotency_key="k")
        await result(await one.dispatch(first))
        await fill(one)

        assert (await one.dispatch(first)).is_replay


def test_a_refusal_says_how_much_is_kept_and_what_to_do() -> None:
    """In words, and to programs."""
    packed = pickle.dumps(TooManyBytesError("bytes kept of the tenant", 1_000, 60, kept=2_345))
    error: TooManyBytesError = pickle.loads(packed)  # noqa: S301 -- packed by this test
    assert (error.status, error.limit, error.kept, error.retry_after) == (429, 1_000, 2_345, 60)
    assert str(error) == (
        "the limit for bytes kept of the tenant is 1,000, and there are 2,345; "
        "wait until some expire, purge ended runs, or raise TenantLimits(bytes_kept=...)"
    )


@pytest.mark.parametrize("given", [0, -1, 1.5, True, 10**16])
def test_a_number_of_bytes_that_makes_no_sense_is_refused(given: Any) -> None:
    """Where it is declared."""
    with pytest.raises(DeclarationError, match="TenantLimits: bytes_kept is"):
        sf.web.TenantLimits(bytes_kept=given)


async def test_without_a_limit_nothing_is_counted() -> None:
    """Nor refused."""
    async with server(f"memory://{fresh_name()}", bytes_kept=None) as one:
        await result(await one.dispatch(arrival(text=LONG, attended=False)))
        assert not storage_of(one)._tenants


# --- getting free, and starting again ---------------------------------------------------------------------------------


async def test_bytes_are_free_again_when_records_expire() -> None:
    """The next one is refused by what was known, and lets it be counted anew."""
    clock = VirtualClock()
    space = sf.Space(GroupedStore(MemoryBackend(MemoryRecords(clock=clock))), clock=clock, lease="3000 days")
    async with space, server(space, bytes_kept=100_000) as one:
        for number in range(100):
            try:
                await result(await one.dispatch(arrival(long=10_000, idempotency_key=str(number))))
            except TooManyBytesError:
                break
        await counted(storage_of(one))
        clock.advance(3_601)
        with pytest.raises(TooManyBytesError):
            await one.dispatch(arrival(idempotency_key="late"))
        await counted(storage_of(one))

        assert await result(await one.dispatch(arrival(long=3, idempotency_key="late"))) == "xxx"


async def test_bytes_are_free_again_when_runs_are_purged() -> None:
    """What a durable request was sent with lies in its run."""
    async with server(f"memory://{fresh_name()}", bytes_kept=100_000) as one:
        taken = await fill(one)
        await counted(storage_of(one))
        await one.engine.purge(status="completed")
        with pytest.raises(TooManyBytesError):
            await one.dispatch(arrival(text=LONG, attended=False))
        await counted(storage_of(one))

        assert await fill(one) >= taken // 2  # the small records of the requests are kept for an hour


async def test_a_server_that_has_just_come_counts_what_is_there() -> None:
    """Beside the requests that it takes on meanwhile."""
    url = f"memory://{fresh_name()}"
    async with sf.open(url), server(url, bytes_kept=100_000) as one:
        await fill(one)
        async with server(url, bytes_kept=100_000) as two:
            kept = storage_of(two)
            await two.dispatch(arrival(attended=False))  # it is taken on: nothing is known yet
            await counted(kept)
            with pytest.raises(TooManyBytesError, match="is 100,000, and there are"):
                await two.dispatch(arrival(text=LONG, attended=False))


async def test_a_count_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written here counts meanwhile."""
    async with sf.open("memory://") as space:
        kept, problems = Storage(space, 1_000), [StoreUnavailableError("memory", "it is away for a moment")]
        await space.commit(Put(session_key(space, "acme", "s"), b"x" * 990))
        measure = kept.measure

        async def fail(tenant: str) -> int:
            if problems:
                raise problems.pop()
            return await measure(tenant)

        monkeypatch.setattr(kept, "measure", fail)
        with kept.room_for("acme", 10):
            await counted(kept)
        assert kept._of("acme").total == 10
        await counted(kept)
        with pytest.raises(TooManyBytesError):
            kept.check("acme")
        await kept.aclose()


# --- what it costs ----------------------------------------------------------------------------------------------------


class Counting:
    """A scope whose reads are counted."""

    def __init__(self, space: sf.Space) -> None:
        self._space = space
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)

    async def scan(self, *where: Any, limit: int) -> Snapshot:
        """Read a page."""
        seen = await self._space.scan(*where, limit=limit)
        self.sizes.append(sum(len(each.value) for each in seen.records.values()))
        return seen


def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long each pause is that is made from now on; none of them takes any time."""
    made: list[float] = []
    sleep: Callable[[float], Any] = asyncio.sleep

    async def pause(length: float) -> None:
        made.append(length)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return made


@pytest.mark.parametrize("many", [10, 1_000, 10_000])
async def test_what_one_request_costs_does_not_grow_with_what_is_kept(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request reads nothing; a count reads pages, each followed by a pause."""
    async with sf.open("memory://") as space:
        for start in range(0, many, 100):
            keys = [session_key(space, "acme", f"s-{n}") for n in range(start, min(start + 100, many))]
            await space.commit(*(Put(key, b"x" * 100) for key in keys))
        scope = Counting(space)
        made, kept = pauses(monkeypatch), Storage(scope, 10**9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- a scope but for its type
        for _ in range(100):
            with kept.room_for("acme", 100):
                pass
        assert scope.sizes == []  # none of a hundred requests has read anything
        await counted(kept)

        assert kept._of("acme").counted > 100 * many
        assert len(made) == len(scope.sizes) <= len(storage.KINDS) + 4 + many // storage.PAGE
        await kept.aclose()


async def test_large_records_are_read_a_few_at_a_time() -> None:
    """However many there are, a page fits into memory."""
    async with sf.open("memory://") as space:
        for n in range(60):
            await space.commit(Put(session_key(space, "acme", f"s-{n:03}"), b"x" * 300_000))
        scope = Counting(space)
        kept = Storage(scope, 10**9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- a scope but for its type

        assert await kept.measure("acme") > 60 * 300_000
        assert max(scope.sizes) <= 10 * 300_000
        assert sorted(scope.sizes)[-2] <= storage.PAGE_BYTES


async def test_counts_of_many_tenants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment one of them reads: together they take up no more time than one."""
    reading, most = 0, 0

    class Busy(Counting):
        async def scan(self, *where: Any, limit: int) -> Snapshot:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            seen = await super().scan(*where, limit=limit)
            reading -= 1
            return seen

    async with sf.open("memory://") as space:
        pauses(monkeypatch)
        kept = Storage(Busy(space), 10**9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- a scope but for its type
        for n in range(20):
            kept.check(f"tenant-{n}")
        await counted(kept)

        assert most == 1
        await kept.aclose()
