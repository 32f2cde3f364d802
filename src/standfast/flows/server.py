"""One server of requests: what they need of the process that they run in."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.clock import Instant, later, seconds_between
from standfast.errors import ForbiddenError, RequestNotFoundError, RunNotFoundError, RunUnfinishedError, StandfastError
from standfast.events import RequestDecided, RequestEnded
from standfast.flows.arbiter.entries import WatchedProcesses
from standfast.flows.concurrency_limits import ConcurrencyLimits
from standfast.flows.inline import EndedRequest, InlineRequest
from standfast.flows.records import (
    CANCEL_FOR,
    CANCELS,
    KEPT,
    SESSION_KEPT,
    SUPERSEDING,
    CancelRecord,
    RequestKeys,
    tenant_in,
)
from standfast.flows.request import RequestExplanation, label_of
from standfast.flows.request_list import UnseenEnds, index_existing, settle_interrupted
from standfast.flows.tenants import Owners, TenantLimits, Tenants
from standfast.flows.view import QUARANTINED, look, settle
from standfast.locks.heartbeat import remove
from standfast.log_budget import LogBudget
from standfast.scope import read_present
from standfast.space import lines_of
from standfast.stores.protocol import Conflict, Decision, Put, Wake
from standfast.trace_context import read_stored
from standfast.workflows.records import ENDED, RUN_STATES, RunKeys
from standfast.workflows.retention import purge
from standfast.workflows.worker import tell_waits

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Coroutine, Mapping

    from standfast.errors import FlowError
    from standfast.events import Verdict
    from standfast.flows.arbiter.protocol import Arbiter, RequestEntry
    from standfast.flows.deadlock import ChainSigner
    from standfast.flows.flow import Action
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Call
    from standfast.flows.view import RequestView
    from standfast.keys import RecordKey
    from standfast.locks.entry import ExtraChanges
    from standfast.locks.heartbeat import Presence
    from standfast.log_hook import Fact
    from standfast.scope import Scope
    from standfast.space import Space
    from standfast.stores.protocol import Snapshot, Watch
    from standfast.trace_context import RunTracing
    from standfast.workflows.engine import Engine
    from standfast.workflows.failures import KnownErrors
    from standfast.workflows.queries import RunInfo


# --- requests that have ended here and lie nowhere else: kept in mind for a while, as far as there is room ---------

REMEMBERED: Final = 10_000
"""How many requests that have ended here are kept in mind, besides those that lie in the store."""

ROOM: Final = 64_000_000
"""Bytes of results and events, as JSON, that are kept of all of them together."""

LIGHT: Final = 4_000
"""Bytes of a result up to which it is not weighed: a great number of them has room."""


@final
class EndedRequests:
    """What is kept in mind. The oldest are forgotten first, among those that were asked about, and the others.

    Nearly all are never asked about: they are put in order only if one is asked about.
    """

    def __init__(self) -> None:
        self._new: Final[deque[EndedRequest]] = deque(maxlen=REMEMBERED)
        self._known: Final[OrderedDict[str, InlineRequest | EndedRequest]] = OrderedDict()
        self._weights: Final[dict[str, int]] = {}  # of those that are heavy
        self._weight = 0

    def add(self, attended: InlineRequest) -> None:
        """Keep one in mind."""
        kept = attended.in_brief()
        if isinstance(kept, EndedRequest) and len(kept.packed) <= LIGHT:
            self._new.append(kept)
            return
        weight = len(kept.packed) if isinstance(kept, EndedRequest) else kept.weight
        self._put_in_order()
        if weight > LIGHT:
            self._weights[kept.id] = weight
            self._weight += weight
        self._put(kept)

    def get(self, request_id: str) -> InlineRequest | EndedRequest | None:
        """Return one that is kept in mind."""
        self._put_in_order()
        return self._known.get(request_id)

    def replace(self, attended: InlineRequest) -> None:
        """Keep more of one in mind from now on: it was asked for."""
        self._known[attended.id] = attended

    def forget(self, now: Instant) -> None:
        """Forget what has ended too long ago."""
        while self._known and _is_long_ago(next(iter(self._known.values())), now):
            self._drop()
        while self._new and _is_long_ago(self._new[0], now):
            self._new.popleft()

    def _put_in_order(self) -> None:
        while self._new:
            self._put(self._new.popleft())

    def _put(self, kept: InlineRequest | EndedRequest) -> None:
        self._known[kept.id] = kept
        while len(self._known) > REMEMBERED or self._weight > ROOM:
            self._drop()

    def _drop(self) -> None:
        request_id, _ = self._known.popitem(last=False)
        self._weight -= self._weights.pop(request_id, 0)


def _is_long_ago(kept: InlineRequest | EndedRequest, now: Instant) -> bool:
    return seconds_between(kept.ended_at, now) > KEPT


# --- one server of requests: what they need of the process that they run in ----------------------------------------

_log: Final = logging.getLogger("standfast.flows")

_REFUSED: Final = "__standfast_refused__"
"""What an error is marked with that the log tells of as a refusal: it may pass here twice on its way to the caller."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks for what hints may have missed."""

PATIENCE: Final = 5.0
"""Seconds that requests have at the end which do not stop when they are asked to. Then they are abandoned."""


@final
class RequestServer:
    """What requests need of the process that they run in.

    Attributes:
        engine: Drives the durable ones.
        space: Where everything lies.
        arbiter: Says who has its turn.
        chains: Signs keys that go to other processes, and knows them again.
        now: Returns the store's time, as near as this process can tell without asking.
        limits: Those of actions.
        tenants: What each tenant has, and may have.
        owners: Who has which session.
        tells: A hook wants to hear of every request.
        requests: Those that run here, by their ids.
        is_closing: Nothing more is tried again.
    """

    def __init__(
        self,
        engine: Engine,
        arbiter: Arbiter,
        chains: ChainSigner,
        tenants: TenantLimits = TenantLimits(),  # noqa: B008 -- it does not change
    ) -> None:
        self.engine, self.arbiter, self.chains = engine, arbiter, chains
        self.space: Final[Space] = engine.space
        self.tenants: Final = Tenants(engine.space, tenants)
        self.owners: Final = Owners(engine.space, tenants.session_kept)
        self.limits: Final = ConcurrencyLimits(engine.space, is_shared=arbiter.is_shared)
        self._runtime: Final = engine.runtime
        self._heartbeat: Final = lines_of(self.space).heartbeat
        self._presence: Presence | None = None
        self._joining: Final = asyncio.Lock()
        self.now: Final = self._runtime.now
        hooks = self._runtime.hooks
        self.tells: Final = hooks.want(RequestDecided) or hooks.want(RequestEnded)
        self.requests: Final[dict[str, InlineRequest]] = {}
        self._ended: Final = EndedRequests()
        self._refusals: Final = LogBudget(_log)
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._listening: asyncio.Task[None] | None = None
        self.is_closing = False

    @property
    def name(self) -> str:
        """Where news for this process is sent."""
        return self.space.presence_name

    @property
    def known(self) -> KnownErrors:
        """The exceptions that come back as themselves."""
        return self._runtime.known

    def trace_of(self, arrival: Call) -> str:
        """Return the trace context that is stored with the run of a durable request."""
        tracing = self._runtime.tracing
        if tracing is None or read_stored(arrival.trace) is not None:
            return arrival.trace
        caller = tracing.current()
        return "" if caller is None else caller.stored

    @property
    def tracing(self) -> RunTracing | None:
        """What traces requests; None: nothing does."""
        return self._runtime.tracing

    def log_refusal(self, arrival: Call, problem: FlowError, request_id: str = "") -> None:
        """Write that a request was refused, once: that its caller may not ask it as a warning, all else as information.

        Over HTTP, what a caller may not ask is logged with the caller's address, where that is known.
        """
        is_forbidden = isinstance(problem, ForbiddenError)
        if _REFUSED in problem.__dict__ or (is_forbidden and arrival.transport == "http"):
            return
        problem.__dict__[_REFUSED] = True
        facts: dict[str, Fact] = {"action": f"{arrival.flow}.{arrival.action}", "reason": type(problem).__name__}
        if request_id:
            facts["request"] = request_id
        if is_forbidden:
            facts |= {"transport": arrival.transport, "tenant": arrival.tenant, "user": arrival.user}
            self._refusals.warning("request-forbidden", **facts)
        else:
            self._refusals.info("request-refused", **facts)

    def tell_waits(self, grace: float) -> None:
        """Tell which requests are waited for when this server stops; also when its engine is closed already."""
        under_way = [f"{attended.id} ({attended.action.name})" for attended in self.unfinished]
        tell_waits(self._runtime.hooks, self._runtime.clock, under_way, grace)

    # --- telling hooks, where ``tells`` --------------------------------------------------------------------------

    def tell_decided(
        self, request_id: str, action: Action[..., Any], verdict: Verdict, taken: float, reason: str = ""
    ) -> None:
        """Tell what was decided about a request, and how many seconds that took."""
        self._runtime.emit(
            RequestDecided(
                at=self._runtime.clock.wall(),
                request=request_id,
                action=f"{action.flow}.{action.name}",
                flow=action.flow,
                name=action.name,
                policy=action.policy.name,
                verdict=verdict,
                seconds=taken,
                reason=reason,
            )
        )

    def tell_ended(self, request_id: str, action: Action[..., Any], record: RequestRecord) -> None:
        """Tell how a request ended that ran here."""
        began = record.started_at or record.ended_at
        self._runtime.emit(
            RequestEnded(
                at=self._runtime.clock.wall(),
                request=request_id,
                action=f"{action.flow}.{action.name}",
                flow=action.flow,
                name=action.name,
                policy=action.policy.name,
                outcome=record.status,
                waited=max(0.0, seconds_between(record.received_at, began)),
                ran=max(0.0, seconds_between(began, record.ended_at)),
                durable=record.durable,
                attempt=record.attempt,
                superseded=record.superseded,
            )
        )

    # --- being alive ---------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """Make sure that others can see that this process lives."""
        if self._presence is not None and self._presence.left() > 0:
            return
        async with self._joining:
            if self._presence is None or self._presence.left() <= 0:
                if self._presence is not None:
                    self._heartbeat.leave(self._presence)
                self._presence = await self._heartbeat.join(self.space.lease)

    @property
    def owner(self) -> str:
        """The name of the presence that requests with a record hang on."""
        return "" if self._presence is None else self._presence.name

    @property
    def presence_key(self) -> RecordKey:
        """Where that lies."""
        opening, _, number = self.owner.rpartition(".")
        return self.space.key("presence", opening, number)

    # --- the store -----------------------------------------------------------------------------------------------

    async def update(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        """Commit changes that depend on no turn."""

        def decide(seen: Snapshot) -> Decision[None]:
            return Decision(None, tuple(extra_changes.decide(0, seen)))

        return (await self.space.update(extra_changes.keys, decide)).versions

    async def look(self, keys: RequestKeys) -> RequestView:
        """Return how a request is.

        Raises:
            RequestNotFoundError: The tenant has no such request.
        """
        view = await look(self.space, keys)
        if self.arbiter.is_shared or view.status != "running":
            return view
        if keys.id not in self.limits.waiting:
            if not view.record.address:
                return view
            queue = await self.arbiter.look(view.record.address)  # its step waits for the turn that the run does not
            if not queue.position(keys.id):
                return view
        return structs.replace(view, record=structs.replace(view.record, status="waiting", started_at=Instant(0)))

    async def explain(self, request_id: str, record: RequestRecord) -> RequestExplanation | None:
        """Say why a request waits: who has its key, since when, and its place; None: it needs no turn."""
        if record.reason == QUARANTINED:
            key = label_of(record.address) if record.address else "its run"
            return RequestExplanation(key=key, policy=record.policy, holder=request_id, holder_status="quarantined")
        at_a_limit = self.limits.explain(request_id)
        if at_a_limit is not None or not record.address:
            return at_a_limit
        queue = await self.arbiter.look(record.address)
        if record.policy in SUPERSEDING:
            queue = queue.taken_over_by(request_id)
        place, holder = queue.position(request_id), queue.holder
        own = holder is not None and holder.id == request_id
        doing = "" if holder is None or own else await self._doing(holder)
        return RequestExplanation(
            key=label_of(record.address),
            policy=record.policy,
            holder="" if holder is None or own else holder.id,
            holder_action="" if holder is None or own else holder.action,
            holder_status=doing,
            since=Instant(0) if holder is None else holder.since,
            position=None if not place else place - 1,
            waiting=queue.waiting,
        )

    async def _doing(self, holder: RequestEntry) -> str:
        """Say what the one does that has a key. A run keeps its place in the store also while no worker drives it."""
        if not holder.is_durable or not self.arbiter.is_shared:
            return "running"
        key = RunKeys(self.space, holder.id).state
        life = (await self.space.read(key)).get(key)
        return "running" if life is None or RUN_STATES.decode(life.value).status != "quarantined" else "quarantined"

    # --- the requests that run here --------------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something to its end, also if its caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def take(self, attended: InlineRequest) -> asyncio.Future[int]:
        """Run a request here; return what is done once it is certain that it is taken on."""
        self.requests[attended.id] = attended
        task, entered = attended.begin()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self.gone(attended))
        return entered

    def gone(self, attended: InlineRequest) -> None:
        """Note that a request has ended; if it is not in the store, it is kept in memory for a while."""
        del self.requests[attended.id]
        if self.tells and attended.is_entered:
            self.tell_ended(attended.id, attended.action, attended.shown())
        if attended.is_stored or not attended.is_entered:
            return  # it lies in the store, or was never taken on
        self._ended.add(attended)

    def find(self, tenant: str, request_id: str) -> InlineRequest | None:
        """Return a request of a tenant that runs here, or has ended here and lies nowhere else."""
        self._ended.forget(self.now())
        found = self.requests.get(request_id) or self._ended.get(request_id)
        if found is None or found.principal.tenant != tenant:
            return None
        if isinstance(found, EndedRequest):
            found = InlineRequest.again(self, found)
            self._ended.replace(found)
        return found

    @property
    def unfinished(self) -> tuple[InlineRequest, ...]:
        """The requests that run here."""
        return tuple(self.requests.values())

    # --- requests that run elsewhere ---------------------------------------------------------------------------------

    async def stop_elsewhere(self, keys: RequestKeys, server: str, why: CancelRecord) -> None:
        """Ask the server that runs a request to stop it."""
        put = Put(keys.cancel, CANCELS.encode(why), expires_at=later(self.now(), CANCEL_FOR))
        answer = await self.space.commit(put, wake=(Wake(self._mailbox(server), keys.cancel),))
        assert isinstance(answer, Conflict) or answer.versions  # noqa: S101 -- a conflict: it was asked before

    def _mailbox(self, server: str) -> RecordKey:
        return self.space.key("server", server)

    async def listen(self) -> None:
        """Listen from now on for what other servers ask of this one."""
        if self._listening is None:
            watch = self.space.watch(self._mailbox(self.name))
            await watch.__aenter__()
            self._listening = asyncio.get_running_loop().create_task(self._listen(watch))

    async def _listen(self, watch: Watch) -> None:
        try:
            while True:
                hint = await watch.wait(LOOK_EVERY)
                self._ended.forget(self.now())
                is_sure = hint is not None and hint.complete  # else one may have been lost
                with suppress(StandfastError):  # the next look finds out
                    for key in hint.about if hint is not None and is_sure else await self._asked_to_stop():
                        await self._stop(key)
        finally:
            await watch.__aexit__(None, None, None)

    async def _asked_to_stop(self) -> list[RecordKey]:
        lonely: dict[tuple[str, ...], RecordKey] = {
            (each.keys.tenant, each.id): each.keys.cancel
            for each in self.requests.values()
            if each.is_stored and not each.record.address
        }
        within = self.space.key("cancel").within()
        found = await read_present(self.space, lonely, within, lonely.__getitem__, lambda key: key.parts[-2:])
        return [lonely[name] for name in found]

    async def _stop(self, key: RecordKey) -> None:
        attended = self.find(*key.parts[-2:])
        try:
            record = (await self.space.read(key)).get(key)
            if record is not None and attended is not None:
                why = CANCELS.decode(record.value)
                attended.stop(why.reason, why.cancelled_by)
                await remove(self.space.store, key)
        except StandfastError:
            return

    async def aclose(self) -> None:
        """Let go of everything; the last thing is that others can tell that this process is gone."""
        self.is_closing = True
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        left = self._tasks and (await asyncio.wait(self._tasks, timeout=PATIENCE))[1]
        await self.limits.aclose()
        await self.tenants.aclose()
        presence, self._presence = self._presence, None
        if presence is not None and not left:  # while something runs on here, no process is to take it for ended
            self._heartbeat.leave(presence)


# --- removing what ended requests leave behind besides their records, which go by themselves: the runs of durable
# ones ---
#
# Sessions go by themselves as well, a while after their last use. Those that were written before there was such a while
# get one when a server has been open for a time.

EVERY: Final = 600.0
"""Seconds between two looks for runs that have ended long ago."""

PAGE: Final = 100


async def sweep_for_ever(engine: Engine, workflows: Container[str], session_kept: float = SESSION_KEPT) -> None:
    """Sweep now and then."""
    have_an_end = False
    while True:
        await asyncio.sleep(EVERY)
        with suppress(StandfastError):  # the next round finds what is left
            await sweep(engine, workflows)
            if not have_an_end:
                await give_an_end(engine.space, session_kept)
                have_an_end = True


SETTLE_EVERY: Final = 5.0
"""Seconds between two looks for durable requests whose runs were ended from outside."""


DEATHS_EVERY: Final = 12
"""In each of how many such looks the requests are looked for whose servers died with them, if none is seen to go."""


async def keep_index(engine: Engine, workflows: Collection[str]) -> None:
    """Index what the store had before it had an index of requests, then write down the ends that no server wrote."""
    space = engine.space
    ends, is_indexed = UnseenEnds(space, workflows, engine.runtime.now()), False
    processes = WatchedProcesses(space)
    for round_ in itertools.count():
        with suppress(StandfastError):  # the next round finds what is left
            if not is_indexed:
                await index_existing(space)
                is_indexed = True
            await ends.settle()
            if await processes.have_lost_one() or round_ % DEATHS_EVERY == 0:
                await settle_interrupted(space)
        await asyncio.sleep(SETTLE_EVERY)


async def give_an_end(scope: Scope, kept: float) -> int:
    """Let sessions, and whose they are, end after a while that were written to be kept for ever; tell how many."""
    changed = 0
    for kind in ("owner", "session"):
        start, end = scope.key(kind).within()
        while True:
            page = await scope.scan(start, end, limit=PAGE)
            for record in page.records.values():
                if record.expires_at is None:
                    until = later(page.at, kept)
                    await scope.commit(Put(record.key, record.value, record.version, expires_at=until))
                    changed += 1
            if page.more is None:
                break
            start = page.more
    return changed


async def sweep(engine: Engine, workflows: Container[str], kept: float = KEPT) -> int:
    """Purge the runs of requests that ended long ago; return how many there were."""
    after, purged = None, 0
    while True:
        page = await engine.list(status=ENDED, limit=PAGE, after=after)
        for run in page.runs:
            is_old = seconds_between(run.changed_at, engine.runtime.now()) >= kept
            if is_old and run.workflow in workflows:
                purged += await _purge(engine, run)
        if page.next is None:
            return purged
        after = page.next


async def _purge(engine: Engine, run: RunInfo) -> int:
    """Purge a run; before that its request is written down as ended, so that its record goes as well."""
    tenant = tenant_in(run.tags)
    try:
        if tenant is not None:
            keys = RequestKeys(engine.space, tenant, run.id)
            with suppress(RequestNotFoundError):
                await settle(engine.space, keys, await look(engine.space, keys))
        return await purge(engine.runtime, run.id, force=False)
    except (RunNotFoundError, RunUnfinishedError):
        return 0
