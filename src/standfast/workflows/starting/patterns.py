"""Ready-made ways to turn many events into few runs: the last of a burst, or all of them together."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, final

import msgspec

from standfast.durations import seconds
from standfast.errors import (
    InvalidWorkflowError,
    RunFailedError,
    UnknownWorkflowError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.workflows.declaring.definition import Workflow
from standfast.workflows.handle import Run
from standfast.workflows.starting.collecting import EVENT, Plan, collect
from standfast.workflows.starting.sending import checked_name
from standfast.workflows.starting.target import check_registered
from standfast.workflows.storing.failure_log import set_logged

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.durations import Duration
    from standfast.workflows.client import Client
    from standfast.workflows.context.context import Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LARGEST: Final = 10_000
"""How many items a batch has at most."""

MOST_EVENTS: Final = 1_000
"""How many events a burst has at most: the next one begins another."""

_LONGEST_PAUSE: Final = 60.0
_POSITIONAL: Final = inspect.Parameter.POSITIONAL_ONLY


@final
class Debounced(Generic[P, R]):
    """Runs a workflow for the last event of a burst, when it has been quiet for a while.

        reindex_soon = sf.Debounced(reindex, window="5 seconds", max_wait="1 minute")

        async with sf.Engine(url, workflows=[reindex_soon]) as engine:
            run = await reindex_soon.start(engine, "doc-7", "the text of document 7")

    Each event takes the place of the one before, as long as the work has not begun: no expensive work is done for an
    event that is outdated already, and none is cancelled that has begun. An event that comes then waits for the next
    run. It is durable when ``start`` returns, and the last one of a burst is never lost.

    Every burst is one run of its own, which has all events of the burst in its history, and runs the workflow as its
    child. Limits of the workflow apply to that; a child that is refused is tried again.

    Args:
        workflow: What to run, with the arguments of the last event.
        window: How long it has to be quiet.
        max_wait: How long the first event of a burst waits at most; by default as long as others follow, up to a
            thousand.

    Attributes:
        name: The name of the workflow whose runs collect events.
        workflows: What an engine needs for it.
    """

    def __init__(self, workflow: Workflow[P, R], *, window: Duration, max_wait: Duration | None = None) -> None:
        _checked("Debounced", workflow)
        length = seconds(window, what="window", minimum=0.001)
        most = None if max_wait is None else seconds(max_wait, what="max_wait", minimum=0.001)
        if most is not None and most < length:
            raise InvalidWorkflowError("Debounced", "max_wait is shorter than window; it must be at least as long")
        self._workflow: Final = workflow
        self.name: Final = f"{workflow.name}.debounce"
        collector = _collector(workflow, self.name, _last)
        self._plan: Final = Plan(collector, length, slides=True, most=most, size=MOST_EVENTS)
        self.workflows: Final[tuple[Workflow[..., Any], ...]] = (workflow, self._plan.workflow)

    async def start(self, engine: Client, key: str, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
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

        index_soon = sf.Batched(index, size=100, window="30 seconds")

        async with sf.Engine(url, workflows=[index_soon]) as engine:
            run = await index_soon.add(engine, document)

    An item is durable when ``add`` returns, and is in exactly one run, which begins after that. Every batch is one run
    of its own, which has all items in its history, and runs the workflow as its child. Limits of the workflow apply to
    that; a child that is refused is tried again.

    Args:
        workflow: What to run; it takes one argument, the list of items, the oldest first.
        size: With how many items it is run at once.
        window: After how long it is run with fewer.

    Attributes:
        name: The name of the workflow whose runs collect items.
        workflows: What an engine needs for it.
    """

    def __init__(
        # A workflow, as type checkers see what it is called with: so they know what it takes a list of.
        self,
        workflow: Callable[[list[T]], Coroutine[Any, Any, R]],
        *,
        size: int,
        window: Duration,
    ) -> None:
        target = _checked("Batched", workflow)
        if type(size) is not int or not 1 <= size <= LARGEST:
            raise InvalidWorkflowError("Batched", f"size is {size!r:.60}; it must be a whole number from 1 to 10,000")
        self._workflow: Final = target
        self.name: Final = f"{target.name}.batch"
        length = seconds(window, what="window", minimum=0.001)
        self._plan: Final = Plan(_collector(target, self.name, _together), length, slides=False, size=size)
        self.workflows: Final[tuple[Workflow[..., Any], ...]] = (target, self._plan.workflow)

    async def add(self, engine: Client, item: T, *, key: str = "all") -> Run[R]:
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


async def _send(engine: Client, plan: Plan, key: str, target: Workflow[..., Any], packed: bytes) -> Run[Any]:
    host, workflow = engine.host, plan.workflow
    check_registered(host, target, drives=engine.drives)
    if engine.drives and (workflow.name, workflow.version) not in host.workflows:
        raise UnknownWorkflowError(workflow.name, tuple(sorted({name for name, _ in host.workflows})))
    done = await collect(host, plan, checked_name("key", key), packed)
    return Run(engine, done.run_id, workflow, is_new=done.is_new)


# --- the runs that collect ------------------------------------------------------------------------------------------


def _checked(what: str, workflow: object) -> Workflow[..., Any]:
    if not isinstance(workflow, Workflow):
        raise InvalidWorkflowError(what, f"a {type(workflow).__name__} is no workflow; declare it with @sf.workflow")
    return cast("Workflow[..., Any]", workflow)


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
