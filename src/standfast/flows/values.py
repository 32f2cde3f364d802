"""Values that are declared: they do not change, are equal if their options are, and show them."""

from __future__ import annotations

from typing import ClassVar


class Value:
    """What declared values have in common. A subclass lists its options as slots, and is final."""

    __slots__ = ()

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        slots: tuple[str, ...] = self.__slots__
        return {slot: getattr(self, slot) for slot in slots}

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__} does not change; make another one")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and type(self) is type(other) and self.options() == other.options()

    def __hash__(self) -> int:
        return hash((type(self), *self.options().values()))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__}({options})"


class PolicyValue(Value):
    """A policy: its name, and whether it answers before anything has run."""

    __slots__ = ()
    name: ClassVar[str]
    collects: ClassVar[bool] = False
