"""The names of the keys in Redis, and the scripts that the server runs: the files in ``lua/``."""

from __future__ import annotations

import hashlib
from binascii import crc_hqx
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, final

import hiredis

if TYPE_CHECKING:
    from collections.abc import Sequence

    Argument = bytes | str | int


# --- the names of keys: all those of a namespace share one hash tag, so that a cluster keeps them on one node ------

SLOTS: Final = 16_384
_END: Final = 2  # an encoded namespace ends with 00 01, which reads badly in redis-cli


@final
class RedisKeys:
    """The keys of one namespace.

    The tag begins with the prefix, so it is never empty, and whatever braces a namespace has, all its keys are cut
    at the same one. No suffix holds ``}:``, so no two namespaces share a key.
    """

    __slots__ = ("attempts", "channel", "expiries", "head", "namespace", "order", "records", "slot", "topics")

    def __init__(self, namespace: bytes, prefix: str, database: int, *, one_slot: bool) -> None:
        self.namespace: Final = namespace
        tag = b"{%b:%b}:" % (prefix.encode(), namespace[:-_END])
        self.head: Final = tag + b"head"
        self.records: Final = tag + b"records"
        self.order: Final = tag + b"order"
        self.expiries: Final = tag + b"expiries"
        self.topics: Final = tag + b"topics"
        self.attempts: Final = tag + b"attempts" if one_slot else b"%b:attempts" % prefix.encode()
        self.channel: Final = tag + b"%d:" % database  # channels are shared by all databases of a server
        self.slot: Final = slot_of(self.head)


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a cluster: that of what stands between its first braces, if anything does."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end] if 0 <= start < end - 1 else key, 0) % SLOTS


# --- the scripts that the server runs: the files in ``lua/``, each behind parts that it shares with others ---------

_packer: Any = hiredis  # its types know commands of one part only


@final
class Script:
    """One script, called by its hash and sent in full where the server does not have it."""

    __slots__ = ("_hash", "_text", "name")

    def __init__(self, *parts: str) -> None:
        folder = resources.files("standfast.stores.redis").joinpath("lua")
        text = "".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)
        self.name: Final = parts[-1]
        self._text: Final = text.encode()
        self._hash: Final = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> bytes:
        """Return the command that calls it by its hash."""
        packed: bytes = _packer.pack_command(("EVALSHA", self._hash, len(keys), *keys, *arguments))
        return packed  # as pack() does, which is one call more

    def call_in_full(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> bytes:
        """Return the command that calls it and lets the server keep it."""
        return pack("EVAL", self._text, len(keys), *keys, *arguments)


def unfold(reply: list[Any] | bytes) -> list[Any]:
    """Return what a script has answered: status, time, last version and what is its own.

    One that has written may answer a text, for a status of 0: time, version and generation, 16 digits each, and the
    rest.
    """
    if isinstance(reply, list):
        return reply
    return [0, int(reply[:16]), int(reply[16:32]), int(reply[32:48]), reply[48:]]


def pack(*parts: Argument) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = _packer.pack_command(parts)
    return packed


WRITE: Final = Script("head", "records", "write")
CHOOSE: Final = Script("head", "records", "choose")
CREATE_OR_APPEND: Final = Script("quick", "create_or_append")
MOVE_OR_DELETE: Final = Script("quick", "move_or_delete")
READ: Final = Script("head", "read")
SCAN: Final = Script("head", "scan")
RESERVE: Final = Script("head", "reserve")
CLOSE: Final = Script("head", "close")
SWEEP: Final = Script("head", "sweep")
FORGET: Final = Script("head", "forget")
SUBSCRIBE: Final = Script("head", "subscribe")
TIDY: Final = Script("head", "tidy")
AUDIENCE: Final = Script("head", "audience")
LOAD: Final = Script("head", "load")
MARK: Final = Script("head", "mark")
PROBE: Final = Script("head", "probe")
