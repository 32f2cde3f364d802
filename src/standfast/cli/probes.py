"""``--listen`` of commands that stay: where they answer probes, scrapes and autoscalers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.target import FAILED, end, reason_of
from standfast.errors import DeclarationError, MissingExtraError
from standfast.telemetry.exporters import PrometheusMetrics
from standfast.telemetry.health import own_metrics
from standfast.telemetry.listener import listening_at, place_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.telemetry.listener import ProbeListener, Probes
    from standfast.workflows.engine import Engine

F = TypeVar("F", bound="Callable[..., Any]")


def listen_option(command: F) -> F:
    """Let a command take ``--listen``."""
    text = "Answer /metrics, /health/live, /health/ready and /scale there; without HOST, on this machine only."
    return click.option("--listen", metavar="[HOST:]PORT", default="", help=text)(command)


def listen_at(text: str) -> tuple[str, int] | None:
    """Return where ``--listen`` says; None: it says nothing."""
    try:
        return place_of(text) if text else None
    except DeclarationError as problem:
        raise click.UsageError(str(problem)) from None


@contextlib.asynccontextmanager
async def listening(place: tuple[str, int] | str | None, probes: Probes) -> AsyncGenerator[ProbeListener | None]:
    """Answer probes at a place, if there is one. A place that is taken ends the command."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            listener = await stack.enter_async_context(listening_at(place, probes))
        except OSError as problem:
            at = place if isinstance(place, str) or place is None else f"{place[0]} port {place[1]}"
            end(f"cannot listen on {at}: {reason_of(problem)}", FAILED, "Choose another place with --listen.")
        yield listener


def watch(engine: Engine) -> None:
    """Give an engine that has no metrics its own, if what they need is installed."""
    if not any(isinstance(each, PrometheusMetrics) for each in engine.hooks):
        with contextlib.suppress(MissingExtraError):  # probes are answered all the same
            engine.hooks.add(own_metrics())
