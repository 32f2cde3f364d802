"""Branches that run side by side: all of them to their end, or the first to end and the others cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import TYPE_CHECKING, Any

from standfast.errors import InvalidWorkflowError
from standfast.workflows.running.branches import CURRENT, Branch
from standfast.workflows.running.control import RunCancelled, Unload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from standfast.workflows.running.activation import Activation

    Work = Coroutine[Any, Any, Any]


async def gather(
    activation: Activation, parent: Branch, works: Sequence[Work], *, return_exceptions: bool
) -> list[Any]:
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


async def race(activation: Activation, parent: Branch, works: Sequence[Work]) -> tuple[int, Any]:
    """Run all until one has ended; cancel the others, wait for their end, and return which one it was."""
    if not works:
        raise InvalidWorkflowError("ctx.race", "nobody runs; give it at least one coroutine")
    group = Group(activation, parent, works)
    group.on_end = group.cancel_others
    await group.run()
    winner = next((each for each in group.ended if not group.has_lost(each)), group.ended[0])
    if winner.problem is not None:
        raise winner.problem
    return group.members.index(winner), winner.result


class Member:
    """One branch of a group, and how it ended."""

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

    def __init__(self, activation: Activation, parent: Branch, works: Sequence[Work]) -> None:
        _check(works)
        path = parent.next_group()
        self._activation, self._parent, self._works, self._path = activation, parent, works, path
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
        parent.children += len(self.members)
        pending, parent.cancel = parent.cancel, None
        for member in self.members:  # all, before the first of them begins: an eager task does so when it is made
            activation.branches.append(member.branch)
            member.branch.is_told = parent.is_told
            if pending is not None:
                member.branch.cancel = pending
        for member, work in zip(self.members, self._works, strict=True):
            context = contextvars.copy_context()
            context.run(CURRENT.set, member.branch)
            loop = asyncio.get_running_loop()
            member.branch.task = loop.create_task(self._run(member, work), context=context)
        try:
            await self._all_ended
        finally:
            activation.ending -= self._all_ended.done() and not self._all_ended.cancelled()
        if activation.is_unloading or any(member.is_unloaded for member in self.members):
            raise Unload
        self._hand_up()

    def _hand_up(self) -> None:
        """Raise that more than this group is cancelled, if a branch let that pass; nobody is told twice of it.

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
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # noqa: BLE001 -- it is how the branch ended, and the parent raises it
            member.problem = problem
        finally:
            self._ended(member)

    def _ended(self, member: Member) -> None:
        self._activation.branches.remove(member.branch)
        self._parent.children -= 1
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
            self._activation.someone_ended()

    def has_lost(self, member: Member) -> bool:
        """Tell whether another branch ended before this one, which was told so, in whatever order they are replayed."""
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
        paths = [member.branch.path for member in self.members if member not in self.ended]
        for branch in tuple(self._activation.branches):
            is_in = any(branch.path == path or branch.path.startswith(f"{path}/") for path in paths)
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
            raise InvalidWorkflowError(
                "ctx.gather and ctx.race",
                f"they take coroutines that nobody has started, ctx.gather(ctx.step(a), branch(ctx)); got a {kind}",
            )
