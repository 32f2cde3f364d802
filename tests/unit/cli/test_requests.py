"""``standfast requests``: what an operator sees of an application's requests, and stopping one without its code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError
from tests.conformance.dispatch_stage import SOON, Stage, arrival

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ask

OF = ("--of", "acme")


async def test_requests_are_listed_newest_first(url: str, ask: Ask) -> None:
    """With who asked and how they are; by status, action and page too; and only those of the tenant."""
    stage = Stage()
    async with sf.Dispatcher(url, [stage.flow], arbiter="shared") as server:
        stage.hold("a")
        running = await server.dispatch(arrival("queued", "a", durable=True))
        await stage.until_begun("a")
        waiting = await server.dispatch(arrival("queued", "b", durable=True))
        told = json.loads((await ask("requests", "list", *OF, "--json")).stdout)
        some = json.loads((await ask("requests", "list", *OF, "--status", "waiting", "--json")).stdout)
        page = json.loads((await ask("requests", "list", *OF, "--limit", "1", "--json")).stdout)
        rest = json.loads((await ask("requests", "list", *OF, "--after", page["next"], "--json")).stdout)
        shown = (await ask("requests", "list", *OF, "--action", "queued")).stdout
        counted = await ask("requests", "list", *OF, "--flow", "chat", "--count", "--json")
        started = json.loads((await ask("requests", "list", *OF, "--verdict", "started", "--json")).stdout)
        others = await ask("requests", "list")
        stage.release("a")
        for each in (running, waiting):
            await each.result(SOON)

    assert [(each["id"], each["status"]) for each in told["requests"]] == [
        (waiting.id, "waiting"),
        (running.id, "running"),
    ]
    assert told["requests"][0]["user"] == "ann"
    assert [each["id"] for each in some["requests"]] == [waiting.id]
    assert [each["id"] for each in (*page["requests"], *rest["requests"])] == [waiting.id, running.id]
    assert shown.splitlines()[0].split()[:3] == ["REQUEST", "ACTION", "USER"]
    assert json.loads(counted.stdout) == {"count": 2, "more": False}
    assert [(each["policy"], each["verdict"]) for each in started["requests"]] == [("queue", "started")] * 2
    assert [each["waited"] is None for each in started["requests"]] == [True, False]
    assert others.stdout == "there are no such requests\n"


@pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])
async def test_a_request_is_asked_to_stop_by_an_operator(url: str, ask: Ask, *, durable: bool) -> None:
    """Its caller is told that an operator did it, the audit has it, and a second time there is nothing to do."""
    stage = Stage()
    async with sf.Dispatcher(url, [stage.flow], arbiter="shared") as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        unsure = await ask("requests", "cancel", handle.id, *OF)
        done = await ask("requests", "cancel", handle.id, *OF, "--yes", "--as", "eve", "--reason", "wrong")
        with pytest.raises(RequestCancelledError) as problem:
            await handle.result(SOON)
        stage.release("a")
        shown = await ask("requests", "show", handle.id, *OF)
        again = await ask("requests", "cancel", handle.id, *OF, "--yes")
        records = (await server.engine.audit(action="request.cancel", actor="eve")).records

    assert (unsure.exit_code, done.stdout) == (2, f"{handle.id} is asked to stop: wrong\n")
    assert problem.value.cancelled_by == "operator"
    assert shown.stdout.startswith(f"{handle.id}: cancelled")
    assert again.exit_code == 3
    assert [(each.subject, each.reason, each.outcome) for each in records] == [(handle.id, "wrong", "done")]


async def test_a_request_that_is_not_there_has_the_exit_code_for_that(space: sf.Space, ask: Ask) -> None:
    """For a look and for a cancellation."""
    assert space.namespace == "default"
    for verb in (("show",), ("cancel", "--yes")):
        assert (await ask("requests", verb[0], "r-1", *verb[1:])).exit_code == 3
