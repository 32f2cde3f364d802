"""The decorators ``@sf.workflow`` and ``@sf.step``, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Literal, Protocol, cast, overload

from standfast.durations import seconds
from standfast.errors import DeclarationError
from standfast.policies import DEFAULT, Limit
from standfast.workflows.definition import ONCE, P, R, Retry, StartLimit, Step, StepOptions, Workflow, step_name_of
from standfast.workflows.failures import KnownErrors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import Never

    from standfast.durations import Duration
    from standfast.policies import OnLimit
    from standfast.workflows.context import Context
    from standfast.workflows.definition import Semantics


@overload
def workflow(function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "",
    concurrency: Limit | int | Iterable[Limit] = (),
    timeout: Duration | None = None,
    replay: Literal["warn", "strict"] = "warn",
    raises: Iterable[type[Exception]] = (),
) -> Callable[[Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    concurrency: Limit | int | Iterable[Limit] = (),
    timeout: Duration | None = None,
    replay: Literal["warn", "strict"] = "warn",
    raises: Iterable[type[Exception]] = (),
) -> Any:
    """Declare a durable workflow.

    Args:
        function: An ``async def`` whose first parameter is the :class:`Context`.
        name: What its runs are filed under; by default the function's name.
        version: Which code its runs need. Workers take only runs of versions that they have.
        concurrency: How many runs may be unfinished at a time, see :class:`~standfast.Limit`.
        timeout: After how long a run is stopped, counted from its start.
        replay: What happens when a recorded step is asked for with other arguments: ``"warn"`` or ``"strict"``.
        raises: Exceptions that come back as themselves: as the ``__cause__`` of the
            :class:`~standfast.errors.RunFailedError` that ``run.result()`` and ``ctx.child`` raise, and from its
            updates. Each class by itself, without subclasses; others are described. Those of Python and of Standfast
            always do.
    """

    def declare(function: Callable[..., Any]) -> Workflow[Any, Any]:
        return Workflow(
            function,
            name=name or function.__name__,
            version=version,
            limits=_limits(concurrency),
            timeout=None if timeout is None else seconds(timeout, what="timeout", minimum=0.001),
            replay=replay,
            raises=_checked_raises(raises),
        )

    return declare if function is None else declare(function)


class StepDecorator(Protocol):
    """Declares a function as a step, with options that were given before.

    What an ``async def`` returns is written without ``Any``: with it, pyright takes the result of
    ``ctx.step("id", charge, ...)`` for ``Any``.
    """

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[object, Never, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[object, Never, R]]: ...
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    semantics: Semantics = "at_least_once",
    reconcile: Callable[..., Awaitable[Any] | Any] | None = None,
    raises: Iterable[type[Exception]] = (),
    process: bool = False,
) -> StepDecorator: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    semantics: Semantics = "at_least_once",
    reconcile: Callable[..., Awaitable[Any] | Any] | None = None,
    raises: Iterable[type[Exception]] = (),
    process: bool = False,
) -> Any:
    """Declare how a function is run as a step. A function that needs nothing of this can be used as it is.

    Args:
        function: ``async def``, or a plain function, which is run in a thread.
        name: Its step id; by default the function's name.
        retry: When to try again after it raised: a :class:`Retry`, or a number of attempts.
        timeout: After how long an attempt is cancelled.
        semantics: ``"at_least_once"``: run again if its worker died before it was recorded. ``"at_most_once"``: an
            interrupted one is not run again but raises :class:`~standfast.errors.StepInterruptedError`.
        reconcile: For interrupted at-most-once steps: called with the arguments of the step, it returns
            :class:`Happened` with the result, or :data:`DID_NOT_HAPPEN`, and then the step is run.
        raises: Exceptions that reach the workflow as themselves. Each class by itself, without subclasses; others are
            described. Those of Python and of Standfast always do. What the workflow lets pass is described where its
            result is asked for, unless it declares it too.
        process: Run a plain function that computes in a process of its own, and kill it there when it is cancelled or
            its time is over. It must be found by its name in a module, and its arguments and result must be of types
            that can be stored.
    """
    if semantics not in ("at_least_once", "at_most_once"):
        raise DeclarationError("semantics", f"{semantics!r} is neither 'at_least_once' nor 'at_most_once'")
    if reconcile is not None and semantics != "at_most_once":
        raise DeclarationError("reconcile", "it belongs to semantics='at_most_once'; others are simply run again")
    options = StepOptions(
        retry=_checked_retry(Retry(attempts=retry) if isinstance(retry, int) else retry or ONCE),
        timeout=None if timeout is None else seconds(timeout, what="timeout", minimum=0.001),
        semantics=semantics,
        reconcile=reconcile,
        raises=_checked_raises(raises),
        process=process,
    )

    def declare(function: Callable[..., Any]) -> Step[Any, Any]:
        return Step(function, name or step_name_of(function), options)

    return declare if function is None else declare(function)


def _checked_retry(retry: Retry) -> Retry:
    """Refuse what would only be found out when the step has raised."""
    if not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError("retry", f"{retry!r:.100} is neither a Retry nor a number of attempts")
    if type(retry.attempts) is not int or retry.attempts < 1:
        raise DeclarationError("retry", f"{retry.attempts!r} attempts; it must be a whole number, at least 1")
    if type(retry.factor) not in (int, float) or not 0 <= retry.factor < float("inf"):
        raise DeclarationError("retry", f"factor is {retry.factor!r:.100}; it must be a number, at least 0")
    on: Any = retry.on
    kinds = cast("tuple[object, ...]", on) if isinstance(on, tuple) else (on,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise DeclarationError("retry", f"on is {retry.on!r:.100}; it must be a tuple of exception classes")
    return retry


def _checked_raises(raises: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    if isinstance(raises, type):
        raise DeclarationError("raises", f"give a list of exception classes: raises=[{raises.__name__}]")
    kinds = tuple(raises)
    KnownErrors(kinds)  # which refuses what could not be restored
    return kinds


def _limits(given: Limit | int | Iterable[Limit]) -> tuple[StartLimit, ...]:
    declared = (Limit(given),) if isinstance(given, int) else (given,) if isinstance(given, Limit) else tuple(given)
    if not all(isinstance(limit, Limit) for limit in declared):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError("concurrency", f"{given!r:.60} is no limit; give sf.Limit(...) or a whole number")
    limits = [_start_limit(limit) for limit in declared]
    if len({limit.key is None for limit in limits}) < len(limits):
        raise DeclarationError("concurrency", "give at most one limit with a key and one without")
    # The line of a key comes first: a run that waits there takes no place of the whole type.
    return tuple(sorted(limits, key=lambda limit: limit.key is None))


def _start_limit(limit: Limit) -> StartLimit:
    """Return a limit as starts apply it; refuse what only actions can do."""
    if isinstance(limit.key, str):
        problem = f"the key {limit.key!r} is for actions; a workflow counts by a function of its arguments"
        raise DeclarationError("concurrency", f"{limit}: {problem}")
    if limit.name:
        raise DeclarationError("concurrency", f"{limit}: name= is for actions; leave it out")
    ttl = None if limit.ttl == DEFAULT else cast("float | None", limit.ttl)
    on_limit: OnLimit = "reject" if limit.on_limit is None else limit.on_limit
    if on_limit != "queue" and (limit.max_queued is not None or ttl is not None):
        raise DeclarationError("concurrency", f"{limit}: max_queued and ttl belong to on_limit='queue'")
    return StartLimit(limit.max, limit.key, on_limit, limit.max_queued, ttl)
