"""Which store, namespace and tenant a command works on."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import click

import standfast as sf
from standfast.cli.exits import end
from standfast.events import PermitsDisagree
from standfast.locks.explaining.explanation import one_line
from standfast.stores.opening import EXAMPLES, file_of, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.events import Event
    from standfast.stores import GroupedStore

F = TypeVar("F", bound="Callable[..., Any]")

STORE_VARIABLE: Final = "STANDFAST_STORE"


@final
class Target:
    """What the options say, before or after the name of a command."""

    def __init__(self) -> None:
        self.store = ""
        self.namespace = self.tenant = "default"

    def _url(self) -> str:
        url = self.store or os.environ.get(STORE_VARIABLE, "")
        if not url:
            raise click.UsageError(f"Say which store: --store {EXAMPLES['sqlite']}, or set {STORE_VARIABLE}.")
        if url.startswith("memory:"):
            raise click.UsageError("A memory store is seen only by the process that made it; name another store.")
        return url

    def is_there(self) -> bool:
        """Tell whether there is a store, as far as that can be told without making one."""
        file = file_of(self._url())
        return file is None or (os.path.exists(file) and os.path.getsize(file) > 0)  # noqa: PTH110, PTH202 -- plain text, as the store has it

    @asynccontextmanager
    async def opened_store(self, *, create: bool = False) -> AsyncGenerator[GroupedStore]:
        """Open the store itself, with all of its namespaces and tenants."""
        self._check_there(create=create)
        store = await open_store(self._url())
        try:
            yield store
        finally:
            await store.aclose()

    def _check_there(self, *, create: bool) -> None:
        if not create and not self.is_there():
            advice = f"Check --store and {STORE_VARIABLE}. The first program that uses a lock makes the file."
            end(f"there is no store at {file_of(self._url())}", advice=advice)

    @asynccontextmanager
    async def opened(self, *, create: bool = False) -> AsyncGenerator[sf.Space]:
        """Open it. A store that is not there is made only if that is asked for."""
        self._check_there(create=create)
        async with sf.open(self._url(), namespace=self.namespace, tenant=self.tenant, hooks=[_warn]) as space:
            yield space


def _warn(event: Event) -> None:
    """Tell people what they should know and no exit code says."""
    if isinstance(event, PermitsDisagree):
        words = f"{one_line(event.key)} is in use with {event.stored} permits; they count, and not {event.asked}"
        click.echo(f"standfast: {words}", err=True)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name:
        setattr(context.ensure_object(Target), parameter.name, value)


def target_options(command: F) -> F:
    """Let a command take ``--store``, ``--namespace`` and ``--tenant``."""
    command = _option("tenant", "NAME", "Whose locks; 'default' if not given.")(command)
    command = _option("namespace", "NAME", "In which namespace; 'default' if not given.")(command)
    return store_option(command)


def store_option(command: F) -> F:
    """Let a command take ``--store`` alone: it works on all namespaces and tenants."""
    return _option("store", "URL", f"Which store, such as {EXAMPLES['sqlite']}; or set {STORE_VARIABLE}.")(command)


def _option(name: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", metavar=metavar, help=text, callback=_remember, expose_value=False)
