"""Errors of sealed stores."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidKeyringError(StandfastError, ValueError):
    """A keyring cannot be used. Nothing was read or written; the message says what is wrong with which key."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"{self.what} of a keyring: {self.problem}"


class UnknownSealingKeyError(StandfastError, LookupError):
    """A value was sealed with a key that this keyring does not have. Add that key; it need not be the current one."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"a value was sealed with the key {self.name!r}, and this keyring has {', '.join(self.known)}"


class BrokenSealError(StandfastError, ValueError):
    """A stored value cannot be trusted: it was changed, or moved from another place, or never sealed.

    Somebody else writes to the store, or a backup was put together from several. Find out who before going on.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"a stored value cannot be trusted: {self.problem}"
