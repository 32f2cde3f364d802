"""The engine for blocking code: starts runs, talks to them, and drives them if it is to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast, final, overload

from standfast.blocking.engine_link import EngineLink
from standfast.blocking.engine_overseer import Overseer
from standfast.blocking.run import Run, as_blocking
from standfast.blocking.schedules import Schedules
from standfast.blocking.space import Space, link_of
from standfast.blocking.space import open as open_space
from standfast.locks.locks import DEFAULT_LEASE
from standfast.workflows.engine import LINGER
from standfast.workflows.engine import Engine as AsyncEngine
from standfast.workflows.run import Run as AsyncRun
from standfast.workflows.runtime import MOST, MOST_DEATHS
from standfast.workflows.worker import GRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.space import Space as AsyncSpace
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.workflows.definition import Step
    from standfast.workflows.engine import Runnable
    from standfast.workflows.schedules.spec import Schedule

    Workflows: TypeAlias = Iterable[Runnable] | Mapping[str, Runnable]

R = TypeVar("R")
T = TypeVar("T")


@final
class Engine(Overseer):
    """Runs durable workflows on a store, for code without an event loop.

        with blocking.Engine("sqlite:///standfast.db", workflows=[fulfil]) as engine:
            run = engine.start(fulfil, "order-7", id="order-7")
            print(run.result(timeout="1 minute"))

    Any thread may use it. It is opened by ``with``, by :meth:`open`, or when it is first used, so one can be made where
    a module is loaded and serve all requests. A forked child that uses the engine of its parent opens it anew, by
    itself, with the same arguments; the runs that the parent drives stay the parent's. A program that ends without
    closing it hands its runs back within two seconds.

    If it drives runs, their code runs on the event loop that all blocking code of the process shares, so it must not
    block; steps that are plain functions run in threads.

    Args:
        url: Which store, as in :func:`standfast.blocking.open`; or a blocking space, which stays open when the engine
            closes.
        workflows: What it can run: a list, or a mapping of their names. A :class:`Debounced` or :class:`Batched` brings
            along what it needs; see :meth:`call`.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        schedules: Made when the engine opens, or changed if they are declared in another way than the last time. Those
            that are paused stay so.
        drive: Whether this engine drives runs. If not it only starts them and talks to them, and workers elsewhere
            drive them.
        recover: Refuse to open if there are unfinished runs of workflows, or versions, that it does not have; see
            :meth:`recover_all`. In any case it takes up what it can.
        namespace: As in :func:`standfast.blocking.open`.
        tenant: As in :func:`standfast.blocking.open`.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over.
        linger: How long a run in which everything waits stays in memory.
        max_loaded: How many runs are in memory at most.
        threads: How many steps that are plain functions run at a time.
        quarantine_after: How many workers may die with a run before it is left alone.
        hooks: Told what happens, on Standfast's own thread.
        encryption: As in :func:`standfast.blocking.open`.
        credentials: As in :func:`standfast.blocking.open`.

    Attributes:
        address: Which store, without secrets; empty if a space was given.

    Raises:
        UsageError: When it is used: an event loop runs in this thread. Use :class:`standfast.Engine`.
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
        known = cast("Workflows", workflows if isinstance(workflows, Mapping) else tuple(workflows))
        named, raised, declared, told = tuple(steps), tuple(errors), tuple(schedules), tuple(hooks)

        def make(space: AsyncSpace | str) -> AsyncEngine:
            return AsyncEngine(
                space,
                workflows=known,
                steps=named,
                errors=raised,
                schedules=declared,
                drive=drive,
                recover=recover,
                linger=linger,
                max_loaded=max_loaded,
                threads=threads,
                quarantine_after=quarantine_after,
                hooks=told,
            )

        def find() -> Space:
            if isinstance(url, Space):
                return url
            return open_space(
                url,
                namespace=namespace,
                tenant=tenant,
                lease=lease,
                hooks=told,
                encryption=encryption,
                credentials=credentials,
            )

        # Never opened: it finds the mistakes in what it is given, here and not when the engine is first used.
        self._draft: Final = make(link_of(url).live().space if isinstance(url, Space) else url)
        self.address: Final = self._draft.address
        self._link = EngineLink(lambda: link_of(find()), make, is_own=not isinstance(url, Space))

    def __repr__(self) -> str:
        return f"<blocking Engine on {self.address or 'a space'}>"

    # --- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self, *, drive: bool | None = None, hooks: Iterable[Hook] = ()) -> None:
        """Open the store, and begin to drive runs.

        Args:
            drive: Whether to drive runs, whatever the engine was made with.
            hooks: Told what happens to runs, besides the engine's own.
        """
        self._link.open(drive, hooks)

    def close(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store.

        Steps get ``grace`` to end; Ctrl-C cuts that short. Closing twice is fine. It can be opened again.
        """
        self._link.close(grace)

    # --- the rest ------------------------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """The schedules that lie in the store: make, pause, change, trigger and delete them."""
        return Schedules(self._link)

    def register(self, *workflows: Runnable) -> None:
        """Add workflows. Runs that were left alone because their code was not here go on soon."""
        self._draft.register(*workflows)
        self._link.register(*workflows)

    @overload
    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, AsyncRun[R]]]) -> Run[R]: ...
    @overload
    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, T]]) -> T: ...

    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, Any]]) -> Any:
        """Run async code with the async engine, on Standfast's own event loop, and return what it returns.

        For what has no blocking name: ``run = engine.call(lambda engine: reindex_soon.start(engine, "doc-7", text))``.
        A handle on a run is returned as a blocking one. The code shares the loop with everything else here, so it must
        not block.
        """
        found = self._link.call(work)
        if isinstance(found, AsyncRun):
            return as_blocking(self._link, found)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType] -- of anything
        return found
