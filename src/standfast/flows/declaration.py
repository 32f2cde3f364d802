"""Options of flows and actions: limits, what can be declared together, and refusing what cannot work."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast, final, get_args, get_origin

import msgspec
from msgspec import Struct

from standfast.durations import DAY, seconds
from standfast.errors import DeclarationError, InvalidArgumentError, InvalidInputError
from standfast.flows.request import OnDisconnect
from standfast.flows.request import check_priority as check_number
from standfast.policies import DEFAULT, POLICIES, Allow, Join, Key, Limit, Rate, checked_key
from standfast.workflows.decorators import step
from standfast.workflows.definition import Retry
from standfast.workflows.values import Signature, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from standfast.durations import Duration
    from standfast.policies import Policy, PolicyName


# --- limits of an action, as they are applied ----------------------------------------------------------------------
#
# A policy says what happens when two requests of one key meet; a limit says how much of an action there is at all. The
# place in the line of the policy's key is taken first, then the limits in the order of their declaration: so the order
# of a session stays as it was, and a request that waits for a limit holds up its own key only.

CALLER_WAITS: Final = 30.0
"""How many seconds a request waits for a limit by default, while its caller waits for it."""


@final
class ActionLimit(Struct, frozen=True):
    """An :class:`~standfast.Limit` of an action, with its defaults filled in."""

    declared: Limit
    max: int
    key: Key
    waits: bool
    max_queued: int | None
    ttl: float | None
    name: str

    def __repr__(self) -> str:
        return repr(self.declared)


LimitOfAction: TypeAlias = ActionLimit | Rate


def as_action_limit(where: str, limit: Limit) -> ActionLimit:
    """Return a limit as an action applies it; refuse what only workflows can do."""
    if limit.on_limit not in (None, "queue", "reject"):
        problem = f"on_limit={limit.on_limit!r} is for workflows; an action has 'queue' and 'reject'"
        raise DeclarationError(where, f"{limit}: {problem}")
    waits = limit.on_limit != "reject"
    if not waits and limit.max_queued is not None:
        raise DeclarationError(where, f"{limit}: max_queued belongs to on_limit='queue'")
    ttl = CALLER_WAITS if limit.ttl == DEFAULT else cast("float | None", limit.ttl)
    key = checked_key("Limit", "none" if limit.key is None else limit.key)
    return ActionLimit(limit, limit.max, key, waits, limit.max_queued, ttl, limit.name)


def checked_limits(where: str, given: Limit | Rate | Iterable[Limit | Rate]) -> tuple[LimitOfAction, ...]:
    """Return the limits of an action; refuse what is none, and two that count the same."""
    limits: list[LimitOfAction] = []
    counted: dict[tuple[object, ...], LimitOfAction] = {}
    for each in given if isinstance(given, Iterable) else (given,):
        if not isinstance(each, Limit | Rate):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError(where, f"{each!r:.60} is no limit; there are sf.Limit(...) and sf.Rate(...)")
        limit = each if isinstance(each, Rate) else as_action_limit(where, each)
        limits.append(limit)
        what = (type(limit), limit.name, kind_of(limit))
        if counted.setdefault(what, limit) is not limit:
            problem = f"two limits count {kind_of(limit)!r}: {counted[what]} and {limit}"
            raise DeclarationError(where, f"{problem}; leave one of them out, or give one a name=")
    return tuple(limits)


def check_alike(limits: Iterable[tuple[str, LimitOfAction]]) -> None:
    """Refuse limits of one name that are not alike; each comes with its place."""
    known: dict[tuple[type, str], tuple[str, LimitOfAction]] = {}
    for where, limit in limits:
        if not limit.name:
            continue
        first, other = known.setdefault((type(limit), limit.name), (where, limit))
        if other != limit:
            problem = f"its limit {limit.name!r} is {limit}, and that of {first} is {other}"
            raise DeclarationError(where, f"{problem}; limits of one name must be alike")


def kind_of(limit: LimitOfAction) -> str:
    """Return by what a limit counts."""
    return limit.key if isinstance(limit.key, str) else "custom"


# --- what can be declared together: policies, and what else an action says. The rest is refused, with the reason ---
#
# :data:`REFUSED` is the one table of it. Whatever is not in it works, and a test tries every combination.

Trait: TypeAlias = Literal[
    "limit",  # one that lets requests wait
    "limit of the policy's key",  # one that counts by the key of the policy
    "limit that rejects",  # Limit(on_limit="reject"), or with max_queued
    "rate",
    "idempotency",  # an idempotency_window
    "priority",  # together with a limit that lets requests wait
    "durable",
    "not durable",
    "retry",
    "interrupted",  # interrupted="fail"
    "cancel on disconnect",
    "continue on disconnect",
]
"""What an action can say besides its policy."""

TRAITS: Final[tuple[Trait, ...]] = get_args(Trait)

_LATE: Final = (
    "a request could be refused after it has waited for its turn, and others with it; "
    "let it wait for the limit too, with on_limit='queue' and no max_queued"
)
_SINGLE: Final = (
    "the policy lets one request of its key run at a time, so a limit by that key is never reached; "
    "leave it out, count by another key, or give the limit a name= that other actions share"
)
_ANSWERED: Final = (
    "a request is answered before it has run, so it is always durable; "
    "leave out durable=False, or choose another policy"
)
_IN_ORDER: Final = (
    "its requests are durable, and durable requests wait in the store in the order of their arrival, "
    "so a priority would have no effect; leave it out"
)
_GOES_ON: Final = "a durable request continues without its caller; leave it out"
_SHARED: Final = "others may share the run, so it continues without its first caller; leave it out"
_ANSWERS_FIRST: Final = tuple(name for name, policy in POLICIES.items() if policy.answers_first)
_KEYED: Final = tuple(name for name in POLICIES if name != Allow.name)

REFUSED: Final[Mapping[Trait, Mapping[str, str]]] = {
    "limit": {},
    "limit of the policy's key": dict.fromkeys(_KEYED, _SINGLE),
    "limit that rejects": dict.fromkeys(("queue", "restart", "join", *_ANSWERS_FIRST), _LATE),
    "rate": {},
    "idempotency": {},
    "priority": dict.fromkeys(_ANSWERS_FIRST, _IN_ORDER),
    "durable": {},
    "not durable": dict.fromkeys(_ANSWERS_FIRST, _ANSWERED),
    "retry": {},
    "interrupted": {},
    "cancel on disconnect": {"join": _SHARED, **dict.fromkeys(_ANSWERS_FIRST, _GOES_ON)},
    "continue on disconnect": {},
}
"""Why a trait is refused, by trait and name of the policy."""


def check_trait(where: str, policy: Policy, trait: Trait, said: str) -> None:
    """Refuse something that cannot be meant together with a policy.

    Args:
        where: The place.
        policy: The policy of the action.
        trait: What it is in the table.
        said: What was said, as it stands in the code.

    Raises:
        DeclarationError: It is in the table.
    """
    reason = REFUSED[trait].get(policy.name)
    if reason is not None:
        raise DeclarationError(where, f"{said} cannot be combined with the policy {policy.name!r}: {reason}")


def check_limits(where: str, policy: Policy, limits: tuple[LimitOfAction, ...]) -> None:
    """Refuse limits that make no sense with a policy."""
    for each in limits:
        if not isinstance(each, ActionLimit):
            check_trait(where, policy, "rate", repr(each))
            continue
        rejects = not each.waits or each.max_queued is not None
        check_trait(where, policy, "limit that rejects" if rejects else "limit", repr(each))
        if each.key == policy.key and not each.name:
            check_trait(where, policy, "limit of the policy's key", repr(each))


def check_priority(where: str, policy: Policy, limits: tuple[LimitOfAction, ...], *, durable: bool) -> None:
    """Refuse a priority that could have no effect: it orders the waiters of a limit, and only those."""
    check_trait(where, policy, "priority", "a priority")
    if durable:
        raise DeclarationError(where, f"a priority cannot be combined with durable=True: {_IN_ORDER}")
    if not any(isinstance(each, ActionLimit) and each.waits for each in limits):
        problem = "a priority orders requests that wait for a limit, and the action has none that lets requests wait"
        order = "the line of a key is in the order of arrival, whatever the policy"
        raise DeclarationError(where, f"{problem} ({order}); add limits=[sf.Limit(...)], or leave it out")


def check_disconnect(where: str, policy: Policy, given: str, *, durable: bool) -> None:
    """Refuse to cancel what goes on without its caller."""
    trait: Trait = "cancel on disconnect" if given == "cancel" else "continue on disconnect"
    check_trait(where, policy, trait, f"on_disconnect={given!r}")
    if given == "cancel" and durable:
        raise DeclarationError(where, f"on_disconnect='cancel' cannot be combined with durable=True: {_GOES_ON}")


# --- the checks of a declaration: what cannot work is refused where it is declared, with the place and the reason --

Interrupted: TypeAlias = Literal["retry", "fail"]
"""What happens to a request whose server dies while it runs: it is run again, or ends ``interrupted``."""

LONGEST_NAME: Final = 64
LONGEST_ROLE: Final = 100
LONGEST_WINDOW: Final = 30 * DAY
_DATA: Final = (str, int, float, bool, bytes, list, dict, tuple, set)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)


class ActionOptions(TypedDict, total=False):
    """What can be declared about an action.

    Attributes:
        name: Its name; by default the function's.
        concurrency: Its policy; by default the flow's.
        limits: How many of its requests run at a time, and come in a while: an :class:`~standfast.Limit`, a
            :class:`~standfast.Rate`, or several of them. By default there is no limit.
        priority: Who goes first among those that wait for such a limit: the higher, and of equal ones the one that has
            waited for longer. By default 0; an arrival may have another. The line of a key stays in order of arrival.
        durable: Run it as a durable workflow, always: it survives crashes, and may be answered before it has run. By
            default only what no caller waits for on a connection is, and what a policy collects.
        retry: When a durable request that raised is tried again: a :class:`~standfast.Retry`, or a number of attempts.
            One that runs on its caller's connection is not: its caller is told.
        interrupted: What happens to a request whose server dies while it runs. ``"retry"`` (the default): a durable one
            is run again, and another one may be sent again with the same idempotency key. ``"fail"``: it ends
            ``interrupted``, also for callers that send it again: for what must not be done twice.
        on_disconnect: What happens when a caller that waits on its connection goes away: ``"cancel"`` or
            ``"continue"``. By default it is cancelled, unless it is durable or shared with others.
        idempotency_window: For how long an idempotency key is remembered after the request has ended; by default an
            hour.
        roles: Who may call it: principals with any of these roles. By default all that may call the app.
        description: What it does, for people and for language models; by default the function's docstring.
    """

    name: str | None
    concurrency: Policy | PolicyName | None
    limits: Limit | Rate | Iterable[Limit | Rate]
    priority: int | None
    durable: bool | None
    retry: Retry | int | None
    interrupted: Interrupted
    on_disconnect: OnDisconnect | None
    idempotency_window: Duration
    roles: Iterable[str]
    description: str | None


KNOWN: Final = tuple(ActionOptions.__annotations__)


class ActionPlace(Struct, frozen=True):
    """Which action is declared, and how errors call it."""

    flow: str
    name: str
    where: str


class ActionSettings(Struct, frozen=True, kw_only=True):
    """What holds for an action."""

    durable: bool
    retry: Retry
    interrupted: Interrupted
    on_disconnect: OnDisconnect
    idempotency_window: float
    roles: frozenset[str]
    limits: tuple[LimitOfAction, ...]
    priority: int


def checked_name(what: str, name: str) -> str:
    """Return the kind of a flow or the name of an action; refuse what cannot be part of an address and of a key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = f"a name must be 1 to {LONGEST_NAME} letters, digits, _ or -, and begin with a letter"
        raise DeclarationError(f"{what} {name!a:.80}", problem)
    return name


def checked_description(where: str, given: str | None, function: Callable[..., Any] | None = None) -> str:
    """Return what is told to people: what was given, or else the docstring."""
    text = given if given is not None else inspect.getdoc(function) or ""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError(where, f"the description is a {type(text).__name__}; it must be text")
    return inspect.cleandoc(text).strip()


def checked_function(where: str, function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a function that can be an action."""
    if not inspect.iscoroutinefunction(function):
        raise DeclarationError(where, "an action is an async def function whose first parameter is the request")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise DeclarationError(where, "it takes no request; the request must be its first parameter")
    if _is_of_data(function, parameters[0].name):
        problem = f"its first parameter, {parameters[0]}, is not the request"
        raise DeclarationError(where, f"{problem}; write async def {function.__name__}(request: sf.Request, ...)")
    for each in parameters[1:]:
        if each.kind is each.POSITIONAL_ONLY:
            raise DeclarationError(where, f"{each.name} is taken by its place only; inputs are given by name")
    return cast("Callable[..., Coroutine[Any, Any, Any]]", function)


def _is_of_data(function: Callable[..., Any], name: str) -> bool:
    """Return True if a parameter is annotated with plain data. What cannot be read now may be anything."""
    try:
        kind = inspect.signature(function, eval_str=True).parameters[name].annotation
    except Exception:  # noqa: BLE001 -- an annotation is an expression, and may raise anything
        return False
    return (get_origin(kind) or kind) in _DATA


def checked_signature(where: str, function: Callable[..., Any]) -> Signature:
    """Return what an action takes besides the request, and what it returns."""
    try:
        return signature_of(function, skip_first=True)
    except DeclarationError as error:
        raise DeclarationError(where, str(error)) from None


def item_signature(where: str, signature: Signature) -> Signature:
    """Return what one request of a batch brings: one item of the list that the action takes."""
    fields = msgspec.structs.fields(signature.arguments)
    kind: object = fields[0].type if len(fields) == 1 else None
    if kind is not list and get_origin(kind) is not list:
        taken = ", ".join(each.name for each in fields) or "nothing"
        problem = f"the policy Batch needs an action that takes one list besides the request; this one takes {taken}"
        raise DeclarationError(where, f"{problem}. Annotate it as list[...], or choose another policy")
    item: object = (*get_args(kind), Any)[0]
    [parameter] = signature.parameters.parameters.values()
    parameter = parameter.replace(default=parameter.empty)  # an item must be there
    arguments = msgspec.defstruct("Arguments", [(parameter.name, item)], kw_only=True, forbid_unknown_fields=True)
    return Signature(signature.name, inspect.Signature([parameter]), arguments, Any)


def defaults_of(signature: Signature) -> dict[str, Any]:
    """Return what a function takes where nothing is given, by name."""
    known = signature.parameters.parameters.values()
    return {each.name: each.default for each in known if each.default is not each.empty}


def settled(where: str, policy: Policy, options: ActionOptions) -> ActionSettings:
    """Return the options of an action that hold; refuse those that cannot be meant together."""
    if unknown := sorted(set(options) - set(KNOWN)):
        raise DeclarationError(where, f"there is no option {', '.join(unknown)}; there are {', '.join(KNOWN)}")
    said = options.get("durable")
    if said is not None and type(said) is not bool:
        raise DeclarationError(where, f"durable is {said!r:.60}; it must be True or False")
    if said is False:
        check_trait(where, policy, "not durable", "durable=False")
    durable = bool(said) or policy.answers_first
    limits = checked_limits(where, options.get("limits", ()))
    check_limits(where, policy, limits)
    interrupted = options.get("interrupted", "retry")
    if interrupted not in get_args(Interrupted):
        raise DeclarationError(where, f"interrupted is {interrupted!r:.60}; it must be 'retry' or 'fail'")
    return ActionSettings(
        durable=durable,
        retry=_retry(where, options.get("retry")),
        interrupted=interrupted,
        on_disconnect=_on_disconnect(where, options.get("on_disconnect"), policy, durable=durable),
        idempotency_window=_window(where, options.get("idempotency_window", "1 hour")),
        roles=_roles(where, options.get("roles", ())),
        limits=limits,
        priority=_priority(where, policy, limits, options.get("priority"), durable=durable),
    )


def _priority(
    where: str, policy: Policy, limits: tuple[LimitOfAction, ...], given: int | None, *, durable: bool
) -> int:
    if given is None:
        return 0
    check_priority(where, policy, limits, durable=durable)
    try:
        check_number(given)
    except InvalidInputError as error:
        raise DeclarationError(where, str(error)) from None
    return given


def _on_disconnect(where: str, given: OnDisconnect | None, policy: Policy, *, durable: bool) -> OnDisconnect:
    if given is None:
        return "continue" if durable or isinstance(policy, Join) else "cancel"
    if given not in get_args(OnDisconnect):
        raise DeclarationError(where, f"on_disconnect is {given!r:.60}; it must be 'cancel' or 'continue'")
    check_disconnect(where, policy, given, durable=durable)
    return given


def _retry(where: str, given: Retry | int | None) -> Retry:
    try:
        return step(retry=given)(_retry).options.retry  # which checks it
    except DeclarationError as error:
        raise DeclarationError(where, str(error)) from None


def _window(where: str, given: Duration) -> float:
    try:
        return seconds(given, what="idempotency_window", minimum=1.0, maximum=LONGEST_WINDOW)
    except InvalidArgumentError as error:
        raise DeclarationError(where, str(error)) from None


def _roles(where: str, given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise DeclarationError(where, f"roles is one text; give a list of them: roles=[{given!r:.60}]")
    roles = frozenset(given)
    for each in roles:
        if not isinstance(each, str) or not each or not each.isprintable() or len(each) > LONGEST_ROLE:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            problem = f"a role must be 1 to {LONGEST_ROLE} printable characters"
            raise DeclarationError(where, f"{each!a:.80} is no role; {problem}")
    return roles
