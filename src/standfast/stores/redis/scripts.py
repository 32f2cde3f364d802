"""The scripts that the server runs: the files in ``lua/``, each behind the common head."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, final

import hiredis

if TYPE_CHECKING:
    from collections.abc import Sequence

    Argument = bytes | str | int

_packer: Any = hiredis  # its types know commands of one part only


@final
class Script:
    """One script, called by its hash and sent in full where the server does not have it."""

    __slots__ = ("_hash", "_text", "name")

    def __init__(self, name: str) -> None:
        folder = resources.files("standfast.stores.redis").joinpath("lua")
        text = "".join(folder.joinpath(f"{part}.lua").read_text() for part in ("head", name))
        self.name: Final = name
        self._text: Final = text.encode()
        self._hash: Final = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> bytes:
        """Return the command that calls it by its hash."""
        return pack("EVALSHA", self._hash, len(keys), *keys, *arguments)

    def call_in_full(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> bytes:
        """Return the command that calls it and lets the server keep it."""
        return pack("EVAL", self._text, len(keys), *keys, *arguments)


def pack(*parts: Argument) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = _packer.pack_command(parts)
    return packed


WRITE: Final = Script("write")
READ: Final = Script("read")
SCAN: Final = Script("scan")
RESERVE: Final = Script("reserve")
CLOSE: Final = Script("close")
SWEEP: Final = Script("sweep")
FORGET: Final = Script("forget")
SUBSCRIBE: Final = Script("subscribe")
AUDIENCE: Final = Script("audience")
LOAD: Final = Script("load")
MARK: Final = Script("mark")
PROBE: Final = Script("probe")
