"""The secrets that a provider signs with. They are named by their ids, and never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from standfast.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Secrets: TypeAlias = "str | Mapping[str, str]"
"""One secret, or several that are active at the same time, by ids of your own: ``{"2026-05": ..., "2026-06": ...}``."""

SHORTEST: Final = 8
"""Bytes that a secret needs at least. Whatever is shorter can be found by trying."""

MOST: Final = 8
"""How many secrets may be active at a time. Each costs one pass over every body."""


class Secret(msgspec.Struct, frozen=True):
    """One secret."""

    id: str
    """What it is called in logs."""
    key: bytes
    """What the signature is made with."""

    def __repr__(self) -> str:
        return f"<Secret {self.id!r}>"


def read_secrets(where: str, given: Secrets | None, as_key: Callable[[str], bytes] = str.encode) -> tuple[Secret, ...]:
    """Return the secrets; none at all, or an empty one, is refused: an unset variable must not open the door.

    Args:
        where: What is being declared, as the error names it.
        given: What the user handed in.
        as_key: Turns the text of a secret into the key to sign with.
    """
    by_id = {"default": given} if isinstance(given, str) else dict(given or {})
    if not by_id or len(by_id) > MOST:
        problem = f"at most {MOST} secrets can be active" if by_id else "without a secret nobody can tell who sends"
        raise InvalidFlowError(where, problem)
    return tuple(_secret(where, name, text, as_key) for name, text in by_id.items())


def _secret(where: str, name: str, text: object, as_key: Callable[[str], bytes]) -> Secret:
    place = f"{where}, secret {name!r}"
    if not isinstance(text, str) or not text:
        raise InvalidFlowError(place, "it is empty; is its environment variable set?")
    try:
        key = as_key(text.strip())
    except ValueError:
        raise InvalidFlowError(place, "it is not base64 as it should be") from None  # the cause shows the secret
    if len(key) < SHORTEST:
        raise InvalidFlowError(place, f"it is shorter than {SHORTEST} bytes, so it can be found by trying")
    return Secret(name, key)
