"""What is checked in one pass is what the rules allow."""

from __future__ import annotations

import random
from typing import Any, cast

from standfast.clock import Instant
from standfast.errors import StandfastError
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores import Change, Check, Delete, Put
from standfast.stores.memory import CAPABILITIES
from standfast.stores.protocol import MAX_VERSION
from standfast.stores.validation import check_commit, is_plain

ROUNDS = 4_000
KEYS: list[Any] = [RecordKey("ns", f"{number}") for number in range(12)]
ODD_KEYS: list[Any] = [RecordKey("other", "0"), b"bytes", RecordKey.from_encoded(b""), KEYS[0]]
ODD_KEYS.append(RecordKey.from_encoded(b"ns\x00\x01" + b"x" * MAX_KEY_BYTES))
ODD_VERSIONS: list[Any] = [0, -1, MAX_VERSION + 1, True, "1"]
ODD_VALUES: list[Any] = ["text", bytearray(b""), b"x" * (CAPABILITIES.max_value_bytes + 1)]


def change_of(draw: random.Random, key: Any) -> Any:
    """Return a change that is mostly as it should be."""
    key = draw.choice(ODD_KEYS) if draw.randrange(30) == 0 else key
    version = draw.choice(ODD_VERSIONS) if draw.randrange(30) == 0 else draw.choice((1, MAX_VERSION))
    match draw.randrange(20):
        case 0:
            return cast("Any", "no change")
        case 1:
            return Put(key, draw.choice(ODD_VALUES), version)
        case 2:
            return Put(key, b"", version, Instant(5))
        case 3 | 4 | 5:
            return Delete(key, version)
        case 6 | 7 | 8:
            return Check(key, version)
        case _:
            return Put(key, b"value", draw.choice((0, version)))


def test_a_commit_that_passes_in_one_pass_breaks_no_rule() -> None:
    """Those that break one do not pass; and of those that are as they should be, nearly all do."""
    draw, passed, allowed = random.Random(3), 0, 0
    for _ in range(ROUNDS):
        changes: tuple[Change, ...] = tuple(change_of(draw, key) for key in draw.sample(KEYS, draw.randint(0, 6)))
        try:
            check_commit(changes, (), CAPABILITIES)
        except StandfastError:
            assert not is_plain(changes, CAPABILITIES)
        else:
            allowed += 1
            passed += is_plain(changes, CAPABILITIES)
            assert is_plain(changes, CAPABILITIES) or any(isinstance(each, Put) and each.expires_at for each in changes)
    assert ROUNDS // 5 < passed <= allowed
