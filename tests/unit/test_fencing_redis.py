"""A guarded command for Redis: what is sent, what is made of the answer, and what a real server does with it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis

from standfast.errors import InvalidArgumentError, StaleFenceError
from standfast.fencing import GUARDED_COMMAND, guard_redis, guard_redis_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """A real server."""
    opened: Any = redis.Redis
    with opened.from_url(redis_url) as client:
        yield client


@pytest.fixture
def key(server: redis.Redis) -> Iterator[str]:
    """A key that nobody else uses; what lies there is deleted in the end."""
    name = f"t{uuid.uuid4().hex}"
    yield name
    server.delete(name, f"{{{name}}}:fence")


def test_a_server_refuses_a_stale_writer(server: redis.Redis, key: str) -> None:
    """The replaced holder writes nothing; an equal and a higher fence do."""
    for fence in (12, 12, 13):
        assert guard_redis_blocking(server, "SET", key, f"by {fence}", fence=fence) == b"OK"
    with pytest.raises(StaleFenceError, match="which has seen 13"):
        guard_redis_blocking(server, "SET", key, "late", fence=12)
    assert server.get(key) == b"by 13"


def test_a_server_tells_the_largest_fences_apart(server: redis.Redis, key: str) -> None:
    """Numbers just below 2^53 are compared and kept exactly."""
    guard_redis_blocking(server, "SET", key, "x", fence=2**53 - 1)
    with pytest.raises(StaleFenceError) as caught:
        guard_redis_blocking(server, "SET", key, "y", fence=2**53 - 2)
    assert caught.value.highest == 2**53 - 1


def test_a_server_replies_what_the_command_does(server: redis.Redis, key: str) -> None:
    """Counting, several arguments, and a reply of nothing come through."""
    assert guard_redis_blocking(server, "HSET", key, "a", 1, "b", 2, fence=1) == 2
    assert guard_redis_blocking(server, "HGET", key, "none", fence=1) is None
    assert guard_redis_blocking(server, "DEL", key, fence=2) == 1
