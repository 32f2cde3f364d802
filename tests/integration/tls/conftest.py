"""A server of each kind that is reached by TLS alone."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tests.integration.tls.authority import Authority
from tests.integration.tls.relay import Relay, relay_to
from tests.integration.tls.servers import STARTED, Guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody knows who is not told."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=list(STARTED))
def started(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Guarded]:
    """A server of each kind, one after the other."""
    with STARTED[request.param](authority) as guarded:
        yield guarded


@pytest.fixture
async def relay(started: Guarded, authority: Authority) -> AsyncIterator[Relay | None]:
    """What puts TLS in front of a server that has none."""
    if not started.plain:
        yield None
        return
    async with relay_to(started.plain, authority.server()) as relay:
        yield relay


@pytest.fixture
def server(started: Guarded, relay: Relay | None) -> Guarded:
    """The server, with the port that speaks TLS."""
    return started if relay is None else structs.replace(started, port=relay.port)


@pytest.fixture(autouse=True)
def tidy(started: Guarded) -> Iterator[None]:
    """Collect what a closed client of MongoDB's driver has left, before another test is blamed for it."""
    yield
    if started.kind == "mongodb":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
