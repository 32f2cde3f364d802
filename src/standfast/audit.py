"""The audit: who did what to runs, locks, limits, schedules and the store, as records of their own.

An *operator* is a person, or a program in a person's place, who acts on what others run. Code that cancels its own runs
is none. So actions are recorded where an :class:`Actor` is named: in a space or an engine that was opened with
``actor=`` or taken by ``acting_as``, and in everything that the command ``standfast`` does.

A record is written before the action, and written again with its outcome. If it cannot be written the action does not
happen; if the process dies in between, the record says ``begun``. Each action has four small records: its own, in the
order of time, and one that finds it by action, by subject and by actor.
"""

from __future__ import annotations

import getpass
import re
import socket
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, final

import msgspec
from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.durations import seconds
from standfast.errors import InvalidArgumentError, StoreError
from standfast.ids import new_id
from standfast.redaction import mask_message
from standfast.scope import Scope
from standfast.stores import transfer
from standfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import BinaryIO

    from standfast.durations import Duration
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.protocol import Snapshot


# --- who acts, and what is recorded of it ----------------------------------------------------------------------------

Via: TypeAlias = Literal["cli", "api", "http"]
"""From where an action came: the command line, a program, or a request over HTTP."""

ActionOutcome: TypeAlias = Literal["begun", "done", "nothing", "refused", "unknown"]
"""``nothing``: there was nothing to do it to. ``unknown``: it was interrupted. ``begun``: its end is not recorded."""

ACTIONS: Final[Mapping[str, str]] = {
    "lock.release": "a holder or a waiter was evicted from a line",
    "lock.withdraw": "a waiter was removed from a line",
    "lock.resize": "the permits of a semaphore were set",
    "lock.forget_size": "the permits of a semaphore are those of its call sites again",
    "rate.withdraw": "a waiter was removed from the line of a rate limiter",
    "rate.close": "a rate limiter was closed for a while",
    "rate.open": "a rate limiter was opened again",
    "rate.change": "the rate of a rate limiter was set",
    "limit.set": "the limit of a workflow was set",
    "limit.clear": "the limit of a workflow is that of its code again",
    "run.start": "a run was started",
    "run.signal": "a signal was sent to a run",
    "run.update": "an update was sent to a run",
    "run.cancel": "a run was asked to stop",
    "run.force_cancel": "a run was ended whatever its code did",
    "run.resume": "a run was polled",
    "run.sweep": "all runs that are due were polled",
    "run.recover": "all unfinished runs were polled",
    "run.retry": "a run that failed is resumed",
    "run.restart": "a run was started again from its beginning",
    "run.fork": "a run was started from a step of another one",
    "run.purge": "runs were deleted",
    "run.erase": "everything of a tenant was deleted",
    "request.cancel": "a request was asked to stop",
    "schedule.create": "a schedule was made",
    "schedule.change": "a schedule was changed",
    "schedule.pause": "a schedule was paused",
    "schedule.resume": "a paused schedule fires again",
    "schedule.delete": "a schedule was deleted",
    "schedule.trigger": "a run of a schedule was started by hand",
    "schedule.backfill": "missed ticks of a schedule were made up for",
    "store.export": "the store was written to a file, and frozen",
    "store.import": "the store was read from a file",
    "store.thaw": "the store takes writes again",
    "store.accept_loss": "a loss of acknowledged commits was accepted, and every process taken for gone",
    "store.fence": "every process on the store was taken for gone",
}
"""Every action that is recorded, and what it means."""

LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 500


class Actor(Struct, frozen=True):
    """Who acts, for the audit.

    Attributes:
        name: The person or program: 1 to 200 printable characters.
        via: From where: ``cli``, ``api`` or ``http``.
        host: The machine, or the address of the caller.
    """

    name: str
    via: Via = "api"
    host: str = ""

    def __post_init__(self) -> None:
        for what, text, least in (("name", self.name, 1), ("host", self.host, 0)):
            if not isinstance(text, str) or not least <= len(text) <= LONGEST_NAME or not text.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                problem = f"it must be {least} to {LONGEST_NAME} printable characters"
                raise InvalidArgumentError(f"the {what} of an actor", problem, ascii(text)[:60])
        if self.via not in ("cli", "api", "http"):
            raise InvalidArgumentError("the via of an actor", "choose 'cli', 'api' or 'http'", ascii(self.via)[:40])

    @classmethod
    def of_process(cls, name: str = "", *, via: Via = "api") -> Self:
        """Return the user of the operating system who runs this process, on this machine; ``name`` overrides it."""
        return cls(name or _user(), via, socket.gethostname()[:LONGEST_NAME])


def _user() -> str:
    try:
        return getpass.getuser()[:LONGEST_NAME]
    except (OSError, KeyError):  # a container without an entry for its user
        return "unknown"


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action of an operator.

    Attributes:
        id: Names this record; ids sort by time.
        at: When it began, by the store's time.
        action: What was done, one of :data:`ACTIONS`: ``run.cancel``, ``lock.release``.
        subject: To what: the id of a run or a schedule, a key, the name of a workflow; empty: to all that ``details``
            say, or to the store.
        actor: Who did it.
        outcome: What came of it.
        entry: The entry in the line, of a lock.
        fence: The fence that became void with it.
        reason: Why, in the operator's words.
        problem: Why it was refused.
        details: What else was asked for, as text by name. Never the values that a run was given.
        ended_at: When its outcome was recorded.
    """

    id: str
    at: Instant
    action: str
    subject: str = ""
    actor: Actor
    outcome: ActionOutcome = "begun"
    entry: str = ""
    fence: int | None = None
    reason: str = ""
    problem: str = ""
    details: dict[str, str] = {}
    ended_at: Instant | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-shaped data."""
        found: dict[str, Any] = {each: getattr(self, each) for each in self.__struct_fields__}
        return {**found, "actor": msgspec.to_builtins(self.actor)}


class AuditPage(Struct, frozen=True):
    """Some records, newest first.

    Attributes:
        records: As many as were asked for, or fewer: a page ends early rather than read too much of what does not fit.
        next: Where the next page begins, for ``after``; None: there are no more.
    """

    records: tuple[AuditRecord, ...]
    next: str | None = None


RECORDS: Final[Codec[AuditRecord]] = Codec(AuditRecord, what="a record of the audit")
_KEPT: Final = Codec(float, what="how long the audit is kept")
_INDEXED: Final = Codec(bool, what="that an action is recorded").encode(value=True)

KEPT_FOR: Final = 365 * 86_400.0
"""Seconds for which records are kept, if nothing else was said."""

SHORTEST: Final = 60.0
"""The shortest time for which the audit can be kept: it outlives every action."""

_STAMP: Final = re.compile(r"[0-9]{17,20}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The id of a record: when it was written, in microseconds, and what tells it from others of that time."""

_EXAMPLE: Final = "01794980193219797-01a1ed27-f651-7ef1-9e9b-108dfe06af77"

MOST_LISTED: Final = 1_000
MOST_READ: Final = 2_000
"""How many records are read for one page at the most, if two filters hold and few records match both."""


# --- writing ---------------------------------------------------------------------------------------------------------


@final
class Audit:
    """The audit of one namespace and tenant, as one actor writes it; without an actor it is only read.

    Args:
        scope: Where the records lie.
        actor: Who acts; None: no operator, and nothing is recorded.
    """

    __slots__ = ("_scope", "actor")

    def __init__(self, scope: Scope, actor: Actor | None = None) -> None:
        self._scope: Final = scope
        self.actor: Final = actor

    def action(
        self,
        action: str,
        subject: str = "",
        *,
        entry: str = "",
        reason: str = "",
        details: Mapping[str, object] | None = None,
        ahead: bool = True,
    ) -> AuditedAction:
        """Return the context of an action: ``async with audit.action("run.cancel", run_id) as told:``.

        Args:
            action: One of :data:`ACTIONS`.
            subject: To what it is done.
            entry: To which entry of a line.
            reason: Why.
            details: What else was asked for; what is None is left out.
            ahead: Whether it is recorded before it is done, too. Not where the store takes no writes then.
        """
        if self.actor is None:
            return AuditedAction(None, None)
        shown = {
            name: mask_message(str(value))[:LONGEST_TEXT]
            for name, value in (details or {}).items()
            if value is not None
        }
        record = AuditRecord(
            id="",
            at=Instant(0),
            action=action,
            subject=subject,
            actor=self.actor,
            entry=entry,
            reason=mask_message(reason)[:LONGEST_TEXT],
            details=shown,
        )
        return AuditedAction(self._scope, record, ahead=ahead)

    async def keep(self, length: Duration) -> None:
        """Keep records for ``length`` from now on, in all processes. Those that are there keep the end they have."""
        kept, key = seconds(length, what="how long the audit is kept", minimum=SHORTEST), self._scope.key("audit-kept")

        def decide(seen: Snapshot) -> Decision[None]:
            record = seen.get(key)
            if record is not None and _KEPT.decode(record.value) == kept:
                return Decision(None)
            return Decision(None, (Put(key, _KEPT.encode(kept), seen.version(key)),))

        await self._scope.update([key], decide)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def page(
        self,
        *,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> AuditPage:
        """Return records, newest first, at the cost of what is shown and not of what is stored."""
        if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
            problem = f"it is a number from 1 to {MOST_LISTED:,}"
            raise InvalidArgumentError("the limit of an audit", problem, ascii(limit)[:40])
        if action is not None and action not in ACTIONS:
            raise InvalidArgumentError("the action of an audit", f"there are {', '.join(ACTIONS)}", ascii(action)[:60])
        if after is not None and _STAMP.fullmatch(after) is None:
            problem = "it is the id that the page before gave as the next, such as " + _EXAMPLE
            raise InvalidArgumentError("where a page of an audit begins", problem, ascii(after)[:60])
        wanted = {"subject": subject, "actor": actor, "action": action}
        given = [(name, value) for name, value in wanted.items() if value is not None]
        found: list[AuditRecord] = []
        read, last = 0, after
        while read < MOST_READ:
            stamps, is_end = await self._stamps(given[0] if given else None, last, self._scope.at_most(100))
            keys = {stamp: self._scope.key("audit", stamp) for stamp in stamps}
            seen = (await self._scope.read(*keys.values())).records if keys else {}
            for stamp, key in keys.items():
                record, last = RECORDS.decode(seen[key].value) if key in seen else None, stamp
                if record is not None and all(_facts(record)[name] == value for name, value in given):
                    found.append(record)
                if len(found) == limit:
                    return AuditPage(tuple(found), None if is_end and stamp == stamps[-1] else last)
            if is_end:
                return AuditPage(tuple(found))
            read += len(stamps)
        return AuditPage(tuple(found), last)

    async def _stamps(self, by: tuple[str, str] | None, before: str | None, limit: int) -> tuple[list[str], bool]:
        """Return the ids of records before one, newest first, and whether these are the last."""
        base = self._scope.key("audit") if by is None else self._scope.key("audited", by[0], _part(by[1]))
        start, end = base.within()
        page = await self._scope.scan(start, end if before is None else base.child(before), limit=limit, reverse=True)
        return [key.parts[-1] for key in page.records], page.more is None


def _facts(record: AuditRecord) -> dict[str, str]:
    return {"subject": record.subject, "actor": record.actor.name, "action": record.action}


def _part(value: str) -> str:
    """Return a text as part of a key: a long one by its digest."""
    text = value.encode()
    return value or "-" if len(text) <= LONGEST_NAME else blake2b(text, digest_size=16).hexdigest()


@final
class AuditedAction:
    """An action while it is done. Say in it what it came to, where that is not simply ``done``.

    Attributes:
        outcome: ``done``, or ``nothing`` if there was nothing to do it to.
        subject: What it was done to, if that has no name before.
        fence: The fence that became void.
        details: More that is to be recorded, known only now.
    """

    __slots__ = ("_ahead", "_record", "_scope", "details", "fence", "outcome", "subject")

    def __init__(self, scope: Scope | None, record: AuditRecord | None, *, ahead: bool = True) -> None:
        self._scope, self._record, self._ahead = scope, record, ahead
        self.outcome: ActionOutcome = "done"
        self.fence: int | None = None
        self.subject = ""
        self.details: dict[str, object] = {}

    @property
    def is_recorded(self) -> bool:
        """Whether there is an actor: what is only looked up for the record need not be, otherwise."""
        return self._record is not None

    async def __aenter__(self) -> Self:
        if self._scope is not None and self._record is not None and self._ahead:
            self._record = await _write(self._scope, self._record)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._scope is None or self._record is None:
            return
        outcome = self.outcome if error is None else "refused" if isinstance(error, Exception) else "unknown"
        problem = "" if error is None else mask_message(f"{type(error).__name__}: {error}")[:LONGEST_TEXT]
        told = {name: mask_message(str(value))[:LONGEST_TEXT] for name, value in self.details.items()}
        ended = structs.replace(
            self._record,
            outcome=outcome,
            problem=problem,
            fence=self.fence,
            subject=self._record.subject or self.subject,
            details={**self._record.details, **told},
        )
        try:
            await _write(self._scope, ended)
        except StoreError:  # what was done is done, or raises an error of its own: the record says that it was begun
            return


async def _write(scope: Scope, record: AuditRecord) -> AuditRecord:
    """Write a record and what finds it, or write them again; return it with its time."""
    kept_key = scope.key("audit-kept")
    if not record.id:
        seen = await scope.read(kept_key)
        record = structs.replace(record, id=f"{seen.at:017d}-{new_id()}", at=seen.at)
    found_by = [scope.key("audited", name, _part(value), record.id) for name, value in _facts(record).items()]
    keys = [scope.key("audit", record.id), *found_by]

    def decide(seen: Snapshot) -> Decision[AuditRecord]:
        setting = seen.get(kept_key)
        ends = later(record.at, KEPT_FOR if setting is None else _KEPT.decode(setting.value))
        written = record if record.outcome == "begun" else structs.replace(record, ended_at=seen.at)
        values = (RECORDS.encode_own(written), *(_INDEXED for _ in keys[1:]))
        puts = [Put(key, value, seen.version(key), ends) for key, value in zip(keys, values, strict=True)]
        return Decision(written, tuple(puts))

    return (await scope.update([kept_key, *keys], decide)).answer


# --- what is done to a whole store -----------------------------------------------------------------------------------
#
# It concerns every namespace and tenant; its record lies in the namespace ``default``, of the tenant ``default``.


async def export_store(
    store: GroupedStore,
    sink: AbstractContextManager[BinaryIO],
    tell: Callable[[int], object] = transfer.untold,
    *,
    namespaces: Collection[str] = (),
    actor: Actor | None = None,
) -> transfer.ExportFooter:
    """Freeze a store and write everything in it to ``sink``, see :func:`standfast.stores.transfer.export_store`.

    With an ``actor`` it is recorded before. What it came to is not, nor an export that is repeated: the store takes no
    more writes.
    """
    details, takes_writes = {"namespaces": ", ".join(namespaces) or None}, not await store.transfer().frozen()
    async with Audit(Scope(store), actor).action("store.export", details=details, ahead=takes_writes):
        return await transfer.export_store(store, sink, tell, namespaces=namespaces)


async def import_store(
    store: GroupedStore,
    source: BinaryIO,
    name: str,
    tell: Callable[[int, int], object] = transfer.untold_of,
    *,
    actor: Actor | None = None,
) -> transfer.ExportFooter:
    """Write all records of an export into an empty store, see :func:`standfast.stores.transfer.import_store`.

    With an ``actor`` it is recorded when it is done: until then the store has to be empty.
    """
    async with Audit(Scope(store), actor).action("store.import", details={"file": name}, ahead=False):
        return await transfer.import_store(store, source, name, tell)


async def thaw_store(store: GroupedStore, *, actor: Actor | None = None) -> None:
    """Let an exported store take writes again. Do this only if no other store is used in its place."""
    async with Audit(Scope(store), actor).action("store.thaw", ahead=False):
        await store.transfer().thaw()


async def fence_store(store: GroupedStore, *, actor: Actor | None = None) -> transfer.Fenced:
    """Declare every process that the store knows of gone, see :func:`standfast.stores.transfer.fence_store`."""
    async with Audit(Scope(store), actor).action("store.fence") as told:
        fenced = await transfer.fence_store(store)
        told.details |= {"presences": fenced.presences, "workers": fenced.workers, "above": fenced.above}
        return fenced


async def accept_loss(store: GroupedStore, *, seen: int = 0, actor: Actor | None = None) -> transfer.Fenced:
    """Continue with what a store has after it lost commits, see :func:`standfast.stores.transfer.accept_loss`."""
    async with Audit(Scope(store), actor).action("store.accept_loss") as told:
        fenced = await transfer.accept_loss(store, seen=seen)
        told.details |= {"presences": fenced.presences, "workers": fenced.workers, "above": fenced.above}
        return fenced
