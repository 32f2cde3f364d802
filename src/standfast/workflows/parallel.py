"""Branches and children of a run: ``ctx.gather``, ``ctx.race`` and ``ctx.child``."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import DeclarationError, RunNotFoundError, StandfastError, WorkflowAlreadyExistsError
from standfast.exits import as_failure, is_from_signal
from standfast.workflows.activation import A_SLICE, MOST_IN_A_TURN
from standfast.workflows.control import RunCancelled, Unload, raise_ending, stop_of, unload_again
from standfast.workflows.failures import describe, restore
from standfast.workflows.inbox import ending_in
from standfast.workflows.messages import cancel
from standfast.workflows.records import HEADERS, RUN_STATES, HistoryEvent, RunKeys, RunState, Start
from standfast.workflows.replay import CURRENT, Branch, Wait
from standfast.workflows.start import LONGEST_ID, check_child, start
from standfast.workflows.steps import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import CodeType

    from standfast.workflows.activation import Activation
    from standfast.workflows.definition import Workflow

    Work = Coroutine[Any, Any, Any]


# --- runs that a run starts and waits for --------------------------------------------------------------------------

CHILD: Final = ("child", "child_done", "cancelled")
DEEPEST: Final = 10
"""How deep runs may be nested."""


async def child(
    activation: Activation, branch: Branch, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401 -- whatever the child returns
    """Start a child run, once, and return what it returns. If this run is cancelled, so is the child, first."""
    operation = branch.next_id(workflow.name)
    child_id = id_of(activation.keys.id, operation)
    packed = workflow.signature.pack(args, kwargs)
    event = await activation.turn(branch, CHILD, operation)
    if event is None:
        starts = activation.runtime.child_starts
        room = starts.begin()
        try:
            if room is not None:
                await room
            event = await _start(activation, branch, operation, workflow, child_id, packed)
        finally:
            starts.end(room)
    if event.kind == "child" and event.failure is None:
        try:
            event = await activation.turn(branch, CHILD, operation)
            if event is None:
                # Waited for here, not in a function below: there may be ten thousand, and each would be a frame more.
                found = await _look_at(activation, child_id)
                state = await activation.wait(branch, found) if isinstance(found, Wait) else found
                event = _note_end(activation, branch, operation, child_id, state)
        except RunCancelled as cancelled:
            await _cancel(activation, branch, operation, child_id, cancelled)
            raise
    if event.failure is None:
        return workflow.signature.result.unpack(event.value or b"null")
    known = activation.runtime.known_with(workflow.raises)
    if event.kind == "child":
        raise restore(event.failure, known)
    raise_ending(child_id, "failed", event.failure, known)
    raise Unload


def id_of(parent: str, operation: str) -> str:
    """Return the id of the child that an operation of a run starts: always the same, and readable while it is short."""
    name = f"{parent}.{operation.replace('/', '.')}"
    if len(name.encode()) <= LONGEST_ID:
        return name
    return f"{blake2b(name.encode(), digest_size=16).hexdigest()}.{operation[-60:].replace('/', '.')}"


async def _start(
    activation: Activation, branch: Branch, operation: str, workflow: Workflow[..., Any], child_id: str, packed: bytes
) -> HistoryEvent:
    if activation.header.depth + 1 >= DEEPEST:
        raise DeclarationError(workflow.name, f"runs are nested at most {DEEPEST} deep; start it on its own instead")
    if branch.cancel is not None:  # it was told while others were started
        activation.raise_cancel(branch, operation)
    await activation.flush(branch, operation)
    await activation.check_may_act()
    runtime, header, trace = activation.runtime, activation.header, activation.trace
    now = runtime.now()
    try:
        await ask(activation, check_child(runtime, workflow, activation.keys.id))
        asked = Start(
            workflow=workflow,
            packed=packed,
            run_id=child_id,  # of its own: should this process die before the event is written, nothing new is started
            parent=activation.keys.id,
            parent_step=operation,
            root=header.root or activation.keys.id,
            depth=header.depth + 1,
            incarnation=header.incarnation,
            trace=header.trace if trace is None else trace.within(trace.run_span).stored,
            drive=runtime.has_room() and (workflow.name, workflow.version) in runtime.workflows,
        )
        if not (await ask(activation, start(runtime, asked))).is_new:
            await ask(activation, _check_own(activation, operation, child_id))
    except StandfastError as refused:
        event = HistoryEvent("child", operation, now, failure=describe(refused, runtime.known))
    else:
        event = HistoryEvent("child", operation, now, msgspec.Raw(msgspec.json.encode(child_id)))
    activation.note(event)
    return event


async def _check_own(activation: Activation, operation: str, child_id: str) -> None:
    """Refuse a run that was started elsewhere with the child's id: this one would not be told of its end."""
    keys = RunKeys(activation.runtime.space, child_id)
    seen = await activation.runtime.space.read(keys.header, keys.state)
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        return  # purged at this very moment
    found = HEADERS.decode(header.value)
    if (found.parent, found.parent_step) != (activation.keys.id, operation):
        raise WorkflowAlreadyExistsError(child_id, RUN_STATES.decode(state.value).status, "parent")


async def _cancel(
    activation: Activation, branch: Branch, operation: str, child_id: str, cancelled: RunCancelled
) -> None:
    """Cancel the child and wait for its end, so that nothing of it goes on when its parent cleans up."""
    event = await activation.turn(branch, CHILD, operation, is_leaving=True)
    if event is None:
        await activation.flush()
        told = cancel(activation.runtime, child_id, f"its parent was cancelled: {cancelled.reason}")
        with suppress(RunNotFoundError):  # it was purged
            await ask(activation, told)
        found = await _look_at(activation, child_id)
        state = await activation.wait(branch, found) if isinstance(found, Wait) else found
        _note_end(activation, branch, operation, child_id, state)


async def _look_at(activation: Activation, child_id: str) -> RunState | Wait:
    """Return how a child has ended, or what to wait for."""
    runtime, as_of = activation.runtime, activation.inbox_poll.polls
    state, here = activation.ended_children.pop(child_id, None), runtime.loaded.get(child_id)
    # One that is here tells of its end, or makes this run look at it; unless it does so already, before this look.
    if state is None and (here is None or here.is_ending):
        keys = RunKeys(runtime.space, child_id)
        state = ending_in(await ask(activation, runtime.space.read(keys.state)), keys)
        state = activation.ended_children.pop(child_id, state)  # it may have ended here meanwhile
    return Wait(f"the child {child_id}", child=child_id, as_of=as_of) if state is None else state


def _note_end(activation: Activation, branch: Branch, operation: str, child_id: str, state: object) -> HistoryEvent:
    """Record how a child has ended; if the wait for it ended otherwise, raise that."""
    if branch.cancel is not None and not isinstance(state, RunState):
        activation.raise_cancel(branch, operation)
    if not isinstance(state, RunState):
        raise Unload
    failure, code = state.failure, activation.runtime.workflows.get((state.workflow, state.version))
    stopped = stop_of(child_id, state.status, state.cancel, None if code is None else code.timeout)
    if stopped is not None:
        failure = describe(stopped, activation.runtime.known)
    event = HistoryEvent("child_done", operation, activation.runtime.now(), state.result, failure, due=state.changed_at)
    activation.note(event)
    return event


# --- branches that run side by side: all of them to their end, or the first to end and the others cancelled --------


async def gather(activation: Activation, parent: Branch, works: list[Work], *, return_exceptions: bool) -> list[Any]:
    """Run all; return their results in the order given. The first that raises cancels the others."""
    group = Group(activation, parent, works)
    if not return_exceptions:
        group.on_end = group.cancel_others_if_raised
    await group.run()
    if return_exceptions:
        return [each.result if each.problem is None else each.problem for each in group.members]
    if group.first_raised is not None:
        raise group.first_raised
    return [each.result for each in group.members]


async def race(activation: Activation, parent: Branch, works: list[Work]) -> tuple[int, Any]:
    """Run all until one has ended; cancel the others, wait for their end, and return which one it was."""
    if not works:
        raise DeclarationError("ctx.race", "it has nothing to run; give it at least one coroutine")
    group = Group(activation, parent, works)
    group.on_end = group.cancel_others
    await group.run()
    winner = next((each for each in group.ended if not group.has_lost(each)), group.ended[0])
    if winner.problem is not None:
        raise winner.problem
    return group.members.index(winner), winner.result


BARE: Final[dict[CodeType, bool]] = {}
"""The code of operations of the context that can be branches by themselves, and whether they start a child."""

MOST_AT_WORK: Final = 500
"""How many branches that are operations are at work before the others begin more slowly."""

A_MOMENT: Final = 0.002
"""Seconds by which more slowly, for as many as begin in one turn of the event loop."""


def is_bare(work: Work) -> bool:
    """Return True if a branch is an operation of the context and nothing else."""
    return getattr(work, "cr_code", None) in BARE


def is_child(work: Work) -> bool:
    """Return True if a branch is nothing but a child."""
    return BARE.get(getattr(work, "cr_code", None) or is_child.__code__, False)


class Member:
    """One branch of a group, and how it ended."""

    __slots__ = ("branch", "problem", "result")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.result: Any = None
        self.problem: BaseException | None = None

    @property
    def is_unloaded(self) -> bool:
        """Whether it did not end but was taken off: the run is handed back while others of its steps come to an end."""
        return isinstance(self.problem, Unload)


class Group:
    """Branches that were started together. Their parent waits until all have ended."""

    def __init__(self, activation: Activation, parent: Branch, works: list[Work]) -> None:
        _check(works)
        path = parent.next_group()
        self._activation, self._parent, self._path = activation, parent, path
        works.reverse()
        self._works = works  # the first at the end: each is taken out when it begins, and not kept when it has ended
        self.members = [Member(Branch(f"{path}.{number}")) for number in range(len(works))]
        self.ended: list[Member] = []
        self.first_raised: BaseException | None = None
        self.on_end: Callable[[], None] = _nothing
        self._is_cancelling = False
        self._all_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run all branches to their end."""
        if not self.members:
            return
        activation, parent = self._activation, self._parent
        pending, parent.cancel = parent.cancel, None
        is_large, is_only = len(self.members) > A_SLICE, activation.branches.leaves == 1
        # All, before the first of them begins: an eager task does so when it is made.
        activation.branches.begin_group(parent, [member.branch for member in self.members])
        for member in self.members:
            member.branch.is_told = parent.is_told
            if pending is not None:
                member.branch.cancel = pending
        if is_large and activation.replay.is_over and all(map(is_bare, self._works)):
            await self._begin_by_and_by()
        elif is_large and is_only and activation.header.sliced:
            # Beside others it would be by chance what they do between two slices, and replay could not repeat it.
            await self._begin_in_slices()
        else:
            self._begin(len(self.members))
        try:
            await self._all_ended
        finally:
            activation.ending -= self._all_ended.done() and not self._all_ended.cancelled()
            self.on_end = _nothing  # which is a method of this group, and would keep it until garbage is collected
        if activation.is_unloading or any(member.is_unloaded for member in self.members):
            await unload_again(parent, activation.tell_swallowed)
        self._hand_up()

    def _begin(self, most: int) -> None:
        """Start the next branches, ``most`` of them at the most."""
        loop, begun = asyncio.get_running_loop(), len(self.members) - len(self._works)
        for member in self.members[begun : begun + most]:
            context = contextvars.copy_context()
            context.run(CURRENT.set, member.branch)
            member.branch.task = loop.create_task(self._run(member, self._works.pop()), context=context)

    async def _begin_in_slices(self) -> None:
        """Start all branches, some in each turn of the event loop; none goes on before all have come to an operation.

        So what the code before that sees of the other branches is the same whenever it is run.
        """
        activation = self._activation
        activation.pace.hold()
        try:
            while self._works:
                self._begin(A_SLICE)
                await asyncio.sleep(0)
        finally:
            self._close_rest()
            activation.pace.release()
        if activation.inbox.has_updates:
            activation.notify()  # they were not answered meanwhile

    async def _begin_by_and_by(self) -> None:
        """Start branches that are nothing but an operation each as fast as these can begin.

        No code of the user runs in them before that, so it makes no difference when they are started. Ten thousand
        that have not begun are ten thousand coroutines and no tasks.
        """
        activation, starts = self._activation, self._activation.runtime.child_starts
        try:
            while self._works:
                if not activation.is_unloading and is_child(self._works[-1]):
                    room = starts.begin()
                    try:
                        if room is not None:
                            await room
                    finally:
                        starts.end(room)
                elif activation.branches.active - len(self._works) > MOST_AT_WORK:
                    await asyncio.sleep(A_MOMENT)
                self._begin(MOST_IN_A_TURN)
                await asyncio.sleep(0)
        finally:
            self._close_rest()

    def _close_rest(self) -> None:
        for work in self._works:  # the event loop is being shut down
            work.close()

    def _hand_up(self) -> None:
        """Raise that more than this group is cancelled, if a branch let that pass; no branch is told twice of it.

        What a branch was to be told and was not, since it ended, its parent is told at its next operation.
        """
        parent, path = self._parent, self._path
        for member in self.members:
            untold = member.branch.cancel
            if untold is not None and untold.is_beyond(path) and (parent.cancel is None or untold.of_run):
                parent.cancel = untold
        for member in self.members:
            if isinstance(member.problem, RunCancelled) and member.problem.is_beyond(path):
                parent.is_told = parent.is_told or member.problem.of_run
                raise member.problem

    async def _run(self, member: Member, work: Work) -> None:
        member.branch.task = asyncio.current_task()
        try:
            member.result = await work
        except (KeyboardInterrupt, SystemExit) as problem:
            if is_from_signal(problem):
                raise
            member.problem = as_failure(problem)
        except BaseException as problem:  # noqa: BLE001 -- it is how the branch ended, and the parent raises it
            member.problem = problem
        finally:
            self._ended(member)

    def _ended(self, member: Member) -> None:
        self._activation.branches.end_member(self._parent, member.branch)
        member.branch.task = None  # which is not kept until all have ended
        self.ended.append(member)
        has_lost = self.has_lost(member)
        if member.problem is not None and self.first_raised is None and not member.is_unloaded and not has_lost:
            self.first_raised = member.problem
        if not self._activation.is_unloading and not member.is_unloaded and not has_lost:
            self.on_end()
        if len(self.ended) == len(self.members) and not self._all_ended.done():
            self._all_ended.set_result(None)
            self._activation.ending += 1
        else:
            self._activation.branch_ended()

    def has_lost(self, member: Member) -> bool:
        """Return True if another branch ended before this one, which was told so, in any order of replay."""
        problem = member.problem
        is_told = isinstance(problem, RunCancelled) and problem.group == self._path
        return is_told or self._path in member.branch.lost_in

    def cancel_others_if_raised(self) -> None:
        """Cancel the rest when one has raised."""
        if self.first_raised is not None:
            self.cancel_others()

    def cancel_others(self) -> None:
        """Cancel every branch of the group that has not ended, once, and the branches that they wait for."""
        if self._is_cancelling:
            return
        self._is_cancelling = True
        ended, group = {member.branch.path for member in self.ended}, f"{self._path}."
        for branch in tuple(self._activation.branches):
            # By the path of the branch, or of the one of this group that it was started by.
            is_in = branch.path.startswith(group) and (group + branch.path[len(group) :].partition("/")[0] not in ended)
            if is_in and not branch.children and not branch.is_told and self._path not in branch.lost_in:
                told = RunCancelled("another branch has ended first")
                told.group = self._path
                self._activation.cancel_branch(branch, told)


def _nothing() -> None:
    """Let the others go on."""


def _check(works: Sequence[Work]) -> None:
    for work in works:
        if not inspect.iscoroutine(work):
            for each in works:
                if inspect.iscoroutine(each):
                    each.close()
            kind = type(work).__name__
            raise DeclarationError(
                "ctx.gather and ctx.race",
                f"they take coroutines that were not started, ctx.gather(ctx.step(a), branch(ctx)); got a {kind}",
            )
