"""What all commands on runs share: an engine that drives nothing, the argument, and its completion."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

import standfast as sf
from standfast.cli.exits import NOT_THERE, fail
from standfast.cli.naming import MOST_COMPLETED
from standfast.cli.targets import Target
from standfast.errors import RunNotFoundError, StandfastError, WorkflowTerminalError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


@asynccontextmanager
async def talking(target: Target) -> AsyncGenerator[sf.Engine]:
    """Open an engine that drives no runs and only talks to them."""
    async with target.opened() as space, sf.Engine(space, drive=False) as engine:
        yield engine


def carried_out(work: Coroutine[Any, Any, T]) -> T:
    """Do it; a run that is not there, or has ended, has an exit code of its own."""
    try:
        return asyncio.run(work)
    except (RunNotFoundError, WorkflowTerminalError) as problem:
        fail(problem, NOT_THERE)


def run_argument(command: F) -> F:
    """Let a command take the id of a run."""
    return click.argument("run_id", metavar="RUN", shell_complete=complete_run)(command)


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the runs whose ids begin so, the newest first; nothing if the store cannot be asked."""
    del parameter
    target = context.ensure_object(Target)
    try:
        found = asyncio.run(_runs(target)) if target.is_there() else []
    except (StandfastError, click.ClickException):
        return []
    return [CompletionItem(run) for run in islice((run for run in found if run.startswith(incomplete)), MOST_COMPLETED)]


async def _runs(target: Target) -> list[str]:
    async with talking(target) as engine:
        return [run.id for run in (await engine.list(limit=MOST_COMPLETED * 5, newest_first=True)).runs]
