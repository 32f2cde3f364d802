"""A fence that a SQL database enforces, in the transaction of the write itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final
from urllib.parse import quote, unquote

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.codec import Codec
from standfast.errors import InvalidArgumentError, StaleFenceError
from standfast.events import FenceRefused
from standfast.stores.protocol import Decision, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

__all__ = [
    "FENCE_HEADER",
    "GUARDED_COMMAND",
    "FenceGate",
    "FenceHeader",
    "SqlFenceGuard",
    "SqlStyle",
    "fence_header",
    "guard_redis",
    "guard_redis_blocking",
    "parse_fence_header",
]


# --- what can be a fence, and what it can guard --------------------------------------------------------------------

MAX_FENCE: Final = 2**53 - 1
"""The largest fence: every store, JSON, Lua and SQL keep it exact."""

MAX_RESOURCE: Final = 200
"""The longest name of a resource, in characters."""


def check_fence(fence: int) -> int:
    """Return a fence; refuse what cannot be one, above all None and 0 from code that never held anything."""
    if type(fence) is not int:
        raise InvalidArgumentError("a fence", "it must be a whole number", f"a {type(fence).__name__}")
    if not 1 <= fence <= MAX_FENCE:
        shown = str(fence) if abs(fence) <= MAX_FENCE else f"a number of {fence.bit_length()} bits"
        raise InvalidArgumentError("a fence", "it must lie between 1 and 2**53 - 1", shown)
    return fence


def check_resource(resource: str) -> str:
    """Return the name of what is guarded; refuse what cannot be one."""
    problem = f"it must be 1 to {MAX_RESOURCE} printable characters"
    if type(resource) is not str:
        raise InvalidArgumentError("the resource of a fence guard", problem, f"a {type(resource).__name__}")
    if not 0 < len(resource) <= MAX_RESOURCE or not resource.isprintable():
        raise InvalidArgumentError("the resource of a fence guard", problem, ascii(resource[:40]))
    return resource


# --- A gate for services that receive fences: it remembers the highest of each resource in a store -----------------

_FENCES: Final[Codec[int]] = Codec(int, what="the highest fence of a resource")


@final
class FenceGate:
    """Admits requests by their fence, and refuses those of a holder that has been replaced.

    >>> async with sf.open("memory://") as space:
    ...     gate = FenceGate(space)
    ...     await gate.admit("invoice-7", 12)
    ...     await gate.admit("invoice-7", 11)
    Traceback (most recent call last):
        ...
    standfast.errors.StaleFenceError: fence 11 is stale at 'invoice-7', which has seen 12; another holder writes now

    The gate judges when it is asked. What the service does after it was admitted is done later, and a request with a
    higher fence may be admitted in between: finish one request of a resource before the next one is admitted (with an
    :class:`~standfast.Exclusion` or a lock of your own), or let the database itself compare with
    :class:`~standfast.fencing.SqlFenceGuard`.

    A gate keeps one small record for each resource for good, because a gate that forgets admits a stale writer; call
    :meth:`forget` for a resource that will never be written again.

    Args:
        scope: The space of the receiving service. It need not be that of the writers.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope

    async def admit(self, resource: str, fence: int) -> None:
        """Let a request with ``fence`` go on, or refuse it. The same fence is admitted as often as it comes.

        Raises:
            StaleFenceError: The resource has seen a higher fence. Refuse the request, for example with status 409.
            InvalidArgumentError: The fence is no whole number from 1 to 2**53 - 1.
        """
        record, fence = self._record(resource), check_fence(fence)

        def decide(seen: Snapshot) -> Decision[None]:
            found = seen.get(record)
            highest = 0 if found is None else _FENCES.decode(found.value)
            if highest > fence:
                told = FenceRefused(at=SYSTEM_CLOCK.wall(), key=resource, fence=fence, highest=highest)
                self._scope.hooks.emit(told)
                raise StaleFenceError(resource, fence, highest)
            if highest == fence:
                return Decision(None)
            return Decision(None, (Put(record, _FENCES.encode(fence), seen.version(record)),))

        await self._scope.update((record,), decide)

    async def highest(self, resource: str) -> int:
        """Return the highest fence that a resource has seen; 0 if none."""
        record = self._record(resource)
        found = (await self._scope.read(record)).get(record)
        return 0 if found is None else _FENCES.decode(found.value)

    async def forget(self, resource: str) -> None:
        """Forget a resource. From then on any fence is admitted to it."""
        record = self._record(resource)

        def decide(seen: Snapshot) -> Decision[None]:
            found = seen.get(record)
            return Decision(None, () if found is None else (Delete(record, found.version),))

        await self._scope.update((record,), decide)

    def _record(self, resource: str) -> RecordKey:
        return self._scope.key_for("fence", check_resource(resource))


# --- A fence on its way through HTTP: ``Standfast-Fence: invoice-7;42`` --------------------------------------------

FENCE_HEADER: Final = "Standfast-Fence"
"""The name of the header."""

_MAX_TEXT: Final = 12 * MAX_RESOURCE + 20  # a character takes up to four bytes, each written as %XX
_VALUE: Final = re.compile(r"([A-Za-z0-9._~%-]+);([1-9][0-9]{0,15})", re.ASCII)


class FenceHeader(Struct, frozen=True, gc=False):
    """What a fence header says: which resource is to be written, and with which fence."""

    resource: str
    fence: int


def fence_header(resource: str, fence: int) -> dict[str, str]:
    """Return the header that carries a fence to the service that keeps a resource.

    >>> fence_header("invoice 7", 42)
    {'Standfast-Fence': 'invoice%207;42'}

    Raises:
        InvalidArgumentError: The fence is no whole number from 1 to 2**53 - 1.
        InvalidArgumentError: The name of the resource is empty, too long or not printable.
    """
    return {FENCE_HEADER: f"{quote(check_resource(resource), safe='')};{check_fence(fence)}"}


def parse_fence_header(value: str | None) -> FenceHeader:
    """Read the header of a request; pass None if it has none.

    >>> parse_fence_header("invoice%207;42")
    FenceHeader(resource='invoice 7', fence=42)

    Raises:
        InvalidArgumentError: It is missing, too long, or not what :func:`fence_header` writes.
    """
    if value is None:
        raise _bad_header("is missing")
    if len(value) > _MAX_TEXT:
        raise _bad_header(f"is {len(value):,} characters long")
    match = _VALUE.fullmatch(value.strip(" \t"))
    if match is None:
        raise _bad_header("is not a resource, a semicolon and a number")
    fence = int(match[2])
    if fence > MAX_FENCE:
        raise _bad_header("has a number above 2**53 - 1")
    return FenceHeader(_resource(match[1]), fence)


def _bad_header(problem: str) -> InvalidArgumentError:
    return InvalidArgumentError("the Standfast-Fence header", f"it {problem}; write 'Standfast-Fence: invoice-7;42'")


def _resource(text: str) -> str:
    """Undo the escapes; what another spelling could stand for is refused."""
    try:
        resource = check_resource(unquote(text, errors="strict"))
    except (UnicodeDecodeError, InvalidArgumentError):
        raise _bad_header("names no resource in printable text") from None
    if quote(resource, safe="") != text:
        raise _bad_header("has a resource that is escaped in another way")
    return resource


# --- A fence that Redis or Valkey enforces, in the script of the write itself. Any client does; no driver is
# imported ---

RedisValue: TypeAlias = str | bytes | int | float
"""What a command takes as an argument."""

GUARDED_COMMAND: Final = """\
-- KEYS: the highest fence, what is written.  ARGV: the fence, the command, its arguments after the key.
local highest = redis.call('GET', KEYS[1])
if highest and tonumber(highest) > tonumber(ARGV[1]) then
  return {0, highest}
end
redis.call('SET', KEYS[1], ARGV[1])
return {1, redis.call(ARGV[2], KEYS[2], unpack(ARGV, 3))}
"""
"""The script, for clients that call it by themselves: ``EVAL script 2 fence_key key fence command [argument ...]``.

It answers ``{1, reply}``, or ``{0, highest}`` if the fence is stale. Below 2^53 Lua compares fences exactly.
"""


class RedisClient(Protocol):
    """What is asked of a client with coroutines, such as ``redis.asyncio.Redis``."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Awaitable[Any]:  # noqa: ANN401 -- clients differ in what they take
        """Run a script."""
        ...


class BlockingRedisClient(Protocol):
    """What is asked of a client without coroutines, such as ``redis.Redis``."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:  # noqa: ANN401 -- clients differ in what they take
        """Run a script."""
        ...


async def guard_redis(
    client: RedisClient, command: str, key: str, *arguments: RedisValue, fence: int, fence_key: str | None = None
) -> Any:  # noqa: ANN401 -- what the command replies
    """Run a command that writes ``key``, if no higher fence has written it before; return what it replies.

    ``await guard_redis(client, "SET", "balance:7", 100, fence=hold.fence)``

    The check, the new highest fence and the command are one script, so nothing comes between them. The highest fence is
    kept at ``fence_key``, by default ``{balance:7}:fence``, which lies in the same slot of a cluster. It must not be
    evicted or expire: a server that forgets it admits a stale writer.

    Args:
        client: Anything with ``eval(script, numkeys, *keys_and_args)``. Turn its retries off for writes: a reply that
            was lost does not mean that the command was not run.
        command: A command whose first argument is the key: SET, HSET, INCRBY, DEL ...
        key: What is written.
        arguments: What the command takes after the key.
        fence: The fence of the hold under which it is written.
        fence_key: Where the highest fence is kept.

    Raises:
        StaleFenceError: The key was written with a higher fence. Nothing was written.
        InvalidArgumentError: The fence is no whole number from 1 to 2**53 - 1.
    """
    call = _call(command, key, arguments, fence, fence_key)
    return _reply(key, fence, await client.eval(*call))  # rule: a script of our own, run by the server


def guard_redis_blocking(
    client: BlockingRedisClient,
    command: str,
    key: str,
    *arguments: RedisValue,
    fence: int,
    fence_key: str | None = None,
) -> Any:  # noqa: ANN401 -- what the command replies
    """Do the same as :func:`guard_redis` with a client that is not awaited."""
    call = _call(command, key, arguments, fence, fence_key)
    return _reply(key, fence, client.eval(*call))  # rule: a script of our own, run by the server


def _call(
    command: str, key: str, arguments: tuple[RedisValue, ...], fence: int, fence_key: str | None
) -> tuple[Any, ...]:
    if type(key) is not str or not key:
        raise InvalidArgumentError("the key of a fence guard", "it must be a text that is not empty", ascii(key)[:40])
    beside = fence_key or _beside(key)
    if beside == key:
        raise InvalidArgumentError("the fence_key of a fence guard", "the fence would be written over", ascii(key)[:40])
    return (GUARDED_COMMAND, 2, beside, key, str(check_fence(fence)), command, *arguments)


def _beside(key: str) -> str:
    """Name a key in the same slot of a cluster: one with a tag shares it, one without becomes the tag."""
    return f"{key}:fence" if "{" in key or "}" in key else f"{{{key}}}:fence"


def _reply(key: str, fence: int, answer: Any) -> Any:  # noqa: ANN401 -- what the command replied
    admitted, *rest = answer
    if not int(admitted):
        raise StaleFenceError(key, fence, int(rest[0]))
    return rest[0] if rest else None


# --- A fence that a SQL database enforces, in the transaction of the write itself ----------------------------------

SqlStyle: TypeAlias = Literal["qmark", "numeric", "named", "format", "pyformat", "dollar"]
"""How a driver marks parameters: its ``paramstyle``, or ``dollar`` for ``$1`` (asyncpg)."""

SqlParameters: TypeAlias = "tuple[str | int, ...] | dict[str, str | int]"
"""The parameters of a statement, as its style wants them."""

_PLACEHOLDERS: Final[dict[str, tuple[str, str]]] = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "named": (":resource", ":fence"),
    "format": ("%s", "%s"),
    "pyformat": ("%(resource)s", "%(fence)s"),
    "dollar": ("$1", "$2"),
}
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)


class Cursor(Protocol):
    """What is asked of a DB-API cursor."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if the driver cannot tell."""
        ...

    def execute(self, statement: str, parameters: Any, /) -> object:  # noqa: ANN401 -- drivers differ in what they take
        """Run a statement."""
        ...

    def fetchone(self) -> Any:  # noqa: ANN401 -- drivers differ in what a row is
        """Return the next row."""
        ...


class AsyncCursor(Protocol):
    """The same as coroutines, as psycopg and aiosqlite have them."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if the driver cannot tell."""
        ...

    def execute(self, statement: str, parameters: Any, /) -> Awaitable[object]:  # noqa: ANN401 -- drivers differ in what they take
        """Run a statement."""
        ...

    def fetchone(self) -> Awaitable[Any]:
        """Return the next row."""
        ...


@final
class SqlFenceGuard:
    """Remembers the highest fence of each resource in a table beside your own.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> guard = SqlFenceGuard()
    >>> _ = connection.execute(guard.create_statement)
    >>> guard.admit(connection.cursor(), "invoice-7", 12)
    >>> guard.admit(connection.cursor(), "invoice-7", 11)
    Traceback (most recent call last):
        ...
    standfast.errors.StaleFenceError: fence 11 is stale at 'invoice-7', which has seen 12; another holder writes now
    >>> connection.close()

    Call :meth:`admit` first in the transaction that writes. It locks the row of the resource until that ends,
    so no writer with a higher fence comes between, and rolling back takes the fence back, too. For SQLite from 3.24 and
    PostgreSQL; a driver that commits each statement on its own must be told to begin a transaction.

    Args:
        table: Where the fences are kept.
        resource_column: The column that names what is guarded.
        fence_column: The column of the highest fence.
        style: How the driver marks parameters; its module says it as ``paramstyle``.

    Attributes:
        create_statement: Makes the table if it is not there.
        raise_statement: Raises the fence of a resource, or changes no row if a higher one is there.
        highest_statement: Selects the highest fence of a resource.

    Raises:
        InvalidArgumentError: A name is not lower-case letters, digits and underscores, or the style is unknown.
    """

    __slots__ = ("_style", "create_statement", "highest_statement", "raise_statement")

    def __init__(
        self,
        table: str = "fences",
        *,
        resource_column: str = "resource",
        fence_column: str = "fence",
        style: SqlStyle = "qmark",
    ) -> None:
        name, key, number = _quoted("table", table), _quoted("column", resource_column), _quoted("column", fence_column)
        if style not in _PLACEHOLDERS:
            raise InvalidArgumentError(
                "the style of a fence guard", f"it is one of {', '.join(_PLACEHOLDERS)}", ascii(style)[:40]
            )
        resource, fence = _PLACEHOLDERS[style]
        self._style: Final = style
        # The names are checked and quoted above; values are always parameters.
        self.create_statement: Final = (
            f"CREATE TABLE IF NOT EXISTS {name} ({key} TEXT NOT NULL PRIMARY KEY, {number} BIGINT NOT NULL)"
        )
        self.raise_statement: Final = (
            f"INSERT INTO {name} ({key}, {number}) VALUES ({resource}, {fence}) "  # noqa: S608 -- see above
            f"ON CONFLICT ({key}) DO UPDATE SET {number} = excluded.{number} WHERE {name}.{number} <= excluded.{number}"
        )
        self.highest_statement: Final = f"SELECT {number} FROM {name} WHERE {key} = {resource}"  # noqa: S608 -- see above

    def admit(self, cursor: Cursor, resource: str, fence: int) -> None:
        """Let a writer with ``fence`` go on, or refuse it. The same fence is admitted as often as it comes.

        Raises:
            StaleFenceError: The resource has seen a higher fence; roll the transaction back.
            InvalidArgumentError: The fence is no whole number from 1 to 2**53 - 1.
        """
        cursor.execute(self.raise_statement, self.raise_parameters(resource, fence))
        if cursor.rowcount != 1:
            cursor.execute(self.highest_statement, self.highest_parameters(resource))
            _refuse_stale(resource, fence, cursor.fetchone())

    async def admit_async(self, cursor: AsyncCursor, resource: str, fence: int) -> None:
        """Do the same as :meth:`admit` with a cursor whose methods are awaited."""
        await cursor.execute(self.raise_statement, self.raise_parameters(resource, fence))
        if cursor.rowcount != 1:
            await cursor.execute(self.highest_statement, self.highest_parameters(resource))
            _refuse_stale(resource, fence, await cursor.fetchone())

    def raise_parameters(self, resource: str, fence: int) -> SqlParameters:
        """Return the parameters of ``raise_statement``, for drivers that have neither kind of cursor."""
        return self._styled({"resource": check_resource(resource), "fence": check_fence(fence)})

    def highest_parameters(self, resource: str) -> SqlParameters:
        """Return the parameters of ``highest_statement``, for drivers that have neither kind of cursor."""
        return self._styled({"resource": check_resource(resource)})

    def _styled(self, named: dict[str, str | int]) -> SqlParameters:
        return named if self._style in {"named", "pyformat"} else tuple(named.values())


def _refuse_stale(resource: str, fence: int, row: Any) -> None:  # noqa: ANN401 -- drivers differ in what a row is
    """Judge by the row itself: a driver that cannot count rows is no reason to refuse."""
    highest = int(row[0])
    if highest > fence:
        raise StaleFenceError(resource, fence, highest)


def _quoted(what: str, name: str) -> str:
    if type(name) is not str or not _IDENTIFIER.fullmatch(name):
        problem = "it must be a lower-case letter or underscore and up to 30 of those and digits"
        raise InvalidArgumentError(f"the {what} of a fence guard", problem, ascii(name)[:40])
    return f'"{name}"'
