"""An action: one function of a flow, with what was declared about it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack, final

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from standfast.codec import FORMAT, MAX_BYTES, ROOM_BYTES
from standfast.errors import (
    DecodeError,
    EncodeError,
    ForbiddenError,
    InputsTooLargeError,
    InvalidInputError,
    WrongArgumentsError,
)
from standfast.flows.arrival import NOBODY
from standfast.flows.declaring import (
    checked_description,
    checked_function,
    checked_signature,
    defaults_of,
    item_signature,
    settled,
)
from standfast.flows.limits import Rate
from standfast.flows.policies import Batch
from standfast.flows.scheduling import schedule_of
from standfast.flows.schemas import schema_of, schema_of_arguments
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.flows.arrival import Principal
    from standfast.flows.declaring import ActionOptions, Place
    from standfast.flows.policies import Policy
    from standfast.flows.request import Request
    from standfast.flows.scheduling import OnOverlap
    from standfast.workflows.schedules.specification import Schedule, TickOptions
    from standfast.workflows.storing.values import Typed

P = ParamSpec("P")
R = TypeVar("R")

LARGEST: Final = MAX_BYTES - ROOM_BYTES - len(f"{FORMAT}:")
"""Bytes of what a request brings: as many as every store can keep in one record, beside what else is said there."""

_LONGEST_PROBLEM: Final = 300


class Inputs(Struct, frozen=True):
    """What an action is to be called with, checked.

    Attributes:
        packed: As a JSON object, to be stored. Defaults are not in it.
        values: By name, as the action will see them, defaults included.
    """

    packed: bytes
    values: Mapping[str, Any]


@final
class Action(Generic[P, R]):
    """One function of a flow. ``@flow.action`` makes it; called by itself it is the plain function.

    Attributes:
        flow: The kind of its flow.
        name: Its name, unlike that of any other action of the flow.
        where: How errors call it: ``"flow 'support-chat', action 'respond'"``.
        policy: What happens to a request whose key is taken: its own, or the flow's, or ``Allow()``.
        durable: Its requests are always runs of a workflow. Others are if nobody waits for them on a connection.
        retry: When a durable request that raised is tried again.
        interrupted: What happens to a request whose server dies while it runs.
        on_disconnect: What happens to a request whose caller goes away.
        idempotency_window: For how many seconds an idempotency key is remembered after the request has ended.
        roles: Who may call it: principals with any of these; everybody if there are none.
        limits: How many of its requests run at a time, and come in a while.
        rates: Those of them that say how many come.
        has_room_limits: Whether there are others.
        priority: Who goes first among those that wait for such a limit.
        is_simple: Whether whoever waits for a request can run it as well: it ends with its caller, and waits for its
            turn at most.
        description: What it does, for people and for language models.
        function: The function itself.
        signature: The types of what it takes besides the request, and of what it returns.
        write: Returns a result as JSON, and as it is restored from that.

    Raises:
        InvalidFlowError: The declaration cannot work; the error names the place and the reason.
    """

    def __init__(
        self, function: Callable[..., Coroutine[Any, Any, R]], place: Place, policy: Policy, options: ActionOptions
    ) -> None:
        where = place.where
        self.flow: Final = place.flow
        self.name: Final = place.name
        self.where: Final = where
        self.policy: Final = policy
        self.function: Final = checked_function(where, function)
        self.signature: Final = checked_signature(where, function)
        self.write: Final = self.signature.result.pack_and_restore
        self._takes: Final = item_signature(where, self.signature) if isinstance(policy, Batch) else self.signature
        self._defaults: Final = defaults_of(self._takes)
        known = self.signature.parameters.parameters.values()
        self._is_called_by_name: Final = self._takes is self.signature and all(
            each.kind is not each.POSITIONAL_ONLY for each in known
        )
        chosen = settled(where, policy, options)
        self.durable: Final = chosen.durable
        self.retry: Final = chosen.retry
        self.interrupted: Final = chosen.interrupted
        self.on_disconnect: Final = chosen.on_disconnect
        self.idempotency_window: Final = chosen.idempotency_window
        self.roles: Final = chosen.roles
        self.limits: Final = chosen.limits
        self.rates: Final = tuple(each for each in chosen.limits if isinstance(each, Rate))
        self.has_room_limits: Final = len(self.rates) < len(self.limits)
        self.priority: Final = chosen.priority
        goes_with_caller = chosen.on_disconnect == "cancel" and not chosen.durable and policy.name != "join"
        self.is_simple: Final = goes_with_caller and not policy.collects and not self.limits
        self.description: Final = checked_description(where, options.get("description"), function)
        functools.update_wrapper(self, function, updated=())

    @property
    def result(self) -> Typed[Any]:
        """How its results are stored."""
        return self.signature.result

    def __call__(self, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function as it is: no policy, no checks, nothing stored. So a test can call it with a request."""
        return self.function(request, *args, **kwargs)

    def read(self, inputs: Mapping[str, Any] | bytes) -> Inputs:
        """Check what a request brings against what the function takes.

        With the policy ``Batch`` that is one item of the list.

        Args:
            inputs: Values by name, or a JSON object as bytes; no bytes at all stand for an empty one.

        Raises:
            InvalidInputError: It does not fit. The error names the place, never the value.
            InputsTooLargeError: It has more bytes than can be recorded; then nothing of it was read.
        """
        if isinstance(inputs, bytes) and len(inputs) > LARGEST:
            raise InputsTooLargeError(self.where, len(inputs), LARGEST)
        try:
            packed = (inputs or b"{}") if isinstance(inputs, bytes) else self._pack(inputs)
            values = asdict(self._takes.read(packed))
        except (DecodeError, EncodeError, WrongArgumentsError) as error:
            raise InvalidInputError(self.where, _without_name(str(error))) from None
        for name, default in self._defaults.items():
            if values[name] is UNSET:
                values[name] = default
        return Inputs(packed, values)

    def _pack(self, inputs: Mapping[str, Any]) -> bytes:
        """Return values by name as JSON: data as it came from JSON, or else values of the declared types."""
        try:
            return PLAIN.pack(dict(inputs))
        except EncodeError:
            return self._takes.pack((), inputs)

    def arguments(self, *packed: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what to call the function with, besides the request, from packed inputs.

        Args:
            packed: With the policy ``Batch`` the items of all requests of the run, the oldest first; with any other
                one, the last is used.

        Raises:
            DecodeError: The data is damaged, or the function takes other arguments now.
        """
        if not isinstance(self.policy, Batch):
            return self.signature.unpack(packed[-1])
        [name] = self.signature.parameters.parameters
        return (), {name: [self._takes.unpack(each)[1][name] for each in packed]}

    def call(self, request: Request, inputs: tuple[Inputs, ...]) -> Coroutine[Any, Any, R]:
        """Call the function with the inputs of all requests of its run."""
        if self._is_called_by_name:  # they were read when they were checked
            return self.function(request, **inputs[-1].values)
        args, kwargs = self.arguments(*(each.packed for each in inputs))
        return self.function(request, *args, **kwargs)

    def is_for(self, roles: frozenset[str]) -> bool:
        """Return True if principals with such roles may call it."""
        return not self.roles or not self.roles.isdisjoint(roles)

    def check_roles(self, roles: frozenset[str]) -> None:
        """Refuse a principal who has none of the roles that the action needs.

        Raises:
            ForbiddenError: It has none.
        """
        if not self.is_for(roles):
            raise ForbiddenError(self.where, tuple(sorted(self.roles)))

    def schedule(
        self,
        id: str,  # noqa: A002 -- the word that users know
        inputs: Mapping[str, Any] | None = None,
        *,
        principal: Principal = NOBODY,
        session: str = "",
        on_overlap: OnOverlap = "skip",
        paused: bool = False,
        **when: Unpack[TickOptions],
    ) -> Schedule:
        """Return a schedule whose ticks are requests of this action, for ``sf.App(schedules=[...])``.

            digest.schedule("daily-digest", {"top": 10}, cron="0 9 * * mon-fri", zone="Europe/Berlin")

        Each tick is one durable request, however many processes look after the schedule. The policy of the action
        applies to it as to any other.

        Args:
            id: The name of the schedule, unique in the namespace; the ids of its requests begin with it.
            inputs: What each request brings, by name.
            principal: Who asks.
            session: Which conversation the requests belong to; empty for none.
            on_overlap: While a request of this schedule is unfinished, a tick is dropped (``"skip"``, the default),
                waits its turn (``"queue"``), cancels that one first (``"restart"``), or is taken on besides
                (``"allow"``).
            paused: Whether it begins paused.
            when: When it fires, see :class:`~standfast.workflows.schedules.specification.TickOptions`.

        Raises:
            InvalidFlowError: The schedule cannot work; the error names the place and the reason.
            InvalidScheduleError: When it fires makes no sense.
        """
        return schedule_of(
            self, id, inputs, principal=principal, session=session, on_overlap=on_overlap, paused=paused, **when
        )

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what a request brings: an object, with a property for each parameter."""
        return schema_of_arguments(self._takes)

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what it returns."""
        return schema_of(self.signature.result.annotation)

    def __repr__(self) -> str:
        return f"<action {self.flow}.{self.name}: {self.policy.name}>"


def _without_name(problem: str) -> str:
    """Leave out what the message of a codec says about the function: the place says it better."""
    short = problem.partition(" cannot be read: ")[2] or problem.partition(" cannot be stored: ")[2] or problem
    return short[:_LONGEST_PROBLEM]
