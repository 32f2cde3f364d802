"""Hooks: they hear what they want, and cannot disturb the work."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from standfast import hooks as hooks_module
from standfast.clock import Instant
from standfast.events import Committed, Swept
from standfast.hooks import NO_HOOKS, Event, HookFailed, Hooks, HookSlow

if TYPE_CHECKING:
    from collections.abc import Iterator

SWEPT = Swept(at=Instant(1), store="memory://", seconds=0.5, removed=3)


def fail(_event: Event) -> NoReturn:
    """Fail with something that must not be logged."""
    raise ValueError("hunter2")


def test_every_hook_is_told_in_order() -> None:
    """Hooks hear the same event, one after the other."""
    heard: list[tuple[str, Event]] = []
    hooks = Hooks([lambda event: heard.append(("a", event)), lambda event: heard.append(("b", event))])
    hooks.emit(SWEPT)
    assert heard == [("a", SWEPT), ("b", SWEPT)]


def test_nobody_listening_is_false() -> None:
    """Who has an event to tell can skip making it."""
    assert not NO_HOOKS
    assert Hooks([print])


def test_a_hook_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The caller goes on, later hooks are told, and the log has one line without the error's text."""
    heard: list[Event] = []
    hooks = Hooks([fail, heard.append])
    for _ in range(3):
        hooks.emit(SWEPT)
    assert heard.count(SWEPT) == 3
    [record] = caplog.records
    assert "test_hooks.fail raised ValueError" in record.getMessage()
    assert "hunter2" not in caplog.text


def test_the_other_hooks_hear_of_a_failure_once() -> None:
    """A failing hook is itself an event, which names the hook and the place."""
    heard: list[Event] = []
    hooks = Hooks([fail, heard.append])
    hooks.emit(SWEPT)
    hooks.emit(SWEPT)
    [failure] = [event for event in heard if isinstance(event, HookFailed)]
    assert (failure.hook.endswith("test_hooks.fail"), failure.error) == (True, "ValueError")
    assert failure.place.startswith(__file__)


def test_hooks_that_fail_at_each_others_failures_come_to_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """Two broken hooks are reported once each."""

    def fail_too(_event: Event) -> NoReturn:
        raise KeyError

    Hooks([fail, fail_too]).emit(SWEPT)
    assert len(caplog.records) == 2


def test_a_hook_cannot_cancel_the_work() -> None:
    """A hook that raises a cancellation or an exit of a generator is a failing hook like any other."""

    def cancel(_event: Event) -> NoReturn:
        raise asyncio.CancelledError

    Hooks([cancel]).emit(SWEPT)


def test_a_hook_that_exits_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What it was told about goes on, and the log names it."""

    def leave(_event: Event) -> NoReturn:
        sys.exit(3)

    heard: list[Event] = []
    Hooks([leave, heard.append]).emit(SWEPT)
    assert SWEPT in heard
    assert "raised SystemExit" in caplog.text


def test_a_request_to_end_the_process_passes_a_hook() -> None:
    """Control-C while a hook runs is not swallowed."""

    def interrupt(_event: Event) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Hooks([interrupt]).emit(SWEPT)


def test_a_slow_hook_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Who holds up the work is named in the log, and to the other hooks."""
    ticks: Iterator[float] = iter(range(100))
    monkeypatch.setattr(hooks_module, "monotonic", lambda: next(ticks))
    heard: list[Event] = []

    def dawdle(_event: Event) -> None: ...

    hooks = Hooks([dawdle, heard.append])
    hooks.emit(SWEPT)
    hooks.emit(SWEPT)
    assert [event.hook for event in heard if isinstance(event, HookSlow)] == [f"{__name__}.{dawdle.__qualname__}"]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 2  # dawdle and the list's append


def test_an_object_is_named_by_its_class() -> None:
    """A hook that is an object with ``__call__`` is shown by its type."""

    class Broken:
        def __call__(self, _event: Event, /) -> None:
            raise TypeError

    heard: list[Event] = []
    Hooks([Broken(), heard.append]).emit(SWEPT)
    assert isinstance(heard[0], HookFailed)
    assert heard[0].hook.endswith("Broken")


COMMITTED = Committed(at=Instant(1), store="sqlite:///jobs.db", seconds=0.5, riders=3, conflicts=1)


class Chooser:
    """A hook that says what it wants."""

    def __init__(self, *kinds: type[Event]) -> None:
        self.kinds, self.heard, self.asked = kinds, list[Event](), list[type[Event]]()

    def wants(self, kind: type[Event]) -> bool:
        """Choose."""
        self.asked.append(kind)
        return kind in self.kinds

    def __call__(self, event: Event, /) -> None:
        """Take note."""
        self.heard.append(event)


def test_a_frequent_event_is_told_only_to_hooks_that_want_it() -> None:
    """A log is not written to at every commit because metrics want to hear of it."""
    log, metrics = list[Event](), Chooser(Committed)
    hooks = Hooks([log.append, metrics])
    assert hooks.want(Committed)
    hooks.emit(COMMITTED)
    assert (log, metrics.heard) == ([], [COMMITTED])


def test_a_hook_that_chooses_hears_nothing_else() -> None:
    """What it does not want is not told, frequent or not."""
    metrics = Chooser(Committed)
    hooks = Hooks([metrics])
    hooks.emit(SWEPT)
    assert metrics.heard == []
    assert not hooks.want(Swept)


def test_a_frequent_event_need_not_be_made_if_no_hook_wants_it() -> None:
    """Without a hook that chooses, the work does not pay for frequent events."""
    assert not Hooks([print]).want(Committed)
    assert not NO_HOOKS.want(Committed)
    assert Hooks([print]).want(Swept)


def test_a_hook_is_asked_once_for_each_kind() -> None:
    """Choosing may be slow: it costs nothing later."""
    metrics = Chooser(Committed)
    hooks = Hooks([metrics])
    for _ in range(3):
        hooks.emit(COMMITTED)
        hooks.emit(SWEPT)
    assert metrics.asked == [Committed, Swept]


def test_a_hook_that_cannot_choose_is_reported_and_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A broken choice disturbs the work no more than a broken hook."""

    class Undecided(Chooser):
        def wants(self, kind: type[Event]) -> bool:
            raise ValueError(kind)

    hook = Undecided()
    Hooks([hook]).emit(SWEPT)
    assert hook.heard == []
    assert "Undecided raised ValueError" in caplog.text
