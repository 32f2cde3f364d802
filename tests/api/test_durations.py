"""Lengths of time: every public parameter that is one takes the same language."""

from __future__ import annotations

import inspect
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, is_typeddict

import pytest

import standfast as sf
from standfast import blocking, locks
from standfast.errors import StandfastError
from standfast.exclusion.retry import Backoff
from standfast.web.chat import ChatLimits
from standfast.web.limits import AppLimits
from standfast.web.signatures import Slack, StandardWebhooks, Stripe
from tests.api.test_exports import calls, classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_LENGTHS: Final = {
    "chance": "a probability",
    "factor": "a ratio",
    "rate": "messages a second",
    "random": "a source of probabilities",
    "sleep": "a function that is called with seconds",
    "event_time": "a function that returns a point in time",
    "minimum": "what the language itself is made of",
    "maximum": "what the language itself is made of",
    "maximum_bare": "what the language itself is made of",
}
"""Parameters that are numbers, and not lengths of time."""

OURS: Final = (
    "standfast.testing.",
    "standfast.events.",
    "standfast.hooks.",
    "standfast.errors.",
    "standfast.clock.",
    "standfast.exclusion.retry.Attempt.",
    "standfast.hooks.HookSlow.",
    "standfast.locks.inspect.",
    "standfast.log_budget.LogBudget.",
    "standfast.locks.locks.ModeLock.",
    "standfast.locks.locks.Mutex.",
    "standfast.locks.rate_limiter.Pass.",
    "standfast.locks.rate_limiter.RateState.",
    "standfast.locks.rate_limiter.WaitingForTokens.",
    "standfast.locks.run_locks.RunLease.expect.",
    "standfast.locks.run_locks.RunLease.extend.",
    "standfast.locks.run_locks.RunLocks.",
    "standfast.locks.locks.Semaphore.",
    "standfast.stores.protocol.Capabilities.",
    "standfast.workflows.definition.Workflow.",
    "standfast.workflows.",
)
"""What Standfast itself makes or calls, with values that it has checked; options of URLs are read as text before."""


def parameters() -> Iterator[tuple[str, str]]:
    """Yield each public parameter and attribute of options that may be given, with its annotation."""
    for name, kind in classes().items():
        if is_typeddict(kind):
            yield from ((f"{name}.{each}", str(said)) for each, said in kind.__annotations__.items())
        elif not issubclass(kind, BaseException) and not getattr(kind, "_is_protocol", False):
            yield from ((f"{name}.{each.name}", str(each.annotation)) for each in _signature(kind))
    for name, call in calls():
        yield from ((f"{name}.{each.name}", str(each.annotation)) for each in _signature(call))


def _signature(call: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # properties and the like take nothing
        return []


def test_no_public_parameter_is_a_bare_number_of_seconds() -> None:
    """What is a number and is no length of time is listed here, with what it is."""
    bare = [name for name, said in parameters() if "float" in said and "timedelta" not in said]
    given = [name for name in bare if not name.startswith(OURS) and "Options." not in name]
    lengths = [name for name in given if name.rpartition(".")[2] not in NO_LENGTHS]
    assert lengths == ["standfast.stores.postgresql.transactions.PostgresWork.seconds"]  # what it was given, in seconds


@sf.workflow
async def nothing(_ctx: sf.Context) -> None:
    """Do nothing."""


@sf.workflow
async def lists(_ctx: sf.Context, _items: list[int]) -> None:
    """Do nothing with a list."""


WHSEC: Final = "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IQ=="


def kept_for(name: str, length: Any) -> object:
    """Return a retention with one length."""
    return sf.admin.Retention(**{name: length})


MAKERS: Final[dict[str, Callable[[Any], object]]] = {
    "Backoff.first": lambda length: Backoff(first=length),
    "Backoff.longest": lambda length: Backoff(longest=length),
    "Retry.delay": lambda length: sf.Retry(delay=length),
    "Retry.max_delay": lambda length: sf.Retry(max_delay=length),
    "DurableMutex.lease": lambda length: locks.DurableMutex(lease=length),
    "DurableMutex.waiter_ttl": lambda length: locks.DurableMutex(waiter_ttl=length),
    "DurableSemaphore.lease": lambda length: locks.DurableSemaphore(lease=length),
    "DurableSemaphore.waiter_ttl": lambda length: locks.DurableSemaphore(waiter_ttl=length),
    "Engine.lease": lambda length: sf.Engine("memory://", lease=length),
    "WorkerLimits.linger": lambda length: sf.admin.WorkerLimits(linger=length),
    "Rate.per": lambda length: sf.Rate(1, per=length),
    "Batch.window": lambda length: sf.Batch(1, length),
    "Debounce.window": sf.Debounce,
    "Debounce.max_wait": lambda length: sf.Debounce("1s", max_wait=length),
    "Queue.timeout": lambda length: sf.Queue(timeout=length),
    "Restart.grace": lambda length: sf.Restart(grace=length),
    "TenantLimits.session_kept": lambda length: sf.web.TenantLimits(session_kept=length),
    "Opening.lease": lambda length: sf.open("memory://", lease=length),
    "Opening.heartbeat": lambda length: sf.open("memory://", lease="10 minutes", heartbeat=length),
    "OtlpSpans.every": lambda length: sf.admin.OtlpSpans("http://127.0.0.1:4318", every=length),
    "OtlpSpans.timeout": lambda length: sf.admin.OtlpSpans("http://127.0.0.1:4318", timeout=length),
    "AppLimits.grace": lambda length: AppLimits(grace=length),
    "ChatLimits.heartbeat": lambda length: ChatLimits(heartbeat=length, idle="1 hour"),
    "ChatLimits.idle": lambda length: ChatLimits(idle=length),
    "ChatLimits.keep": lambda length: ChatLimits(keep=length),
    "ChatLimits.patience": lambda length: ChatLimits(patience=length),
    "AppLimits.body_time": lambda length: AppLimits(body_time=length),
    "AppLimits.heartbeat": lambda length: AppLimits(heartbeat=length),
    "AppLimits.patience": lambda length: AppLimits(patience=length),
    "AppLimits.wait": lambda length: AppLimits(wait=length),
    "Slack.tolerance": lambda length: Slack("longer secret", tolerance=length),
    "StandardWebhooks.tolerance": lambda length: StandardWebhooks(
        "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IQ==", tolerance=length
    ),
    "Stripe.tolerance": lambda length: Stripe("longer secret", tolerance=length),
    **{
        f"Retention.{name}": partial(kept_for, name)
        for name in ("completed", "failed", "cancelled", "timed_out", "idempotency", "audit")
    },
    "Retention.workflows": lambda length: sf.admin.Retention(workflows={"ledger": length}),
    "Limit.ttl": lambda length: sf.Limit(1, on_limit="queue", ttl=length),
    "Batched.window": lambda length: sf.collect(lists, sf.Batch(1, length)),
    "Debounced.window": lambda length: sf.collect(nothing, sf.Debounce(length)),
    "Debounced.max_wait": lambda length: sf.collect(nothing, sf.Debounce("1s", max_wait=length)),
    "TickOptions.every": lambda length: sf.Schedule(nothing, id="s", every=length),
    "TickOptions.jitter": lambda length: sf.Schedule(nothing, id="s", every="1 day", jitter=length),
}
"""How to give a length of time to each declaration that takes one."""


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("length", ["90 seconds", "1.5 minutes", 90, 90.0, timedelta(seconds=90)], ids=str)
def test_a_length_of_time_is_given_in_any_way(name: str, length: object) -> None:
    """As text with a unit, as a timedelta, or in seconds."""
    MAKERS[name](length)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("length", ["5 parsecs", -1, float("nan"), True, b"5s"], ids=str)
def test_what_is_no_length_of_time_is_refused_where_it_is_declared(name: str, length: object) -> None:
    """With an error of ours that shows what was given, not when it is first needed."""
    with pytest.raises(StandfastError):
        MAKERS[name](length)


def test_every_declaration_that_takes_a_length_of_time_is_tried() -> None:
    """A new one fails here until it is listed above."""
    skipped = {"LockByHand", "Space", "Dispatcher", "RateLimiter", "OAuthTokens", "Webhook", "HoldOptions"} | {
        "WorkflowEnvironment"
    }
    homes = classes()
    given = [name.rpartition(".") for name, said in parameters() if "Duration" in said or "timedelta" in said]
    taken = {f"{homes[home].__name__}.{name}" for home, _, name in given if home in homes}
    tried = {each for each in taken if each.partition(".")[0] not in skipped}
    assert tried - MAKERS.keys() - {"ActionOptions.timeout", "ScheduleOptions.every", "ScheduleOptions.jitter"} == set()


def test_a_step_waits_as_long_as_its_retry_says() -> None:
    """Whatever way that was said in."""
    for delay, longest in [("5ms", "8ms"), (0.005, 0.008), (timedelta(milliseconds=5), timedelta(milliseconds=8))]:
        retry = sf.Retry(delay=cast("Any", delay), max_delay=cast("Any", longest))
        assert [retry.wait_before(attempt) for attempt in (2, 3)] == [0.005, 0.008]


def test_a_watch_waits_as_long_as_it_is_told_to() -> None:
    """In blocking code, too."""
    with blocking.open("memory://") as space, space.watch(space.key("a")) as watch:
        assert watch.wait("1ms") is None
