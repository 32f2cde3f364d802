"""Log records with structured fields: one JSON object a line, and nothing secret in it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.clock import Instant
from standfast.events import Event, LeaseLost, SlowCommit, Swept
from standfast.log_hook import LogHook, StructlogHook, with_log
from standfast.logs import FieldsLogger, JsonFormatter

AT = Instant(1)
SLOW = SlowCommit(at=AT, store="sqlite:///jobs.db", seconds=1.25, riders=8)


def record_of(message: object, *args: object, **more: Any) -> logging.LogRecord:
    """Return a record as a logger makes it."""
    logger = logging.getLogger("shop.orders")
    extra, exc_info = more.pop("extra", None), more.pop("exc_info", None)
    return logger.makeRecord(logger.name, logging.INFO, "orders.py", 1, message, args, exc_info, extra=extra)


def line_of(record: logging.LogRecord, **options: Any) -> dict[str, Any]:
    """Return what a record is as JSON."""
    text = JsonFormatter(**options).format(record)
    assert text.isascii()
    assert "\n" not in text
    told: dict[str, Any] = json.loads(text)
    return told


def test_a_record_is_one_json_object_with_its_fields() -> None:
    """Those of Standfast and those of the caller stand beside the message."""
    told = line_of(record_of("paid %d", 7, extra={"standfast": {"run": "r-1", "step": "charge"}, "cents": 700}))
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "info",
        "logger": "shop.orders",
        "message": "paid 7",
        "cents": 700,
        "run": "r-1",
        "step": "charge",
    }


def test_an_exception_is_in_the_object_with_its_traceback() -> None:
    """A reader of lines sees all of it, on one of them."""
    error = ValueError("postgresql://app:hunter2@db/prod is gone")
    told = line_of(record_of("it failed", exc_info=(type(error), error, None)))
    assert told["exception"] == "ValueError: postgresql://app:***@db/prod is gone"


def test_no_secret_is_written_wherever_it_stands() -> None:
    """Neither in the message, nor in a field, nor in what is no JSON."""
    secret = "password=hunter2"  # noqa: S105 -- made up for the tests
    record = record_of("told %s", secret, extra={"standfast": {"about": secret}, "mine": secret, "odd": {secret}})
    assert "hunter2" not in json.dumps(line_of(record))


def test_fields_cannot_forge_what_every_line_has() -> None:
    """The level, the logger and the message are those of the record."""
    told = line_of(record_of("paid", extra={"standfast": {"level": "debug", "message": "forged", "logger": "x"}}))
    assert (told["level"], told["message"], told["logger"]) == ("info", "paid", "shop.orders")


@given(st.text(), st.dictionaries(st.sampled_from("abc"), st.text() | st.binary() | st.floats() | st.none()))
def test_whatever_is_logged_is_one_line(text: str, extra: dict[str, Any]) -> None:
    """Text of any kind and values of any type make no second line, and no error."""
    line_of(record_of("%s", text, extra=extra))


def test_a_record_of_a_library_gets_the_fields_of_the_step_that_calls_it() -> None:
    """Only records that bring none ask for them."""
    fields = {"run": "r-1"}
    assert line_of(record_of("get"), fields=lambda: fields)["run"] == "r-1"
    own = record_of("get", extra={"standfast": {"request": "q-1"}})
    assert "run" not in line_of(own, fields=lambda: fields)


def test_a_logger_with_fields_keeps_what_the_caller_adds(caplog: pytest.LogCaptureFixture) -> None:
    """And says where in the caller's code a line was written."""
    log = FieldsLogger(logging.getLogger("shop"), lambda: {"run": "r-1"})
    log.warning("late by %d", 3, extra={"order": 7})
    [record] = caplog.records
    assert (vars(record)["standfast"], vars(record)["order"]) == ({"run": "r-1"}, 7)
    assert (record.filename, record.funcName) == (
        "test_logs.py",
        "test_a_logger_with_fields_keeps_what_the_caller_adds",
    )


def test_a_silent_logger_writes_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Callers can spare themselves what would be logged."""
    log = FieldsLogger(logging.getLogger("shop"), dict, lambda: True)
    log.error("again")
    assert caplog.records == []
    assert not log.isEnabledFor(logging.ERROR)


# --- warnings without a hook, and hooks -------------------------------------------------------------------------------


def test_warnings_are_logged_though_no_hook_is_given(caplog: pytest.LogCaptureFixture) -> None:
    """A program that has configured nothing is told of what goes wrong; ordinary work is not even told."""
    hooks = with_log([])
    assert not hooks
    hooks.emit(LeaseLost(at=AT, key="Ada", fence=7, reason="it lapsed"))
    hooks.emit(Swept(at=AT, store="memory://", seconds=0.1, removed=1))
    [line] = caplog.messages
    assert line.startswith("event=lease-lost")
    assert "Ada" not in line


def test_a_hook_that_is_no_log_does_not_silence_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Counting events takes no line away."""
    seen: list[Event] = []
    hooks = with_log([seen.append])
    assert hooks
    hooks.emit(SLOW)
    assert seen == [SLOW]
    assert caplog.messages == ["event=slow-commit store=sqlite:///jobs.db seconds=1.25 riders=8"]


def test_a_hook_that_is_a_log_is_the_only_one(caplog: pytest.LogCaptureFixture) -> None:
    """No line is written twice."""
    with_log([LogHook(logging.getLogger("mine"))]).emit(SLOW)
    assert [record.name for record in caplog.records] == ["mine"]


def test_structlog_gets_the_event_and_its_facts() -> None:
    """With its own level, and keys as digests."""
    with structlog.testing.capture_logs() as lines:
        hook = StructlogHook()
        hook(SLOW)
        hook(LeaseLost(at=AT, key="Ada", fence=7, reason="it lapsed"))
    assert lines[0] == {
        "event": "slow-commit",
        "log_level": "warning",
        "store": "sqlite:///jobs.db",
        "seconds": 1.25,
        "riders": 8,
    }
    assert (lines[1]["log_level"], lines[1]["fence"]) == ("error", 7)
    assert "Ada" not in str(lines)


async def test_structlog_writes_failures_and_events_of_an_engine_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """As its documentation says: the records of logging pass through its formatter, with their fields."""
    shared: list[Any] = [structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler, root = logging.StreamHandler(), logging.getLogger()
    handler.setFormatter(formatter)
    root.addHandler(handler)
    structlog.configure(
        processors=[structlog.stdlib.add_log_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )

    async def charge() -> None:
        raise ValueError("no stock")

    @sf.workflow
    async def fulfil(ctx: sf.Context) -> None:
        ctx.log.warning("charging")
        await ctx.step(sf.step(retry=sf.Retry(attempts=2, delay=0.001))(charge))

    try:
        async with sf.Engine("memory://", workflows=[fulfil], hooks=[sf.admin.StructlogHook()]) as engine:
            with pytest.raises(sf.errors.RunFailedError):
                await (await engine.start(fulfil, id="order-7")).result()
    finally:
        root.removeHandler(handler)
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    [said] = [line for line in lines if line["event"] == "charging"]
    assert (said["standfast"]["run"], said["standfast"]["workflow"]) == ("order-7", "fulfil")
    [retried] = [line for line in lines if line["event"] == "step-retried"]
    assert (retried["run"], retried["step"], retried["message"], retried["level"]) == (
        "order-7",
        "charge",
        "no stock",
        "warning",
    )
    [failed] = [line for line in lines if line["level"] == "error"]
    assert failed["standfast"]["run"] == "order-7"
