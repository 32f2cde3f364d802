"""Simulation: a seeded event loop with virtual time and simulated threads, and running a program in it."""

from __future__ import annotations

import asyncio
import bisect
import contextvars
import functools
import hashlib
import heapq
import itertools
import os
import random
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, final
from weakref import WeakKeyDictionary

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import InvalidArgumentError, NotSimulatedError, SimulationError
from standfast.ids import repeatable_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Executor
    from types import FrameType

    Answer = tuple[Any, BaseException | None]
    Later = Callable[[Callable[[], None]], object]


# --- A clock that moves only when it is told to --------------------------------------------------------------------

START: Final = Instant(1_750_000_000 * MICROSECONDS)
"""Where the wall clock of a :class:`VirtualClock` starts: 15 June 2025, 15:06:40 UTC."""


@final
class VirtualClock:
    """A :class:`~standfast.clock.Clock` for tests: time passes when the test says so.

    Without a loop it stands still until :meth:`advance` moves it. With one it follows ``loop.time()``, so that it
    passes with the virtual time of a :class:`SimulatedLoop`; ``advance`` then is time that the loop did not see,
    as when the machine was suspended.

    >>> clock = VirtualClock()
    >>> before = clock.elapsed()
    >>> clock.advance(2.5)
    >>> clock.elapsed() - before
    2500000
    """

    __slots__ = ("_booted", "_boots", "_loop", "_passed", "_stepped")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop: Final = loop
        self._passed = 0
        self._stepped = 0
        self._booted = 0
        self._boots = 1

    def wall(self) -> Instant:
        """Return the time of day, as far as it was stepped."""
        return Instant(START + self._stepped + self._since_start())

    def elapsed(self) -> Instant:
        """Return the microseconds since the last :meth:`reboot`, or since the clock was made."""
        return Instant(self._since_start() - self._booted)

    def boot(self) -> str:
        """Return what tells this boot from those before and after it."""
        return f"virtual-boot-{self._boots}"

    def _since_start(self) -> int:
        followed = 0 if self._loop is None else round(self._loop.time() * MICROSECONDS)
        return self._passed + followed

    def advance(self, seconds: float) -> None:
        """Let time pass, by both clocks."""
        if not seconds >= 0:  # also refuses NaN
            raise InvalidArgumentError(
                "a duration", "time only passes forwards (step_wall steps the time of day)", repr(seconds)
            )
        self._passed += round(seconds * MICROSECONDS)

    def step_wall(self, seconds: float) -> None:
        """Step the time of day forwards, or backwards if negative, as an administrator may; no time passes."""
        self._stepped += round(seconds * MICROSECONDS)

    def reboot(self) -> None:
        """Start :meth:`elapsed` anew from zero, as a restart of the machine does; the time of day goes on."""
        self._booted = self._since_start()
        self._boots += 1


# --- simulated threads: work that was offloaded, done on the loop at seeded later moments --------------------------


@final
class SimulatedLane:
    """One simulated thread: does its work in order, each piece at a moment that ``later`` chooses.

    The loop hears of a piece at another, later moment, so that a caller can be cancelled in between. As with real
    threads, a piece whose future is cancelled before it begins is never begun.
    """

    __slots__ = ("_answers", "_later", "_work")

    def __init__(self, later: Later) -> None:
        self._later: Final = later
        self._work: Final[deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = deque()
        self._answers: Final[deque[tuple[asyncio.Future[Any], Answer]]] = deque()

    def start(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """Queue ``work`` and let ``future`` have its result."""
        self._work.append((future, work))
        if len(self._work) == 1:
            self._later(self._do_next)

    def _do_next(self) -> None:
        future, work = self._work[0]
        if not future.cancelled():
            self._answers.append((future, _outside_of_the_loop(work)))
            self._later(self._answer_next)
        self._work.popleft()
        if self._work:
            self._later(self._do_next)

    def _answer_next(self) -> None:
        # Whichever of the chosen moments comes first delivers the oldest answer: a thread reports in order.
        future, (result, problem) = self._answers.popleft()
        if future.cancelled():
            return
        if problem is None:
            future.set_result(result)
        else:
            future.set_exception(problem)


def _outside_of_the_loop(work: Callable[[], Any]) -> Answer:
    """Run ``work`` as if on a thread, where no event loop is running."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001 -- made for event loops
    try:
        return work(), None
    except BaseException as problem:  # noqa: BLE001 -- the caller's future has it
        return None, problem
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001 -- made for event loops


# --- what a simulated loop did, in a form that is equal when two runs were equal -----------------------------------

REMEMBERED: Final = 20


@final
class Trace:
    """The steps of a simulated loop: when each ran, in virtual time, and what it was.

    Two runs that took the same steps have the same ``digest``. Names of functions and numbers of tasks go into it,
    never identities or hashes, so it can be compared between processes.
    """

    __slots__ = ("_digest", "_last", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._digest: Final = hashlib.blake2b(digest_size=16)
        self._last: Final[deque[str]] = deque(maxlen=REMEMBERED)

    def add(self, at: float, what: str) -> None:
        """Note that ``what`` runs at virtual time ``at``."""
        step = f"{at:.6f} {what}"
        self.steps += 1
        self._last.append(step)
        self._digest.update(f"{step}\n".encode())

    @property
    def digest(self) -> str:
        """A digest of every step so far."""
        return self._digest.hexdigest()

    @property
    def last(self) -> tuple[str, ...]:
        """The last few steps, oldest first."""
        return tuple(self._last)


def name_of(work: object) -> str:
    """Return the name of a callback or coroutine, the same in every run."""
    while isinstance(work, functools.partial):
        work = work.func
    name: Any = getattr(work, "__qualname__", None)
    return name if isinstance(name, str) else type(work).__qualname__


# --- where a task waits, in words: what a deadlock report is made of -----------------------------------------------


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """Say which calls a task is in, from its coroutine down to what it awaits.

    For example: ``Task-3: serve (app.py:12) > hold (locks.py:80)``.
    """
    calls = [f"{frame.f_code.co_qualname} ({_place(frame)})" for frame in _frames(task.get_coro())]
    return f"{task.get_name()}: {' > '.join(calls) or 'not started'}"


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 -- a name is not a path


def _frames(awaited: object) -> Iterator[FrameType]:
    """Follow a suspended coroutine through everything that it awaits."""
    while awaited is not None:
        frame = _first_line(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            yield frame
        awaited = _first_line(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first_line(value: object, *names: str) -> Any:  # noqa: ANN401 -- coroutines and generators have no common type
    return next((found for name in names if (found := getattr(value, name, None)) is not None), None)


# --- an event loop in which nothing is real: time is virtual and the order of events comes from a seed -------------
#
# Run a program under a thousand seeds and it meets a thousand interleavings in a few seconds, each of which can be
# repeated exactly. :func:`standfast.testing.simulate` runs one.

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP_LIMIT: Final = 1_000_000
STALL_CHANCE: Final = 0.1
AT_ONCE_CHANCE: Final = 0.5


@final
class SimulatedLoop(asyncio.BaseEventLoop):
    """An asyncio event loop with seeded interleaving and virtual time. Usually run by :func:`simulate`.

    **What is shuffled.** Of the tasks that are ready, the seed picks which goes on next, so any two tasks may
    overtake each other whenever both could run. Plain callbacks (``call_soon``, ``add_done_callback``) keep the
    order in which they were scheduled, as asyncio promises, but tasks may run between them.

    **Time** stands still while something is ready and jumps to the next timer when nothing is. A timer that is due
    within ``stall`` seconds may also fire while others are ready, as after a slow callback.

    **Threads** are not started: what is given to ``run_in_executor`` runs on the loop, all at once, at a seeded
    later moment, and its answer arrives at a later one still. Each executor does its work in order.

    **Nothing real**: sockets, pipes, processes and signals raise :class:`~standfast.errors.NotSimulatedError`.

    A program that can never go on, or never ends, raises :class:`~standfast.errors.SimulationError`, which says
    where each task waits.

    Args:
        seed: The same seed, the same program: the same order of events, whatever ``PYTHONHASHSEED`` is.
        step_limit: How many callbacks may run before the program counts as looping.
        stall: How far time may pass while something is ready, in seconds.
        offload_delay: How long offloaded work waits for its thread at most, and its answer for the loop, in seconds.
    """

    if TYPE_CHECKING:  # what asyncio.BaseEventLoop keeps, on every Python that Standfast runs on
        _ready: deque[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]
        _stopping: bool

    def __init__(
        self, seed: int, *, step_limit: int = STEP_LIMIT, stall: float = 0.001, offload_delay: float = 0.002
    ) -> None:
        super().__init__()
        self.seed: Final = seed
        self.trace: Final = Trace()
        self.callback_errors: Final[list[BaseException]] = []
        self._limit, self._stall, self._offload_delay = step_limit, stall, offload_delay
        self._random: Final = random.Random(seed)
        self._now = 0.0
        self._next_number: Final = itertools.count(1)
        self._numbers: Final[WeakKeyDictionary[asyncio.Task[Any], int]] = WeakKeyDictionary()
        self._tasks: Final[list[tuple[int, asyncio.Handle]]] = []  # by number, so that no set's order shows through
        self._callbacks: Final[deque[asyncio.Handle]] = deque()
        self._lanes: Final[dict[object, SimulatedLane]] = {}

    def __repr__(self) -> str:
        return f"<SimulatedLoop seed={self.seed} time={self._now:g} steps={self.trace.steps}>"

    # --- time and order ----------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds; it starts at 0."""
        return self._now

    def _run_once(self) -> None:
        """Run one callback: called by ``run_forever`` for as long as the loop runs."""
        while self._ready:
            self._admit(self._ready.popleft())
        self._let_time_pass()
        handle = self._choose()
        if handle is not None:
            self.trace.add(self._now, self._describe(handle))
            if self.trace.steps > self._limit:
                raise SimulationError(f"no end after {self._limit:,} steps; unfinished tasks", self.unfinished())
            handle._run()  # noqa: SLF001 -- what an event loop does with a handle

    def _admit(self, handle: asyncio.Handle) -> None:
        task = _task_of(handle)
        if task is None:
            self._callbacks.append(handle)
        else:
            bisect.insort(self._tasks, (self._number(task), handle), key=itemgetter(0))

    def _let_time_pass(self) -> None:
        idle = not (self._tasks or self._callbacks)
        timer = self._next_timer()
        if timer is None:
            if idle and not self._stopping:
                raise SimulationError("nothing is ready and no timer is set, but these tasks wait", self.unfinished())
            return
        is_near = timer.when() - self._now <= self._stall
        if idle or (is_near and self._random.random() < STALL_CHANCE):
            self._now = max(self._now, timer.when())
        while timer is not None and timer.when() <= self._now:
            self._admit(heapq.heappop(self._scheduled))
            timer = self._next_timer()

    def _next_timer(self) -> asyncio.TimerHandle | None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        return self._scheduled[0] if self._scheduled else None

    def _choose(self) -> asyncio.Handle | None:
        """Take the next callback out; None if there is none or it has been cancelled meanwhile."""
        ready = len(self._tasks) + len(self._callbacks)
        if not ready:
            return None
        lot = self._random.randrange(ready)
        handle = self._tasks.pop(lot)[1] if lot < len(self._tasks) else self._callbacks.popleft()
        return None if handle.cancelled() else handle

    # --- tasks -------------------------------------------------------------------------------------------------

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 -- as each Python has it
        """Start a task; it gets a number that is the same in every run."""
        task = super().create_task(coro, **options)
        self._number(task)
        return task

    def _number(self, task: asyncio.Task[Any]) -> int:
        number = self._numbers.get(task)
        if number is None:
            number = self._numbers[task] = next(self._next_number)
        return number

    def _describe(self, handle: asyncio.Handle) -> str:
        task = _task_of(handle)
        if task is None:
            return name_of(_callback_of(handle))
        return f"{self._number(task)} {name_of(task.get_coro())}"

    def unfinished_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended, in the order in which they were started."""
        return sorted(asyncio.all_tasks(self), key=self._number)

    def unfinished(self) -> tuple[str, ...]:
        """Say of each unfinished task where it waits."""
        return tuple(where_it_waits(task) for task in self.unfinished_tasks())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an exception that a callback raised, so that :func:`simulate` fails; report the rest as usual."""
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException):
            self.callback_errors.append(error)
        else:
            super().call_exception_handler(context)

    def raise_callback_errors(self) -> None:
        """Raise the first exception that a callback raised, if any did."""
        if self.callback_errors:
            raise self.callback_errors[0]

    # --- threads -----------------------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run ``func`` on the loop at a later moment; what one executor is given runs in order.

        The default executor (None) is a pool: its work runs in any order.
        """
        future: asyncio.Future[T] = self.create_future()
        lane = SimulatedLane(self._at_a_later_moment) if executor is None else self._lane_of(executor)
        lane.start(functools.partial(func, *args), future)
        return future

    def _lane_of(self, executor: object) -> SimulatedLane:
        if executor not in self._lanes:
            self._lanes[executor] = SimulatedLane(self._at_a_later_moment)
        return self._lanes[executor]

    def _at_a_later_moment(self, callback: Callable[[], None]) -> None:
        if self._random.random() < AT_ONCE_CHANCE:
            self.call_soon(callback)
        else:
            self.call_later(self._random.uniform(0, self._offload_delay), callback)

    def run_beside(self, main: Callable[[], Coroutine[Any, Any, T]], name: str) -> asyncio.Future[T]:
        """Run ``main()`` as a task of this loop, where :func:`standfast.threads.run_beside` would start a thread."""
        future: asyncio.Future[T] = self.create_future()
        task: asyncio.Task[T] = self.create_task(main(), name=name, context=contextvars.Context())
        task.add_done_callback(functools.partial(_tell, future))
        return future

    def _write_to_self(self) -> None:
        """Do nothing: a simulated loop never sleeps, so ``call_soon_threadsafe`` need not wake it."""

    # --- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Cancel what is unfinished, let it clean up, and close the loop."""
        if self.is_closed():
            return
        self._limit = self.trace.steps + STEP_LIMIT
        try:
            while left := self.unfinished_tasks():
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        except SimulationError:
            pass  # a task that resists its cancellation is left behind: the program has its verdict already
        finally:
            self.close()


def _tell(future: asyncio.Future[T], task: asyncio.Task[T]) -> None:
    """Let a future have what became of a task, unless it is not awaited any more."""
    if future.done():
        return
    if task.cancelled():
        future.cancel()
    elif (problem := task.exception()) is not None:
        future.set_exception(problem)
    else:
        future.set_result(task.result())


def _task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """Return the task whose step a handle is; None for a plain callback."""
    owner: asyncio.Task[Any] | None = getattr(_callback_of(handle), "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def _callback_of(handle: asyncio.Handle) -> object:
    return handle._callback  # type: ignore[attr-defined] # noqa: SLF001 -- asyncio's own debugging reads it, too


_REAL: Final = (
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_shell", "subprocess_exec"),
)


def _refuse(name: str) -> Callable[..., None]:
    def refused(self: SimulatedLoop, *args: object, **options: object) -> None:  # noqa: ARG001 -- any call is refused
        raise NotSimulatedError(f"loop.{name}()")

    refused.__name__ = name
    refused.__qualname__ = f"SimulatedLoop.{name}"
    return refused


for _name in _REAL:
    setattr(SimulatedLoop, _name, _refuse(_name))


# --- running a program in a simulation -----------------------------------------------------------------------------


def simulate(
    seed: int, main: Callable[[Unpack[Ts]], Coroutine[Any, Any, T]], *args: *Ts, step_limit: int = STEP_LIMIT
) -> T:
    """Run ``main(*args)`` to its end on a :class:`SimulatedLoop` and return what it returns.

    Whatever fails carries a note with the seed; calling again with that seed repeats the run exactly, as long as
    the program takes its own randomness from the seed, too; ids of Standfast do. An exception in a plain callback,
    which asyncio only logs, fails the simulation. Tasks that are left when ``main`` has ended are cancelled.

    >>> import asyncio
    >>> async def nap() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> simulate(7, nap)
    3600.0
    """
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 -- made for event loops
        raise SimulationError("simulate() runs an event loop of its own: call it from a plain function")
    loop = SimulatedLoop(seed, step_limit=step_limit)
    try:
        with repeatable_ids(seed):
            result = loop.run_until_complete(main(*args))
        loop.raise_callback_errors()
    except BaseException as error:
        steps = "\n".join(f"  {step}" for step in loop.trace.last)
        error.add_note(f"simulated with seed {seed}, after {loop.trace.steps:,} steps; the last of them:\n{steps}")
        raise
    else:
        return result
    finally:
        loop.finish()
