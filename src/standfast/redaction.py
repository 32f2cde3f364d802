"""Hides secrets in addresses, texts and data before they are shown or logged.

The errors mask what they are given, so no caller can forget to. What is not certainly harmless is hidden: a
malformed address loses more of itself than it needs to, never less.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

MASK: Final = "***"

_MAX_SHOWN: Final = 300
_MAX_MESSAGE: Final = 2_000
_FILES: Final = frozenset({"file", "memory", "sqlite"})  # their addresses have no user or password

# Query parameters whose values are shown. Everything else is hidden, so that a secret of a driver that we have
# never seen stays one.
_HARMLESS: Final = frozenset(
    {"busy", "cluster", "commits", "connect_timeout", "create", "durable", "folder", "grace", "hints", "liveness"}
    | {"max_request_bytes", "max_txn_ops", "migrate", "network", "others", "pool", "pooler", "prefix", "quota", "reads"}
    | {
        "region",
        "replicas",
        "replicaset",
        "schema",
        "sentinel_auth",
        "sentinel_user",
        "shortest_lease",
        "timeout",
        "tls",
        "tls_ca",
        "unchecked",
    }
    | {"application_name", "charset", "database", "db", "sslmode", "table"}  # of drivers
)
_PLAIN_USER: Final = re.compile(r"[\w.%+-]*")
_HOST: Final = r"(?:\[[0-9A-Fa-f:.]*\]|[^:,\[\]]*)(?::[0-9]*)?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][\w.-]{0,40}", re.ASCII)
_PLAIN_VALUE: Final = re.compile(r"[\w.,:/-]{0,64}", re.ASCII)
_URL_IN_TEXT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'\"<>]+")
_MASKED_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[\w.%+-]*:\*{3}\Z", re.ASCII)
_GAP: Final = re.compile(r"[\s'\"]")
_CREDENTIALS: Final = re.compile(r"[@=]")
_BEFORE_QUERY: Final = re.compile(r"[?#]")
_PATH: Final = re.compile(r"[/?#]")
_UNFIT: Final = re.compile(r"[/\s]")
_PAIRS: Final = re.compile(r"[&;]")
_MARKS: Final = re.compile(r"[/:@]")
_PAIR_IN_TEXT: Final = re.compile(
    r"((?:password|passwd|passphrase|pwd|secret|token|api_?key|credentials?)[\w-]{0,40}[\"']?\s{0,3}[=:]\s{0,3})"
    r"(?!\*{3}(?:[\s\"',;&]|$))"  # masked already: what ends it, such as the quote around a message, stays
    r"(\"[^\"]*\"?|'[^']*'?|[^\s,;&]+)",
    re.IGNORECASE,
)


def mask_url(url: str) -> str:
    """Return ``url`` as it may be shown: without password, unknown query values and fragment.

    >>> mask_url("postgresql://app:hunter2@db/prod?sslmode=require&sslpassword=hunter2")
    'postgresql://app:***@db/prod?sslmode=require&sslpassword=***'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        masked = MASK if _CREDENTIALS.search(url) else url
    elif scheme.lower() in _FILES:
        masked = f"{scheme}://{_mask_query(_mask_server(rest), marks='?')}"
    else:
        masked = f"{scheme}://{_mask_user(rest)}"
    return masked if len(masked) <= _MAX_SHOWN else f"{masked[:_MAX_SHOWN]}..."


def mask_text(text: str) -> str:
    """Return free text, such as a driver's message, with the addresses and password pairs in it masked.

    Of a long text only the beginning is returned.
    """
    return mask_whole(text[: 10 * _MAX_SHOWN])


def mask_whole(text: str) -> str:
    """Return text of any length, such as a value, masked as :func:`mask_text` does."""
    if "://" in text:
        text = _URL_IN_TEXT.sub(lambda match: mask_url(match[0]), text)
    if "@" in text:
        *before, last = text.split("@")
        text = "@".join([*map(_mask_password, before), last])
    return _PAIR_IN_TEXT.sub(rf"\1{MASK}", text)


def mask_data(value: object, mask: Callable[[str], str] = mask_whole) -> object:
    """Return JSON-shaped data with its texts masked, and with every field hidden that is named like a secret."""
    match value:
        case str():
            return mask(value)
        case list() | tuple():
            return [mask_data(item, mask) for item in cast("list[object]", value)]
        case dict():
            masked: dict[str, object] = {}
            for name, item in cast("dict[str, object]", value).items():
                is_secret = mask_text(f"{name}=x").endswith(f"={MASK}")
                masked[name] = MASK if is_secret else mask_data(item, mask)
            return masked
        case _:
            return value


def mask_message(text: str) -> str:
    """Return the message of an error as it may be stored: masked, of bounded length, valid text.

    Doing it twice is doing it once, so that an error can be stored and raised any number of times.
    """
    text = text[:_MAX_MESSAGE].encode(errors="replace").decode()
    for _ in range(3):
        masked = mask_text(text)[:_MAX_MESSAGE]
        if masked == text:
            return text
        text = masked
    return MASK


def _mask_password(text: str) -> str:
    """Mask the name and password at the end of what stands before an ``@``, if there is a password."""
    start = max((gap.end() for gap in _GAP.finditer(text)), default=0)
    colon = text.find(":", start)
    if colon < 0 or colon == len(text) - 1 or _MASKED_URL.search(text, start):
        return text
    return text[: max(start, text.rfind("/", start, colon) + 1)] + MASK


def _mask_server(path: str) -> str:
    """Mask what looks like a name and password in the path of a file: a server's address with the wrong scheme."""
    end, has_colon = 0, False
    for mark in _MARKS.finditer(path):
        if mark[0] == "@":
            end = mark.end() if has_colon else end
        else:
            has_colon = mark[0] == ":" or (has_colon and mark[0] != "/")
    return f"{MASK}@{path[end:]}" if end else path


def _mask_user(rest: str) -> str:
    """Mask what follows the scheme. A raw ``@``, ``/`` or ``?`` in a password must not let its end slip out."""
    user, at, tail = rest.rpartition("@")
    if at and _BEFORE_QUERY.search(user):
        return MASK  # the @ ends a password or stands in a query: what follows it may be a host or a secret
    if at:
        name, _, password = user.partition(":")  # without a password, the name is the secret: a token
        shown = f"{name}:{MASK}" if password and _PLAIN_USER.fullmatch(name) and not _UNFIT.search(user) else MASK
        return f"{shown}@{_mask_query(tail, marks='?#')}"
    authority = _PATH.split(rest, maxsplit=1)[0]
    if _HOSTS.fullmatch(authority):
        return _mask_query(rest, marks="?#")
    return f"{authority.partition(':')[0]}:{MASK}"  # user:password with the host forgotten


def _mask_query(text: str, *, marks: str) -> str:
    at = min((place for place in map(text.find, marks) if place >= 0), default=None)
    if at is None:
        return text
    shown = MASK if text[at] == "#" else "&".join(map(_mask_pair, _PAIRS.split(text[at + 1 :])))
    return text[: at + 1] + shown


def _mask_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or not _PLAIN_NAME.fullmatch(name):
        return MASK
    shown = value if name.lower() in _HARMLESS and _PLAIN_VALUE.fullmatch(value) else MASK
    return f"{name}={shown}"
