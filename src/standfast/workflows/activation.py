"""A run in memory: its code and branches, how it is replayed, notified, cancelled and unloaded.

Each branch gets its recorded events in the order in which they were made; a lock that a branch relies on and has
lost is raised at its next operation, and recorded there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final

from msgspec import Raw, Struct

from standfast.clock import later
from standfast.errors import (
    LeaseLostError,
    NondeterminismError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from standfast.events import RunCodeDiffers, RunDeposed, StepArgumentsDiffer, UnloadSwallowed
from standfast.exits import as_failure, is_from_signal
from standfast.trace_context import RunTrace
from standfast.workflows.control import CANCELLED, RunCancelled, Unload, cancel_of, data_of, is_of_run, unload_again
from standfast.workflows.definition import CURRENT_STEP, INSIDE
from standfast.workflows.failures import describe, restore
from standfast.workflows.inbox import Inbox, InboxPoll
from standfast.workflows.journal import Claim, Journal, release_all
from standfast.workflows.records import HistoryEvent, effect_key
from standfast.workflows.replay import (
    ANYWHERE,
    CURRENT,
    LIVE,
    NOTHING,
    Branch,
    Branches,
    Mismatch,
    Replay,
    is_due,
    is_within,
    told_again,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator

    from standfast.clock import Instant
    from standfast.stores.protocol import Change, Conflict
    from standfast.workflows.definition import Workflow
    from standfast.workflows.journal import Held
    from standfast.workflows.records import Header, RunKeys, RunState
    from standfast.workflows.replay import Wait
    from standfast.workflows.runtime import Runtime


_log: Final = logging.getLogger("standfast.workflows")
T = TypeVar("T")


@final
class Activation:
    """One run in the memory of one engine. Without a claim it is a copy to look at: it stops where it would do more.

    It has slots because it has more attributes than the instances of a class share the names of, and what only some
    runs need is made when it is asked for: one of these is made for every run.
    """

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_awaiting",
        "_cancel_told",
        "_effect_prefix",
        "_inbox",
        "_is_over",
        "_over",
        "_pace",
        "_told_early",
        "_turns",
        "awaited",
        "branches",
        "cancel_is_raised",
        "claim",
        "context",
        "driven_at",
        "driven_by",
        "ended",
        "ended_children",
        "ending",
        "has_conflicted",
        "has_resumed",
        "header",
        "inbox_poll",
        "is_ending",
        "is_evicted",
        "is_gone",
        "is_handed_back",
        "is_stopping",
        "is_stuck",
        "is_unloading",
        "journal",
        "keys",
        "loop",
        "mismatch",
        "noted",
        "patches",
        "replay",
        "restored",
        "rings_at",
        "runtime",
        "state",
        "trace",
        "workflow",
    )

    def __init__(
        self,
        runtime: Runtime,
        keys: RunKeys,
        workflow: Workflow[..., Any],
        header: Header,
        state: RunState,
        claim: Claim | None,
        events: Iterable[HistoryEvent],
        arguments: Struct | None = None,
    ) -> None:
        self.runtime, self.keys, self.workflow, self.header, self.state = runtime, keys, workflow, header, state
        self.claim: Final = claim
        events = tuple(events)
        self.replay: Final = Replay(events) if events else NOTHING
        self.journal: Final = (
            None
            if claim is None
            else Journal(
                runtime.space, runtime.saw, keys, claim, len(events), runtime.driven(claim.presence, state.changed_at)
            )
        )
        self.branches: Final = Branches()
        self.ended_children: Final[dict[str, RunState]] = {}
        self.patches: Final[dict[str, bool]] = {}
        self.context: Any = None  # its Context, which its code is called with
        self.mismatch: NondeterminismError | None = None
        self.ended: RunState | None = None
        self.loop: Final = asyncio.get_running_loop()
        self.driven_by: asyncio.Task[None] | None = None
        self.driven_at = 0.0  # when its task began, by the loop's time
        self._over: asyncio.Future[RunState | None] | None = None
        self._awaiting: list[asyncio.Future[RunState | None]] = []
        self.is_unloading = self.is_evicted = self.is_stopping = self.is_handed_back = self.is_gone = False
        self.has_conflicted = self.is_stuck = self._is_over = False
        tracing, space = runtime.tracing, runtime.space
        self.trace: Final = (
            None
            if tracing is None or claim is None
            else RunTrace((space.namespace, space.tenant, keys.id, header.incarnation), header.trace)
        )
        self.noted: Final[list[HistoryEvent] | None] = None if self.trace is None else list(events)
        self.rings_at: Instant | None = None  # the next alarm that is set for it
        self.has_resumed = False  # its code is past what it did before it was loaded
        self.ending = 0  # how many groups have ended whose parents have not gone on yet
        self.awaited = 0  # how many are writing something that they tell this run, and not the store
        self.is_ending = False  # its end is being written: perhaps it is there already
        self._pace: BranchPace | None = None
        self._turns: Turns | None = None
        self._inbox: Inbox | None = None
        self.inbox_poll = InboxPoll(self)
        self.cancel_is_raised = bool(events) and any(event.kind == "cancelled" and is_of_run(event) for event in events)
        self._cancel_told = self.cancel_is_raised
        self._effect_prefix = ""
        self._told_early: RunCancelled | None = None
        self._arguments = arguments  # as its input is read, if that has been done already
        self.restored: list[Any] = []  # its result as it is read back, for the first caller that asks

    @property
    def pace(self) -> BranchPace:
        """Lets a few of its branches begin something at a time."""
        if self._pace is None:
            self._pace = BranchPace(self.branches)
        return self._pace

    @property
    def turns(self) -> Turns:
        """Which of its branches waits for its turn to resume."""
        if self._turns is None:
            self._turns = Turns(self)
        return self._turns

    @property
    def turn(self) -> Callable[..., Coroutine[Any, Any, HistoryEvent | None]]:
        """See :meth:`Turns.take`."""
        return self.turns.take

    @property
    def inbox(self) -> Inbox:
        """What was sent to it."""
        if self._inbox is None:
            self._inbox = Inbox(self)
        return self._inbox

    @property
    def is_repeating(self) -> bool:
        """Whether its code does what it did before: what it logs now was logged then.

        A run that was unloaded where it waited is replayed, and then comes to its wait once more.
        """
        if self.claim is None or not self.replay.is_over:
            return True
        return self.state.claims > 1 and not self.has_resumed

    @property
    def fence(self) -> int:
        """The version of the owner's grant; 0 for a copy."""
        return 0 if self.claim is None else self.claim.fence

    def effect_key(self, step_id: str) -> str:
        """Return the idempotency key of a step, whose id has its branch's path."""
        if not (prefix := self._effect_prefix):
            space = self.runtime.space
            prefix = effect_key(space.namespace, space.tenant, self.keys.id, self.header.incarnation, "")
            self._effect_prefix = prefix
        return prefix + step_id  # which is the last part of the key

    # --- its end -------------------------------------------------------------------------------------------------

    def until_over(self) -> asyncio.Future[RunState | None]:
        """Wait until it is no longer in memory; return its state if it has ended. Await it at once.

        Each caller has a future of its own: one that is cancelled must not cancel ``over``, and a shield around that
        would cost another future and another turn of the loop.
        """
        if self._is_over:
            return self.over
        own: asyncio.Future[RunState | None] = asyncio.Future(loop=self.loop)
        self._awaiting.append(own)
        return own

    @property
    def over(self) -> asyncio.Future[RunState | None]:
        """Done when it is no longer in memory, for all who ask; see :meth:`until_over`."""
        if self._over is None:
            self._over = self.loop.create_future()
            if self._is_over:
                self._over.set_result(self.ended)
        return self._over

    def finish(self) -> None:
        """Tell that it is no longer in memory."""
        if self._is_over:
            return
        self._is_over = True
        if self._over is not None and not self._over.done():
            self._over.set_result(self.ended)
        for each in self._awaiting:
            if not each.done():
                each.set_result(self.ended)
        self._awaiting.clear()

    # --- the history ---------------------------------------------------------------------------------------------

    def note(self, event: HistoryEvent, *extra_changes: Change) -> None:
        """Add an event to the history, and changes that belong into the commit that writes it."""
        if self.is_unloading or self.journal is None:
            raise Unload
        self.has_resumed = True
        if self.noted is not None:
            self.noted.append(event)
        self.journal.note(event, *extra_changes)
        self.runtime.dirty.add(self)

    def add_changes(self, *changes: Change) -> None:
        """Write changes with the next commit."""
        if self.journal is not None and not self.is_unloading:
            self.journal.add(*changes)
            self.runtime.dirty.add(self)

    async def flush(
        self, branch: Branch | None = None, operation_id: str = "", first: Awaitable[Conflict | None] | None = None
    ) -> None:
        """Make everything durable that was noted so far. Returns at once if there is nothing.

        For an operation that begins: raise there if a lock is lost that its branch relies on. That a lock was granted
        need not be durable then, as the grant is. ``first`` is a write that is on its way, of all that was noted.
        """
        journal = self.journal
        if journal is None:
            raise Unload
        try:
            write = journal.flush if branch is None else journal.flush_for_effect
            while True:
                try:
                    refused = await (first or write())
                except TRIED_AGAIN as problem:
                    refused = await insist(self, write, problem)
                if refused is None:
                    break
                first = None
                self.refused(refused)
        except StoreError:
            self.abandon()
            raise Unload from None
        if not journal.is_dirty:
            self.runtime.dirty.discard(self)
            if branch is None:
                self.note_idleness()  # it may have been idle all the while, but for this
        if branch is not None and branch.lost is not None:
            raise_lost(self, branch, operation_id)

    def refused(self, conflict: Conflict) -> None:
        """Find out why a guarded commit was refused. If locks are lost, those are told who rely on them."""
        is_evicted = self.claim is None or self.claim.key in conflict.current
        if is_evicted or not note_lost(self, conflict):
            self.drop(conflict)
            raise Unload

    def may_act_at_once(self, elapsed: Instant) -> bool:
        """Return True if :meth:`check_may_act` has nothing to wait for, and nothing to refuse."""
        claim = self.claim
        if claim is None or self.is_unloading or self.is_stopping:
            return False
        return self.runtime.may_act_at_once(claim.presence, elapsed)

    async def check_may_act(self, branch: Branch | None = None) -> None:
        """Refuse to begin an effect in a process that may be taken for dead by now; wait while that is not clear.

        A step of ``branch`` that was noted to begin, and runs at most once, is not kept back by an orderly stop: any
        other worker would have to take it for interrupted.
        """
        if not self.runtime.is_proven:
            await self.runtime.until_proven()
        if self.is_unloading or (self.is_stopping and not (branch is not None and branch.is_beginning)):
            raise Unload
        if self.runtime.is_torn_down():
            self.abandon()
            raise Unload
        if self.claim is None or not self.runtime.may_act(self.claim.presence):
            self.evict()
            raise Unload

    def is_torn_down(self, problem: BaseException | None) -> bool:
        """Return True if what was raised is that the event loop ends, and take the run off: that fails no run.

        Nothing of it is recorded. Whichever worker finds that this process is gone goes on from the records.
        """
        is_so = isinstance(problem, asyncio.CancelledError) and self.runtime.is_torn_down()
        if is_so:
            self.abandon()
        return is_so

    def is_live(self, branch: Branch) -> bool:
        """Tell at once that everything was replayed, and that there is nothing to tell the branch first."""
        return (
            (self.replay is NOTHING or self.replay.is_over)
            and branch.cancel is None
            and branch.lost is None
            and not self.is_unloading
            and not self.is_stopping
            and self.claim is not None
            and (self.branches.leaves <= MOST_IN_A_TURN if self._pace is None else self._pace.is_free())
        )

    # --- turns ---------------------------------------------------------------------------------------------------

    def branch_ended(self) -> None:
        """A branch has ended: those that are left may all be waiting now."""
        if self._turns is not None:
            self._turns.branch_ended()
        self.note_idleness()

    def differ(self, recorded: str, asked: str) -> None:
        """Leave the run alone: its code and its history do not fit."""
        if self.mismatch is None:
            self.mismatch = NondeterminismError(self.keys.id, recorded, asked)
            self.runtime.emit(
                RunCodeDiffers(at=self.runtime.clock.wall(), run=self.keys.id, recorded=recorded, asked=asked)
            )
        self.unload()

    def arguments_differ(self, step_id: str) -> None:
        """Tell that a recorded step is asked for with other arguments; if it is to be strict, leave the run alone."""
        if self.workflow.replay == "strict":
            self.differ(f"step {step_id!r}", f"step {step_id!r} with other arguments")
            raise Unload
        self.runtime.emit(StepArgumentsDiffer(at=self.runtime.clock.wall(), run=self.keys.id, step=step_id))

    # --- waiting -------------------------------------------------------------------------------------------------

    async def wait(self, branch: Branch, wait: Wait) -> object:
        """Let a branch wait. The run is unloaded if all its branches do for a while."""
        if self.is_unloading or self.is_stopping:
            raise Unload
        if branch.cancel is not None:  # it was told before there was a wait to end
            wait.settle(CANCELLED)
        self.branches.begin_wait(branch, wait)
        if wait.until is not None:
            self.runtime.alarm(wait.until, self)
        if wait.as_of is not None and (wait.as_of != self.inbox_poll.polls or self.inbox_poll.is_polling):
            self.notify()  # what it waits for may have come after the store was asked, and before it waited
        self.note_idleness()
        try:
            result = await wait.future
        except asyncio.CancelledError as problem:
            if self.is_torn_down(problem):
                raise Unload from None
            raise
        finally:
            self.branches.end_wait(branch, wait)
            self.runtime.idle.pop(self, None)
        if not self.pace.is_free():  # thousands may be told at once
            await self.pace.turn()
        return result

    def note_idleness(self) -> None:
        """Say that every branch waits, if that is so."""
        if self.is_idle and not self.is_unloading and self.claim is not None:
            self.runtime.idle.pop(self, None)
            self.runtime.idle[self] = self.runtime.clock.elapsed()  # they are in the order of time
            self.runtime.notify()

    @property
    def is_idle(self) -> bool:
        """Whether every branch waits, so that the run could be unloaded."""
        if self.journal is None or self.journal.is_flushing or self.awaited:
            return False
        return bool(self.branches) and not self.branches.active

    @property
    def waits(self) -> list[Wait]:
        """What its branches wait for."""
        return self.branches.waits

    def due_at(self) -> Instant | None:
        """Return when it has to be looked at again at the latest."""
        deadline = None if self._cancel_told else self.header.deadline
        return min((at for at in (self.branches.due_at(), deadline) if at is not None), default=None)

    def expire_waits(self, now: Instant, most: int) -> int:
        """Let those waits end whose time is over, ``most`` of them at the most; return how many it were."""
        if self.is_unloading:
            return 0
        count = self.branches.expire(now, most)
        deadline = self.header.deadline
        if deadline is not None and deadline <= now:
            self.cancel(RunCancelled("its time is over", timed_out=True))
        return count

    def check_predicates(self) -> None:
        """Let those waits end whose predicate is true now, or raises: that is for the code that waits."""
        for wait in self.branches.predicates:
            if wait.predicate is not None and is_due(wait.predicate):
                wait.settle(None)

    # --- being told ----------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Say that there is news for the run."""
        if not self.is_gone:
            self.inbox_poll.notify()

    def child_ended(self, child_id: str, state: RunState) -> None:
        """Tell the branch that waits for a child how it has ended; if it is about to wait, it finds it here."""
        wait = self.branches.children.get(child_id)
        if wait is None:
            self.ended_children[child_id] = state
        else:
            wait.settle(state)

    def cancel(self, cancel: RunCancelled) -> None:
        """Cancel the run: each branch is told where it waits, once."""
        if self._cancel_told or self.is_unloading:
            return
        if not self.branches:  # its code has not begun, and hears of it when it does
            self._told_early = cancel
            return
        self._cancel_told = True
        for branch in tuple(self.branches):
            if not branch.children:
                told = RunCancelled(cancel.reason, timed_out=cancel.timed_out)
                told.of_run = True
                self.cancel_branch(branch, told)

    @staticmethod
    def cancel_branch(branch: Branch, cancel: RunCancelled) -> None:
        """Cancel one branch, where it waits or at its next operation. That the run is cancelled counts for more."""
        if branch.cancel is None or not branch.cancel.of_run:
            branch.cancel = cancel
        if branch.wait is not None:
            branch.wait.settle(CANCELLED)
        branch.interrupt()

    def raise_cancel(self, branch: Branch, operation_id: str) -> None:
        """Raise what a branch is to be told, and record that it was told here."""
        cancel, branch.cancel = branch.cancel, None
        if cancel is None or self.is_unloading:
            raise Unload
        self.note(HistoryEvent("cancelled", operation_id, self.runtime.now(), Raw(data_of(cancel))))
        self.cancel_is_raised = self.cancel_is_raised or cancel.of_run
        branch.is_told = branch.is_told or cancel.of_run
        branch.lost_in |= {cancel.group}
        raise cancel

    # --- unloading -----------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """Stop at once: another worker drives the run."""
        if not self.is_evicted:
            self.is_evicted = True
            if self.ended is None:  # else it was this worker that gave up the grant, and a late write came after
                at = self.runtime.clock.wall()
                self.runtime.emit(RunDeposed(at=at, run=self.keys.id, workflow=self.workflow.name))
        self.unload()

    def drop(self, conflict: Conflict) -> None:
        """Stop at once: another worker drives the run, or its history is not what it is taken for here.

        In the second case the run is loaded again from its records, but not for ever: see ``is_stuck``.
        """
        if self.claim is None or self.journal is None or self.claim.key in conflict.current:
            self.evict()
            return
        if not self.has_conflicted:  # each of its branches may be refused
            self.has_conflicted, self.is_stuck = True, self.runtime.conflicted(self.keys.id, self.journal.written)
        self.abandon()

    def abandon(self) -> None:
        """Stop at once: it is not known what is written. The run is loaded again from its records."""
        self.is_evicted = True
        self.unload()

    def stop(self) -> None:
        """Begin nothing more: steps come to their end and are recorded, and what waits is taken off."""
        self.is_stopping = True
        for wait in self.waits:
            wait.interrupt(Unload())

    def unload(self) -> None:
        """Take the run's code off: whatever its branches do next raises, and nothing more is recorded.

        Of very many branches some are told in each turn of the event loop, which may be held up otherwise.
        """
        self.is_unloading = True
        self.runtime.dirty.discard(self)
        self.runtime.idle.pop(self, None)
        if self.branches:
            self._take_off(iter(tuple(self.branches)))
        if self._turns is not None:
            self._turns.unload()

    def let_go(self) -> None:
        """Part with what belongs to the run and knows it, now that it has ended: nothing asks for that any more.

        Without these circles it is freed at once, and not by the collector of garbage, which looks at everything else
        in the process meanwhile.
        """
        if self.ended is not None and not self.branches:
            self.is_gone, self.context = True, None
            self._turns = self._inbox = None
            del self.inbox_poll

    def _take_off(self, branches: Iterator[Branch]) -> None:
        for branch in islice(branches, A_SLICE):
            if branch.wait is not None:
                branch.wait.interrupt(Unload())
            branch.interrupt()
        if (following := next(branches, None)) is not None:
            asyncio.get_running_loop().call_soon(self._take_off, chain((following,), branches))

    def tell_swallowed(self) -> None:
        """Tell that the run's code catches what takes it off."""
        at = self.runtime.clock.wall()
        self.runtime.emit(UnloadSwallowed(at=at, run=self.keys.id, workflow=self.workflow.name))

    async def run_code(self) -> tuple[str, Any]:
        """Run the workflow's function; return how it ended: ``returned``, ``raised`` or ``unloaded``, and with what."""
        branch = Branch("")
        branch.task = asyncio.current_task(self.loop)
        self.branches.add(branch)
        if self._told_early is not None:
            self.cancel(self._told_early)
        tokens = CURRENT.set(branch), INSIDE.set(True), CURRENT_STEP.set(None)  # it may have been started in a step
        signature, restored, self._arguments = self.workflow.signature, self._arguments, None
        args, kwargs = signature.unpack(self.header.input) if restored is None else signature.spread(restored)
        if self.claim is not None and not self.claim.is_first:  # it was driven before, or waited
            self.notify()  # there may be news that was not looked at
        if self.header.deadline is not None:
            self.runtime.alarm(self.header.deadline, self)
        tracing = None if self.trace is None else self.runtime.tracing
        traced = None if tracing is None or self.trace is None else tracing.enter_run(self.trace, self.keys.id)
        how: tuple[str, Any]
        try:
            how = "returned", await self.workflow.function(self.context, *args, **kwargs)
        except (KeyboardInterrupt, SystemExit) as problem:
            if is_from_signal(problem):
                raise
            how = "raised", as_failure(problem)
        except BaseException as problem:  # noqa: BLE001 -- whatever it is, it is how the run ended
            how = "raised", problem
        finally:
            self.branches.remove(branch)
            CURRENT.reset(tokens[0])
            INSIDE.reset(tokens[1])
            CURRENT_STEP.reset(tokens[2])
            if tracing is not None:
                tracing.leave(traced)
        is_plain = how[0] == "returned" and self.replay is NOTHING and not self.is_unloading
        return how if is_plain else self._seen_whole(how)

    def _seen_whole(self, how: tuple[str, Any]) -> tuple[str, Any]:
        if how[0] == "raised":
            self.is_torn_down(how[1])
            if isinstance(how[1], Unload):
                self.unload()
                return "unloaded", None
        if self.is_unloading:
            if not isinstance(how[1], asyncio.CancelledError):
                self.tell_swallowed()
            return "unloaded", None
        while self.replay.from_outside is not None:
            self.turns.pass_by()  # what came after its last operation
        if not self.replay.is_over:
            self.differ(self.replay.left_over(), "the end of the run")
            return "unloaded", None
        return how


def note_lost(activation: Activation, conflict: Conflict) -> bool:
    """Tell the branches whose locks were in the way of a commit; return True if there is one."""
    holds = {} if activation.journal is None else activation.journal.holds
    found = False
    for key, held in tuple(holds.items()):
        is_over = held.ends_at is not None and held.ends_at <= conflict.at
        if is_over or key in conflict.current:
            del holds[key]
            found = True
            _tell(activation, held, "its max_hold is over" if is_over else "it was released by force")
    return found


def _tell(activation: Activation, held: Held, reason: str) -> None:
    for branch in activation.branches:
        if is_within(branch.path, held.path):
            branch.lost = branch.lost or LeaseLostError(held.name, held.fence, reason)


def raise_lost(activation: Activation, branch: Branch, operation_id: str) -> NoReturn:
    """Raise that a lock is lost, and record that it was raised here."""
    lost, branch.lost = branch.lost, None
    if lost is None or activation.is_unloading:
        raise Unload
    failure = describe(lost, activation.runtime.known)
    activation.note(HistoryEvent("lost", operation_id, activation.runtime.now(), failure=failure))
    raise lost


def lost_again(activation: Activation, event: HistoryEvent) -> Exception:
    """Return what was raised, and rely on that lock no longer."""
    if event.failure is None:
        return LeaseLostError("a lock", 0, "no reason was recorded")
    lost = restore(event.failure, activation.runtime.known)
    if isinstance(lost, LeaseLostError) and activation.journal is not None:
        holds = activation.journal.holds
        for key in [key for key, held in holds.items() if (held.name, held.fence) == (lost.key, lost.fence)]:
            del holds[key]
    return lost


MOST_IN_A_TURN: Final = 32
"""How many branches of one run begin an operation in one turn of the event loop."""

A_SLICE: Final = 128
"""How many branches of one run are started, or told something, in one turn of the event loop."""


@final
class BranchPace:
    """Lets a few branches of a run begin something in a turn of the event loop, in the order in which they come.

    Thousands of them would otherwise go on in one turn, and hold up every other run of the process meanwhile.

    Attributes:
        is_held: No branch begins anything: a group is being started, in slices.
    """

    __slots__ = ("_begun", "_branches", "_is_due", "_waiting", "is_held")

    def __init__(self, branches: Branches) -> None:
        self._branches: Final = branches
        self._begun = 0
        self._is_due = self.is_held = False
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()

    def is_free(self) -> bool:
        """Return True if a branch may begin something at once; it then counts as begun."""
        if self._waiting or self.is_held:
            return False
        if self._branches.leaves <= MOST_IN_A_TURN:
            return True
        if self._begun >= MOST_IN_A_TURN:
            return False
        self._begun += 1
        self._set_turn()
        return True

    def turn(self) -> asyncio.Future[None]:
        """Return what to wait for: a turn of the loop in which there is room."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._set_turn()
        return future

    def hold(self) -> None:
        """Let no branch begin anything until :meth:`release`."""
        self.is_held = True

    def release(self) -> None:
        """Let those begin that wait."""
        self.is_held = False
        if self._waiting:
            self._set_turn()

    def _set_turn(self) -> None:
        if not self._is_due and not self.is_held:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._begun, self._is_due = 0, False
        if self.is_held:
            return
        while self._waiting and self._begun < MOST_IN_A_TURN:
            if not (first := self._waiting.popleft()).done():
                first.set_result(None)
                self._begun += 1
        if self._begun:
            self._set_turn()


@final
class Turns:
    """Who of a run's branches waits for its turn to resume."""

    __slots__ = ("_activation", "_waiting")

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._waiting: Final[dict[str, asyncio.Future[None]]] = {}

    async def take(  # noqa: C901 -- one loop, which asks again after each wait
        self, branch: Branch, kinds: Collection[str], operation_id: str, *, is_leaving: bool = False
    ) -> HistoryEvent | None:
        """Return the event of an operation when it is its turn to be replayed; None if it is to be done now.

        A branch that is leaving something does so whatever it is to be told; it is told at its next operation.
        """
        activation = self._activation
        if has_waited := activation.pace.is_held:
            await activation.pace.turn()
        while True:
            if activation.is_unloading:
                await unload_again(branch, activation.tell_swallowed)
            if activation.ending and not activation.replay.is_over:
                await asyncio.sleep(0)  # what the event before led to comes before this one, as it did when it was made
                continue
            found = activation.replay.ask(branch.path, kinds, operation_id)
            if type(found) is HistoryEvent:
                self.note_resumed()
                if found.kind == "cancelled":
                    raise told_again(branch, cancel_of(found))
                if found.kind == ANYWHERE:
                    raise lost_again(activation, found)
                return found
            if found is LIVE:
                if activation.is_stopping or activation.claim is None:
                    await unload_again(branch, activation.tell_swallowed)
                if not has_waited and not activation.pace.is_free():
                    await activation.pace.turn()
                    has_waited = True
                    continue
                if not is_leaving:
                    self._tell(branch, operation_id)
                return None
            if type(found) is Mismatch:
                activation.differ(found.recorded, found.asked)
                raise Unload
            await self._wait(branch, operation_id)

    def _tell(self, branch: Branch, operation_id: str) -> None:
        """Raise what a branch is to be told where it begins an operation."""
        if branch.cancel is not None:
            self._activation.raise_cancel(branch, operation_id)
        if branch.lost is not None:
            raise_lost(self._activation, branch, operation_id)

    async def _wait(self, branch: Branch, operation_id: str) -> None:
        activation, loop = self._activation, asyncio.get_running_loop()
        future = self._waiting[branch.path] = loop.create_future()
        try:
            if activation.replay.from_outside is not None:
                loop.call_soon(self.pass_by)
            if self._is_stalled():
                activation.differ(activation.replay.left_over(), f"nothing there, but {operation_id!r}")
                raise Unload
            await future
        finally:
            self._waiting.pop(branch.path, None)

    def _is_stalled(self) -> bool:
        """Return True if no branch is left that could take the event whose turn it is."""
        replay, waiting = self._activation.replay, self._waiting
        if replay.is_over or replay.from_outside is not None or replay.next_branch in waiting:
            return False
        branches = self._activation.branches
        if len(waiting) < branches.leaves:  # told at once, however many there are
            return False
        return all(branch.path in waiting for branch in branches if not branch.children)

    def branch_ended(self) -> None:
        """A branch has ended: those that are left may all be waiting now."""
        if self._waiting and self._is_stalled():
            self._activation.differ(self._activation.replay.left_over(), "nothing there: the branch has ended")

    def note_resumed(self) -> None:
        """An event was taken: let the next branch have its turn, once the code that took this one waits again."""
        replay = self._activation.replay
        if replay.from_outside is not None:
            asyncio.get_running_loop().call_soon(self.pass_by)
        elif replay.is_over:
            release_all(iter(tuple(self._waiting.values())))
            if self._activation.inbox.has_updates:
                self._activation.notify()
        elif (next_one := self._waiting.get(replay.next_branch or "")) is not None and not next_one.done():
            next_one.set_result(None)

    def pass_by(self) -> None:
        """Do again what came from outside at this place of the history."""
        activation = self._activation
        event = activation.replay.from_outside
        if event is not None and not activation.is_unloading:
            activation.inbox.replay_update(event)
            activation.replay.pass_by()
            self.note_resumed()
            activation.check_predicates()

    def unload(self) -> None:
        """Let the branches that wait know that the run is unloaded."""
        for future in tuple(self._waiting.values()):
            if not future.done():
                future.set_exception(Unload())
                future.exception()  # the branch that waits for it may have gone


AGAIN_AFTER: Final = 0.05
"""Seconds between two tries."""

TRIED_AGAIN: Final = (OutcomeUnknownError, StoreBusyError, StoreUnavailableError)
"""How a store fails that may do better the next time."""


async def insist(activation: Activation, write: Callable[[], Awaitable[T]], problem: StoreError | None = None) -> T:
    """Write for a run; try again if the store fails, for as long as this process is taken for alive.

    Args:
        activation: The run.
        write: Writes. It must be refused if it was written before, as everything is that adds to a history.
        problem: What the first try has failed with, if the caller has tried already.
    """
    runtime, claim = activation.runtime, activation.claim
    gives_up_at = later(runtime.clock.elapsed(), runtime.space.lease)
    try:
        while True:
            if problem is not None:
                is_in_time = runtime.clock.elapsed() < gives_up_at
                may_go_on = claim is not None and runtime.may_act(claim.presence) and is_in_time
                if activation.is_unloading or not may_go_on:
                    raise problem
                await asyncio.sleep(AGAIN_AFTER)
            try:
                return await write()
            except TRIED_AGAIN as failed:
                problem = failed
    finally:
        del problem  # whose traceback knows this frame
