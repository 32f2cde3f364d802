"""The fleet: which processes drive runs, what they say about themselves, and how they are.

A worker writes a record about itself beside the one that guards its claims. That one must not change, since its version
is in every claim; this one is written again when a worker gets more workflows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.codec import Codec
from standfast.errors import DeclarationError
from standfast.locks.heartbeat import PRESENCES, LoopReport, this_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.scope import Scope

KIND: Final = "fleet"
"""The kind of record in which a worker says what it is."""

MOST_WORKFLOWS: Final = 2_000
"""How many workflows a worker names: what the record has room for."""

COUNTED: Final = 1_000
"""How many runs of a worker are counted; there may be more."""

PAGE: Final = 100


class AboutWorker(Struct, frozen=True, omit_defaults=True):
    """What a worker says about itself.

    Attributes:
        since: When it was opened, by its own clock.
        host: The machine that it runs on.
        process: The number of its process there.
        program: What runs there.
        package: The version of Standfast.
        room: How many runs it has in memory at most.
        workflows: What it can run, each with its version.
        is_whole: Whether those are all.
    """

    since: Instant
    host: str = ""
    process: int = 0
    program: str = ""
    package: str = ""
    room: int = 0
    workflows: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True


ABOUT: Final[Codec[AboutWorker]] = Codec(AboutWorker, what="what a worker says about itself")


class WorkerInfo(Struct, frozen=True):
    """How a worker is. Get them from ``await engine.workers()``.

    Attributes:
        id: The name of its presence: the ``owner`` of the runs that it drives.
        is_alive: Whether its presence is valid. The runs of one whose presence is not are taken over by others.
        silent_for: How many seconds ago it last renewed its presence; None if it is dead.
        since: When it was opened, by its own clock; 0 if that is not known.
        host: The machine that it runs on.
        process: The number of its process there; 0 if that is not known.
        program: What runs there.
        package: The version of Standfast that it runs; empty if it does not say.
        runs: How many runs it drives; if :attr:`more` is true, at least that number.
        more: Whether there are more than were counted.
        room: How many runs it has in memory at most; 0 if that is not known.
        workflows: What it can run: names and versions.
        is_whole: Whether those are all.
        loop: How its event loop was in the last five minutes, with what is ``ago`` counted from now; None if it does
            not say, as one that is gone, or of an older version.
    """

    id: str
    is_alive: bool
    silent_for: float | None
    since: Instant
    host: str = ""
    process: int = 0
    program: str = ""
    package: str = ""
    runs: int = 0
    more: bool = False
    room: int = 0
    workflows: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True
    loop: LoopReport | None = None


def about_key(scope: Scope, presence: str) -> RecordKey:
    """Return where a worker says what it is."""
    return scope.key(KIND, presence)


def about_this_process(workflows: Iterable[tuple[str, str]], *, since: Instant, room: int) -> bytes:
    """Return what the worker of this process says about itself, as it is stored."""
    here, names = this_process(0.0, ""), sorted(workflows)
    return ABOUT.encode(
        AboutWorker(
            since,
            here.host,
            here.process,
            here.program,
            _package_version(),
            room,
            tuple(names[:MOST_WORKFLOWS]),
            is_whole=len(names) <= MOST_WORKFLOWS,
        )
    )


@cache
def _package_version() -> str:
    from importlib import metadata  # noqa: PLC0415 -- slow to import, and only workers need it

    try:
        return metadata.version("standfast")
    except metadata.PackageNotFoundError:  # run from its source, without being installed
        return ""


async def list_workers(scope: Scope, *, limit: int) -> tuple[WorkerInfo, ...]:
    """Read the workers of a space, in the order of their names; nothing is changed by looking."""
    if type(limit) is not int or limit < 1:
        raise DeclarationError("workers", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
    found: list[WorkerInfo] = []
    start, end = scope.key("worker").within()
    while len(found) < limit:
        page = await scope.scan(start, end, limit=min(scope.at_most(PAGE) // 2, limit - len(found)))
        found += await _described(scope, [key.parts[-1] for key in page.records])
        if page.more is None:
            break
        start = page.more
    return tuple(found)


async def _described(scope: Scope, names: Sequence[str]) -> list[WorkerInfo]:
    if not names:
        return []
    presences = {name: scope.key("presence", *name.split(".", 1)) for name in names}
    seen = await scope.read(*presences.values(), *(about_key(scope, name) for name in names))
    found: list[WorkerInfo] = []
    for name, key in presences.items():
        record, said = seen.get(key), seen.get(about_key(scope, name))
        presence = None if record is None else PRESENCES.decode(record.value)
        about = AboutWorker(Instant(0)) if said is None else ABOUT.decode(said.value)
        is_alive = presence is not None and not scope.store.is_dead(presence.liveness_token)
        silent_for: float | None = None
        if is_alive and presence is not None and record is not None and record.expires_at is not None:
            # A presence was renewed a lease before it ends.
            silent_for = max(0.0, presence.lease - seconds_between(seen.at, record.expires_at))
        loop = None if presence is None or silent_for is None else presence.loop
        owned = await scope.scan(*scope.key("own", name).within(), limit=COUNTED)
        found.append(
            WorkerInfo(
                name,
                is_alive=is_alive,
                silent_for=silent_for,
                since=about.since,
                host=about.host or ("" if presence is None else presence.host),
                process=about.process or (0 if presence is None else presence.process),
                program=about.program or ("" if presence is None else presence.program),
                package=about.package,
                runs=len(owned.records),
                more=owned.more is not None,
                room=about.room,
                workflows=about.workflows,
                is_whole=about.is_whole and said is not None,
                # As it is now: the report was written with the last renewal.
                loop=None if loop is None or silent_for is None else structs.replace(loop, ago=loop.ago + silent_for),
            )
        )
    return found
