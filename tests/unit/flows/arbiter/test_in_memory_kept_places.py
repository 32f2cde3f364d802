"""The places of durable requests while nothing of them runs: before their step comes, and between two tries of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError
from standfast.flows.arbiter import in_memory as abandoned
from tests.conformance.dispatch_stage import Stage, arrival, result

if TYPE_CHECKING:
    from standfast.flows.dispatcher import ArbiterKind


@pytest.fixture
def stage() -> Stage:
    """What the actions do."""
    return Stage()


@pytest.mark.parametrize("kind", ["shared", "local"])
async def test_a_request_that_is_tried_again_has_not_lost_its_turn(stage: Stage, kind: ArbiterKind) -> None:
    """Whoever waits for it does not get in between, wherever the lines lie."""
    stage.failures["a"] = 2
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=kind) as dispatcher:
        first = await dispatcher.dispatch(arrival("retried", "a", durable=True))
        others = [await dispatcher.dispatch(arrival("queued", name, durable=name == "b")) for name in "bc"]
        for handle in (first, *others):
            await result(handle)
    assert stage.begun == ["a", "a", "a", "b", "c"]


async def test_a_run_that_is_ended_from_outside_does_not_keep_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step never comes, so those behind it do not wait for it, and nothing is left of it."""
    monkeypatch.setattr(abandoned, "LOOK_EVERY", 0.01)
    engine = sf.Engine("memory://", worker=sf.admin.WorkerLimits(max_loaded=1))
    async with sf.Dispatcher(engine, [stage.flow], arbiter="local") as dispatcher:
        stage.hold("in the way")
        busy = await dispatcher.dispatch(arrival("queued", "in the way", session="another", durable=True))
        await stage.until_begun("in the way")
        dropped = await dispatcher.dispatch(arrival("queued", "dropped", durable=True))
        behind = await dispatcher.dispatch(arrival("queued", "behind"))
        await engine.cancel(dropped.id)
        assert await result(behind) == "did behind"
        with pytest.raises(RequestCancelledError):
            await result(dropped)
        stage.release("in the way")
        await result(busy)
        line = await dispatcher.arbiter.look(("request", "acme", "session", "s-1"))
        assert (line.holder, line.waiters) == (None, ())
