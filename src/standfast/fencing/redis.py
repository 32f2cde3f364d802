"""A fence that Redis or Valkey enforces, in the script of the write itself. Any client does; no driver is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from standfast.errors import InvalidFenceGuardError, StaleFenceError
from standfast.fencing._checks import check_fence

if TYPE_CHECKING:
    from collections.abc import Awaitable

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
        InvalidFenceError: The fence is no whole number from 1 to 2**53 - 1.
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
        raise InvalidFenceGuardError("key", ascii(key)[:40], "it must be a text that is not empty")
    beside = fence_key or _beside(key)
    if beside == key:
        raise InvalidFenceGuardError("fence_key", ascii(key)[:40], "the fence would be written over")
    return (GUARDED_COMMAND, 2, beside, key, str(check_fence(fence)), command, *arguments)


def _beside(key: str) -> str:
    """Name a key in the same slot of a cluster: one with a tag shares it, one without becomes the tag."""
    return f"{key}:fence" if "{" in key or "}" in key else f"{{{key}}}:fence"


def _reply(key: str, fence: int, answer: Any) -> Any:  # noqa: ANN401 -- what the command replied
    admitted, *rest = answer
    if not int(admitted):
        raise StaleFenceError(key, fence, int(rest[0]))
    return rest[0] if rest else None
