"""Large bodies: what cannot be recorded is refused unread, and what takes long to read is read beside the loop."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import httpx
import pytest

import standfast as sf
from standfast.errors import InputsTooLargeError
from standfast.web import call as bodies
from standfast.web.call import LARGE, read_json
from tests.unit.web.fakes import shown

JSON = {"content-type": "application/json"}
MOST = 339_998
letters = sf.Flow("letters")


@letters.action
async def read(request: sf.Request, text: str) -> int:
    """Read a letter."""
    del request
    return len(text)


@letters.action(durable=True)
async def keep(request: sf.Request, text: str) -> int:
    """Keep a letter."""
    del request
    return len(text)


async def test_inputs_that_cannot_be_recorded_are_refused_by_their_length() -> None:
    """413 with the limit and the way out, whatever the action and however it is asked; nothing of it was read."""
    async with sf.App("memory://", flows=[letters]) as app:
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=shown(app)) as client:
            for name, body in product(("read", "keep"), (b'{"text":"%s"}' % (b"x" * MOST), b"[" * (MOST + 1))):
                answer = await client.post(f"/flows/letters/{name}", content=body, headers=JSON)
                problem = answer.json()
                assert (answer.status_code, problem["type"]) == (413, "urn:standfast:inputs-too-large")
                assert "at most 339,998 can be recorded" in problem["detail"]
                assert "send where that is" in problem["next"]
            assert (await client.post("/flows/letters/read", json={"text": "x" * 339_000})).json() == 339_000


def test_what_just_fits_is_read() -> None:
    """The limit is the same as that of what is recorded."""
    room = MOST - len(b'{"text":""}')
    assert len(read.read(b'{"text":"%s"}' % (b"x" * room)).values["text"]) == room
    with pytest.raises(InputsTooLargeError) as caught:
        read.read(b'{"text":"%s"}' % (b"x" * (room + 1)))
    assert (caught.value.size, caught.value.limit) == (MOST + 1, MOST)


@pytest.mark.parametrize(("size", "is_beside"), [(LARGE - 1_000, False), (LARGE + 1, True)])
async def test_large_json_is_read_beside_the_loop(size: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 -- pytest hands it over
    """So a delivery of ten megabytes keeps nobody else waiting."""
    threads: list[int] = []

    def noting(body: bytes) -> Any:
        threads.append(threading.get_ident())
        return len(body)

    monkeypatch.setattr(bodies, "_read", noting)
    assert await read_json(b" " * size) == size
    assert (threads != [threading.get_ident()]) == is_beside
