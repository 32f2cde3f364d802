"""Flows and their actions, as users declare them."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, final, overload

from standfast.errors import InvalidFlowError, UnknownActionError
from standfast.flows.action import Action
from standfast.flows.declaring import Place, checked_description, checked_name
from standfast.flows.limits import check_alike
from standfast.flows.policies import Allow, as_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from standfast.flows.declaring import ActionOptions
    from standfast.flows.policies import Policy, PolicyName
    from standfast.flows.request import Request

P = ParamSpec("P")
R = TypeVar("R")


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
        InvalidFlowError: The declaration cannot work; the error names the place and the reason.
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
            options: See :class:`~standfast.flows.declaring.ActionOptions`.

        Raises:
            InvalidFlowError: The declaration cannot work; the error names the place and the reason.
        """
        return self._declare(function, options) if function is not None else partial(self._declare, options=options)

    def _declare(self, function: Callable[..., Any], options: ActionOptions) -> Action[..., Any]:
        name = options.get("name")
        name = name if name is not None else str(getattr(function, "__name__", type(function).__name__))
        where = self._place_for(name)
        own = options.get("concurrency")
        policy = self.policy if own is None else as_policy(own, where)
        action: Action[..., Any] = Action(function, Place(self.kind, name, where), policy, options)
        self._actions[name] = action
        return action

    def _place_for(self, name: str) -> str:
        """Return how errors call an action; refuse a name that cannot be one, or is taken."""
        where = f"flow {self.kind!r}, action {checked_name(f'flow {self.kind!r}, action', name)!r}"
        if name in self._actions:
            raise InvalidFlowError(where, "there is an action of that name already; give one of them another name=")
        return where

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
        InvalidFlowError: Two have one kind, something is no flow, or limits of one name are not alike.
    """

    __slots__ = ("_found", "actions")

    def __init__(self, flows: Iterable[Flow]) -> None:
        kinds: dict[str, Flow] = {}
        if isinstance(flows, Flow):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise InvalidFlowError("flows", f"{flows!r:.60} is one flow; give a list of them: flows=[...]")
        for flow in flows:
            if not isinstance(flow, Flow):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise InvalidFlowError("flows", f"a {type(flow).__name__} is no flow; make one with sf.Flow(...)")
            if kinds.setdefault(flow.kind, flow) is not flow:
                raise InvalidFlowError(f"flow {flow.kind!r}", "there are two flows of that kind; rename one of them")
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
