"""Hiding secrets in addresses before anybody sees them.

The errors mask what they are given, so no caller can forget to. What is not certainly harmless is hidden: a
malformed address loses more of itself than it needs to, never less.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"

_MAX_SHOWN: Final = 300
_MAX_MESSAGE: Final = 2_000
_FILES: Final = frozenset({"file", "memory", "sqlite"})  # their addresses have no user or password

# Query parameters whose values are shown. Everything else is hidden, so that a secret of a driver that we have
# never heard of stays one.
_HARMLESS: Final = frozenset(
    {"application_name", "busy_timeout", "charset", "connect_timeout", "create", "database", "db", "mode", "network"}
    | {"region", "replicaset", "schema", "ssl", "sslmode", "table", "timeout", "tls"}
)
_PLAIN_USER: Final = re.compile(r"[\w.%+-]*")
_HOST: Final = r"(?:\[[0-9A-Fa-f:.]*\]|[^:,\[\]]*)(?::[0-9]*)?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][\w.-]{0,40}", re.ASCII)
_PLAIN_VALUE: Final = re.compile(r"[\w.,:/-]{0,64}", re.ASCII)
_URL_IN_TEXT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'\"<>]+")
_USER_IN_TEXT: Final = re.compile(r"[^\s'\"/@]{0,100}:[^\s'\"@]{1,100}@")
_PAIR_IN_TEXT: Final = re.compile(
    r"((?:password|passwd|passphrase|pwd|secret|token|api_?key|credentials?)[\w-]{0,40}[\"']?\s{0,3}[=:]\s{0,3})"
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
        masked = MASK if re.search(r"[@=]", url) else url
    elif scheme.lower() in _FILES:
        path = re.sub(r".*:[^/]*@", f"{MASK}@", rest, flags=re.DOTALL)  # a server's address with the wrong scheme
        masked = f"{scheme}://{_mask_query(path, marks='?')}"
    else:
        masked = f"{scheme}://{_mask_user(rest)}"
    return masked if len(masked) <= _MAX_SHOWN else f"{masked[:_MAX_SHOWN]}..."


def mask_text(text: str) -> str:
    """Return free text, such as a driver's message, with the addresses and password pairs in it masked."""
    text = text[: 10 * _MAX_SHOWN]
    if "://" in text:
        text = _URL_IN_TEXT.sub(lambda match: mask_url(match[0]), text)
    if "@" in text:
        text = _USER_IN_TEXT.sub(f"{MASK}@", text)
    return _PAIR_IN_TEXT.sub(rf"\1{MASK}", text)


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


def _mask_user(rest: str) -> str:
    """Mask what follows the scheme. A raw ``@``, ``/`` or ``?`` in a password must not let its end slip out."""
    user, at, tail = rest.rpartition("@")
    if at and re.search(r"[?#]", user):
        return MASK  # the @ ends a password or stands in a query: what follows it may be a host or a secret
    if at:
        name, _, password = user.partition(":")  # without a password, the name is the secret: a token
        shown = f"{name}:{MASK}" if password and _PLAIN_USER.fullmatch(name) and not re.search(r"[/\s]", user) else MASK
        return f"{shown}@{_mask_query(tail, marks='?#')}"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if _HOSTS.fullmatch(authority):
        return _mask_query(rest, marks="?#")
    return f"{authority.partition(':')[0]}:{MASK}"  # user:password with the host forgotten


def _mask_query(text: str, *, marks: str) -> str:
    found = re.search(f"[{marks}]", text)
    if found is None:
        return text
    path, query = text[: found.start()], text[found.end() :]
    shown = MASK if found[0] == "#" else "&".join(map(_mask_pair, re.split("[&;]", query)))
    return f"{path}{found[0]}{shown}"


def _mask_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or not _PLAIN_NAME.fullmatch(name):
        return MASK
    shown = value if name.lower() in _HARMLESS and _PLAIN_VALUE.fullmatch(value) else MASK
    return f"{name}={shown}"
