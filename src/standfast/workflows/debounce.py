"""Events that are collected by a run before it begins.

The run is there from the first event on, and waits for its time. Each further event is put into its inbox by a commit
that holds only until a worker takes the run up, and may put its time off. So whether an event belongs to a run or to
the next one is decided by the commit that takes the run up: none is lost, and none is in two.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast, final, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.errors import (
    DeclarationError,
    RunFailedError,
    StoreBusyError,
    UnknownWorkflowError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.ids import new_id
from standfast.policies import Batch, Debounce
from standfast.stores.protocol import Change, Check, Conflict, Delete, Put
from standfast.workflows.definition import Workflow, described
from standfast.workflows.failures import set_logged
from standfast.workflows.inbox import Sending, first_of
from standfast.workflows.messages import checked_message_name
from standfast.workflows.records import (
    COUNTERS,
    NO_DUE,
    READY,
    RUN_STATES,
    Counter,
    RunKeys,
    RunState,
    Standing,
    Start,
    commit_over,
    creation,
    header_of,
)
from standfast.workflows.run import Run
from standfast.workflows.start import check_registered

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.context import Context
    from standfast.workflows.runtime import AnyEngine, Runtime


# --- events that are collected by a run before it begins -----------------------------------------------------------

EVENT: Final = "event"
"""The name of the signals that events lie in the inbox as."""

TRIES: Final = 200
PATIENCE: Final = 0.001
KEPT: Final = 86_400.0
"""For how many seconds after its time a run that was not taken up yet is found by further events."""


class Plan(Struct, frozen=True):
    """How events are collected.

    Attributes:
        workflow: What the run is a run of.
        window: After how many seconds it begins: from its first event on; or from its latest, if it ``slides``.
        slides: Whether each event puts its beginning off.
        most: After how many seconds it begins at the latest, however it slides.
        size: With how many events it begins at once.
    """

    workflow: Any
    window: float
    slides: bool
    most: float | None = None
    size: int | None = None


class Bringing(Struct, frozen=True, kw_only=True):
    """What else is written with an event, for code that builds more on it.

    Attributes:
        run_id: The id of the run, if the event begins one.
        tags: The tags of that run.
        lines: The lines in which that run has to stand once its time has come.
        opening: Further changes in the commit that creates the run, given the store's time.
        always: Further changes in the commit of the event, given the run and the store's time.
    """

    run_id: str
    tags: tuple[str, ...] = ()
    lines: tuple[Standing, ...] = ()
    opening: Callable[[Instant], Sequence[Change]]
    always: Callable[[str, Instant], Sequence[Change]]


class BringingRefusedError(Exception):
    """A guard of what an event brought along did not hold. Nothing was written."""

    def __init__(self, key: RecordKey) -> None:
        super().__init__(key)
        self.key = key


class Collecting(Struct, frozen=True):
    """Which run collects the events of a key, and since when."""

    run: str
    since: Instant


COLLECTINGS: Final[Codec[Collecting]] = Codec(Collecting, what="what collects events")


class Collected(Struct, frozen=True):
    """The run that an event is in, and whether it is its first."""

    run_id: str
    is_new: bool


_turns: Final[WeakKeyDictionary[Any, WeakValueDictionary[RecordKey, asyncio.Lock]]] = WeakKeyDictionary()


async def collect_event(
    runtime: Runtime, plan: Plan, key: str, packed: bytes, bringing: Bringing | None = None
) -> Collected:
    """Put an event where it belongs: with the run that collects those of its key, or with a new one.

    Raises:
        BringingRefusedError: A guard of what it brings along did not hold.
    """
    place = runtime.space.key("collecting", plan.workflow.name, key)
    turns = _turns.setdefault(runtime, WeakValueDictionary())
    turn = turns.setdefault(place, asyncio.Lock())  # those in one process need not get into each other's way
    async with turn:
        for tried in range(TRIES):
            seen = await runtime.space.read(place)
            done: Collected | Conflict | None = None
            if (record := seen.get(place)) is not None:
                keys = RunKeys(runtime.space, COLLECTINGS.decode(record.value).run)
                done = await _join(runtime, plan, place, keys, packed, bringing)
            if done is None:
                done = await _open(runtime, plan, key, seen, place, packed, bringing)
            if not isinstance(done, Conflict):
                return done
            if bringing is not None:
                brought = (*bringing.opening(done.at), *bringing.always(bringing.run_id, done.at))
                if refused := {change.key for change in brought}.intersection(done.current):
                    raise BringingRefusedError(refused.pop())
            if tried:
                await asyncio.sleep(PATIENCE * min(tried, 10))
    raise StoreBusyError(f"the events of {key}", f"others brought some {TRIES} times while one was put down")


async def _open(
    runtime: Runtime,
    plan: Plan,
    key: str,
    seen: Snapshot,
    place: RecordKey,
    packed: bytes,
    bringing: Bringing | None,
) -> Collected | Conflict:
    """Begin to collect, with a new run."""
    at, workflow = seen.at, plan.workflow
    keys = RunKeys(runtime.space, new_id() if bringing is None else bringing.run_id)
    state = RunState("pending", workflow.name, workflow.version, at, waits_for="a worker")
    if plan.size != 1:
        state = structs.replace(state, until=later(at, plan.window), waits_for="further events")
    asked = Start(workflow=workflow, packed=b"{}", run_id=keys.id, tags=(key,) if bringing is None else bringing.tags)
    lines = () if bringing is None else bringing.lines
    state = structs.replace(state, collects=True) if lines and state.until is not None else state
    changes = [*creation(runtime.space, asked, at, state, lines), *first_of(keys, Sending("signal", EVENT, packed), at)]
    if bringing is not None:
        changes += (*bringing.opening(at), *bringing.always(keys.id, at))
    if state.until is not None:
        changes.append(_noted(place, Collecting(keys.id, at), seen.version(place), state.until))
    answer = await runtime.space.commit(*changes)
    if isinstance(answer, Conflict):
        return answer
    runtime.emit_moved(keys.id, state, 0, None, header_of(asked, at, lines))
    return Collected(keys.id, is_new=True)


def _noted(place: RecordKey, collecting: Collecting, version: int, until: Instant) -> Put:
    return Put(place, COLLECTINGS.encode_own(collecting), version, expires_at=later(until, KEPT))


async def _join(
    runtime: Runtime, plan: Plan, place: RecordKey, keys: RunKeys, packed: bytes, bringing: Bringing | None
) -> Collected | Conflict | None:
    """Join the run that collects; None: it does not any more."""
    seen = await runtime.space.read(place, keys.state, keys.counter)
    record, noted = seen.get(keys.state), seen.get(place)
    state = None if record is None else RUN_STATES.decode(record.value)
    collecting = None if noted is None else COLLECTINGS.decode(noted.value)
    if collecting is None or collecting.run != keys.id:
        return Conflict(seen.at, {})
    if state is None or not _collects(state):
        return None
    counter = seen.get(keys.counter)
    number = 0 if counter is None else COUNTERS.decode(counter.value).next
    changes: list[Change] = [
        *Sending("signal", EVENT, packed).changes(keys, number, seen.at),
        Put(keys.counter, COUNTERS.encode_own(Counter(number + 1)), seen.version(keys.counter)),
    ]
    is_full = plan.size is not None and number + 1 >= plan.size
    until = None if is_full else state.until
    if until is not None and plan.slides:  # without a time it stands in a line, and waits for its turn only
        latest = later(seen.at, plan.window)
        until = latest if plan.most is None else min(latest, later(collecting.since, plan.most))
    changes += _moved(place, keys, collecting, seen, state, until, is_full=is_full)
    if bringing is not None:
        changes += bringing.always(keys.id, seen.at)
    over: dict[RecordKey, bytes | None] = {}
    if until != state.until and state.until is not None:
        over = {
            keys.timer(state.until): None,
            **({keys.ready: READY} if until is None else {keys.timer(until): NO_DUE}),
        }
    answer = await commit_over(runtime.space, changes, over)
    return answer if isinstance(answer, Conflict) else Collected(keys.id, is_new=False)


def _collects(state: RunState) -> bool:
    """Return True if no worker has taken a run up, nor is to do so now."""
    is_waiting = state.until is not None or state.ticket is not None
    return state.status == "pending" and not state.owner and not state.claims and is_waiting and state.cancel is None


def _moved(
    place: RecordKey,
    keys: RunKeys,
    collecting: Collecting,
    seen: Snapshot,
    state: RunState,
    until: Instant | None,
    *,
    is_full: bool,
) -> list[Change]:
    """Return the changes that let a run begin at a time, or at once; none of them holds if it was taken up."""
    version, noted = seen.version(keys.state), seen.version(place)
    if until == state.until:
        return [Check(keys.state, version), Delete(place, noted) if is_full else Check(place, noted)]
    if until is None:
        begins = structs.replace(state, until=None, waits_for="a worker")
        return [Put(keys.state, RUN_STATES.encode_own(begins), version), Delete(place, noted)]
    begins = structs.replace(state, until=until)
    return [Put(keys.state, RUN_STATES.encode_own(begins), version), _noted(place, collecting, noted, until)]


# --- ready-made ways to turn many events into few runs: the last of a burst, or all of them together ---------------

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MOST_EVENTS: Final = 1_000
"""How many events a burst has at most: the next one begins another."""

_LONGEST_PAUSE: Final = 60.0
_POSITIONAL: Final = inspect.Parameter.POSITIONAL_ONLY


@final
class Debounced(Generic[P, R]):
    """Runs a workflow for the last event of a burst, when it has been quiet for a while.

        reindex_soon = sf.collect(reindex, sf.Debounce("5 seconds", max_wait="1 minute"))

        async with sf.Engine(url, workflows=[reindex_soon]) as engine:
            run = await reindex_soon.start(engine, "doc-7", "the text of document 7")

    Each event takes the place of the one before, as long as the work has not begun: no expensive work is done for an
    event that is outdated already, and none is cancelled that has begun. An event that comes then waits for the next
    run. It is durable when ``start`` returns, and the last one of a burst is never lost.

    Every burst is one run of its own, which has all events of the burst in its history, and runs the workflow as its
    child. Limits of the workflow apply to that; a child that is refused is tried again.

    Args:
        workflow: What to run, with the arguments of the last event.
        policy: How long it has to be quiet, and how long the first event of a burst waits at most; by default as long
            as others follow, up to a thousand.

    Attributes:
        name: The name of the workflow whose runs collect events.
        workflows: What an engine needs for it.
    """

    def __init__(self, workflow: Workflow[P, R], policy: Debounce) -> None:
        _check_plain("Debounce", policy, Debounce(policy.window, max_wait=policy.max_wait))
        self._workflow: Final = workflow
        self.name: Final = f"{workflow.name}.debounce"
        collector = _collector(workflow, self.name, _last)
        self._plan: Final = Plan(collector, policy.window, slides=True, most=policy.max_wait, size=MOST_EVENTS)
        self.workflows: Final[tuple[Workflow[..., Any], ...]] = (workflow, self._plan.workflow)

    async def start(self, engine: AnyEngine, key: str, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Run the workflow with these arguments soon, unless another event of the same key comes before.

        Args:
            engine: Where.
            key: What events have to have in common to take each other's place.
            args: What the workflow is called with.
            kwargs: Also that.

        Returns:
            The run of the burst, the same for all its events. Its result is what the workflow returns for the last one.
        """
        return await _send(engine, self._plan, key, self._workflow, self._workflow.signature.pack(args, kwargs))

    def __repr__(self) -> str:
        return f"<debounce of {self._workflow.name}: {self._plan.window:g} s>"


@final
class Batched(Generic[T, R]):
    """Runs a workflow for many items together: when there are enough of them, or the first has waited long enough.

        @sf.workflow
        async def index(ctx: sf.Context, documents: list[Document]) -> int: ...

        index_soon = sf.collect(index, sf.Batch(100, "30 seconds"))

        async with sf.Engine(url, workflows=[index_soon]) as engine:
            run = await index_soon.add(engine, document)

    An item is durable when ``add`` returns, and is in exactly one run, which begins after that. Every batch is one run
    of its own, which has all items in its history, and runs the workflow as its child. Limits of the workflow apply to
    that; a child that is refused is tried again.

    Args:
        workflow: What to run; it takes one argument, the list of items, the oldest first.
        policy: With how many items it is run at once, and after how long with fewer.

    Attributes:
        name: The name of the workflow whose runs collect items.
        workflows: What an engine needs for it.
    """

    def __init__(self, workflow: Workflow[..., R], policy: Batch) -> None:
        _check_plain("Batch", policy, Batch(policy.size, policy.window))
        self._workflow: Final = workflow
        self.name: Final = f"{workflow.name}.batch"
        collector = _collector(workflow, self.name, _together)
        self._plan: Final = Plan(collector, policy.window, slides=False, size=policy.size)
        self.workflows: Final[tuple[Workflow[..., Any], ...]] = (workflow, self._plan.workflow)

    async def add(self, engine: AnyEngine, item: T, *, key: str = "all") -> Run[R]:
        """Add an item to the batch of its key.

        Args:
            engine: Where.
            item: What the workflow takes a list of.
            key: Items with different keys are never in one batch.

        Returns:
            The run of the batch, the same for all its items. Its result is what the workflow returns for all of them.
        """
        return await _send(engine, self._plan, key, self._workflow, self._workflow.signature.pack(([item],), {}))

    def __repr__(self) -> str:
        return f"<batch of {self._workflow.name}: {self._plan.size}, {self._plan.window:g} s>"


@overload
def collect(workflow: Workflow[P, R], policy: Debounce) -> Debounced[P, R]: ...
@overload
def collect(workflow: Callable[[list[T]], Coroutine[Any, Any, R]], policy: Batch) -> Batched[T, R]: ...
def collect(workflow: Callable[..., Any], policy: Debounce | Batch) -> Debounced[Any, Any] | Batched[Any, Any]:
    """Return what turns many events into few runs of a workflow; an engine takes it in ``workflows=``.

        reindex_soon = sf.collect(reindex, sf.Debounce("5 seconds", max_wait="1 minute"))
        index_soon = sf.collect(index, sf.Batch(100, "30 seconds"))

    Args:
        workflow: What to run.
        policy: :class:`~standfast.Debounce`: one run with the last event of a burst. :class:`~standfast.Batch`: one run
            with the list of all items; the workflow takes that list as its only argument.

    Raises:
        DeclarationError: It is no workflow, or the policy is another one or has options that only actions know.
    """
    if not isinstance(workflow, Workflow):
        raise DeclarationError("collect", f"a {type(workflow).__name__} is no workflow; declare it with @sf.workflow")
    target = cast("Workflow[..., Any]", workflow)
    if isinstance(policy, Debounce):
        return Debounced(target, policy)
    if isinstance(policy, Batch):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return Batched(target, policy)
    raise DeclarationError(target.name, f"{policy!r:.60} collects nothing; use sf.Debounce(...) or sf.Batch(...)")


async def _send(engine: AnyEngine, plan: Plan, key: str, target: Workflow[..., Any], packed: bytes) -> Run[Any]:
    runtime, workflow = engine.runtime, plan.workflow
    check_registered(runtime, target, drives=engine.drives)
    if engine.drives and (workflow.name, workflow.version) not in runtime.workflows:
        raise UnknownWorkflowError(workflow.name, tuple(sorted({name for name, _ in runtime.workflows})))
    done = await collect_event(runtime, plan, checked_message_name("key", key), packed)
    return Run(engine, done.run_id, workflow, is_new=done.is_new)


# --- the runs that collect ------------------------------------------------------------------------------------------


def _check_plain(what: str, given: Debounce | Batch, plain: Debounce | Batch) -> None:
    """Refuse the options that only actions know."""
    if given != plain:
        problem = "a workflow collects by the key that each event is sent with, and takes no other option than"
        options = "window and max_wait" if isinstance(given, Debounce) else "size and window"
        raise DeclarationError(what, f"{given}: {problem} {options}")


def _collector(
    workflow: Workflow[..., Any], name: str, merge: Callable[[list[dict[str, Any]]], dict[str, Any]]
) -> Workflow[..., Any]:
    """Return the workflow whose runs take events until their time comes, and then run another one with them."""

    async def collector(ctx: Context) -> Any:  # noqa: ANN401 -- whatever the workflow returns
        events: list[dict[str, Any]] = []
        while (event := await ctx.wait_signal(EVENT, timeout=0, default=None)) is not None:
            events.append(event)
        args, kwargs = workflow.signature.unpack(msgspec.json.encode(merge(events)))
        try:
            return await _run_child(ctx, workflow, args, kwargs)
        except RunFailedError as failed:
            if isinstance(failed.__cause__, Exception):
                set_logged(failed.__cause__)  # by the child
                raise failed.__cause__ from None
            raise

    # It returns what the workflow does, but takes nothing.
    functools.update_wrapper(collector, workflow.function)
    vars(collector)["__signature__"] = inspect.Signature([inspect.Parameter("ctx", _POSITIONAL)])
    return Workflow(
        collector,
        name=name,
        version=workflow.version,
        limits=(),
        timeout=None,
        replay=workflow.replay,
        raises=workflow.raises,
        is_internal=True,
    )


async def _run_child(ctx: Context, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- whatever it returns
    """Run the workflow; while a limit is in the way, again and again."""
    pause = 1.0
    while True:
        try:
            return await ctx.child(workflow, *args, **kwargs)
        except WorkflowConcurrencyLimitExceededError:
            await ctx.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _last(events: list[dict[str, Any]]) -> dict[str, Any]:
    return events[-1]


def _together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one argument with the items of all: each event has a list of one."""
    [name] = events[0]
    return {name: [item for event in events for item in cast("list[Any]", event[name])]}


# --- what an engine can be given to run -----------------------------------------------------------------------------

Runnable: TypeAlias = Workflow[..., Any] | Debounced[..., Any] | Batched[Any, Any]
"""A workflow, or one that collects events for it."""


def workflows_of(each: Runnable) -> tuple[Workflow[..., Any], ...]:
    """Return the workflows that an engine needs to run something."""
    if isinstance(each, Workflow):
        return (each,)
    if isinstance(each, Debounced | Batched):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return each.workflows
    raise DeclarationError(described(each), "this is no workflow; declare it with @sf.workflow")
