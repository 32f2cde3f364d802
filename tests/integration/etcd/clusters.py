"""Clusters of three members on loopback, and questions to one member."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.services.replicated import server, started
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.services.server import Server


def place(url: str) -> str:
    """Return host and port of a member."""
    return urlsplit(url).netloc


def ask(url: str, path: str, **request: Any) -> Any:
    """Ask one member over its gateway."""
    body = json.dumps(request).encode()
    wanted = urllib.request.Request(f"http://{place(url)}{path}", body)
    with urllib.request.urlopen(wanted, timeout=10) as answer:  # noqa: S310 -- a member of the test's own
        return json.loads(answer.read())


class Cluster:
    """Three members."""

    def __init__(self, members: Sequence[Server]) -> None:
        self.members = list(members)

    @property
    def url(self) -> str:
        """The store on all of them."""
        return f"etcd://{','.join(place(each.url) for each in self.members)}/standfast"

    def leader(self) -> Server:
        """Return the member that leads."""
        for member in self.members:
            if member.pid:
                status = ask(member.url, "/v3/maintenance/status")
                if status["leader"] == status["header"]["member_id"]:
                    return member
        raise AssertionError("there is no leader")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start three members."""
    with ExitStack() as stack:
        ports = [str(free_port()) for _ in range(3)]
        orders = [",".join([own, *(port for port in ports if port != own)]) for own in ports]
        yield Cluster(started(stack, *(server("etcd", behind=order) for order in orders)))
