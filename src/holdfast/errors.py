"""Every error that Holdfast raises on purpose.

One tree: ``except HoldfastError`` catches them all. Each error keeps its facts as attributes, survives
pickling, and its docstring says what to do next. Bad input is also a ``ValueError`` or ``TypeError``, and
is refused before anything is written. Losing a race is never an error: it is an answer
(:class:`holdfast.stores.Conflict`).
"""

from __future__ import annotations

from holdfast.masking import mask_text, mask_url


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose."""


# --- keys ---------------------------------------------------------------------------------------------------------


class InvalidKeyError(HoldfastError, ValueError):
    """A family name or a key part cannot be part of a key. Nothing was written; fix the value."""

    def __init__(self, value: str, problem: str) -> None:
        super().__init__(value, problem)
        self.value, self.problem = value, problem

    def __str__(self) -> str:
        return f"{self.value} cannot be part of a key: {self.problem}"


_HOW_TO_MAKE_A_KEY = (
    '; declare a family once at module level, FAMILY = KeyFamily("what-it-protects"), and make the key with FAMILY(...)'
)


class NotAKeyError(HoldfastError, TypeError):
    """Something else was given where a key made by a family is wanted.

    Declare a family once, ``REPO = KeyFamily("repo")``, and make keys with it: ``REPO("/srv/repo")``.
    """

    def __init__(self, given: str, wanted: str = "Key") -> None:
        super().__init__(given, wanted)
        self.given, self.wanted = given, wanted

    def __str__(self) -> str:
        fix = "" if self.wanted != "Key" else _HOW_TO_MAKE_A_KEY
        return f"expected a {self.wanted}, got {self.given}{fix}"


class DuplicateFamilyError(HoldfastError, ValueError):
    """Two places declare a key family of the same name, so their locks would collide.

    Rename one of them, or import the family from the place that declares it.
    """

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(name, first, second)
        self.name, self.first, self.second = name, first, second

    def __str__(self) -> str:
        if self.first == self.second:
            return f"key family {self.name!r} at {self.first} was declared again with other modes or order; restart the process"
        return f"key family {self.name!r} is declared at {self.first} and again at {self.second}; rename one or import the first"


class KeyTooLongError(InvalidKeyError):
    """A durable key is longer than every store can take.

    Shorten it: put a digest of the long part into the key (``hashlib.blake2b(text, digest_size=16).hexdigest()``)
    and the text itself into the record.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a key of {length:,} bytes", f"at most {limit:,} are allowed")
        self.args = (length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"the key takes {self.length:,} bytes encoded, at most {self.limit:,} are allowed; put a digest of its long part into the key"


# --- durations and values -----------------------------------------------------------------------------------------


class InvalidDurationError(HoldfastError, ValueError):
    """A duration could not be read. Write ``"5 seconds"``, ``"1.5 hours"``, a ``timedelta`` or seconds."""

    def __init__(self, given: str, problem: str, what: str = "duration") -> None:
        super().__init__(given, problem, what)
        self.given, self.problem, self.what = given, problem, what

    def __str__(self) -> str:
        return f'{self.given} cannot be a {self.what}: {self.problem}; write "5 seconds", "1.5 hours", a timedelta or a number of seconds'


class EncodeError(HoldfastError, ValueError):
    """A value cannot be stored. Nothing was written; store JSON-shaped data, or convert the value first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class DecodeError(HoldfastError, ValueError):
    """Stored bytes are not what they should be, or go past a limit. Nothing was executed or imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class FormatTooNewError(HoldfastError):
    """The data was written by a newer Holdfast. Upgrade this process; the data is untouched."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(what, found, known)
        self.what, self.found, self.known = what, found, known

    def __str__(self) -> str:
        return f"{self.what} has format {self.found}, this version of Holdfast reads up to {self.known}; upgrade holdfast here"


# --- exclusion in one process -------------------------------------------------------------------------------------


class UnknownModeError(HoldfastError, ValueError):
    """The family does not declare this mode, or a mode is needed and none was given."""

    def __init__(self, family: str, mode: str | None, known: tuple[str, ...]) -> None:
        super().__init__(family, mode, known)
        self.family, self.mode, self.known = family, mode, known

    def __str__(self) -> str:
        if not self.known:
            return f"key family {self.family!r} declares no modes, so mode={self.mode!r} means nothing; drop it or declare modes=..."
        given = "no mode was given" if self.mode is None else f"mode {self.mode!r} is not declared"
        return f"{given} for key family {self.family!r}; choose one of {', '.join(map(repr, self.known))}"


class ReentryError(HoldfastError, RuntimeError):
    """A task asked for a key that it already holds: waiting would never end.

    Take the key once, in the outermost function, and let the inner ones rely on it.
    """

    def __init__(self, key: str, taken: str, again: str) -> None:
        super().__init__(key, taken, again)
        self.key, self.taken, self.again = key, taken, again

    def __str__(self) -> str:
        return f"this task holds {self.key} since {self.taken} and asked for it again at {self.again}; take it once, in the outermost function"


class LockOrderError(HoldfastError, RuntimeError):
    """A task took keys against the declared order. Take the key that comes first before the other one."""

    def __init__(self, held: str, held_at: str, wanted: str, wanted_at: str) -> None:
        super().__init__(held, held_at, wanted, wanted_at)
        self.held, self.held_at, self.wanted, self.wanted_at = held, held_at, wanted, wanted_at

    def __str__(self) -> str:
        return f"{self.wanted} must be taken before {self.held}, but {self.held} is held since {self.held_at} and {self.wanted} was asked for at {self.wanted_at}"


class WrongLoopError(HoldfastError, RuntimeError):
    """An object was used from another event loop or thread than the one it belongs to.

    Make one such object for each event loop; to share between threads or processes, open a space on a store.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"{self.what} {self.problem}; make one for each event loop, or use a store to share between threads"


class HoldTimeoutError(HoldfastError, TimeoutError):
    """The key did not become free in time. The caller no longer waits and holds nothing; try again later."""

    def __init__(self, key: str, timeout: float, holders: tuple[str, ...]) -> None:
        super().__init__(key, timeout, holders)
        self.key, self.timeout, self.holders = key, timeout, holders

    def __str__(self) -> str:
        by = ", ".join(self.holders) or "earlier waiters"
        return f"{self.key} did not become free within {self.timeout:g} s; held by {by}"


class WouldWaitError(HoldfastError):
    """``try_hold`` found the key taken. Nothing is held and nobody waits; do something else or come back."""

    def __init__(self, key: str, holders: tuple[str, ...]) -> None:
        super().__init__(key, holders)
        self.key, self.holders = key, holders

    def __str__(self) -> str:
        return f"{self.key} is taken by {', '.join(self.holders) or 'earlier waiters'}"


# --- stores -------------------------------------------------------------------------------------------------------


class InvalidChangeError(HoldfastError, ValueError):
    """A commit, scan or update breaks a rule of the store contract. Nothing was written; fix the call."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class InvalidUrlError(HoldfastError, ValueError):
    """A store URL cannot be used. The message says what to type.

    ``url`` has its secrets masked.
    """

    def __init__(self, url: str, problem: str) -> None:
        url, problem = mask_url(url), mask_text(problem)
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"cannot open {self.url!r}: {self.problem}"


class MissingExtraError(HoldfastError, ImportError):
    """The driver for a store is not installed. The message is the command to type."""

    def __init__(self, scheme: str, package: str) -> None:
        super().__init__(scheme, package)
        self.scheme, self.package = scheme, package

    def __str__(self) -> str:
        return f'{self.scheme}:// needs a driver that is not installed; run: pip install "{self.package}"'


class StoreError(HoldfastError):
    """A store could not do its work. What was asked has not happened, unless the error says otherwise.

    Secrets in the store's address, and in what its driver said, are masked.
    """

    def __init__(self, store: str, problem: str) -> None:
        store, problem = mask_url(store), mask_text(problem)
        super().__init__(store, problem)
        self.store, self.problem = store, problem

    def __str__(self) -> str:
        return f"{self.store}: {self.problem}"


class StoreClosedError(StoreError):
    """The store was closed. Open a new one."""


class StoreBusyError(StoreError):
    """Another process kept the store's write turn for too long. Nothing was written; retry.

    The message names the process where the platform tells. A stopped process (``kill -STOP``, a debugger)
    keeps its turn until it continues or dies.
    """


class StoreFullError(StoreError):
    """There is no room to write. Nothing was written; free space and retry on the same store."""


class StoreReadOnlyError(StoreError):
    """The store cannot be written to. Nothing was written; fix its permissions and retry."""


class StoreGoneError(StoreError):
    """The store's file was deleted, moved or replaced underneath. Nothing was written to the new one.

    Put the file back, or stop all processes and open the store anew.
    """


class StoreCorruptError(StoreError):
    """The store's data is damaged or not Holdfast's. Nothing was written; restore it from a backup."""


class StoreUnavailableError(StoreError):
    """The store could not be reached or refused to work for now. Nothing was written; retry."""


class UnsuitableStoreError(StoreError):
    """The store cannot give the guarantee that was asked for, so it is refused rather than half kept."""


class WorkTimeoutError(StoreError, TimeoutError):
    """Work inside a store's transaction took too long, so all of it was undone. Do less in it, or allow more time."""


class NetworkFilesystemError(UnsuitableStoreError):
    """The file lies on a network file system, where file locks cannot be relied on.

    Put it on a local disk, or use a server (``postgresql://``). ``?network=allow`` takes the risk.
    """


class ForeignHandleError(StoreError):
    """Another library has the store's file open in this process, which would silently drop its locks.

    Holdfast's file is its own: give your data another file, or go through ``commit_with``.
    """


class ForkedError(StoreError):
    """A store opened before a fork was used after it. Open a new one in the child."""


class AttemptClosedError(StoreError):
    """A commit arrived after its attempt had been settled as never written, so it was refused. Nothing to do."""


class OutcomeUnknownError(StoreError):
    """The commit may or may not have been written, and it could not be found out yet.

    Call ``await store.settle(error.attempt)`` when the store answers again: it says which, for good.
    """

    def __init__(self, store: str, problem: str, attempt: str = "") -> None:
        super().__init__(store, problem)
        self.args = (self.store, self.problem, attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return f"{self.store}: {self.problem}; the outcome is unknown, settle attempt {self.attempt!r}"


# --- testing ------------------------------------------------------------------------------------------------------


class SimulationError(HoldfastError):
    """A simulation could not go on. Its notes say which seed repeats it."""


class NotSimulatedError(SimulationError, NotImplementedError):
    """Simulated code asked for something real: a socket, a pipe, a process, a signal.

    Replace that part by a fake in the test, or test it on a real event loop.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"{self.what} would reach outside of the simulation; replace it by a fake, or test this part on a real loop"
        )


class InvalidFaultsError(SimulationError, ValueError):
    """Faults were asked for that cannot be drawn: a chance below 0 or above 1, a negative delay. Fix the numbers."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class DeadlockError(SimulationError):
    """Nothing is ready, no timer is set, and the simulated program has not ended: it never will.

    ``waiting`` says of each unfinished task where it waits.
    """

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(waiting)
        self.waiting = waiting

    def __str__(self) -> str:
        return "nothing is ready and no timer is set, but these tasks wait:\n" + "\n".join(
            f"  {task}" for task in self.waiting
        )


class LivelockError(SimulationError):
    """The simulated program took more steps than it was allowed to. It loops, or needs a higher ``step_limit``.

    ``waiting`` says of each unfinished task where it was.
    """

    def __init__(self, steps: int, waiting: tuple[str, ...]) -> None:
        super().__init__(steps, waiting)
        self.steps, self.waiting = steps, waiting

    def __str__(self) -> str:
        return f"no end after {self.steps:,} steps; unfinished:\n" + "\n".join(f"  {task}" for task in self.waiting)


class NotLinearizableError(HoldfastError, AssertionError):
    """A recorded history cannot be explained by any order of its operations: the store broke its contract.

    ``explained`` is the longest run of operations that still made sense, ``stuck`` what could not come next.
    """

    def __init__(self, explained: tuple[str, ...], stuck: tuple[str, ...]) -> None:
        super().__init__(explained, stuck)
        self.explained, self.stuck = explained, stuck

    def __str__(self) -> str:
        before = "\n".join(f"  {operation}" for operation in self.explained[-10:]) or "  (nothing)"
        after = "\n".join(f"  {operation}" for operation in self.stuck)
        return f"no order explains the history. After\n{before}\nnone of these can come next:\n{after}"


class HistoryTooLargeError(SimulationError):
    """The checker gave up before it found an order or ruled all out. Check fewer clients or fewer operations a key."""

    def __init__(self, operations: int, visited: int) -> None:
        super().__init__(operations, visited)
        self.operations, self.visited = operations, visited

    def __str__(self) -> str:
        return f"{self.visited:,} states of {self.operations:,} operations were tried without a verdict; record fewer clients a key"
