"""Settings of a server that break or weaken what a store promises."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreReadOnlyError, UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.mysql.linking import TROUBLE
from standfast.stores.mysql.trouble import translated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.events import Hooks
    from standfast.stores.mysql.linking import Link
    from standfast.stores.mysql.options import Options

SMALLEST_PACKET: Final = 4_000_000
"""The smallest ``max_allowed_packet`` into which every statement fits."""

_ASKED: Final = (
    "binlog_format",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "innodb_read_only",
    "log_bin",
    "max_allowed_packet",
    "read_only",
    "sync_binlog",
    "version",
    "wsrep_on",
)
_OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0)}


class NotDurableWarning(UserWarning):
    """The server is set to answer before a commit is on its disk: a crash of its machine can undo what was answered.

    Set ``innodb_flush_log_at_trx_commit=1`` and, with a binary log, ``sync_binlog=1``.
    """


async def settings_of(link: Link, options: Options) -> Mapping[str, str]:
    """Ask for the settings that matter."""
    named = ",".join(f"'{name}'" for name in _ASKED)
    try:
        [rows] = await link.run(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})", options.timeout)
    except TROUBLE as problem:
        raise translated(problem, options.name) from problem
    return {str(name).lower(): str(value) for name, value in rows}


def check(settings: Mapping[str, str], name: str) -> None:
    """Refuse a server that cannot keep the promises.

    Raises:
        UnsuitableStoreError: It is too old, or is set up in a way in which commits are not what they seem.
        StoreReadOnlyError: It takes no writes.
    """
    problem = _flaw(settings)
    if problem:
        raise UnsuitableStoreError(name, problem)
    if _is_on(settings, "read_only") or _is_on(settings, "innodb_read_only"):
        raise StoreReadOnlyError(name, "the server is a replica or was set read_only; connect to the primary")


def weakness_of(settings: Mapping[str, str]) -> str:
    """Return which settings let the server answer before a commit is on its disk; empty if none does."""
    weak = [each for each in ("innodb_flush_log_at_trx_commit", "sync_binlog") if _is_weak(settings, each)]
    return " and ".join(f"{each}={settings[each]}" for each in weak)


def tell_weakness(weakness: str, name: str, hooks: Hooks) -> None:
    """Warn of a server that keeps what was committed only while its machine runs."""
    problem = f"{weakness} on the server; only 1 keeps what was committed when its machine crashes"
    if hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=problem))
    warnings.warn(NotDurableWarning(f"{name}: {problem}"), stacklevel=2)


def packet_of(settings: Mapping[str, str]) -> int:
    """Return how many bytes the server takes at once."""
    return int(settings.get("max_allowed_packet", "0"))


def _flaw(settings: Mapping[str, str]) -> str:
    said = settings.get("version", "")
    brand = "MariaDB" if "mariadb" in said.lower() else "MySQL"
    if _version(said) < _OLDEST[brand]:
        needed = ".".join(map(str, _OLDEST[brand]))
        return f"it is {brand} {said}; {needed} is the oldest that can be used"
    if packet_of(settings) < SMALLEST_PACKET:
        return f"max_allowed_packet is {packet_of(settings):,} bytes; at least {SMALLEST_PACKET:,} are needed"
    if _is_on(settings, "log_bin") and settings.get("binlog_format", "ROW").upper() == "STATEMENT":
        return "binlog_format=STATEMENT cannot record what is written here; set it to ROW"
    if _is_on(settings, "wsrep_on") or settings.get("group_replication_single_primary_mode", "ON").upper() == "OFF":
        return "it is a cluster with several primaries, where a lock on a row holds on one of them only"
    return ""


def _version(said: str) -> tuple[int, ...]:
    numbers = said.split("-", maxsplit=1)[0].split(".")
    return tuple(int(number) for number in numbers[:2] if number.isdigit())


def _is_weak(settings: Mapping[str, str], name: str) -> bool:
    if name == "sync_binlog" and not _is_on(settings, "log_bin"):
        return False
    return settings.get(name, "1") != "1"


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "OFF").upper() in {"ON", "1"}
