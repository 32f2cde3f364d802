"""Everything that follows something to its end, each read by a slow reader while a fast teller tells and ends.

A teller tells in bursts, with pauses in between, and ends in the tick of the last thing that it tells, or later. A
reader pauses between two reads, and breaks off and comes back where it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final
from unittest.mock import patch

import click
import msgspec

import standfast as sf
from standfast.audit import Actor, Audit
from standfast.cli import audit as audit_follow
from standfast.cli import runs as runs_tail
from standfast.cli.runs import as_data
from standfast.cli.target import Target
from standfast.errors import RequestCancelledError, RequestFailedError, WorkflowTerminalError
from standfast.flows.request import EmittedEvent
from standfast.locks import StateChanged
from standfast.space import Space
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Commit, Put
from standfast.testing import VirtualClock
from standfast.web.chat import feed
from standfast.web.dashboard import live as live_pages
from standfast.web.mcp import ToolCalls
from standfast.workflows import queries as awaiting
from tests.unit.web.chat.chat_clients import Socket, caller, known_by_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

    from standfast.testing import SimulatedLoop

Kind: TypeAlias = Literal["shared", "local"]

ACTIONS: Final = ("free", "queued", "kept")
"""One that leaves nothing in the store, one that needs a turn, and a durable one."""

PAUSES: Final = (0.0, 0.0, 0.001, 3.0)
SOON: Final = 300.0
"""Virtual seconds after which a follower has seen the end."""

ADA: Final = sf.Principal("acme", "ada")
HEADERS: Final = [(b"host", b"chat.example"), (b"x-user", b"ada"), (b"content-type", b"application/json")]


async def pause(chance: random.Random) -> None:
    """Do something else for a while, or not."""
    if chance.random() < 0.5:
        await asyncio.sleep(chance.choice(PAUSES))


@final
class Teller:
    """Flows whose actions tell in bursts and then end, as a seed says."""

    def __init__(self, chance: random.Random) -> None:
        self._chance: Final = chance
        self.told: Final = chance.choice((0, 1, 2, 5, 20))
        self.ending: Final = chance.choice(("returns", "returns", "raises", "is cancelled"))
        self._is_bursty: Final = chance.random() < 0.6
        self.has_told: Final = asyncio.Event()
        self.flow: Final = sf.Flow("support")
        for name, options in (
            ("free", {"concurrency": "allow"}),
            ("queued", {"concurrency": "queue"}),
            ("kept", {"concurrency": "allow", "durable": True}),
        ):
            self.flow.action(name=name, **cast("Any", options))(self._tell)

        @self.flow.action(concurrency="queue")
        async def respond(request: sf.Request, text: str) -> str:
            del text
            return await self._tell(request)

    async def _tell(self, request: sf.Request) -> str:
        for number in range(1, self.told + 1):
            request.emit(number)
            if not self._is_bursty and number < self.told:
                await pause(self._chance)
        self.has_told.set()
        if self.ending == "raises":
            raise ValueError(self.told)
        if self.ending == "is cancelled":
            await asyncio.Event().wait()
        return "done"

    def check(self, events: list[EmittedEvent]) -> None:
        """Check that each was seen once, in order, and then the end."""
        numbers = [event.number for event in events]
        assert numbers == list(range(1, self.told + 2)), (self.told, self.ending, numbers)
        assert [event.data for event in events[:-1]] == list(range(1, self.told + 1))
        status = {"returns": "completed", "raises": "failed", "is cancelled": "cancelled"}[self.ending]
        assert (events[-1].name, events[-1].data["status"]) == ("request.ended", status)


def space_of_its_own() -> Space:
    """Return a space on a store in memory, in virtual time."""
    clock = VirtualClock(cast("SimulatedLoop", asyncio.get_running_loop()))
    return Space(GroupedStore(MemoryBackend(MemoryRecords(clock=clock))), clock=clock)


@final
class World:
    """One application with a teller."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.chance: Final = random.Random(seed)
        self.teller: Final = Teller(self.chance)
        self.action: Final = self.chance.choice(ACTIONS)
        self.space: Final = space_of_its_own()
        self.app: Final = sf.App(
            sf.Engine(self.space),
            flows=[self.teller.flow],
            chats=[sf.web.Chat(self.teller.flow, append=None)],
            tools=[self.teller.flow],
            authenticate=known_by_header,
            arbiter=kind,
        )

    async def begun(self, action: str) -> Any:
        """Send a request that is stopped if nothing else ends it."""
        sent = sf.Call(flow="support", action=action, principal=ADA, session="s-1", on_disconnect="continue")
        handle = await self.app.dispatcher.dispatch(sent)
        self.stop(handle.id)
        return handle

    def stop(self, request: str) -> None:
        """Cancel a request as soon as it has told everything, if it is to end so."""

        async def cancel() -> None:
            await self.teller.has_told.wait()
            await (await self.app.dispatcher.find(ADA, request)).cancel("it has told enough")

        if self.teller.ending == "is cancelled":
            self.stopping = asyncio.get_running_loop().create_task(cancel())


# --- requests ------------------------------------------------------------------------------------------------------


async def follow_by_handle(world: World) -> None:
    """``handle.events()``, broken off and taken up again by the number of the last event."""
    handle = await world.begun(world.action)
    events: list[EmittedEvent] = []
    while not events or events[-1].name != "request.ended":
        found = await world.app.dispatcher.find(ADA, handle.id)
        async for event in found.events(events[-1].number if events else 0):
            events.append(event)
            await pause(world.chance)
            if world.chance.random() < 0.1:
                break
    world.teller.check(events)


async def wait_by_handle(world: World) -> None:
    """``handle.result()``, by one that was found by its id."""
    handle = await world.begun(world.action)
    await pause(world.chance)
    waiting = (await world.app.dispatcher.find(ADA, handle.id)).packed()
    if world.teller.ending == "returns":
        assert await waiting == b'"done"'
        return
    with contextlib.suppress(RequestFailedError, RequestCancelledError):
        await waiting
        raise AssertionError(world.teller.ending)


@final
class Browser:
    """Reads server-sent events by calling the application: slowly, and with ``Last-Event-ID`` when it comes back."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self.headers: dict[str, str] = {}
        self.last = ""
        self.events: Final[list[tuple[str, str, Any]]] = []

    async def get(self, method: str, path: str, *headers: tuple[bytes, bytes], reads: int) -> None:
        """Read so many events at most of a stream, and hang up then."""
        body = b"{}" if method == "POST" else b""
        first = [{"type": "http.request", "body": body, "more_body": False}]
        gone, end = asyncio.Event(), len(self.events) + reads

        async def receive() -> MutableMapping[str, Any]:
            if first:
                return first.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                assert message["status"] in (200, 204), message
                return
            await pause(self._world.chance)
            if len(self.events) < end:
                self._read(message["body"].decode())
            if len(self.events) >= end or self.has_ended:
                gone.set()

        length = [(b"content-length", str(len(body)).encode())]
        last = [(b"last-event-id", self.last.encode())] if self.last else []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [*HEADERS, *headers, *length, *last],
            "client": ("192.0.2.7", 1),
        }
        await self._world.app(scope, receive, send)

    def _read(self, text: str) -> None:
        for each in filter(None, text.split("\n\n")):
            facts = dict(line.split(": ", 1) for line in each.splitlines() if not line.startswith(":"))
            if facts:
                self.last = facts.get("id", self.last)
                self.events.append((facts.get("id", ""), facts["event"], json.loads(facts["data"])))

    @property
    def has_ended(self) -> bool:
        """Whether the end was read."""
        return any(name in ("request.ended", "ended") for _, name, _ in self.events)


async def stream_a_call(world: World) -> None:
    """The answer to a call is a stream."""
    action, browser = world.chance.choice(("free", "queued")), Browser(world)
    stream = ((b"accept", b"text/event-stream"), (b"standfast-session", b"s-1"))
    calling = asyncio.ensure_future(browser.get("POST", f"/flows/support/{action}", *stream, reads=1_000))
    if world.teller.ending == "is cancelled":
        await world.teller.has_told.wait()
        while "standfast-request" not in browser.headers:  # noqa: ASYNC110 -- virtual time
            await asyncio.sleep(0.01)
        world.stop(browser.headers["standfast-request"])
    await calling
    world.teller.check([EmittedEvent(int(number), name, data) for number, name, data in browser.events])


async def stream_a_request(world: World) -> None:
    """``GET /requests/{id}/events``, by a browser that is cut off and comes back."""
    handle, browser = await world.begun(world.action), Browser(world)
    while not browser.has_ended:
        await browser.get("GET", f"/requests/{handle.id}/events", reads=world.chance.choice((1, 3, 1_000)))
    world.teller.check([EmittedEvent(int(number), name, data) for number, name, data in browser.events])


async def call_a_tool(world: World) -> None:
    """A call of a tool whose caller wants to know of its progress."""

    @final
    class Session:
        def __init__(self) -> None:
            self.told: Final[list[float]] = []

        async def report_progress(self, progress: float, **_: Any) -> None:
            self.told.append(progress)
            await pause(world.chance)

    @final
    class Context:
        meta: Final = {"progress_token": 1}
        session: Final = Session()

    @final
    class Params:
        name: Final = f"support__{world.action}"
        arguments: Final[dict[str, Any]] = {}

    calls = ToolCalls(
        world.app.toolbox, world.app.dispatcher, lambda _: (ADA, {"standfast-session": "s-1"}), asyncio.Event()
    )
    calling = asyncio.ensure_future(calls.call(cast("Any", Context()), cast("Any", Params())))
    if world.teller.ending == "is cancelled":
        await world.teller.has_told.wait()
        calling.cancel()  # as the client's word that it wants no answer does
        await asyncio.wait({calling})
        return
    result = await calling
    assert bool(result.is_error) == (world.teller.ending == "raises")
    assert Context.session.told == list(range(1, world.teller.told + 1))


# --- chats ---------------------------------------------------------------------------------------------------------


async def talk_over_a_socket(world: World) -> None:
    """A WebSocket that is lost and opened again with how far it was read."""
    session, frames = "", list[dict[str, Any]]()
    cursor, is_sent = "", False
    while not frames or frames[-1]["type"] != "ended":
        async with Socket(world.app) as socket:
            socket.cursor = cursor
            session = await socket.open(session, cursor)
            if not is_sent:
                await socket.say("message", id="m", text="hello")
            for _ in range(world.chance.choice((1, 3, 1_000))):
                frame = await socket.hear()
                if frame["type"] == "ping":
                    await socket.say("pong")
                    continue
                if frame["type"] == "accepted":
                    is_sent = True
                    world.stop(frame["request"])
                frames.append(frame)
                await pause(world.chance)
                if frame["type"] == "ended":
                    break
            cursor = socket.cursor
    told = [frame["number"] for frame in frames if frame["type"] == "event"]
    assert told == list(range(1, world.teller.told + 1)), (world.teller.ending, frames)


async def talk_over_events(world: World) -> None:
    """The same as a stream of events, by a browser that is cut off and comes back."""
    browser, session = Browser(world), "0123456789abcdef0123456789abcdef"
    async with caller(world.app) as client:
        sent = {"text": "hello", "id": "m"}
        answer = await client.post("/chat/support/messages", json=sent, headers={"Standfast-Session": session})
    world.stop(answer.json()["request"])
    while not browser.has_ended:
        reads = world.chance.choice((2, 4, 1_000))
        await browser.get("GET", "/chat/support/events", (b"standfast-session", session.encode()), reads=reads)
    told = [data["number"] for _, name, data in browser.events if name == "event"]
    assert told == list(range(1, world.teller.told + 1)), (world.teller.ending, browser.events)


# --- runs ----------------------------------------------------------------------------------------------------------


def counting(chance: random.Random) -> sf.Workflow[..., int]:
    """Return a workflow of a few steps, which answers updates on the way."""
    steps, asks = chance.choice((0, 1, 5)), chance.choice((0, 3))

    async def one(number: int) -> int:
        await pause(chance)
        return number

    @sf.workflow(name="count")
    async def count(ctx: sf.Context) -> int:
        given: list[int] = []
        ctx.on_update("add", given.append)
        for number in range(steps):
            await ctx.step(one, number)
        await ctx.wait_until(lambda: len(given) >= asks)
        return steps + len(given)

    return count


async def wait_for_runs(chance: random.Random) -> None:
    """``run.result()`` by few and by many, from the engine that drives them and from one that does not."""
    space, count = space_of_its_own(), counting(chance)
    async with space, sf.Engine(space, workflows=[count]) as engine:
        runs = [await engine.start(count) for _ in range(chance.choice((1, awaiting.FEW + 4)))]
        waiting = [asyncio.ensure_future(run.result()) for run in runs]
        await asyncio.gather(*(_ask(chance, run) for run in runs))
        assert len(await asyncio.gather(*waiting)) == len(runs)


async def _ask(chance: random.Random, run: sf.Run[int]) -> None:
    """Send updates until the run has ended, and get each answer."""
    for number in range(3):
        await pause(chance)
        with contextlib.suppress(WorkflowTerminalError):
            assert await run.update("add", number, timeout=SOON) is None


async def tail_a_run(chance: random.Random) -> None:
    """``standfast runs tail``, whose output nobody reads for a while."""
    space, count, lines = space_of_its_own(), counting(chance), list[str]()

    @contextlib.asynccontextmanager
    async def talking(_: Target) -> AsyncIterator[sf.Engine]:
        yield engine

    async with space, sf.Engine(space, workflows=[count]) as engine:
        run = await engine.start(count)
        with patch.object(runs_tail, "talking", talking), patch.object(click, "echo", lines.append):
            tailing = asyncio.ensure_future(runs_tail.follow(Target(), run.id, as_json=True))
            await _ask(chance, run)
            await tailing
        told = [json.loads(line) for line in lines]
        assert [each["entry"] for each in told if "entry" in each] == [
            json.loads(msgspec.json.encode(as_data(entry))) for entry in await run.history()
        ]
        assert told[-1]["run"]["status"] == "completed"


# --- states and records --------------------------------------------------------------------------------------------


async def follow_a_state(chance: random.Random) -> None:
    """``state.events()``, which its reader leaves after what was written last."""
    async with space_of_its_own() as space:
        state = space.state.shared("n", type=int, initial=0)
        writes, seen, events = chance.choice((0, 1, 20)), list[int | None](), state.events()

        async def write() -> None:
            for _ in range(writes):
                await state.increment()
                await pause(chance)
            await events.__aexit__()

        await events.__aenter__()
        writing = asyncio.ensure_future(write())
        async for event in events:
            assert isinstance(event, StateChanged)
            seen.append(event.value)
            await pause(chance)
        await writing
        assert seen == list(range(1, writes + 1))


async def watch_a_record(chance: random.Random) -> None:
    """``space.watch()``: whoever looks before it waits sees the last write without any look by the clock."""
    async with space_of_its_own() as space:
        key, last = space.key("a"), chance.choice((1, 5, 20))

        async def write() -> None:
            version = 0
            for number in range(1, last + 1):
                answer = await space.commit(Put(key, str(number).encode(), version))
                version = answer.versions[key] if isinstance(answer, Commit) else 0
                await pause(chance)

        async with space.watch(key) as watch:
            writing = asyncio.ensure_future(write())
            while (record := (await space.read(key)).get(key)) is None or int(record.value) < last:
                await pause(chance)
                assert await watch.wait(SOON) is not None
        await writing


async def follow_the_audit(chance: random.Random) -> None:
    """``standfast audit --follow``: every action with its last outcome, without any look by the clock."""
    actions, told = chance.choice((1, 5, 20)), dict[str, str]()
    has_all = asyncio.Event()

    def tell(line: str) -> None:
        record = json.loads(line)
        told[record["subject"]] = record["outcome"]
        if list(told.values()).count("done") == actions:
            has_all.set()

    async with space_of_its_own() as space:

        @contextlib.asynccontextmanager
        async def opened(_: Target) -> AsyncIterator[Space]:
            yield space

        async def act() -> None:
            audit = Audit(space, Actor("ann", "cli", "host"))
            for number in range(actions):
                async with audit.action("run.cancel", f"r-{number}"):
                    await pause(chance)
                await pause(chance)

        options = {"action": None, "subject": None, "actor": None, "limit": 100}
        acting = asyncio.ensure_future(act())
        await pause(chance)
        with (
            patch.object(Target, "opened", opened),
            patch.object(click, "echo", tell),
            patch.object(audit_follow, "LOOK_EVERY", 10 * SOON),
        ):
            following = asyncio.ensure_future(audit_follow._follow(Target(), options, as_json=True))
            await has_all.wait()
            following.cancel()
            await asyncio.wait({following})
        await acting


async def look_at_a_page(chance: random.Random) -> None:
    """A live page of the dashboard: it was drawn before its stream began, and is drawn again for the last change."""
    async with space_of_its_own() as space:
        key, last, closing = space.key("life", "r"), chance.choice((1, 5, 20)), asyncio.Event()

        async def write() -> None:
            version = 0
            for number in range(1, last + 1):
                answer = await space.commit(Put(key, str(number).encode(), version))
                version = answer.versions[key] if isinstance(answer, Commit) else 0
                await pause(chance)

        async def drawn() -> int:
            record = (await space.read(key)).get(key)
            return 0 if record is None else int(record.value)

        async def look() -> None:
            shown = await drawn()
            await pause(chance)
            stream: Any = live_pages.stream_of(watcher, closing)
            async for told in stream.body_iterator:
                await pause(chance)
                if told.startswith(b"event"):
                    shown = await drawn()
                if shown == last:
                    return

        watcher = live_pages.Watcher(space)
        writing = asyncio.ensure_future(write())
        with patch.object(live_pages, "LONGEST", 10 * SOON):
            looking = [asyncio.ensure_future(look()) for _ in range(chance.choice((1, 3)))]
            await asyncio.gather(*looking)
        await writing


Program: TypeAlias = "Callable[[random.Random], Awaitable[None]]"

OF_REQUESTS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    each.__name__: each
    for each in (
        follow_by_handle,
        wait_by_handle,
        stream_a_call,
        stream_a_request,
        call_a_tool,
        talk_over_a_socket,
        talk_over_events,
    )
}
OF_THE_REST: Final[dict[str, Program]] = {
    each.__name__: each
    for each in (wait_for_runs, tail_a_run, follow_a_state, watch_a_record, follow_the_audit, look_at_a_page)
}


async def play_request(seed: int, kind: Kind, name: str) -> None:
    """Let one follower of requests read to the end."""
    world = World(seed, kind)
    with patch.object(feed, "AHEAD", world.chance.choice((1, feed.AHEAD))):
        async with world.space, world.app, asyncio.timeout(SOON):
            await OF_REQUESTS[name](world)


async def play(seed: int, name: str) -> None:
    """Let one of the other followers read to the end."""
    async with asyncio.timeout(SOON):
        await OF_THE_REST[name](random.Random(seed))
