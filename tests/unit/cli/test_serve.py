"""What ``standfast serve`` listens with."""

from __future__ import annotations

import socket

from standfast.cli.serve import on_port


def test_a_connection_sends_at_once_what_it_is_given() -> None:
    """An answer is written in two parts: the second must not wait until the caller has confirmed the first."""
    with (
        on_port("127.0.0.1", 0, patience=30) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
