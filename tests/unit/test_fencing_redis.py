"""A guarded command for Redis: what is sent, what is made of the answer, and what a real server does with it.

The tests of the script need a server: ``STANDFAST_REDIS_URL=redis://127.0.0.1:6379``. They write and delete keys that
begin with ``standfast-test``.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from standfast.errors import InvalidArgumentError, StaleFenceError
from standfast.fencing import GUARDED_COMMAND, guard_redis, guard_redis_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = os.environ.get("STANDFAST_REDIS_URL", "")


class Canned:
    """A client that remembers what it was asked and answers as it was told."""

    def __init__(self, *answer: Any) -> None:
        self.answer = list(answer)
        self.asked: tuple[Any, ...] = ()

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:
        """Run a script."""
        self.asked = (script, numkeys, *keys_and_args)
        return self.answer


class AwaitedClient:
    """The same for a client whose methods are awaited."""

    def __init__(self, client: Canned) -> None:
        self._client = client

    async def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:
        """Run a script."""
        return self._client.eval(script, numkeys, *keys_and_args)


async def test_the_command_goes_along_with_its_fence() -> None:
    """Both keys are named as keys, and the reply of the command comes back."""
    canned = Canned(1, b"OK")
    reply = await guard_redis(AwaitedClient(canned), "SET", "balance:7", 100, fence=12)
    assert canned.asked == (GUARDED_COMMAND, 2, "{balance:7}:fence", "balance:7", "12", "SET", 100)
    assert reply == b"OK"


@pytest.mark.parametrize("highest", [b"13", "13", 13])
def test_a_stale_answer_is_the_error(highest: Any) -> None:
    """Whatever type a client gives numbers back as."""
    with pytest.raises(StaleFenceError) as caught:
        guard_redis_blocking(Canned(0, highest), "SET", "balance:7", 100, fence=12)
    assert (caught.value.resource, caught.value.fence, caught.value.highest) == ("balance:7", 12, 13)


@pytest.mark.parametrize("answer", [(1,), (1, None)])
def test_a_command_without_a_reply_answers_none(answer: tuple[Any, ...]) -> None:
    """An empty reply is no error."""
    assert guard_redis_blocking(Canned(*answer), "GETSET", "k", 1, fence=12) is None


@pytest.mark.parametrize(
    ("key", "fence_key"), [("a", "{a}:fence"), ("{user:7}:a", "{user:7}:a:fence"), ("a}", "a}:fence")]
)
def test_the_fence_lies_in_the_same_slot_of_a_cluster(key: str, fence_key: str) -> None:
    """A key with a tag shares it; a key without one becomes the tag."""
    canned = Canned(1)
    guard_redis_blocking(canned, "DEL", key, fence=1)
    assert canned.asked[2] == fence_key


@pytest.mark.parametrize("fence", [0, 2**53, True, "12"])
def test_what_is_no_fence_is_not_sent(fence: Any) -> None:
    """Nothing goes to the server."""
    canned = Canned(1)
    with pytest.raises(InvalidArgumentError):
        guard_redis_blocking(canned, "SET", "k", 1, fence=fence)
    assert not canned.asked


@pytest.mark.parametrize("keys", [{"key": ""}, {"key": 7}, {"key": "k", "fence_key": "k"}])
def test_keys_that_cannot_work_are_refused(keys: Any) -> None:
    """A fence needs a place of its own, and so does what it guards."""
    with pytest.raises(InvalidArgumentError):
        guard_redis_blocking(Canned(1), "SET", keys["key"], 1, fence=1, fence_key=keys.get("fence_key"))


# --- against a real server ------------------------------------------------------------------------------------------


class Wire:
    """The few lines of the protocol that the script needs, so that no driver does."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("rb")

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:
        """Run a script."""
        return self.call("EVAL", script, numkeys, *keys_and_args)

    def call(self, *words: Any) -> Any:
        """Send a command and read its reply."""
        sent = [str(word).encode() for word in words]
        body = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in sent)
        self._connection.sendall(b"*%d\r\n%s" % (len(sent), body))
        return self._reply()

    def _reply(self) -> Any:
        kind, rest = (line := self._lines.readline().strip())[:1], line[1:]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self._lines.read(int(rest) + 2)[:-2]
        assert kind != b"-", rest
        return int(rest) if kind == b":" else rest

    def close(self) -> None:
        """Forget what the test wrote, and leave."""
        self.call("DEL", "standfast-test", "{standfast-test}:fence")
        self._lines.close()


@pytest.fixture
def server() -> Iterator[Wire]:
    """A real server."""
    if not URL:
        pytest.skip("STANDFAST_REDIS_URL is not set: the script was not run by a real server")
    place = urlsplit(URL)
    address = (place.hostname or "127.0.0.1", place.port or 6379)
    with socket.create_connection(address, timeout=10) as connection, closing(Wire(connection)) as wire:
        yield wire


def test_a_server_refuses_a_stale_writer(server: Wire) -> None:
    """The replaced holder writes nothing; an equal and a higher fence do."""
    for fence in (12, 12, 13):
        assert guard_redis_blocking(server, "SET", "standfast-test", f"by {fence}", fence=fence) == b"OK"
    with pytest.raises(StaleFenceError, match="which has seen 13"):
        guard_redis_blocking(server, "SET", "standfast-test", "late", fence=12)
    assert server.call("GET", "standfast-test") == b"by 13"


def test_a_server_tells_the_largest_fences_apart(server: Wire) -> None:
    """Numbers just below 2^53 are compared and kept exactly."""
    guard_redis_blocking(server, "SET", "standfast-test", "x", fence=2**53 - 1)
    with pytest.raises(StaleFenceError) as caught:
        guard_redis_blocking(server, "SET", "standfast-test", "y", fence=2**53 - 2)
    assert caught.value.highest == 2**53 - 1


def test_a_server_replies_what_the_command_does(server: Wire) -> None:
    """Counting, several arguments, and a reply of nothing come through."""
    assert guard_redis_blocking(server, "HSET", "standfast-test", "a", 1, "b", 2, fence=1) == 2
    assert guard_redis_blocking(server, "HGET", "standfast-test", "none", fence=1) is None
    assert guard_redis_blocking(server, "DEL", "standfast-test", fence=2) == 1
