"""Errors of keys and key families."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidKeyError(StandfastError, ValueError):
    """A family name or a key part cannot be part of a key. Nothing was written; fix the value."""

    def __init__(self, value: str, problem: str) -> None:
        super().__init__(value, problem)
        self.value, self.problem = value, problem

    def __str__(self) -> str:
        return f"{self.value} cannot be part of a key: {self.problem}"


_HOW_TO_MAKE_A_KEY = (
    '; declare a family once at module level, FAMILY = KeyFamily("what-it-protects"), and make the key with FAMILY(...)'
)


class NotAKeyError(StandfastError, TypeError):
    """Something else was given where a key made by a family is wanted.

    Declare a family once, ``REPO = KeyFamily("repo")``, and make keys with it: ``REPO("/srv/repo")``.
    """

    def __init__(self, given: str, wanted: str = "Key") -> None:
        super().__init__(given, wanted)
        self.given, self.wanted = given, wanted

    def __str__(self) -> str:
        fix = "" if self.wanted != "Key" else _HOW_TO_MAKE_A_KEY
        return f"expected a {self.wanted}, got {self.given}{fix}"


class DuplicateFamilyError(StandfastError, ValueError):
    """Two places declare a key family of the same name, so their locks would collide.

    Rename one of them, or import the family from the place that declares it.
    """

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(name, first, second)
        self.name, self.first, self.second = name, first, second

    def __str__(self) -> str:
        if self.first == self.second:
            return f"key family {self.name!r} at {self.first} was declared again with other modes or order; restart the process"
        return f"key family {self.name!r} is declared at {self.first} and again at {self.second}; rename one or import the first"


class KeyTooLongError(InvalidKeyError):
    """A durable key is longer than every store can take.

    Shorten it: put a digest of the long part into the key (``hashlib.blake2b(text, digest_size=16).hexdigest()``)
    and the text itself into the record.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a key of {length:,} bytes", f"at most {limit:,} are allowed")
        self.args = (length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"the key takes {self.length:,} bytes encoded, at most {self.limit:,} are allowed; put a digest of its long part into the key"
