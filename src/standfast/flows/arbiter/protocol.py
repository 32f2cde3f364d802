"""The seam between dispatch and arbitration: a place in the line of a key, and what can be done with it.

    async with arbiter.hold(ask) as turn:        # waits for its turn; raises a typed error if it does not get one
        answer = await action(request)
        await turn.finish(ExtraChanges(keys, decide))  # final record and session state, as the line is left

There are two: :class:`~standfast.flows.arbiter.in_store.SharedArbiter`, whose lines lie in the store, and
:class:`~standfast.flows.arbiter.in_memory.LocalArbiter`, whose lines lie in the memory of the sole server. Dispatch
need not know which one it has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import ArbiterUnavailableError, StoreError
from standfast.flows.request import label_of
from standfast.locks.entry import ExtraChanges
from standfast.policies import DEFAULT, Join, Latest, Queue, Reject, Restart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from contextlib import AbstractAsyncContextManager

    from standfast.keys import RecordKey
    from standfast.policies import Allow, Batch, Debounce, Policy
    from standfast.workflows.records import Standing


# --- the seam between dispatch and arbitration: a place in the line of a key, and what can be done with it ---------

T = TypeVar("T")

Address: TypeAlias = tuple[str, ...]
"""Where the line of a key lies; it begins with :data:`KIND`. The tenant is a part of it."""


def unavailable(problem: Exception) -> ArbiterUnavailableError:
    """Return the error for callers if turns cannot be decided. It does not name the store."""
    kind = type(problem).__name__
    return ArbiterUnavailableError(f"the store fails ({kind})" if isinstance(problem, StoreError) else str(problem))


KIND: Final = "request"
"""The kind of such a line, and the first part of its address."""

SUPERSEDED_BY: Final = "superseded by "
"""How the reason begins with which a run is cancelled that was superseded; the id of the newer request follows."""

MOST_HANDED_OVER: Final = 100
"""The most requests whose inputs one gets that takes their place."""

Supersedes: TypeAlias = Literal["none", "waiting", "all"]
"""Whose place a newcomer takes, among requests of the same action: none, those that wait, or all."""


class OnServing(Protocol):
    """Told when this process is no longer the sole server, and when it is again."""

    def __call__(self, *, is_serving: bool) -> None:
        """Note which of the two it is."""
        ...


StopRun: TypeAlias = "Callable[[str, str], Awaitable[object]]"
"""Cancels a run of a workflow, given its id and a reason. Cancelling one that has ended does no harm."""


class QueueRules(Struct, frozen=True):
    """How a request behaves in a line; :func:`queue_rules_of` derives it from a policy.

    Attributes:
        waits: Whether to stand in line; otherwise it is refused while another one holds or waits.
        budget: How many seconds it waits for its turn; None: as long as it takes.
        most_waiting: How many may wait in the line before it; None: any number.
        supersedes: Whose place it takes. Requests of other actions are never superseded: it queues behind them.
        grace: How many seconds one that is superseded has to end, before its grant is revoked.
        joins: Whether to share the run in flight of the same action instead of standing in line.
    """

    waits: bool = True
    budget: float | None = 30.0
    most_waiting: int | None = 100
    supersedes: Supersedes = "none"
    grace: float = 5.0
    joins: bool = False


class Ask(Struct, frozen=True, kw_only=True):
    """A request that asks for its turn.

    Attributes:
        id: Its id. It is the ``owner`` of its entry in the line, and what a refused one is told.
        address: The line.
        action: Flow and action, as in ``"support-chat.respond"``: requests of the same one can be joined or superseded.
        rules: How it behaves.
        packed: Its inputs, for a request that supersedes it in this process.
        extra_changes: What to commit together with taking the place, decided by its position (0: it has its turn, 1: it
            is next, and so on): the request's record. Nothing is committed if it is refused.
        on_turn: What to commit together with its turn if it had to wait and this process passes the turn on to it,
            decided by the time of that: that its record says so.
        on_waiting: Called when it has to wait and its place is certain, with its position: 1 is the next one.
        on_stop: Called when it is asked to stop, before its task is cancelled.
        sharer: As whom it is counted within its tenant.
    """

    id: str
    address: Address
    action: str
    rules: QueueRules = QueueRules()
    packed: bytes = b""
    extra_changes: ExtraChanges[int] | None = None
    on_turn: ExtraChanges[Instant] | None = None
    on_waiting: Callable[[int], None] | None = None
    on_stop: Callable[[Stop], None] | None = None
    sharer: str = ""

    @property
    def label(self) -> str:
        """What the key is called for people."""
        return label_of(self.address)


class Stop(Struct, frozen=True):
    """Why a request is to stop.

    Attributes:
        by: The request that supersedes it; empty: it was cancelled.
        reason: Said to people.
        cancelled_by: Who asked for it, see :mod:`standfast.flows.view`.
    """

    by: str = ""
    reason: str = ""
    cancelled_by: str = ""


class Superseded(Struct, frozen=True):
    """A request whose place was taken. ``packed`` has its inputs if it was asked in this process; else see its record.

    It was asked to stop; only its record says if it had ended before that.
    """

    id: str
    packed: bytes | None = None


def handed_over(*superseded: Superseded) -> tuple[Superseded, ...]:
    """Return whose inputs a request gets, each once and the oldest first: of very many, the newest.

    A request that was superseded by one that is superseded in turn was never done either, so it is handed on.
    """
    return tuple({each.id: each for each in superseded}.values())[-MOST_HANDED_OVER:]


class RequestEntry(Struct, frozen=True):
    """One that stands in a line.

    Attributes:
        id: The request.
        action: Flow and action.
        since: Since when it has its turn, or waits; by the store's time.
        is_durable: Whether it is a run of a workflow, which goes on when its process dies.
    """

    id: str
    action: str
    since: Instant
    is_durable: bool = False


class LineStatus(Struct, frozen=True):
    """A line as it was seen.

    Attributes:
        holder: Who has its turn.
        waiters: Who waits, the next one first; of a long line the first hundred.
        waiting: How many wait in all, perhaps too many: some may just be leaving.
        pace: Seconds that a turn took lately, as a moving average; 0 if that is not known.
    """

    at: Instant
    holder: RequestEntry | None = None
    waiters: tuple[RequestEntry, ...] = ()
    waiting: int = 0
    pace: float = 0.0

    def position(self, request_id: str) -> int | None:
        """Return the place of a request: 0 has its turn, 1 is next; None: it is not there, or far back."""
        if self.holder is not None and self.holder.id == request_id:
            return 0
        return next((place for place, each in enumerate(self.waiters, 1) if each.id == request_id), None)

    def taken_over_by(self, request_id: str) -> LineStatus:
        """Return it without the waiters of the same action in front of a request that takes their places."""
        place = self.position(request_id)
        if not place:
            return self
        front, own = self.waiters[: place - 1], self.waiters[place - 1]
        left = tuple(each for each in front if each.action != own.action)
        gone = len(front) - len(left)
        return structs.replace(self, waiters=(*left, *self.waiters[place - 1 :]), waiting=self.waiting - gone)


class JoinsError(Exception):
    """The request is not run: another one of the same action is in flight, and it shares that one's result.

    Only raised by :meth:`Arbiter.hold`, and by :meth:`Arbiter.start` on a local one; caught by dispatch. Nothing was
    written. On a shared arbiter the start of a durable run answers with the run that it has joined.
    """

    def __init__(self, who: RequestEntry) -> None:
        super().__init__(who)
        self.who = who


class RequestTurn(Protocol):
    """A request's turn, as the body of ``async with arbiter.hold(ask) as turn`` sees it.

    When it is asked to stop, or its turn is lost because the store takes this process for dead, the task of the body
    is cancelled, and the block ends with :class:`~standfast.errors.RequestSupersededError`,
    :class:`~standfast.errors.RequestCancelledError` or :class:`~standfast.errors.RequestInterruptedError`.
    """

    @property
    def since(self) -> Instant:
        """Since when it has its turn, by the store's time (of the local arbiter: by this process's)."""
        ...

    @property
    def superseded(self) -> tuple[Superseded, ...]:
        """The requests that were asked to stop for this one, the oldest first."""
        ...

    @property
    def stop(self) -> Stop | None:
        """Why it is to stop, if it is."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it must commit nothing any more: it was asked to stop, or its turn is in other hands."""
        ...

    @property
    def is_noted(self) -> bool:
        """Whether :attr:`Ask.on_turn` was committed together with the turn."""
        ...

    def check(self) -> None:
        """Raise what the block would end with if it must commit nothing any more."""
        ...

    async def update(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        """Commit changes while it has its turn, and return the new versions; otherwise raise as :meth:`check` does."""
        ...

    async def finish(self, extra_changes: ExtraChanges[int] | None = None) -> None:
        """Leave the line, with final changes in the same commit. Nothing stops it from then on.

        Without it the line is left at the end of the block, with no changes. If it raises, nothing was committed, but
        for :class:`~standfast.errors.OutcomeUnknownError`. A durable run stays in the line until it ends.
        """
        ...

    def keep(self) -> None:
        """Keep the place of a durable run when the block is left: its step has failed, and is to be tried again."""
        ...


class Arbiter(Protocol):
    """Decides who has its turn. Use it as an async context manager while serving; outside of it, it refuses."""

    @property
    def is_shared(self) -> bool:
        """Whether its lines lie in the store, so that runs of workflows can stand in them."""
        ...

    def hold(self, ask: Ask) -> AbstractAsyncContextManager[RequestTurn]:
        """Wait for the request's turn, and have it for the length of the block.

        Raises:
            RequestRejectedError: Another request has the key, and it does not wait.
            QueueFullError: As many wait as may.
            QueueTimeoutError: Its turn did not come in time.
            RequestSupersededError: A newer one took its place, while it waited or ran.
            RequestCancelledError: It was asked to stop by :meth:`stop`.
            RequestInterruptedError: Its turn was lost while it ran.
            ArbiterUnavailableError: The store does not answer. It has not run.
            JoinsError: It shares the run of another one.
        """
        ...

    def standings(self, ask: Ask) -> tuple[Standing, ...]:
        """Return the lines that a durable run of this request stands in, for ``Workflow(..., standings=...)``."""
        ...

    async def start(self, ask: Ask, begin: Callable[[], Awaitable[T]]) -> T:
        """Start a durable run for a request: take its place, call ``begin`` and return what that returns.

        On a shared arbiter ``begin`` starts a run whose workflow computes its :meth:`standings`, so that place and run
        are one commit. On a local one the place is taken in memory and kept for :meth:`inside`; if ``begin`` fails it
        is given up. Raises as :meth:`hold` does, but for what happens after the start.
        """
        ...

    def inside(self, ask: Ask) -> AbstractAsyncContextManager[RequestTurn]:
        """Have the turn of a durable run in its step: the place that :meth:`start` took.

        On a local arbiter it waits for its turn here, without a budget; after a crash it takes a new place, or is
        superseded if a newer request has come by then that would have taken its place. On a shared one the run has its
        turn when its step runs, and leaves the line when it ends, not at the end of the block.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Give up the place of a durable run that has ended without its step: on a local arbiter nothing else would."""
        ...

    async def stop(self, address: Address, request_id: str, why: Stop) -> bool:
        """Ask a request to stop, wherever it waits or runs; return True if it is in the line.

        It never reaches another request: what is asked to stop is this entry in the line.
        """
        ...

    async def evict(self, address: Address, request_id: str) -> bool:
        """Take a request's place away at once; it can commit nothing from then on. Return True if it was there."""
        ...

    async def look(self, address: Address) -> LineStatus:
        """Say who has its turn and who waits. Nothing is changed by looking."""
        ...

    async def aclose(self) -> None:
        """Admit none any more, and let go of everything."""
        ...


# --- what each policy comes to in a line: a pure function of the policy --------------------------------------------

PATIENCE: Final = 30.0
"""Seconds that a request waits for its turn behind other actions, under a policy that is not about waiting."""

MOST_WAITING: Final = 100
"""How many wait for one key under such a policy."""


def _queued_as_long_as_it_takes(_policy: Allow | Debounce | Batch) -> QueueRules:
    """Return the rules of the policies that are left: a type checker refuses a new one that is not named above."""
    return QueueRules(budget=None, most_waiting=None)


@lru_cache(maxsize=1_000)
def queue_rules_of(policy: Policy, *, attended: bool = True) -> QueueRules:
    """Return how a request with this policy behaves in its line.

    Runs of the collecting policies (debounce, batch) stand in line like those of a queue, as long as it takes. So does
    one that was acknowledged and that no caller waits for, unless the action says how long: it was promised to run.
    """
    rules = _called_rules_of(policy)
    is_declared = isinstance(policy, Queue) and policy.timeout != DEFAULT
    return rules if attended or is_declared else structs.replace(rules, budget=None)


def _called_rules_of(policy: Policy) -> QueueRules:
    if isinstance(policy, Queue):
        declared = PATIENCE if policy.timeout == DEFAULT else cast("float | None", policy.timeout)
        return QueueRules(budget=declared, most_waiting=policy.max_waiting)
    if isinstance(policy, Reject):
        return QueueRules(waits=False)
    if isinstance(policy, Restart):
        grace = policy.grace
        return QueueRules(budget=PATIENCE + grace, most_waiting=MOST_WAITING, supersedes="all", grace=grace)
    if isinstance(policy, Join):
        return QueueRules(budget=PATIENCE, most_waiting=MOST_WAITING, joins=True)
    if isinstance(policy, Latest):
        return QueueRules(budget=None, most_waiting=None, supersedes="waiting")
    return _queued_as_long_as_it_takes(policy)
