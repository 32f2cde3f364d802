"""Declaring flows and actions: what holds, and what is refused where it is declared."""

from __future__ import annotations

from typing import Any, cast

import pytest

import standfast as sf
from standfast.errors import DeclarationError, ForbiddenError, UnknownActionError
from standfast.flows.flow import Flows
from standfast.testing.flows import Rehearsal


async def respond(_request: sf.Request, text: str) -> str:
    """Answer a message.

    At length.
    """
    return text.upper()


async def index(_request: sf.Request, documents: list[str]) -> int:
    """Index documents."""
    return len(documents)


def declare(function: Any = respond, flow: sf.Flow | None = None, **options: Any) -> Any:
    """Declare an action of a flow."""
    return (flow or sf.Flow("support-chat")).action(**options)(function)


def test_an_actions_policy_is_its_own_or_the_flows_or_none_at_all() -> None:
    """The nearest declaration holds."""
    chat = sf.Flow("support-chat", concurrency="queue")
    assert declare(flow=chat, name="a", concurrency="reject").policy == sf.Reject()
    assert declare(flow=chat, name="b").policy == sf.Queue()
    assert declare(flow=sf.Flow("other")).policy == sf.Allow()


async def test_an_action_is_still_a_function() -> None:
    """A test calls it as it is, with a request that is only played."""
    action = sf.Flow("support-chat").action(respond)
    assert await action(Rehearsal().request, "hello") == "HELLO"
    assert (vars(action)["__name__"], action.__doc__) == ("respond", respond.__doc__)


def test_what_an_action_is_can_be_read_from_it() -> None:
    """Its names, its place, and what it does in words."""
    chat = sf.Flow("support-chat", description="  Talks.  ")
    action = declare(flow=chat)
    assert (action.flow, action.name, action.where) == (
        "support-chat",
        "respond",
        "flow 'support-chat', action 'respond'",
    )
    assert (chat.description, action.description) == ("Talks.", "Answer a message.\n\nAt length.")
    assert dict(chat.actions) == {"respond": action}


def test_the_actions_of_a_flow_can_only_be_added_by_declaring_them() -> None:
    """What a flow shows is no way to change it."""
    with pytest.raises(TypeError):
        cast("Any", sf.Flow("support-chat").actions)["x"] = respond


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "ü", "1st", "x" * 65, None, 7])
def test_a_name_that_cannot_be_part_of_an_address_is_refused(name: Any) -> None:
    """Letters, digits, _ and -; of flows and of actions."""
    with pytest.raises(DeclarationError, match="a name must be"):
        sf.Flow(name)
    if name is not None:
        with pytest.raises(DeclarationError, match=r"flow 'support-chat', action .*a name must be"):
            declare(name=name)


def test_two_actions_of_one_name_are_refused() -> None:
    """The second would take the place of the first in silence."""
    chat = sf.Flow("support-chat")
    chat.action(respond)
    with pytest.raises(DeclarationError, match="flow 'support-chat', action 'respond': there is an action"):
        chat.action(respond)


def test_a_declaration_that_was_refused_leaves_nothing_behind() -> None:
    """Its name is free."""
    chat = sf.Flow("support-chat")
    with pytest.raises(DeclarationError):
        declare(flow=chat, interrupted="maybe")
    assert declare(flow=chat).name == "respond"


def test_an_unknown_policy_is_refused_at_its_place() -> None:
    """Of a flow, and of an action."""
    with pytest.raises(DeclarationError, match=r"^flow 'support-chat': 'queued' is no policy; there are 'allow'"):
        sf.Flow("support-chat", concurrency=cast("Any", "queued"))
    with pytest.raises(DeclarationError, match=r"^flow 'support-chat', action 'respond': 'queued' is no policy"):
        declare(concurrency="queued")


def plain(_request: sf.Request) -> None:
    """Be no coroutine function."""


async def lonely() -> None:
    """Take no request."""


async def variadic(_request: sf.Request, *_words: str) -> None:
    """Take inputs without names."""


async def by_place(_request: sf.Request, _word: str, /) -> None:
    """Take inputs by place."""


async def strange(_request: sf.Request, _thing: type[Any]) -> None:
    """Take what cannot be JSON."""


@pytest.mark.parametrize("function", [plain, lonely, variadic, by_place, strange])
def test_a_function_that_cannot_be_an_action_is_refused(function: Any) -> None:
    """It has to be async, take the request, and take inputs that have names and types."""
    with pytest.raises(DeclarationError, match=f"flow 'support-chat', action '{function.__name__}'"):
        declare(function)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"interrupted": "maybe"}, "'retry' or 'fail'"),
        ({"on_disconnect": "wait"}, "'cancel' or 'continue'"),
        ({"durable": "yes"}, "True or False"),
        ({"retry": "3"}, "neither a Retry"),
        ({"retry": 0}, "at least 1"),
        ({"idempotency_window": "soon"}, "idempotency_window"),
        ({"idempotency_window": "1 ms"}, "idempotency_window"),
        ({"idempotency_window": "31 days"}, "idempotency_window"),
        ({"roles": "admin"}, r"roles=\['admin'\]"),
        ({"roles": ["a\nb"]}, "no role"),
        ({"roles": [7]}, "no role"),
        ({"description": 7}, "it must be text"),
        ({"urgency": 3}, "there is no option urgency; there are name, concurrency"),
        ({"priority": 3}, "a priority orders requests that wait for a limit, and the action has none"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_at_its_place(options: dict[str, Any], problem: str) -> None:
    """With the place and the reason."""
    with pytest.raises(DeclarationError, match=f"^flow 'support-chat', action 'respond': .*{problem}"):
        declare(**options)


@pytest.mark.parametrize("policy", [sf.Debounce("1s"), sf.Latest()])
def test_what_is_answered_before_it_has_run_is_durable(policy: Any) -> None:
    """It need not be said, and cannot be denied."""
    assert declare(concurrency=policy).durable
    with pytest.raises(DeclarationError, match="always durable"):
        declare(concurrency=policy, durable=False)


def test_only_what_is_declared_so_is_durable_otherwise() -> None:
    """By default an action whose caller waits runs on the caller's connection."""
    assert declare(durable=True).durable
    assert not declare(concurrency="queue").durable


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "cancel"),
        ({"concurrency": "queue"}, "cancel"),
        ({"concurrency": "join"}, "continue"),
        ({"concurrency": "latest"}, "continue"),
        ({"durable": True}, "continue"),
        ({"on_disconnect": "continue"}, "continue"),
        ({"concurrency": "restart", "on_disconnect": "cancel"}, "cancel"),
    ],
)
def test_what_a_caller_leaves_behind_goes_on_if_others_count_on_it(options: dict[str, Any], expected: str) -> None:
    """Durable and shared requests continue; others are cancelled, unless it was said otherwise."""
    assert declare(**options).on_disconnect == expected


@pytest.mark.parametrize("options", [{"durable": True}, {"concurrency": "join"}, {"concurrency": "latest"}])
def test_what_others_count_on_cannot_be_cancelled_by_one_caller(options: dict[str, Any]) -> None:
    """Whoever declares it so is told why."""
    with pytest.raises(DeclarationError, match="on_disconnect='cancel' cannot be combined"):
        declare(**options, on_disconnect="cancel")


async def two_lists(_request: sf.Request, _a: list[str], _b: list[str]) -> None:
    """Take two lists."""


async def nothing(_request: sf.Request) -> None:
    """Take nothing."""


@pytest.mark.parametrize("function", [respond, two_lists, nothing])
def test_a_batch_needs_an_action_that_takes_one_list(function: Any) -> None:
    """The error says what it takes instead, whether the policy is the action's or the flow's."""
    for flow, options in (
        (sf.Flow("support-chat"), {"concurrency": sf.Batch(10, "1s")}),
        (sf.Flow("support-chat", sf.Batch(10, "1s")), {}),
    ):
        with pytest.raises(DeclarationError, match=f"action '{function.__name__}': the policy Batch needs"):
            declare(function, flow, **options)


def test_a_role_of_several_is_enough() -> None:
    """And none are needed where none were declared."""
    action = declare(roles=["agent", "admin"])
    action.check_roles(frozenset({"agent", "other"}))
    declare().check_roles(frozenset())
    with pytest.raises(ForbiddenError, match="'admin' or 'agent'"):
        action.check_roles(frozenset({"other"}))


def test_a_request_finds_its_action_by_two_names() -> None:
    """What is declared after the app was made is not served by it."""
    chat = sf.Flow("support-chat")
    action = chat.action(respond)
    flows = Flows([chat, sf.Flow("empty")])
    declare(flow=chat, name="later")
    assert flows.find("support-chat", "respond") is action
    assert flows.actions == (action,)


@pytest.mark.parametrize(("flow", "action"), [("support-chat", "x"), ("x", "respond"), ("empty", "respond"), ("", "")])
def test_what_is_not_there_is_not_found(flow: str, action: str) -> None:
    """The error lists what is."""
    chat = sf.Flow("support-chat")
    chat.action(respond)
    with pytest.raises(UnknownActionError, match=r"there is support-chat\.respond"):
        Flows([chat, sf.Flow("empty")]).find(flow, action)


def test_two_flows_of_one_kind_are_refused_in_one_app() -> None:
    """One and the same flow may be given twice."""
    chat = sf.Flow("support-chat")
    Flows([chat, chat])
    with pytest.raises(DeclarationError, match="flow 'support-chat': there are two"):
        Flows([chat, sf.Flow("support-chat")])
    with pytest.raises(DeclarationError, match="is no flow"):
        Flows([cast("Any", respond)])


@pytest.mark.parametrize("limits", [3, [3], "two"])
def test_what_is_no_limit_is_refused_where_it_is_declared(limits: Any) -> None:
    """Whether it is alone or one of several."""
    with pytest.raises(DeclarationError, match=r"flow 'shop', action 'buy'.*no limit"):

        @sf.Flow("shop").action(limits=limits)
        async def buy(_request: sf.Request) -> None: ...


def test_an_action_that_forgot_the_request_is_refused() -> None:
    """Otherwise its first input would be the request, and nothing that is sent would fit."""

    async def buy(item: str, count: int = 1) -> None: ...

    with pytest.raises(DeclarationError, match=r"buy.*item.*is not the request; write async def buy\(request"):
        sf.Flow("shop").action(buy)  # type: ignore[arg-type]  # what is to be refused
