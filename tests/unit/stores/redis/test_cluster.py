"""A call reaches the server that has its slot now, through every passing refusal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ClusterDownError, NoScriptError

from standfast.errors import StoreUnavailableError
from standfast.stores.redis import cluster as calling
from standfast.stores.redis.cluster import REDIRECTS, ScriptCaller
from standfast.stores.redis.connection import RedisOptions
from standfast.stores.redis.scripts import READ, RedisKeys

NAMES = RedisKeys(b"n\x00\x01", "standfast", 0, one_slot=True)
DOWN, NO_SCRIPT, ANSWER = ClusterDownError("the cluster is down"), NoScriptError("none"), [0, 1, 2]


class Scripted:
    """A server, and the way to it, that gives the answers it was told to."""

    place = "host:6379"

    def __init__(self, *answers: object) -> None:
        self.answers, self.sent = list(answers), list[bytes]()

    async def pool(self, _slot: int) -> Scripted:
        """Return whoever has the slot."""
        return self

    async def look_again(self) -> None:
        """It is where it was."""

    async def call(self, command: bytes, _answers: int = 1) -> list[object]:
        """Note which command it is, and answer."""
        self.sent.append(command.split(b"\r\n")[2])
        return [self.answers.pop(0)]


def calls_to(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> ScriptCaller:
    """Call a server without pauses."""
    monkeypatch.setattr(calling, "_PAUSE", 0)
    seen = SimpleNamespace(version=lambda _: 0, note=lambda *_: None)
    return ScriptCaller(
        cast("Any", server), cast("Any", seen), "redis://host", RedisOptions(hosts=(("host", 1),), timeout=1)
    )


async def test_a_server_that_starts_may_lack_the_script_as_late_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending it in full is none of the turns that a call has."""
    server = Scripted(*[DOWN] * (REDIRECTS - 1), NO_SCRIPT, ANSWER)

    assert await calls_to(server, monkeypatch).run(READ, NAMES, (), ()) == ANSWER
    assert server.sent[-2:] == [b"EVALSHA", b"EVAL"]


async def test_a_server_that_stays_down_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many turns as a call has."""
    server = Scripted(*[DOWN] * REDIRECTS)

    with pytest.raises(StoreUnavailableError):
        await calls_to(server, monkeypatch).run(READ, NAMES, (), ())
    assert not server.answers
