"""How far a client has read a conversation, as text that it sends when it comes back.

``120-125,122:7,124-124`` says: of the messages up to 120 everything was read, and the messages up to 125 themselves; of
the answer to 122 seven events, and the answer to 124 to its end. Of the other answers nothing was read yet.
"""

from __future__ import annotations

import re
from typing import Final, Self, final

from standfast.errors import InvalidInputError

LONGEST: Final = 4_000
_PAIR: Final = re.compile(r"([0-9]{1,15})([:-])([0-9]{1,15})", re.ASCII)
_NOT_OURS: Final = ("the place to go on from", "is not one that was given out")


@final
class Seen:
    """What a client has read.

    Attributes:
        base: Of the messages up to this one, everything.
        last: The messages up to this one.
    """

    __slots__ = ("_ended", "_heard", "base", "last")

    def __init__(self, base: int = 0, last: int = 0) -> None:
        self.base, self.last = base, max(base, last)
        self._heard: Final[dict[int, int]] = {}
        self._ended: list[tuple[int, int]] = []

    def tell(self, message: int) -> None:
        """Note that a message was read."""
        self.last = max(self.last, message)

    def hear(self, message: int, event: int) -> None:
        """Note that an event of its answer was read."""
        self._heard[message] = event

    def end(self, message: int) -> None:
        """Note that its answer was read to the end."""
        self._heard.pop(message, None)
        self._add(message, message)
        self.skip(self.base)

    def skip(self, message: int) -> None:
        """Note that there is nothing more to read of the messages up to this one."""
        self.base = max(self.base, message)
        while self._ended and self._ended[0][0] <= self.base + 1:
            self.base = max(self.base, self._ended.pop(0)[1])
        self.last = max(self.last, self.base)
        for done in [each for each in self._heard if each <= self.base]:
            del self._heard[done]

    def after(self, message: int) -> int:
        """Return the number of the last event of its answer that was read."""
        return self._heard.get(message, 0)

    def is_over(self, message: int) -> bool:
        """Tell whether the answer to a message was read to its end."""
        return message <= self.base or any(first <= message <= last for first, last in self._ended)

    def _add(self, first: int, last: int) -> None:
        """Put a range of ended ones beside the others; those that touch become one."""
        self._ended = _merged([*self._ended, (first, last)])

    def __str__(self) -> str:
        heard = [f"{message}:{event}" for message, event in sorted(self._heard.items())]
        ended = [f"{first}-{last}" for first, last in self._ended]
        return ",".join([f"{self.base}-{self.last}", *heard, *ended])

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what a client says it has read; nothing at all stands for the beginning.

        Raises:
            InvalidInputError: It is not what a client was given.
        """
        if not text:
            return cls()
        pairs = [_pair(part) for part in text[: LONGEST + 1].split(",")]
        (base, mark, last), *parts = pairs
        if len(text) > LONGEST or mark != "-":
            raise InvalidInputError(*_NOT_OURS)
        seen = cls(base, last)
        for message, kind, number in parts:
            if kind == ":":
                seen.hear(message, number)
        seen._ended = _merged([(first, end) for first, kind, end in parts if kind == "-" and first <= end])
        seen.skip(seen.base)
        return seen


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that touch become one."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _pair(part: str) -> tuple[int, str, int]:
    if (match := _PAIR.fullmatch(part)) is None:
        raise InvalidInputError(*_NOT_OURS)
    return int(match[1]), match[2], int(match[3])
