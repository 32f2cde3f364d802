"""A failed run is one ERROR entry in the log, which ends in the user's own line; so do its trace and its exception."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunFailedError, RunTimedOutError, StandfastError
from standfast.workflows.failures import Failure, KnownErrors, describe, restore, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class DeclinedError(Exception):
    """Not declared anywhere."""


def fails_in_a_thread(_: str) -> None:
    """Raise in a plain function, with a secret in the message."""
    raise ValueError("no stock, password=hunter2")


@sf.step(retry=sf.Retry(attempts=2, delay=0.001))
async def fails_after_retries(_: str) -> None:
    """Raise what is not declared, twice."""
    raise DeclinedError("card\nthe run 'x' completed")


async def fails_in_a_library(_: str) -> None:
    """Raise deep in code that is not the user's."""
    json.loads("{")


@sf.step(timeout=0.01)
async def takes_too_long(_: str) -> None:
    """Wait for what does not come."""
    await asyncio.Event().wait()


async def raises_from_another(_: str) -> None:
    """Raise because of something else."""
    try:
        fails_in_a_thread("")
    except ValueError as error:
        raise LookupError("none left") from error


STEPS: dict[str, Callable[..., Any]] = {
    "fails_in_a_thread": fails_in_a_thread,
    "fails_after_retries": fails_after_retries,
    "fails_in_a_library": fails_in_a_library,
    "takes_too_long": takes_too_long,
    "raises_from_another": raises_from_another,
}


@sf.workflow
async def has_a_step(ctx: sf.Context, step: str) -> None:
    """Let one of the steps fail."""
    await ctx.step(STEPS[step], step)


@sf.workflow
async def raises_itself(ctx: sf.Context, step: str) -> None:
    """Raise in the body, after something that is replayed."""
    await ctx.sleep(0.001)
    raise KeyError(step)


@sf.workflow
async def has_a_child(ctx: sf.Context, step: str) -> None:
    """Fail because a child does."""
    await ctx.child(has_a_step, step)


@sf.workflow
async def has_branches(ctx: sf.Context, step: str) -> None:
    """Fail in a branch."""
    await ctx.gather(ctx.step(STEPS[step], step), ctx.sleep(0.001))


@sf.workflow
async def uses_many(ctx: sf.Context, items: list[str]) -> None:
    """Fail for all together."""
    raise ValueError(f"{len(items)} in {ctx.run_id}")


@sf.workflow(timeout=0.05)
async def never_ends(ctx: sf.Context) -> None:
    """Wait for longer than it may."""
    await ctx.wait_signal("never")


@sf.workflow
async def answers(ctx: sf.Context) -> None:
    """Have a handler that raises, and one that refuses."""
    ctx.on_update("divide", divide, validate=refuse_negative)
    await ctx.wait_signal("go")


def divide(number: int) -> float:
    """Raise for 0."""
    return 1 / number


def refuse_negative(number: int) -> None:
    """Refuse what makes no sense."""
    if number < 0:
        raise ValueError("negative")


BATCH = sf.collect(uses_many, sf.Batch(1, "1 hour"))
SOON = sf.collect(raises_itself, sf.Debounce("1ms"))
WORKFLOWS: list[Any] = [has_a_step, has_a_child, has_branches, never_ends, answers, BATCH, SOON]


def entries(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of what was logged as an error."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def last_line(text: str) -> str:
    """Return the last line, as it is."""
    return text.rstrip("\n").splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("workflow", "step", "raised_in", "number"),
    [
        (has_a_step, "fails_in_a_thread", "fails_in_a_thread", 1),
        (has_a_step, "fails_after_retries", "fails_after_retries", 1),
        (has_a_step, "fails_in_a_library", "fails_in_a_library", 1),
        (has_a_step, "takes_too_long", "takes_too_long", 1),
        (raises_itself, "x", "raises_itself", 1),
        (has_a_child, "fails_in_a_thread", "fails_in_a_thread", 2),
        (has_branches, "fails_after_retries", "fails_after_retries", 1),
    ],
)
async def test_a_failed_run_ends_in_the_line_that_raised(
    workflow: sf.Workflow[[str], None],
    step: str,
    raised_in: str,
    number: int,
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log, the stored trace and the traceback of the exception show the user's frames, and no others."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await engine.start(workflow, step, id="r")
        with pytest.raises(RunFailedError) as failed:
            await run.result()
        failure = (await run.info()).failure
    assert failure is not None
    told = entries(caplog)
    shown = "".join(traceback.format_exception(failed.value))
    assert len(told) == number  # one for each run that failed
    for text in (told[-1], failure.trace, shown):
        line = last_line(text)
        assert line.startswith("workflows/test_failures_log.py:")
        assert line.partition(" (raised in ")[0].endswith(f" in {raised_in}")
    assert told[-1].startswith(f"the run 'r' of {workflow.name} failed: ")
    assert workflow.name in failure.trace  # the line of the workflow is there too
    assert "activation.py" not in told[-1]
    assert "performing.py" not in told[-1]
    assert "hunter2" not in told[-1] + shown
    assert "\nthe run 'x' completed" not in told[-1]  # a message cannot look like an entry


@pytest.mark.parametrize("collector", [BATCH, SOON])
async def test_what_was_collected_fails_once(collector: Any, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The run that collects passes on what the run that works has raised, and says nothing of its own."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await (BATCH.add(engine, "x") if collector is BATCH else SOON.start(engine, "k", "x"))
        with pytest.raises(RunFailedError) as failed:
            await run.result()
    assert len(entries(caplog)) == 1
    assert last_line("".join(traceback.format_exception(failed.value))) == last_line(entries(caplog)[0])


async def test_what_a_run_holds_against_the_clock_is_an_error_too(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The entry says how long it had, and where it waited."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        with pytest.raises(RunTimedOutError):
            await (await engine.start(never_ends)).result()
    assert "RunTimedOutError: it did not end within 0.05 s" in entries(caplog)[0]
    assert last_line(entries(caplog)[0]).endswith("in never_ends")


async def test_expected_ends_are_no_errors(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled run, a refused update, a refused start."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await engine.start(answers)
        with pytest.raises(StandfastError):
            await run.update("divide", -1)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        with pytest.raises(TypeError):
            await engine.start(has_a_step, kwargs={"other": 1})
    assert entries(caplog) == []


async def test_an_update_that_raises_is_an_error_and_the_run_goes_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller's exception and the entry end in the line of the handler."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await engine.start(answers, id="r")
        with pytest.raises(ZeroDivisionError) as failed:
            await run.update("divide", 0)
        await run.signal("go")
        await run.result()
    assert len(entries(caplog)) == 1
    assert entries(caplog)[0].startswith("the update 'divide' of the run 'r' failed: ZeroDivisionError")
    for text in (entries(caplog)[0], "".join(traceback.format_exception(failed.value))):
        assert last_line(text).endswith("in divide")


async def test_a_cause_is_in_the_entry_with_its_own_lines(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What it was raised from, and where that was."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(has_a_step, "raises_from_another")).result()
    message = entries(caplog)[0]
    assert "LookupError: none left" in message
    assert "caused by ValueError: no stock, password=***" in message
    assert last_line(message).endswith("in fails_in_a_thread")


async def test_handlers_that_take_structure_find_the_facts(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The run, its workflow, the type, the message and the trace, apart from each other."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(has_a_step, "fails_in_a_thread", id="r")).result()
    facts: dict[str, str] = caplog.records[-1].__dict__["standfast"]
    assert (facts["run"], facts["workflow"], facts["error"]) == ("r", "has_a_step", "builtins.ValueError")
    assert facts["trace"].endswith("in fails_in_a_thread")


PROGRAM = """
import asyncio
import standfast as sf

async def charge(order: str) -> None:
    raise ValueError(f"no stock for {order}")

@sf.workflow
async def fulfil(ctx: sf.Context, order: str) -> None:
    await ctx.step(charge, order)

async def main() -> None:
    async with sf.Engine("memory://", workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, "books", id="order-7")
        while not (await run.info()).has_ended:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_a_program_without_any_logging_prints_it(tmp_path: Path) -> None:
    """Nothing is configured, nobody asks for the result, and it is on stderr all the same."""
    script = tmp_path / "app" / "shop.py"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == (
        "the run 'order-7' of fulfil failed: ValueError: no stock for books\n"
        "  app/shop.py:10 in fulfil\n"
        "  app/shop.py:6 in charge\n"
    )


# --- traces -------------------------------------------------------------------------------------------------------


def test_a_failure_without_a_trace_is_read_and_raised() -> None:
    """As older versions have stored it."""
    error = restore(Failure("builtins.ValueError", "old"), KnownErrors())
    assert not hasattr(error, "__notes__")
    assert describe(error, KnownErrors()).trace == ""


def test_the_notes_of_an_exception_stay_its_own() -> None:
    """Where it was raised is kept apart from them, however often it is stored and raised."""
    error = ValueError("x")
    error.add_note("mine")
    failure = describe(error, KnownErrors())
    for _ in range(3):
        with pytest.raises(ValueError, match="x") as caught:
            raise restore(failure, KnownErrors())
        failure = describe(caught.value, KnownErrors())
    notes = restore(failure, KnownErrors()).__notes__
    assert [note.partition("\n")[0] for note in notes] == ["mine", "raised at"]
    assert failure.trace.count("in test_the_notes_of_an_exception_stay_its_own") == 3


def test_an_installed_application_is_the_users_own() -> None:
    """Where all is installed, the package that is called first is the user's, and what it calls is a library."""
    places = {
        "handler": "/venv/lib/python3.11/site-packages/shop/orders.py",
        "send": "/venv/lib/python3.11/site-packages/postman/client.py",
    }
    code = "def send():\n    raise OSError('gone')\ndef handler():\n    send()\n"
    names: dict[str, Any] = {}
    exec(compile(code, places["send"], "exec"), names)  # noqa: S102 -- the code above
    names["handler"].__code__ = names["handler"].__code__.replace(co_filename=places["handler"])
    with pytest.raises(OSError, match="gone") as caught:
        names["handler"]()
    caught.value.__traceback__ = caught.value.__traceback__ and caught.value.__traceback__.tb_next
    assert trace_of(caught.value) == "shop/orders.py:4 in handler (raised in postman/client.py:2 in send)"


# --- what is declared -----------------------------------------------------------------------------------------------


class KnownError(Exception):
    """Declared by those below."""


class BelowKnownError(KnownError):
    """Not declared, though it is one of those."""


@sf.step(raises=[KnownError])
async def raises_known(text: str) -> None:
    """Raise what is declared, or a kind of it that is not."""
    raise (BelowKnownError if text == "below" else KnownError)(text)


@sf.workflow(raises=[KnownError])
async def declares(ctx: sf.Context, text: str) -> str:
    """Declare what its step raises."""
    ctx.on_update("raise", raise_known)
    if text == "update":
        await ctx.wait_signal("go")
        return ""
    return await passes_on(ctx, text)


@sf.workflow
async def does_not_declare(ctx: sf.Context, text: str) -> str:
    """Let pass what its step raises."""
    return await passes_on(ctx, text)


def raise_known() -> None:
    """Raise what the workflow declares."""
    raise KnownError("update")


async def passes_on(ctx: sf.Context, text: str) -> str:
    """Tell what reached the workflow, or let it pass."""
    try:
        await ctx.step(raises_known, text)
    except Exception as error:
        if text == "tell":
            return type(error).__name__
        raise
    return ""


@pytest.mark.parametrize(
    ("workflow", "text", "kind"),
    [
        (declares, "x", "KnownError"),
        (does_not_declare, "x", "StepFailedError"),
        (declares, "below", "StepFailedError"),
    ],
)
async def test_what_a_run_ends_with_is_itself_if_the_workflow_declares_it(
    url: str, workflow: sf.Workflow[[str], str], text: str, kind: str
) -> None:
    """As the reference says: the cause of RunFailedError, whether or not the step has declared it, and no subclass."""
    async with sf.Engine(url, workflows=[declares, does_not_declare]) as engine:
        with pytest.raises(RunFailedError) as failed:
            await (await engine.start(workflow, text)).result()
        assert type(failed.value.__cause__).__name__ == kind
        assert await (await engine.start(workflow, "tell")).result() == "KnownError"


async def test_what_an_update_raises_is_itself_if_the_workflow_declares_it(url: str) -> None:
    """By the handle, and by the id, in a process that drives the run and in one that does not."""
    async with sf.Engine(url, workflows=[declares]) as engine, sf.Engine(url, drive=False) as web:
        run = await engine.start(declares, "update", id="r")
        handles = [run, await web.start(declares, "update", id="r"), engine.run("r")]
        for handle in handles:
            with pytest.raises(KnownError, match="update"):
                await handle.update("raise")
        with pytest.raises(KnownError):
            await engine.update("r", "raise")
