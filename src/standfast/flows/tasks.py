"""A request that was checked, and is to be run."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from standfast.clock import seconds_between
from standfast.events import RequestsOverlap
from standfast.flows.action import Action, Inputs
from standfast.flows.arbiters.manners import manner_of
from standfast.flows.arbiters.protocol import Ask, Manner
from standfast.flows.arrival import Address, Arrival
from standfast.flows.call import name_of
from standfast.flows.circling import LONGEST
from standfast.flows.idempotency import Claim
from standfast.flows.keying import label_of
from standfast.flows.policies import Restart
from standfast.flows.records import REQUESTS, RequestKeys, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.clock import Instant
    from standfast.flows.arbiters.protocol import Beside, Stop, Superseded, Turn
    from standfast.flows.call import Call
    from standfast.flows.request import Status
    from standfast.flows.serving import Server
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.workflows.storing.records import Standing


class Task(Struct, frozen=True, kw_only=True):
    """A request that was checked, and is to be run.

    Attributes:
        id: Its id.
        action: What to run.
        arrival: Who asks, and how.
        inputs: What with.
        address: The line in which it needs a turn; None: it needs none.
        claim: Its idempotency key, if it has one.
    """

    id: str
    action: Action[..., Any]
    arrival: Arrival
    inputs: Inputs
    address: Address | None = None
    claim: Claim | None = None

    @property
    def name(self) -> str:
        """Flow and action."""
        return f"{self.action.flow}.{self.action.name}"

    @property
    def is_called(self) -> bool:
        """Whether another request waits for it, which holds something, and it can still be refused when it waits."""
        is_kept = self.action.durable or self.action.policy.collects
        return bool(self.arrival.chain) and self.arrival.attended and not is_kept

    @property
    def hands_over(self) -> bool:
        """Whether its record has what it brought, for whoever takes its place."""
        return self.action.policy.name in ("restart", "latest")

    def record(self, at: Instant, status: Status, **more: Any) -> RequestRecord:  # noqa: ANN401 -- fields of the record
        """Return its first record."""
        if self.hands_over:
            more["inputs"] = Raw(self.inputs.packed)
        if self.claim is not None:
            more["keep"] = self.claim.keep
        return record_of(self.action, self.arrival, self.address, at, status, **more)

    def succeeding(self, record: RequestRecord, turn: Turn | None) -> RequestRecord:
        """Return the record of one that has begun, with those whose place it took.

        One that had to wait for as long as they had to end has taken it by force, and they may still be at work. What
        it has waited for room at a limit since then does not count.
        """
        if turn is None or not turn.superseded:
            return record
        policy = self.action.policy
        waited = seconds_between(record.received_at, turn.since)
        overlap = isinstance(policy, Restart) and waited >= policy.grace
        return structs.replace(record, superseded=tuple(each.id for each in turn.superseded), overlap=overlap)

    def ask(
        self,
        beside: Beside | None = None,
        on_waiting: Callable[[int], None] | None = None,
        on_stop: Callable[[Stop], None] | None = None,
    ) -> Ask:
        """Return what an arbiter is asked."""
        name, manner = _name_and_manner(self.action)
        if manner.budget is None and self.is_called:
            manner = structs.replace(manner, budget=LONGEST)
        return Ask(
            id=self.id,
            address=self.address or (),
            action=name,
            manner=manner,
            packed=self.inputs.packed,
            beside=beside,
            on_waiting=on_waiting,
            on_stop=on_stop,
            sharer=self.arrival.sharer,
        )


class Origin(Protocol):
    """Where a request came from, as far as its record tells."""

    @property
    def user(self) -> str:
        """Who asked."""
        ...

    @property
    def session(self) -> str:
        """In which conversation."""
        ...

    @property
    def transport(self) -> str:
        """What it came by."""
        ...


def record_of(
    action: Action[..., Any],
    origin: Origin,
    address: Address | None,
    at: Instant,
    status: Status,
    **more: Any,  # noqa: ANN401 -- fields of the record
) -> RequestRecord:
    """Return the record of a request that was received at an instant."""
    return RequestRecord(
        action.flow,
        action.name,
        status,
        at,
        user=origin.user,
        session=origin.session,
        transport=origin.transport,
        address=address or (),
        policy=action.policy.name,
        retryable=action.interrupted == "retry",
        **more,
    )


def task_of(action: Action[..., Any], call: Call, request_id: str) -> Task:
    """Return the request that a call stands for."""
    packed = msgspec.json.encode(call.inputs)
    return Task(
        id=request_id,
        action=action,
        arrival=call.arrival,
        inputs=action.read(packed),
        address=call.address or None,
    )


def tell_overlap(server: Server, task: Task, record: RequestRecord) -> None:
    """Tell hooks that a request has begun while one may still be at work that it superseded."""
    host = server.engine.host
    if host.hooks:
        at, key = host.clock.wall(), label_of(record.address)
        host.emit(RequestsOverlap(at=at, request=task.id, action=task.name, key=key, superseded=record.superseded))


def standings_of(server: Server, task: Task) -> tuple[Standing, ...]:
    """Return the lines that the run of a durable request stands in: first that of its key, then those of its limits."""
    own = () if task.address is None else server.arbiter.standings(task.ask())
    return (*own, *server.limits.standings(task)) if task.action.has_room_limits else own


@lru_cache(maxsize=1_000)
def _name_and_manner(action: Action[..., Any]) -> tuple[str, Manner]:
    """Return how the requests of an action are called in a line, and behave there."""
    return name_of(action), manner_of(action.policy)


async def inputs_of(scope: Scope, task: Task, superseded: Iterable[Superseded]) -> list[Inputs]:
    """Return what those brought whose place a request has taken, as far as it can still be found out."""
    found: list[Inputs] = []
    for each in superseded:
        packed = each.packed
        if packed is None:
            packed = await _packed_of(scope, RequestKeys(scope, task.arrival.tenant, each.id).record)
        if packed is not None:
            found.append(task.action.read(packed))
    return found


async def _packed_of(scope: Scope, key: RecordKey) -> bytes | None:
    """Return what a request brought by its record; None: that has none, or it had ended well before it was to stop."""
    found = (await scope.read(key)).get(key)
    if found is None:
        return None
    record = REQUESTS.decode(found.value)
    return None if record.inputs is UNSET or record.status == "completed" else bytes(record.inputs)
