"""Errors of stores."""

from __future__ import annotations

from standfast.errors._root import StandfastError
from standfast.redaction import mask_text, mask_url


class InvalidChangeError(StandfastError, ValueError):
    """A commit, scan or update breaks a rule of the store contract. Nothing was written; fix the call."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class InvalidUrlError(StandfastError, ValueError):
    """A store URL cannot be used. The message says what to type.

    ``url`` has its secrets masked.
    """

    def __init__(self, url: str, problem: str) -> None:
        url, problem = mask_url(url), mask_text(problem)
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"cannot open {self.url!r}: {self.problem}"


class MissingExtraError(StandfastError, ImportError):
    """The driver for a store, or what a feature needs, is not installed. The message is the command to type."""

    def __init__(self, scheme: str, package: str) -> None:
        super().__init__(scheme, package)
        self.scheme, self.package = scheme, package

    def __str__(self) -> str:
        needs = f"{self.scheme} needs what" if " " in self.scheme else f"{self.scheme}:// needs a driver that"
        return f'{needs} is not installed; run: pip install "{self.package}"'


class StoreError(StandfastError):
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
    """The store's data is damaged or not Standfast's. Nothing was written; restore it from a backup."""


class StoreUnavailableError(StoreError):
    """The store could not be reached or refused to work for now. Nothing was written; retry."""


class UnsuitableStoreError(StoreError):
    """The store cannot give the guarantee that was asked for, so it is refused rather than half kept."""


class UnsuitableConnectionError(StandfastError, ValueError):
    """A connection of yours cannot take records of the store along in its transaction. Nothing was written over it.

    The message says what to do: begin a transaction on it, connect it to the database of the store, or pass another one.
    Roll back what you have begun.
    """

    def __init__(self, connection: str, problem: str) -> None:
        connection, problem = mask_url(connection), mask_text(problem)
        super().__init__(connection, problem)
        self.connection, self.problem = connection, problem

    def __str__(self) -> str:
        return f"the connection cannot be used ({self.connection}): {self.problem}"


class StoreMovedError(StoreError):
    """The store takes no writes: it was exported, or an import into it is not finished. Nothing was written.

    Open the store that it was moved to. To go on with this one after all, run ``standfast thaw``; an import that broke
    off is repeated.
    """


class StoreNotEmptyError(StoreError):
    """The store to import into holds records of its own. Nothing was written; name an empty store."""


class InvalidExportError(StandfastError, ValueError):
    """A file is not a whole export: it was cut short, changed, or made by a newer version. Nothing was written.

    Make the export anew, or get the file once more.
    """

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file, self.problem = file, problem

    def __str__(self) -> str:
        return f"{self.file} cannot be imported: {self.problem}"


class StoreRewoundError(StoreError):
    """Commits that the store had acknowledged are gone: it restarted without them, failed over, or was restored.

    Nothing was written. Stop what rests on the lost data, look at the server, and open the store anew: whoever opens it
    accepts what is there. Versions still grow, so what was fenced stays fenced.
    """


class WorkTimeoutError(StoreError, TimeoutError):
    """Work inside a store's transaction took too long, so all of it was undone. Do less in it, or allow more time."""


class NetworkFilesystemError(UnsuitableStoreError):
    """The file lies on a network file system, where file locks cannot be relied on.

    Put it on a local disk, or use a server (``postgresql://``). ``?network=allow`` takes the risk.
    """


class ForeignHandleError(StoreError):
    """Another library has the store's file open in this process, which would silently drop its locks.

    Standfast's file is its own: give your data another file, or go through ``commit_with``.
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
