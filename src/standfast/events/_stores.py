"""What stores tell."""

from __future__ import annotations

from typing import ClassVar

from standfast.events._event import Event, Level


class StoreEvent(Event, frozen=True, kw_only=True):
    """The root of what stores tell. ``store`` is its address without secrets."""

    store: str


class SlowCommit(StoreEvent, frozen=True, kw_only=True):
    """A transaction took unusually long. The disk, the network or another writer is slow."""

    level: ClassVar[Level] = "warning"

    seconds: float
    riders: int
    """How many commits shared the transaction."""


class ClockStepped(StoreEvent, frozen=True, kw_only=True):
    """The time of day is not what the store's time followed: the machine's clock was set, or it was wrong before.

    ``seconds`` is by how much the time of day is ahead of the store's time, negative if it is behind. The store's time
    follows it without a jump, and no lease ends early. Schedules are off by what is left until ``settles_in`` seconds
    have passed. To be done with it sooner, close the file in all processes and open it again.
    """

    level: ClassVar[Level] = "warning"

    seconds: float
    settles_in: float


class ForeignHandleSeen(StoreEvent, frozen=True, kw_only=True):
    """Another library has the store's file open in this process. The store refuses to work until it is gone."""

    level: ClassVar[Level] = "error"


class StoreNotDurable(StoreEvent, frozen=True, kw_only=True):
    """A store was opened that may lose acknowledged commits when its server fails. ``problem`` says what to set."""

    level: ClassVar[Level] = "warning"

    problem: str


class StoreNotEncrypted(StoreEvent, frozen=True, kw_only=True):
    """Everything that goes to a server on another machine, passwords included, can be read on the way.

    Add ``?tls=true`` to its URL, or pass a TLS context with ``sf.Credentials``. ``hosts`` says where it is.
    """

    level: ClassVar[Level] = "warning"

    hosts: tuple[str, ...]


class OutcomeUnknown(StoreEvent, frozen=True, kw_only=True):
    """The reply to a commit was lost: it may or may not have been written."""

    level: ClassVar[Level] = "warning"

    attempt: str
    problem: str


class OutcomeSettled(StoreEvent, frozen=True, kw_only=True):
    """It was found out for good whether an attempt was written."""

    attempt: str
    written: bool


class Checkpointed(StoreEvent, frozen=True, kw_only=True):
    """The write-ahead log was copied into the file. ``remaining`` pages were still in use by readers."""

    level: ClassVar[Level] = "debug"

    seconds: float
    pages: int
    remaining: int


class Swept(StoreEvent, frozen=True, kw_only=True):
    """Expired records were deleted."""

    level: ClassVar[Level] = "debug"

    seconds: float
    removed: int
