"""What is kept in mind of requests that have ended here, and what other servers are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import standfast as sf
from standfast.clock import Instant, later
from standfast.flows import server as remembering
from standfast.flows.inline import EndedRequest
from standfast.flows.records import CANCEL_FOR, KEPT, CancelRecord, RequestKeys
from standfast.flows.request import NOBODY
from standfast.flows.server import LIGHT, EndedRequests

if TYPE_CHECKING:
    from standfast.flows.inline import InlineRequest


class Ended:
    """A request that has ended."""

    def __init__(self, name: str, size: int = 10, at: int = 0) -> None:
        self._brief = EndedRequest(name, cast("Any", None), None, NOBODY, "", "http", b"x" * size, *[Instant(at)] * 3)

    def in_brief(self) -> EndedRequest:
        """Return what is kept."""
        return self._brief


def keeping(*ended: Ended) -> EndedRequests:
    """Keep requests in mind."""
    kept = EndedRequests()
    for each in ended:
        kept.add(cast("InlineRequest", each))
    return kept


def known(kept: EndedRequests, names: str) -> str:
    """Return those that are known."""
    return "".join(each for each in names if kept.get(each) is not None)


@pytest.mark.parametrize("asked_about", ["", "c"])
def test_the_oldest_are_forgotten_first(asked_about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not somebody has asked about one in between."""
    monkeypatch.setattr(remembering, "REMEMBERED", 3)
    kept = keeping(*map(Ended, "abc"))
    assert known(kept, asked_about) == asked_about
    for name in "de":
        kept.add(cast("InlineRequest", Ended(name)))
    assert known(kept, "abcde") == "cde"


def test_heavy_ones_are_forgotten_when_there_is_no_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that are older; light ones need none."""
    monkeypatch.setattr(remembering, "ROOM", 10 * LIGHT)
    kept = keeping(Ended("a"), Ended("b", 6 * LIGHT), Ended("c"), Ended("d", 6 * LIGHT), Ended("e"))
    assert known(kept, "abcde") == "cde"


def test_all_are_forgotten_after_an_hour() -> None:
    """Those that nobody has asked about, and the others."""
    kept = keeping(Ended("a", at=1), Ended("b", at=2))
    assert known(kept, "ab") == "ab"
    kept.add(cast("InlineRequest", Ended("c", at=1)))
    kept.add(cast("InlineRequest", Ended("d", at=3)))
    kept.forget(later(Instant(2), KEPT))
    assert known(kept, "abcd") == "bd"


async def test_what_a_dead_server_is_asked_goes_by_itself() -> None:
    """Nobody else takes it away, since only the server that runs a request reads it."""
    async with sf.Dispatcher("memory://", [sf.Flow("free")]) as dispatcher:
        server = dispatcher._serving()
        keys = RequestKeys(server.space, "default", "r")
        await server.stop_elsewhere(keys, "a server that has died", CancelRecord("it takes too long"))
        asked = (await server.space.read(keys.cancel)).get(keys.cancel)
        assert asked is not None
        assert asked.expires_at is not None
        assert asked.expires_at <= later(server.now(), CANCEL_FOR)
