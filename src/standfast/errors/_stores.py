"""Errors of stores: what a backend could not do, and what to do about it."""

from __future__ import annotations

from standfast.errors._root import StandfastError
from standfast.redaction import mask_text, mask_url


class InvalidChangeError(StandfastError, ValueError):
    """A commit, scan or update breaks a rule of the store contract. Nothing was written; fix the call."""

    problem: str
    template = "{problem}"


class InvalidUrlError(StandfastError, ValueError):
    """A store URL cannot be used. The message says what to type.

    ``url`` has its secrets masked.
    """

    masks = (("url", mask_url), ("problem", mask_text))
    url: str
    problem: str
    template = "cannot open {url!r}: {problem}"


class MissingExtraError(StandfastError, ImportError):
    """The driver for a store, or what a feature or a schedule needs, is not installed here.

    The message is the command to type. Nothing was written; a schedule continues where its time zone is known.
    """

    scheme: str
    package: str

    def _text(self) -> str:
        needs = f"{self.scheme} needs what" if " " in self.scheme else f"{self.scheme}:// needs a driver that"
        return f'{needs} is not installed; run: pip install "{self.package}"'


class StoreError(StandfastError):
    """A store could not do its work. What was asked has not happened, unless the error says otherwise.

    Secrets in the store's address, and in what its driver said, are masked.
    """

    masks = (("store", mask_url), ("problem", mask_text))
    store: str
    problem: str
    template = "{store}: {problem}"


class StoreClosedError(StoreError):
    """The store is not open in this process: it was closed, or opened before a fork. Open a new one here.

    What the parent of a forked child holds stays the parent's.
    """


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

    Put the file back, or stop all processes and open the store again.
    """


class StoreCorruptError(StoreError):
    """The store's data is damaged or not Standfast's. Nothing was written; restore it from a backup."""


class StoreUnavailableError(StoreError):
    """The store could not be reached or refused to work for now. Nothing was written; retry."""


class UnsuitableStoreError(StoreError):
    """The store cannot be used as it was asked for: it lacks a guarantee, refuses the user, or is not empty.

    Or another library opens its file in this process, which would silently drop its locks. Nothing was written. The
    message says what to change: the URL, the server, or what was asked for.
    """


class StoreMovedError(StoreError):
    """The store takes no writes: it was exported, or an import into it is not finished. Nothing was written.

    Open the store that it was moved to. To use this one after all, run ``standfast thaw``; an import that broke
    off is repeated.
    """


class StoreRewoundError(StoreError):
    """Commits that the store had acknowledged are gone: it restarted without them, failed over, or was restored.

    Nothing was written. Every handle of this process raises it from now on, and a worker ends. Look at what the server
    lost, run ``standfast accept-loss``, which moves every fence beyond what was seen, and start the processes anew.
    """


class WorkTimeoutError(StoreError, TimeoutError):
    """Work inside a store's transaction took too long, so all of it was undone. Do less in it, or allow more time."""


class AttemptClosedError(StoreError):
    """A commit arrived after its attempt had been settled as never written, so it was refused. Nothing to do."""


class OutcomeUnknownError(StoreError):
    """The commit may or may not have been written, and it could not be found out yet.

    Call ``await store.settle(error.attempt)`` when the store answers again: it says which, for good.
    """

    attempt: str = ""
    template = "{store}: {problem}; the outcome is unknown, settle attempt {attempt!r}"


class UnknownSealingKeyError(StandfastError, LookupError):
    """A value was sealed with a key that this keyring does not have. Add that key; it need not be the current one."""

    name: str
    known: tuple[str, ...]
    template = "a value was sealed with the key {name!r}, and this keyring has {known}"


class BrokenSealError(StandfastError, ValueError):
    """A stored value cannot be trusted: it was changed, or moved from another place, or never sealed.

    Another program writes to the store, or a backup was put together from several. Find out which before you continue.
    """

    problem: str
    template = "a stored value cannot be trusted: {problem}"
