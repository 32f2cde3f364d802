"""What workflows and steps are. Users declare them with the decorators of :mod:`standfast.workflows.decorators`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    final,
)

from msgspec import Struct

from standfast.durations import Duration, seconds
from standfast.errors import DeclarationError, UsageError
from standfast.policies import OnLimit
from standfast.workflows.values import signature_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from standfast.workflows.records import Standing, Start, Started
    from standfast.workflows.steps import CurrentStep
    from standfast.workflows.values import Signature

    OnTick: TypeAlias = Callable[[Start, tuple[Standing, ...]], Awaitable[Started]]


# --- start limits: how many runs may be unfinished at a time, and what happens to one too many ---------------------


@final
class StartLimit(Struct, frozen=True):
    """A :class:`~standfast.Limit` of a workflow, with its defaults filled in."""

    max: int
    key: Callable[..., Any] | None = None
    on_limit: OnLimit = "reject"
    max_queued: int | None = None
    ttl: float | None = None


# --- workflows and steps -------------------------------------------------------------------------------------------

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Semantics: TypeAlias = Literal["at_least_once", "at_most_once"]
"""What happens to a step whose worker dies while it runs: run again, or told as interrupted."""

LONGEST_NAME: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_.:@ -]+", re.ASCII)

INSIDE: Final[ContextVar[bool]] = ContextVar("standfast_inside_a_workflow", default=False)
"""True in the code of a workflow and in its steps, False everywhere else."""

CURRENT_STEP: Final[ContextVar[CurrentStep | None]] = ContextVar("standfast_step", default=None)
"""The step that is running; None in the code of a workflow, and everywhere else."""


class Retry(Struct, frozen=True, kw_only=True):
    """When a step that raised is tried again.

    Attributes:
        attempts: How often it is tried in all.
        delay: How long to wait before the second attempt: ``"100ms"``, a ``timedelta``, or seconds.
        factor: By how much each further wait is longer than the one before.
        max_delay: The longest wait.
        on: Which exceptions are worth another attempt.
    """

    attempts: int = 3
    delay: Duration = 1.0
    factor: float = 2.0
    max_delay: Duration = 60.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        seconds(self.delay, what="delay")
        seconds(self.max_delay, what="max_delay")

    def wait_before(self, attempt: int) -> float:
        """Return how many seconds to wait before an attempt; the first one is number 1."""
        longest = seconds(self.max_delay)
        try:
            return min(longest, seconds(self.delay) * self.factor ** max(0, attempt - 2))
        except OverflowError:  # more than a float can be is more than any longest wait
            return longest


ONCE: Final = Retry(attempts=1)


class StepOptions(Struct, frozen=True, kw_only=True):
    """How a step is run."""

    retry: Retry = ONCE
    timeout: float | None = None
    semantics: Semantics = "at_least_once"
    reconcile: Callable[..., Any] | None = None
    raises: tuple[type[Exception], ...] = ()
    process: bool = False


@final
class Step(Generic[P, R]):
    """A function that does something to the world, and is recorded when a workflow calls it through its context."""

    def __init__(self, function: Callable[P, Any], name: str, options: StepOptions) -> None:
        self.function: Final = function
        self.name: Final = checked_name("step", name)
        self.options: Final = options
        self.is_async: Final = inspect.iscoroutinefunction(function)
        if options.process:
            _check_process(self.name, function)
        functools.update_wrapper(self, function)

    @functools.cached_property
    def signature(self) -> Signature:
        """The types of its arguments and of its result."""
        return signature_of(self.function, skip_first=False, stored=False)

    @functools.cached_property
    def arguments(self) -> Signature:
        """The types of its arguments, for a step whose arguments are sent to another process."""
        return signature_of(self.function, skip_first=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as it is. Inside a workflow that is refused: it would not be recorded."""
        if INSIDE.get() and CURRENT_STEP.get() is None:
            raise UsageError(
                f"{self.name}(...) inside a workflow", "is not recorded", f"write await ctx.step({self.name}, ...)"
            )
        result: R = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<step {self.name}>"


@final
class Workflow(Generic[P, R]):
    """A durable function: its steps are recorded, and it goes on after a crash where it stopped."""

    def __init__(  # noqa: PLR0913 -- keyword options, and only declarations call it
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        *,
        name: str,
        version: str,
        limits: tuple[StartLimit, ...],
        timeout: float | None,
        replay: Literal["warn", "strict"],
        raises: tuple[type[Exception], ...],
        standings: Callable[[bytes], tuple[Standing, ...]] | None = None,
        on_tick: OnTick | None = None,
        is_internal: bool = False,
    ) -> None:
        if not inspect.iscoroutinefunction(function) or not inspect.signature(function).parameters:
            raise DeclarationError(name, "a workflow is an async def function whose first parameter is its context")
        if replay not in ("warn", "strict"):
            raise DeclarationError("replay", f"{replay!r:.100} is neither 'warn' nor 'strict'")
        self.function: Final = function
        self.name: Final = checked_name("workflow", name)
        self.version: Final = checked_name("version", version) if version else ""
        self.limits: Final = limits
        self.timeout: Final = timeout
        self.replay: Final = replay
        self.raises: Final = raises
        self.standings: Final = standings  # further lines to stand in, told from the packed input: those of requests
        self.on_tick: Final = on_tick  # starts the run of a tick, with the line of its schedule
        self.runs_are: Final = "run" if on_tick is None else "request"
        self.is_internal: Final = is_internal or on_tick is not None  # it is not started by name
        self.signature: Final = signature_of(function, skip_first=True)
        self.__doc__ = function.__doc__

    def __call__(self, *_: P.args, **__: P.kwargs) -> Coroutine[Any, Any, R]:
        """Refuse: a workflow is started by an engine, or as a child by a context."""
        raise DeclarationError(
            self.name, f"start it with engine.start({self.name}, ...), or ctx.child({self.name}, ...) in a workflow"
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """Return this workflow together with what it is to be called with, after its context.

            run = await engine.start(fulfil.bind(order, priority=3), id="order-7")

        It goes wherever a workflow is started with options: so type checkers see the arguments and the options, and a
        parameter may have the name of an option.

        Raises:
            WrongArgumentsError: It cannot be called with these.
            EncodeError: An argument cannot be stored.
        """
        return Bound(self, self.signature.pack(args, kwargs))

    def is_same(self, other: Workflow[..., Any]) -> bool:
        """Return True if another object stands for the same function: a module may be loaded twice."""
        if self is other or self.function is other.function:
            return True
        ours, theirs = inspect.unwrap(self.function), inspect.unwrap(other.function)
        closures = [getattr(each, "__closure__", None) for each in (ours, theirs)]
        return place_of(ours) == place_of(theirs) and not any(closures)

    def __repr__(self) -> str:
        return f"<workflow {self.name}{self.version and ' '}{self.version}>"


@final
class Bound(Generic[R_co]):
    """A workflow and what it is to be called with. :meth:`Workflow.bind` makes it.

    Attributes:
        workflow: The workflow.
        packed: Its arguments, as they are stored.
    """

    __slots__ = ("packed", "workflow")

    def __init__(self, workflow: Workflow[..., R_co], packed: bytes) -> None:
        self.workflow: Final = workflow
        self.packed: Final = packed

    def __repr__(self) -> str:
        return f"<{self.workflow.name} with its arguments>"


def unbound(given: object) -> object:
    """Return the workflow of bound arguments, and anything else as it is."""
    return given.workflow if isinstance(given, Bound) else given  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType] -- of anything


def name_of(given: object) -> str:
    """Return the name of a workflow, also of one with its arguments; a name as it is."""
    found = unbound(given)
    return str(getattr(found, "name", found))


def described(given: object) -> str:
    """Return what was given in place of a workflow, for people: a function by its name."""
    return str(getattr(given, "__qualname__", None) or repr(given)[:100])


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined, for people: its name, and its file and line."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__qualname__', type(function).__qualname__)}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _check_process(name: str, function: Callable[..., Any]) -> None:
    """Refuse what another process could not find, or what does not belong there."""
    where, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "<unnamed>")
    if inspect.iscoroutinefunction(function):
        problem = "an async function waits, and needs no process; leave process=True out"
    elif "<" in qualified:
        problem = (
            f"{qualified} has no name in its module, so another process cannot find it; define it at the top level"
        )
    elif where in (None, "__main__"):
        problem = "it is defined in the program itself, where another process cannot import it; move it into a module"
    else:
        return
    raise DeclarationError(f"the step {name!r}", problem)


def as_step(function: Callable[..., Any] | Step[..., Any]) -> Step[..., Any]:
    """Return what was given as a step: a declared one, or any function."""
    if isinstance(function, Step):
        return cast("Step[..., Any]", function)
    try:
        return _plain_step(function)
    except TypeError:  # not hashable
        if not callable(function):
            raise _not_a_step(function) from None
        return Step(function, step_name_of(function), StepOptions())


def _not_a_step(given: object) -> UsageError:
    if inspect.iscoroutine(given):
        name = given.__name__
        given.close()  # it never ran, and nothing warns of that
        return UsageError(
            "ctx.step", f"was given the coroutine of a call that has begun: {name}(...)", f"write ctx.step({name}, ...)"
        )
    kind = type(given).__name__
    return UsageError("ctx.step", f"was given a {kind}, which cannot be called", "write ctx.step(function, arguments)")


@functools.lru_cache(maxsize=1_000)
def _plain_step(function: Callable[..., Any]) -> Step[..., Any]:
    if not callable(function):
        raise _not_a_step(function)
    return Step(function, step_name_of(function), StepOptions())


def step_name_of(function: Callable[..., Any]) -> str:
    """Return the id that a function has as a step, unless one is given."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return "step" if name == "<lambda>" else name


def checked_name(what: str, name: str) -> str:
    """Return the name of a workflow, a version or a step; refuse what cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        allowed = f"1 to {LONGEST_NAME} letters, digits, or any of _ . : @ - and spaces"
        raise DeclarationError(f"{what} {name!r:.120}", f"a name must be {allowed}")
    return name
