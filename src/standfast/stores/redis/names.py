"""The names of keys: all those of a namespace share one hash tag, so that a cluster keeps them on one node."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final, final

SLOTS: Final = 16_384
_END: Final = 2  # an encoded namespace ends with 00 01, which nobody wants to see in redis-cli


@final
class Names:
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
