"""A server that is not what it seems, or somebody on the way to it, does not get the password without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from standfast.errors import UnsuitableStoreError
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PASSWORD: Final = "hunter2-hunter2"  # noqa: S105 -- of nobody
SALT: Final = b"s" * 20
CAPABILITIES: Final = 0x81BFF7DF & ~0x800  # of a server of today, without TLS
KEY: Final = rsa.generate_private_key(65_537, 2_048)
PUBLIC: Final = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
SWITCH, MORE, FULL = b"\xfe", b"\x01", b"\x01\x04"


class Thief:
    """A server that asks for the password in one way, and keeps all that it is sent."""

    def __init__(self, plugin: str, wishes: list[bytes]) -> None:
        self._plugin, self._wishes = plugin.encode(), wishes
        self.heard = self.longest = b""
        self._open, self._over = 0, asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet, hear who it is, ask for the password, and offer a key."""
        self._open += 1
        self._over.clear()
        greeting = b"\x0a8.4.0\0" + struct.pack("<I", 1) + SALT[:8] + b"\0" + struct.pack("<H", CAPABILITIES & 0xFFFF)
        greeting += b"\xff\x02\0" + struct.pack("<HB", CAPABILITIES >> 16, 21) + b"\0" * 10
        greeting += SALT[8:] + b"\0" + self._plugin + b"\0"
        with contextlib.suppress(OSError, EOFError):
            for number, packet in enumerate((greeting, *self._wishes, MORE + PUBLIC, MORE + PUBLIC)):
                writer.write(struct.pack("<I", len(packet))[:3] + bytes([2 * number]) + packet)
                head = await reader.readexactly(4)
                said = await reader.readexactly(int.from_bytes(head[:3], "little"))
                self.heard += said
                self.longest = max(self.longest, said, key=len)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._open -= 1
        if not self._open:
            self._over.set()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[int]:
        """Listen; return the port."""
        server = await asyncio.start_server(self.serve, "0.0.0.0", 0)  # noqa: S104 -- the address that is not loopback
        async with server:
            yield server.sockets[0].getsockname()[1]
            await self._over.wait()


CLEAR: Final[dict[str, tuple[str, list[bytes]]]] = {
    "in the clear": ("mysql_native_password", [SWITCH + b"mysql_clear_password\0"]),
    "in the clear, from the first": ("mysql_clear_password", [SWITCH + b"mysql_clear_password\0"]),
    "in a dialog": ("mysql_native_password", [SWITCH + b"dialog\0\x04Password: "]),
}
WITH_A_KEY: Final[dict[str, tuple[str, list[bytes]]]] = {
    "with a key of its own": ("caching_sha2_password", [FULL]),
    "after a switch": ("mysql_native_password", [SWITCH + b"caching_sha2_password\0" + SALT + b"\0", FULL]),
    "with a key that it sends": ("sha256_password", [MORE + PUBLIC]),
    "with a key after a switch": ("mysql_native_password", [SWITCH + b"sha256_password\0" + SALT]),
}


@pytest.mark.parametrize("way", CLEAR | WITH_A_KEY)
async def test_a_password_is_not_sent_to_another_machine_without_tls(way: str) -> None:
    """Neither as it is, nor encrypted with whatever key is offered; and the error says what to do."""
    thief = Thief(*(CLEAR | WITH_A_KEY)[way])
    async with thief.at_work() as port:
        with pytest.raises(UnsuitableStoreError, match="tls=true"):
            await open_store(f"mysql://ann:{PASSWORD}@0.0.0.0:{port}/prod")
    assert PASSWORD.encode() not in thief.heard
    assert len(thief.longest) < 256  # what is encrypted with such a key has as many bytes


@pytest.mark.parametrize("way", CLEAR)
async def test_a_password_is_not_sent_as_it_is_on_this_machine_either(way: str) -> None:
    """Another user of it may listen at that port."""
    thief = Thief(*CLEAR[way])
    async with thief.at_work() as port:
        with pytest.raises(UnsuitableStoreError, match="tls=true"):
            await open_store(f"mysql://ann:{PASSWORD}@127.0.0.1:{port}/prod")
    assert PASSWORD.encode() not in thief.heard
