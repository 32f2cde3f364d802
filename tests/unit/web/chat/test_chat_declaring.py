"""How an application says that a flow is a chat."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.errors import DeclarationError
from standfast.web.app import App
from standfast.web.chat import Chat, ChatLimits
from tests.unit.web.chat.chat_clients import Support


async def _only_text(request: sf.Request, text: str) -> None: ...
async def _nothing(request: sf.Request) -> None: ...
async def _a_number(request: sf.Request, text: str, number: int) -> None: ...


def flow_of(**actions: Any) -> sf.Flow:
    """Return a flow with actions by name."""
    flow = sf.Flow("support")
    for name, function in actions.items():
        flow.action(name=name)(function)
    return flow


def test_a_chat_is_named_by_its_flow_alone() -> None:
    """The usual names of actions need not be said."""
    chat = Chat(flow_of(append_message=_only_text, respond=_nothing))
    assert (chat.flow, chat.append, chat.respond) == ("support", "append_message", "respond")
    assert not chat.says_text


@pytest.mark.parametrize(
    ("actions", "options", "problem"),
    [
        ({"respond": _nothing}, {}, "there is no action 'append_message'"),
        ({"append_message": _only_text}, {}, "there is no action 'respond'"),
        ({"append_message": _nothing, "respond": _nothing}, {}, "a chat gives it 'text'"),
        ({"append_message": _only_text, "respond": _a_number}, {}, "a chat cannot give it 'number'"),
        ({"respond": _nothing}, {"append": None}, "no action gets the message"),
    ],
)
def test_a_chat_that_cannot_work_is_refused_where_it_is_declared(
    actions: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    """The error names the place and the reason."""
    with pytest.raises(DeclarationError, match=problem):
        Chat(flow_of(**actions), **options)


@pytest.mark.parametrize("wrong", [{"message": 0}, {"burst": 0}, {"rate": 0}, {"rate": "5"}, {"connections": True}])
def test_a_limit_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    """Limits are positive numbers."""
    with pytest.raises(DeclarationError, match=next(iter(wrong))):
        ChatLimits(**wrong)


async def test_a_chat_of_a_flow_that_is_not_served_is_refused() -> None:
    """And so is a second chat of a flow."""
    flow = Support().flow
    with pytest.raises(DeclarationError, match="not among those"):
        App("memory://", flows=[], chats=[Chat(flow)])
    with pytest.raises(DeclarationError, match="another chat"):
        App("memory://", flows=[flow], chats=[Chat(flow), Chat(flow)])
