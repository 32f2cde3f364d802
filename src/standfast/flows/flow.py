"""Flows and their actions, as users declare them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    final,
    overload,
)

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from standfast.codec import FORMAT, MAX_BYTES, ROOM_BYTES
from standfast.errors import (
    DeclarationError,
    DecodeError,
    EncodeError,
    ForbiddenError,
    InputsTooLargeError,
    InvalidInputError,
    UnknownActionError,
    WrongArgumentsError,
)
from standfast.flows.declaration import (
    ActionPlace,
    check_alike,
    checked_description,
    checked_function,
    checked_name,
    checked_signature,
    defaults_of,
    item_signature,
    settled,
)
from standfast.flows.records import StoredCall
from standfast.flows.request import NOBODY, check_id
from standfast.policies import Allow, Batch, Debounce, Rate, as_policy
from standfast.workflows.schedules.spec import Schedule
from standfast.workflows.values import HOOKS, PLAIN, is_model

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable

    from standfast.flows.declaration import ActionOptions
    from standfast.flows.request import Principal, Request
    from standfast.policies import Policy, PolicyName
    from standfast.workflows.schedules.spec import Overlap, TickOptions
    from standfast.workflows.values import Signature, Typed


# --- the JSON Schema of what actions take and return, for OpenAPI and for tools ------------------------------------

_REFERENCE: Final = "#/$defs/"


def schema_of(annotation: Any) -> dict[str, Any]:  # noqa: ANN401 -- a type may be no class
    """Return the schema of one type. What it refers to lies in ``$defs``."""
    shared: dict[str, Any] = {}

    def schema_of_model(kind: type) -> dict[str, Any]:
        if not is_model(kind):
            raise NotImplementedError
        found = dict(cast("Any", kind).model_json_schema())
        # What a model refers to is looked for at the root of the whole, not of its own schema.
        shared.update(found.pop("$defs", {}))
        return found

    schema = msgspec.json.schema(annotation, schema_hook=schema_of_model)
    if shared:
        schema["$defs"] = shared | schema.get("$defs", {})
    return schema


def schema_of_arguments(signature: Signature) -> dict[str, Any]:
    """Return the schema of what a function takes: an object, with a property for each parameter."""
    schema = schema_of(signature.arguments)
    name = cast("str", schema.pop("$ref")).removeprefix(_REFERENCE)
    definitions = cast("dict[str, Any]", schema.pop("$defs"))
    root = cast("dict[str, Any]", definitions.pop(name))
    del root["title"]  # the name of a struct that is not public
    for each in signature.parameters.parameters.values():
        if each.default is not each.empty:
            with suppress(TypeError, ValueError):  # a default that cannot be written is only known to the function
                root["properties"][each.name]["default"] = msgspec.to_builtins(each.default, enc_hook=HOOKS.to_data)
    return root | ({"$defs": definitions} if definitions else {})


# --- schedules of actions, as users declare them -------------------------------------------------------------------

OnOverlap: TypeAlias = Literal["skip", "allow", "queue", "restart"]
"""What a tick does while a request of the same schedule is unfinished."""

LONGEST_ID: Final = 60
"""The most characters in the id of such a schedule: with a time behind it, it is the id of a request."""

_OVERLAPS: Final[dict[str, Overlap]] = {
    "skip": "skip",
    "allow": "allow",
    "queue": "queue",
    "restart": "cancel_running",
}


def schedule_of(
    action: Action[..., Any],
    schedule_id: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    principal: Principal = NOBODY,
    session: str = "",
    on_overlap: OnOverlap = "skip",
    paused: bool = False,
    **when: Unpack[TickOptions],
) -> Schedule:
    """Return a schedule whose ticks are requests of an action, see :meth:`standfast.flows.flow.Action.schedule`."""
    where = f"{action.where}, schedule {schedule_id!r:.80}"
    if not isinstance(schedule_id, str) or not schedule_id.isascii() or len(schedule_id) > LONGEST_ID:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError(where, f"the id must be ASCII text of at most {LONGEST_ID} characters")
    if isinstance(action.policy, Debounce | Batch):
        problem = f"with the policy {action.policy.name!r} a tick would have no run of its own"
        raise DeclarationError(where, f"{problem}; schedule an action with another policy, which sends the request")
    if on_overlap not in _OVERLAPS:
        raise DeclarationError(where, f"on_overlap is {on_overlap!r:.60}; it must be one of {', '.join(_OVERLAPS)}")
    check_id("the session", session)
    try:  # each tick could only fail
        action.check_roles(principal.roles)
        packed = action.read(inputs or {}).packed
    except (ForbiddenError, InvalidInputError) as problem:
        raise DeclarationError(where, str(problem)) from None
    call = StoredCall(
        flow=action.flow,
        action=action.name,
        tenant=principal.tenant,
        inputs=msgspec.json.decode(packed),
        user=principal.user,
        roles=tuple(sorted(principal.roles)),
        session=session,
        transport="schedule",
    )
    return Schedule(workflow_name(action), call, id=schedule_id, paused=paused, overlap=_OVERLAPS[on_overlap], **when)


def known_schedules(schedules: Iterable[Schedule], workflows: Container[object]) -> tuple[Schedule, ...]:
    """Return schedules of actions that are there, by the names of their workflows; refuse others, and an id twice."""
    known: dict[str, Schedule] = {}
    for each in schedules:
        where = f"schedule {each.id!r}"
        if each.workflow not in workflows:
            raise DeclarationError(where, "it is of no action of these flows; make it with action.schedule(...)")
        if known.setdefault(each.id, each) is not each:
            raise DeclarationError(where, "there are two with this id; rename one of them")
    return tuple(known.values())


# --- an action: one function of a flow, with what was declared about it --------------------------------------------

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
        full_name: Its name with that of its flow: ``"support-chat.respond"``.
        where: How errors call it: ``"flow 'support-chat', action 'respond'"``.
        policy: What happens to a request whose key is taken: its own, or the flow's, or ``Allow()``.
        durable: Its requests are always runs of a workflow. Others are if no caller waits for them on a connection.
        retry: When a durable request that raised is tried again.
        interrupted: What happens to a request whose server dies while it runs.
        on_disconnect: What happens to a request whose caller goes away.
        idempotency_window: For how many seconds an idempotency key is remembered after the request has ended.
        roles: Who may call it: principals with any of these; all if there are none.
        limits: How many of its requests run at a time, and come in a while.
        rates: Those of them that say how many come.
        has_room_limits: Whether there are others.
        priority: Who goes first among those that wait for such a limit.
        is_simple: Whether the task that waits for a request can run it, too: it ends with its caller, and waits for its
            turn at most.
        description: What it does, for people and for language models.
        function: The function itself.
        signature: The types of what it takes besides the request, and of what it returns.
        write: Returns a result as JSON, and as it is restored from that.

    Raises:
        DeclarationError: The declaration cannot work; the error names the place and the reason.
    """

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        place: ActionPlace,
        policy: Policy,
        options: ActionOptions,
    ) -> None:
        where = place.where
        self.flow: Final = place.flow
        self.name: Final = place.name
        self.full_name: Final = f"{place.flow}.{place.name}"
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
        self.is_simple: Final = goes_with_caller and not policy.answers_first and not self.limits
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
            problem = f"the inputs take {len(inputs):,} bytes, at most {LARGEST:,} can be recorded"
            raise InputsTooLargeError(self.where, problem, len(inputs), LARGEST)
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

        Each tick is one durable request, however many processes poll the schedule. The policy of the action
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
            when: When it fires, see :class:`~standfast.workflows.schedules.spec.TickOptions`.

        Raises:
            DeclarationError: The schedule cannot work; the error names the place and the reason.
            DeclarationError: When it fires makes no sense.
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


# --- flows and their actions, as users declare them ----------------------------------------------------------------


@final
class Flow:
    """A kind of conversation or job, with its actions.

        chat = sf.Flow("support-chat", concurrency="queue")

        @chat.action(concurrency="allow")
        async def append_message(request: sf.Request, text: str) -> None: ...

        @chat.action(concurrency=sf.Debounce("500ms", max_wait="5s"))
        async def respond(request: sf.Request) -> str: ...

    Args:
        kind: Its name, unlike that of any other flow of the app.
        concurrency: The policy of its actions that have none of their own; by default ``"allow"``.
        description: What it is for, for people and for language models.

    Attributes:
        kind: Its name.
        policy: What its actions do that have no policy of their own.
        description: What it is for.

    Raises:
        DeclarationError: The declaration cannot work; the error names the place and the reason.
    """

    __slots__ = ("_actions", "description", "kind", "policy")

    def __init__(self, kind: str, concurrency: Policy | PolicyName | None = None, *, description: str = "") -> None:
        self.kind: Final = checked_name("flow", kind)
        where = f"flow {kind!r}"
        self.policy: Final = Allow() if concurrency is None else as_policy(concurrency, where)
        self.description: Final = checked_description(where, description)
        self._actions: Final[dict[str, Action[..., Any]]] = {}

    @property
    def actions(self) -> Mapping[str, Action[..., Any]]:
        """Its actions by name, in the order of their declaration."""
        return MappingProxyType(self._actions)

    @overload
    def action(self, function: Callable[Concatenate[Request, P], Coroutine[Any, Any, R]], /) -> Action[P, R]: ...
    @overload
    def action(
        self, /, **options: Unpack[ActionOptions]
    ) -> Callable[[Callable[Concatenate[Request, P], Coroutine[Any, Any, R]]], Action[P, R]]: ...
    def action(self, function: Callable[..., Any] | None = None, /, **options: Unpack[ActionOptions]) -> Any:
        """Declare an action: an ``async def`` whose first parameter is the :class:`~standfast.Request`.

        What it takes besides is checked by its annotations, and what it returns too.

        Args:
            function: The function.
            options: See :class:`~standfast.flows.declaration.ActionOptions`.

        Raises:
            DeclarationError: The declaration cannot work; the error names the place and the reason.
        """
        return self._declare(function, options) if function is not None else partial(self._declare, options=options)

    def _declare(self, function: Callable[..., Any], options: ActionOptions) -> Action[..., Any]:
        name = options.get("name")
        name = name if name is not None else str(getattr(function, "__name__", type(function).__name__))
        where = f"flow {self.kind!r}, action {checked_name(f'flow {self.kind!r}, action', name)!r}"
        if name in self._actions:
            raise DeclarationError(where, "there is an action of that name already; give one of them another name=")
        own = options.get("concurrency")
        policy = self.policy if own is None else as_policy(own, where)
        action: Action[..., Any] = Action(function, ActionPlace(self.kind, name, where), policy, options)
        self._actions[name] = action
        return action

    def __repr__(self) -> str:
        return f"<flow {self.kind}: {', '.join(self._actions) or 'no actions'}>"


@final
class Flows:
    """The actions of the flows of one app, as they are when it is made; what is declared later is not served by it.

    Args:
        flows: The flows.

    Attributes:
        actions: All actions of all flows, in the order of their declaration.

    Raises:
        DeclarationError: Two have one kind, something is no flow, or limits of one name are not alike.
    """

    __slots__ = ("_found", "actions")

    def __init__(self, flows: Iterable[Flow]) -> None:
        kinds: dict[str, Flow] = {}
        if isinstance(flows, Flow):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError("flows", f"{flows!r:.60} is one flow; give a list of them: flows=[...]")
        for flow in flows:
            if not isinstance(flow, Flow):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise DeclarationError("flows", f"a {type(flow).__name__} is no flow; make one with sf.Flow(...)")
            if kinds.setdefault(flow.kind, flow) is not flow:
                raise DeclarationError(f"flow {flow.kind!r}", "there are two flows of that kind; rename one of them")
        self.actions: Final = tuple(action for flow in kinds.values() for action in flow.actions.values())
        check_alike((action.where, limit) for action in self.actions for limit in action.limits)
        self._found: Final = {(action.flow, action.name): action for action in self.actions}

    def find(self, flow: str, action: str) -> Action[..., Any]:
        """Return an action by the kind of its flow and its name.

        Raises:
            UnknownActionError: There is none.
        """
        found = self._found.get((flow, action))
        if found is None:
            known = tuple(f"{each.flow}.{each.name}" for each in self.actions)
            raise UnknownActionError(flow, action, known)
        return found


def workflow_name(action: Action[..., Any]) -> str:
    """Return the name of the workflow of an action."""
    return f"{action.flow}.{action.name}"
