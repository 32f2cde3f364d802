"""Which actions are tools, and what a model is told about them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from standfast.errors import DeclarationError
from standfast.flows.flow import Action, Flow
from standfast.log_hook import as_logfmt
from standfast.web.limits import several

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp.types import Tool

    from standfast.flows.flow import Flows
    from standfast.flows.request import Principal


Toolable: TypeAlias = "Flow | Action[..., Any]"
"""A flow, all of whose actions are tools, or one action."""

LONGEST: Final = 128
"""Characters of a tool's name."""

_log: Final = logging.getLogger("standfast.web")


@final
class Toolbox:
    """The tools of an application, by name.

    Raises:
        DeclarationError: Two have one name, one is too long, or an action is of no flow that the application has.
    """

    def __init__(self, given: Iterable[Toolable], flows: Flows) -> None:
        self._actions: Final[dict[str, Action[..., Any]]] = {}
        for each in several("tools", given, (Flow, Action), "tools=[flow]"):
            for action in each.actions.values() if isinstance(each, Flow) else (each,):
                name = name_of(action)
                if action not in flows.actions:
                    raise DeclarationError(action.where, "it cannot be a tool: its flow is none of the app's")
                if self._actions.setdefault(name, action) is not action or len(name) > LONGEST:
                    problem = f"as a tool it would be called {name!r}, which is taken or too long"
                    raise DeclarationError(action.where, problem)

    def __bool__(self) -> bool:
        return bool(self._actions)

    def find(self, name: str, principal: Principal) -> Action[..., Any] | None:
        """Return a tool that a principal may use. One that they may not is not there."""
        action = self._actions.get(name)
        return action if action is not None and action.is_for(principal.roles) else None

    def shown_to(self, principal: Principal) -> list[Tool]:
        """Return what a principal may use."""
        return [_tool(name, action) for name, action in self._actions.items() if action.is_for(principal.roles)]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return of each tool its name, its policy, what it collides by, and the roles of which one is needed."""
        return [
            (name, action.policy.name, _collides_by(action), " ".join(sorted(action.roles)))
            for name, action in self._actions.items()
        ]

    def tell_what_is_loose(self) -> None:
        """Warn of tools whose declared policy arbitrates nothing, since models name no session."""
        loose = [name for name, action in self._actions.items() if action.policy.key == "session"]
        if loose:
            fix = 'key="user" or key="tenant"'
            _log.warning("%s", as_logfmt({"event": "tools-without-a-key", "tools": " ".join(loose), "fix": fix}))


def _collides_by(action: Action[..., Any]) -> str:
    """Return by what calls of a tool collide, in words."""
    key = action.policy.key
    if key == "session":
        return "nothing, unless the client names a session"
    return "nothing" if key == "none" else key if isinstance(key, str) else "its own key"


def name_of(action: Action[..., Any]) -> str:
    """Return the name of an action as a tool. Models take letters, digits, ``_`` and ``-`` only."""
    return f"{action.flow}__{action.name}"


def _tool(name: str, action: Action[..., Any]) -> Tool:
    from mcp.types import Tool  # noqa: PLC0415 -- the library is an extra

    schema = action.output_schema()
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    wrapped = {"type": "object", "properties": {"result": schema}, "required": ["result"], **definitions}
    return Tool(
        name=name,
        description=action.description or None,
        input_schema=action.input_schema(),
        output_schema=wrapped,
    )
