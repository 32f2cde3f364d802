"""Flows and their actions, as users declare them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
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
    final,
    overload,
)

from msgspec import Struct

from holdfast.durations import DAY, seconds
from holdfast.errors import InvalidFlowError, UnknownActionError
from holdfast.flows.policies import Allow, as_policy
from holdfast.flows.request import Request
from holdfast.workflows.declaring.definition import ONCE, Retry
from holdfast.workflows.storing.values import signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from holdfast.durations import Duration
    from holdfast.flows.policies import Policy, PolicyName
    from holdfast.flows.arrival import OnDisconnect
    from holdfast.workflows.storing.values import Signature, Typed

P = ParamSpec("P")
R = TypeVar("R")

Interrupted: TypeAlias = Literal["retry", "fail"]
"""What happens to a request whose server dies while it runs: it is run again, or ends ``interrupted``."""

LONGEST_NAME: Final = 64
LONGEST_WINDOW: Final = 30 * DAY
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)


class Inputs(Struct, frozen=True):
    """What an action is to be called with, checked.

    Attributes:
        packed: As a JSON object, to be stored. Defaults are not in it.
        values: By name, as the action will see them.
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
        description: What it does, for people and for language models.
        function: The function itself.
        signature: The types of what it takes besides the request, and of what it returns.
    """

    flow: str
    name: str
    where: str
    policy: Policy
    durable: bool
    retry: Retry
    interrupted: Interrupted
    on_disconnect: OnDisconnect
    idempotency_window: float
    roles: frozenset[str]
    description: str
    function: Callable[..., Coroutine[Any, Any, R]]
    signature: Signature

    @property
    def result(self) -> Typed[Any]:
        """How its results are stored."""
        return self.signature.result

    def __call__(self, request: Request, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function as it is: no policy, no checks, nothing stored. So a test can call it with a request."""
        raise NotImplementedError

    def read(self, inputs: Mapping[str, Any] | bytes) -> Inputs:
        """Check what a request brings against what the function takes.

        With the policy ``Batch`` that is one item of the list.

        Args:
            inputs: Values by name, or a JSON object as bytes; no bytes at all stand for an empty one.

        Raises:
            InvalidInputError: It does not fit. The error names the place, never the value.
        """
        raise NotImplementedError

    def arguments(self, *packed: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what to call the function with, besides the request, from packed inputs.

        Args:
            packed: With the policy ``Batch`` the items of all requests of the run, the oldest first; with any other
                one, the last is used.

        Raises:
            DecodeError: The data is damaged, or the function takes other arguments now.
        """
        raise NotImplementedError

    def check_roles(self, roles: frozenset[str]) -> None:
        """Refuse a principal who has none of the roles that the action needs.

        Raises:
            ForbiddenError: It has none.
        """
        raise NotImplementedError

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what a request brings: an object, with a property for each parameter."""
        raise NotImplementedError

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what it returns."""
        raise NotImplementedError


@final
class Flow:
    """A kind of conversation or job, with its actions.

        chat = hf.Flow("support-chat", concurrency="queue")

        @chat.action(concurrency="allow")
        async def append_message(request: hf.Request, text: str) -> None: ...

        @chat.action(concurrency=hf.Debounce("500ms", max_wait="5s"))
        async def respond(request: hf.Request) -> str: ...

    Args:
        kind: Its name, unlike that of any other flow of the app.
        concurrency: The policy of its actions that have none of their own; by default ``"allow"``.
        description: What it is for, for people and for language models.

    Attributes:
        kind: Its name.
        policy: What its actions do that have no policy of their own.
        description: What it is for.

    Raises:
        InvalidFlowError: The declaration cannot work; the error names the place and the reason.
    """

    __slots__ = ("_actions", "description", "kind", "policy")

    def __init__(self, kind: str, concurrency: Policy | PolicyName | None = None, *, description: str = "") -> None:
        raise NotImplementedError

    @property
    def actions(self) -> Mapping[str, Action[..., Any]]:
        """Its actions by name, in the order of their declaration."""
        raise NotImplementedError

    @overload
    def action(self, function: Callable[Concatenate[Request, P], Coroutine[Any, Any, R]], /) -> Action[P, R]: ...
    @overload
    def action(
        self,
        *,
        name: str | None = None,
        concurrency: Policy | PolicyName | None = None,
        durable: bool | None = None,
        retry: Retry | int | None = None,
        interrupted: Interrupted = "retry",
        on_disconnect: OnDisconnect | None = None,
        idempotency_window: Duration = "1 hour",
        roles: Iterable[str] = (),
        description: str | None = None,
    ) -> Callable[[Callable[Concatenate[Request, P], Coroutine[Any, Any, R]]], Action[P, R]]: ...
    def action(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # noqa: ANN401 -- see the overloads
        """Declare an action: an ``async def`` whose first parameter is the :class:`~holdfast.Request`.

        What it takes besides is checked by its annotations, and what it returns too.

        Args:
            function: The function.
            name: Its name; by default the function's.
            concurrency: Its policy; by default the flow's.
            durable: Run it as a durable workflow, always: it survives crashes, and is answered before it has run. By
                default only what nobody waits for on a connection is, and what a policy collects.
            retry: When a durable request that raised is tried again: a :class:`~holdfast.Retry`, or a number of
                attempts. One that runs on its caller's connection is not: its caller is told.
            interrupted: What happens to a request whose server dies while it runs: ``"retry"``: a durable one is run
                again, and another one may be sent again with the same idempotency key. ``"fail"``: it ends
                ``interrupted``, and so do those who send it again: for what must not be done twice.
            on_disconnect: What happens when a caller that waits on its connection goes away: ``"cancel"`` or
                ``"continue"``. By default it is cancelled, unless it is durable or shared with others.
            idempotency_window: For how long an idempotency key is remembered after the request has ended.
            roles: Who may call it: principals with any of these roles. By default everybody who may call the app.
            description: What it does, for people and for language models; by default the function's docstring.

        Raises:
            InvalidFlowError: The declaration cannot work; the error names the place and the reason.
        """
        raise NotImplementedError


@final
class Flows:
    """The flows of one app, and where a request finds its action.

    Args:
        flows: The flows.

    Raises:
        InvalidFlowError: Two have one kind, or something is no flow.
    """

    __slots__ = ("_flows",)

    def __init__(self, flows: Iterable[Flow]) -> None:
        raise NotImplementedError

    def find(self, flow: str, action: str) -> Action[..., Any]:
        """Return an action by the kind of its flow and its name.

        Raises:
            UnknownActionError: There is none.
        """
        raise NotImplementedError

    @property
    def actions(self) -> tuple[Action[..., Any], ...]:
        """All actions of all flows, in the order of their declaration."""
        raise NotImplementedError
