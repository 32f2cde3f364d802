"""The engine: starts runs, talks to them, and drives them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast, final

from standfast.durations import seconds
from standfast.errors import (
    EngineCreateNameMismatchError,
    EngineNotOpenError,
    ForkedError,
    InvalidWorkflowError,
    UnknownWorkflowError,
    WrongLoopError,
)
from standfast.events import Hooks
from standfast.locks.options import DEFAULT_LEASE
from standfast.masking import mask_url
from standfast.space import Space, lines_of
from standfast.space import open as open_space
from standfast.workflows.declaring.definition import Step, Workflow, as_step, unbound
from standfast.workflows.overseer import Overseer
from standfast.workflows.running.host import MOST_DEATHS, Host
from standfast.workflows.running.threads import MOST, Threads
from standfast.workflows.schedules.driving import Ticker
from standfast.workflows.schedules.schedules import Schedules
from standfast.workflows.starting.catalog import declare
from standfast.workflows.starting.patterns import Batched, Debounced
from standfast.workflows.working.recovering import recover
from standfast.workflows.working.worker import GRACE, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.stores.credentials import Credentials
    from standfast.stores.sealing.keyring import Keyring
    from standfast.workflows.schedules.specification import Schedule

Runnable: TypeAlias = Workflow[..., Any] | Debounced[..., Any] | Batched[Any, Any]
"""What an engine can be given to run."""

LINGER: Final = 0.25
"""Seconds that a run in which everything waits stays in memory."""


@final
class Engine(Overseer):
    """Runs durable workflows on a store.

    Args:
        url: Which store, as in :func:`standfast.open`; or an open space, which stays open when the engine closes.
        workflows: What it can run: a list, or a mapping of their names. A :class:`Debounced` or :class:`Batched` brings
            along what it needs.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        schedules: Made when the engine opens, or changed if they are declared in another way than the last time. Those
            that are paused stay so.
        drive: Whether this engine drives runs. If not it only starts them and talks to them.
        recover: Refuse to open if there are unfinished runs of workflows, or versions, that it does not have; see
            :meth:`recover_all`. In any case it takes up what it can.
        namespace: As in :func:`standfast.open`.
        tenant: As in :func:`standfast.open`.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over.
        linger: How long a run in which everything waits stays in memory.
        max_loaded: How many runs are in memory at most.
        threads: How many steps that are plain functions run at a time.
        quarantine_after: How many workers may die with a run before it is left alone.
        hooks: Told what happens.
        encryption: As in :func:`standfast.open`.
        credentials: As in :func:`standfast.open`.

    Attributes:
        address: Which store, without secrets; empty if a space was given.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        url: str | Space,
        *,
        workflows: Iterable[Runnable] | Mapping[str, Runnable] = (),
        steps: Iterable[Step[..., Any] | Any] = (),
        errors: Iterable[type[Exception]] = (),
        schedules: Iterable[Schedule] = (),
        drive: bool = True,
        recover: bool = False,
        namespace: str = "default",
        tenant: str = "default",
        lease: Duration = DEFAULT_LEASE,
        linger: Duration = LINGER,
        max_loaded: int = 10_000,
        threads: int = MOST,
        quarantine_after: int = MOST_DEATHS,
        hooks: Iterable[Hook] = (),
        encryption: Keyring | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        hooks = tuple(hooks)
        self._opening = (
            None
            if isinstance(url, Space)
            else open_space(
                url,
                namespace=namespace,
                tenant=tenant,
                lease=lease,
                hooks=hooks,
                encryption=encryption,
                credentials=credentials,
            )
        )
        self._space: Space | None = url if isinstance(url, Space) else None
        self.address: Final = "" if isinstance(url, Space) else mask_url(url)
        self._workflows: Final = _by_version(workflows)
        self._steps: Final = {each.name: each for each in map(as_step, steps)}
        self._errors: Final = tuple(errors)
        self._declared: Final = _known_of(schedules, self._workflows)
        self._hooks: Final = hooks
        self._drives, self._recovers = drive, recover
        self._linger: Final = seconds(linger, what="linger")
        self._options: Final = (max_loaded, threads, quarantine_after)
        self._host: Host | None = None
        self._worker: Worker | None = None
        self._ticker: Ticker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Callable[[Engine], Awaitable[None]] | None = None
        self._process = 0

    # --- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def open(self, *, drive: bool | None = None, hooks: Iterable[Hook] = ()) -> None:
        """Open the store, and begin to drive runs.

        Args:
            drive: Whether to drive runs, whatever the engine was made with.
            hooks: Told what happens to runs, besides the engine's own.
        """
        if self._host is not None:
            raise InvalidWorkflowError("the engine", "it is open already")
        self._drives = self._drives if drive is None else drive
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        if self._space is None and self._opening is not None:
            self._space = await self._opening
        try:
            await self._begin(Hooks((*self._hooks, *hooks)))
        except BaseException:
            await self.aclose()
            raise

    async def _begin(self, hooks: Hooks) -> None:
        assert self._space is not None  # noqa: S101 -- it was given, or opened
        max_loaded, threads, deaths = self._options
        host = Host(self._space, lines_of(self._space), hooks, Threads(threads), self._errors, most_deaths=deaths)
        self._host = host
        host.workflows.update(self._workflows)
        host.steps.update(self._steps)
        host.saw((await self._space.read(self._space.key("worker"))).at)
        if self._recovers:
            await recover(host, insist=True)
        await self.schedules.declare(self._declared)
        if self._before is not None:
            await self._before(self)
        if self._drives:
            worker = self._worker = Worker(host, linger=self._linger, most_loaded=max_loaded)
            ticker = self._ticker = Ticker(host, lambda: worker.is_stopping)
            worker.on_schedule = ticker.on_timer
            await ticker.come_back()
            await declare(self._space, self._workflows.values())
            await host.attend()
            await worker.start()

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store.

        It can be opened again.
        """
        (host, self._host), (worker, self._worker) = (self._host, None), (self._worker, None)
        if worker is not None and host is not None:
            await worker.stop(seconds(grace, what="grace"))
            await host.retire()
        if host is not None:
            host.threads.close()
        if self._opening is not None and self._space is not None:
            space, self._space = self._space, None
            await space.aclose()

    @property
    def host(self) -> Host:
        """What runs need of the engine; refused while it is not open, in another event loop, and after a fork."""
        host = self._host
        if host is None:
            raise EngineNotOpenError
        if self._process != os.getpid():
            raise ForkedError(
                "the engine", "it was opened before this process was forked; open another one in the child"
            )
        if self._loop is not asyncio.get_running_loop():
            raise WrongLoopError("the engine", "belongs to another event loop")
        return host

    @property
    def drives(self) -> bool:
        """Whether this engine drives runs."""
        return self._worker is not None

    @property
    def has_room(self) -> bool:
        """Whether this engine drives runs, and should drive one more that is started here."""
        return self._worker is not None and self._worker.has_room()

    @property
    def worker(self) -> Worker | None:
        """What drives runs here; None if this engine does not, or is not open."""
        return self._worker

    @property
    def schedules(self) -> Schedules:
        """The schedules that lie in the store: make, pause, change, trigger and delete them."""
        return Schedules(self)

    def register(self, *workflows: Runnable) -> None:
        """Add workflows. Runs and schedules that were left alone because their code was not here go on soon."""
        self._workflows.update(_by_version([*self._workflows.values(), *workflows]))
        if self._host is not None:
            self._host.workflows.update(self._workflows)
            self._host.look_at_all()
        if self._worker is not None and self._ticker is not None:
            self._worker.begin(self._ticker.come_back())
            self._worker.begin(declare(self.space, self._workflows.values()))


def is_open(engine: Engine) -> bool:
    """Tell whether an engine was opened, and not closed since."""
    return engine._host is not None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


async def open_with(engine: Engine, before: Callable[[Engine], Awaitable[None]]) -> None:
    """Open an engine; ``before`` is called with it when its store is open, and before it drives any run."""
    engine._before = before  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module
    try:
        await engine.open()
    finally:
        engine._before = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


def withdraw(engine: Engine, *workflows: Workflow[..., Any]) -> None:
    """Let an engine take up no more runs of some workflows. Others may do so; what it drives now goes on."""
    known = [engine._workflows] if engine._host is None else [engine._workflows, engine._host.workflows]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module
    for each in workflows:
        for some in known:
            some.pop((each.name, each.version), None)


def _by_version(given: Iterable[Runnable] | Mapping[str, Runnable]) -> dict[tuple[str, str], Workflow[..., Any]]:
    named: Mapping[str, Runnable] = cast("Mapping[str, Runnable]", given) if isinstance(given, Mapping) else {}
    for name, each in named.items():
        if name != each.name:
            raise EngineCreateNameMismatchError(name, each.name)
    found: dict[tuple[str, str], Workflow[..., Any]] = {}
    for workflow in chain.from_iterable(map(_workflows_of, named.values() or cast("Iterable[Runnable]", given))):
        if found.setdefault((workflow.name, workflow.version), workflow) is not workflow:
            raise InvalidWorkflowError(
                workflow.name, "two workflows have this name and version; give one another version"
            )
    return found


def _workflows_of(each: Runnable) -> tuple[Workflow[..., Any], ...]:
    if isinstance(each, Workflow):
        return (each,)
    if isinstance(each, Debounced | Batched):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return each.workflows
    raise InvalidWorkflowError(repr(each)[:100], "this is no workflow; declare it with @sf.workflow")


def _known_of(schedules: Iterable[Schedule], workflows: Mapping[tuple[str, str], object]) -> tuple[Schedule, ...]:
    """Return schedules whose workflows this engine has; refuse others."""
    declared, names = tuple(schedules), {name for name, _ in workflows}
    for each in declared:
        workflow = unbound(each.workflow)
        name = str(getattr(workflow, "name", workflow))
        if name not in names:
            raise UnknownWorkflowError(name, tuple(sorted(names)))
    return declared
