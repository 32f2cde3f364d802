"""A MySQL or MariaDB server, as common code asks for it."""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK, Instant
from standfast.events import NO_HOOKS
from standfast.stores.backend import Batching
from standfast.stores.mysql import schema, upkeep
from standfast.stores.mysql.checking import check, packet_of, settings_of, tell_weakness, weakness_of
from standfast.stores.mysql.linking import Links
from standfast.stores.mysql.moving import MysqlMoving
from standfast.stores.mysql.records import live
from standfast.stores.mysql.statements import COLUMNS, NOW, fetch, handle_literal, literal
from standfast.stores.mysql.working import Working
from standfast.stores.mysql.writing import Writing
from standfast.stores.protocol import Capabilities, Snapshot
from standfast.stores.remote.lacking import PushesNothing, SeesNoDeaths
from standfast.stores.remote.server import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, WorkRider
    from standfast.stores.mysql.options import Options
    from standfast.stores.remote.server import Intent, Landed, Refused

LONGEST_PACKET: Final = 8_000_000
TIME_IS_GOOD_FOR: Final = 5_000_000
"""For how many microseconds the server's time is extrapolated from its last answer."""

BATCHING: Final = Batching(max_riders=500, max_weight=500, max_bytes=2_000_000)


async def open_server(options: Options, hooks: Hooks = NO_HOOKS) -> MysqlServer:
    """Connect, make the tables if they are not there, and look at the settings.

    Raises:
        StoreError: The server cannot be reached, or cannot be used; the message says why.
    """
    links = Links(options, options.pool)
    try:
        async with links.borrow() as link:
            settings = await settings_of(link, options)
            check(settings, options.name)
            await schema.prepare(link, options)
    except BaseException:
        await links.aclose()
        raise
    if weakness := weakness_of(settings):
        tell_weakness(weakness, options.name, hooks)
    return MysqlServer(options, links, settings)


@final
class MysqlServer(PushesNothing, SeesNoDeaths):
    """One handle: a connection to write on, and a few for everything else."""

    def __init__(self, options: Options, links: Links, settings: Mapping[str, str]) -> None:
        self._options, self._links, self._settings = options, links, settings
        self._names: Final = options.names
        self._limits: Final = Capabilities(
            backend="mysql",
            atomic=True,
            durable=not weakness_of(settings),
            reach="network",
            wakes="poll",
            shortest_lease=0.5,
            commit_with=True,
        )
        longest = min(packet_of(settings) - 100_000, LONGEST_PACKET)
        self._writer: Final = Links(options, 1)
        self._writing: Final = Writing(options, self._writer, longest)
        self._working: Final = Working(options, self._writer, longest, self._limits)
        self._last_reserved = 0
        self._said_at = Instant(0)
        self._heard_at = Instant(0)

    def __repr__(self) -> str:
        return f"<MysqlServer {self.name}>"

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._limits

    @property
    def batching(self) -> Batching:
        """How much fits into one intent."""
        return BATCHING

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return self._options.name

    # --- writing -----------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of ``intent`` or nothing, durably."""
        answer = await self._writing.write(intent)
        self._hear(answer.at)
        if isinstance(answer, Written) and answer.versions:
            self._last_reserved = max(self._last_reserved, answer.versions[-1])
        return answer

    def _hear(self, at: Instant) -> None:
        self._said_at, self._heard_at = at, SYSTEM_CLOCK.elapsed()

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions from the server's time on, without asking it if it was heard of lately.

        Nothing is kept for them on the server. They are compared, under the locks, with the versions of the very rows
        that are written and with those of rows that were swept; if they are not higher, the intent is stale.
        """
        del namespace
        passed = SYSTEM_CLOCK.elapsed() - self._heard_at
        if not self._said_at or passed > TIME_IS_GOOD_FOR:
            [[[at]]] = await self._links.ask(f"SELECT {NOW}")
            self._hear(Instant(at))
            passed = 0
        first = max(self._said_at + passed, self._last_reserved + 1)
        self._last_reserved = first + count - 1
        return tuple(range(first, first + count))

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], None]) -> Outcome:
        """Do the caller's own SQL and a commit in one transaction."""
        return await self._working.work(rider, handle, number, note)

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions."""
        del namespace
        return await upkeep.close_attempt(self._links, self._names, handle, number, self.name)

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle that is being closed."""
        await self._links.ask(f"DELETE FROM {self._names.attempts} WHERE handle={handle_literal(handle)}")

    async def sweep(self, limit: int) -> int:
        """Delete up to ``limit`` rows that are dead, and old attempts."""
        return await upkeep.sweep(self._links, self._names, limit)

    def moving(self) -> MysqlMoving:
        """Return what moves everything in the tables."""
        return MysqlMoving(self._links, self._names, self.scan)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read the live records at ``keys``."""
        (((at,),), rows) = await self._links.ask(f"SELECT {NOW};{fetch(self._names, sorted(keys))}")
        self._hear(Instant(at))
        return Snapshot(Instant(at), live(rows, Instant(at)))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        where = f"k>={literal(start)} AND k<{literal(end)} AND (expires_at IS NULL OR expires_at>@sf_t)"
        page = f"ORDER BY k {'DESC' if reverse else 'ASC'} LIMIT {limit + 1}"
        found = f"SELECT {COLUMNS} FROM {self._names.records} FORCE INDEX (PRIMARY) WHERE {where} {page}"
        _, ((at,),), rows = await self._links.ask(f"SET @sf_t={NOW};SELECT @sf_t;{found}")
        records = live(rows[:limit], Instant(at))
        more: RecordKey | None = None
        if len(rows) > limit:
            last = next(reversed(records))
            more = last if reverse else last.successor()
        return Snapshot(Instant(at), records, more)

    # --- hints -------------------------------------------------------------------------------------------------

    async def mark(self) -> int:
        """Return a number that is another one after every transaction: each moves on the attempt of its handle."""
        crc = "CRC32(CONCAT(handle,':',number))"
        [[[mark]]] = await self._links.ask(f"SELECT CAST(COALESCE(SUM({crc}),0) AS SIGNED) FROM {self._names.attempts}")
        return int(mark)

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> MysqlServer:
        """Open another handle on the same server, on the running loop."""
        links = Links(self._options, self._options.pool)
        try:
            await links.ask("DO 1")
        except BaseException:
            await links.aclose()
            raise
        return MysqlServer(self._options, links, self._settings)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._writer.aclose()
        await self._links.aclose()
