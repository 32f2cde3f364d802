# ruff: noqa: ARG001 -- what actions take is for the description; they do nothing with it
"""Actions that take and return values of many shapes, each by some policy."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import os
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct

import standfast as sf

shapes = sf.Flow("shapes")


class Colour(enum.Enum):
    """One of few."""

    RED = "red"
    GREEN = "green"


class Point(Struct, frozen=True):
    """Two numbers."""

    x: float
    y: float = 0.0


class Circle(Struct, frozen=True, tag="circle"):
    """One of two."""

    centre: Point
    radius: Annotated[float, Meta(ge=0)]


class Square(Struct, frozen=True, tag="square", forbid_unknown_fields=True):
    """The other."""

    corner: Point
    side: Annotated[float, Meta(gt=0, le=100)]


class Tree(Struct, frozen=True):
    """It refers to itself."""

    name: str
    branches: list[Tree] = []


class Times(Struct, frozen=True):
    """What JSON writes as text."""

    day: dt.date
    at: dt.datetime
    number: decimal.Decimal
    mark: uuid.UUID


@dataclass
class Box:
    """A plain dataclass."""

    width: int
    label: str | None = None


class Card(TypedDict, total=False):
    """A dictionary with known names."""

    name: str
    age: int


@shapes.action
async def nothing(request: sf.Request) -> None:
    """Take nothing, return nothing."""


@shapes.action(concurrency="queue")
async def scalars(request: sf.Request, text: str, whole: int, real: float, yes: bool = True) -> str:  # noqa: FBT001, FBT002 -- inputs have names over HTTP
    """Take one of each."""
    return f"{text} {whole} {real} {yes}"


@shapes.action(concurrency="reject")
async def bounded(
    request: sf.Request,
    name: Annotated[str, Meta(min_length=1, max_length=8, pattern="^[a-z]+$")],
    many: Annotated[int, Meta(ge=1, le=9)] = 1,
) -> Annotated[int, Meta(ge=1)]:
    """Take what is within bounds."""
    return many


@shapes.action(concurrency="join")
async def optional(request: sf.Request, one: str | None = None, other: int | str | None = None) -> int | str | None:
    """Take one thing or another, or nothing."""
    return one or other


@shapes.action(concurrency=sf.Queue(key="none"))
async def figure(request: sf.Request, figure: Circle | Square, colour: Colour = Colour.RED) -> Circle | Square:
    """Take one of two that say which they are."""
    return figure


@shapes.action
async def tree(request: sf.Request, tree: Tree) -> list[Tree]:
    """Take what contains itself."""
    return tree.branches


@shapes.action(concurrency="restart")
async def box(request: sf.Request, box: Box, card: Card) -> dict[str, Box]:
    """Take a dataclass and a typed dictionary."""
    return {"box": box}


@shapes.action
async def odd(
    request: sf.Request,
    day: dt.date,
    at: Annotated[dt.datetime, Meta(tz=True)],
    number: decimal.Decimal,
    mark: uuid.UUID,
) -> Times:
    """Take what JSON writes as text. It returns no tuple: schemathesis cannot read the schema of one in an answer."""
    return Times(day, at, number, mark)


@shapes.action
async def collections(
    request: sf.Request,
    letters: dict[str, list[int]],
    pair: tuple[int, str],
    few: Annotated[list[Literal["a", "b"]], Meta(max_length=3)] = [],  # noqa: B006 -- it is copied
    seen: frozenset[int] = frozenset(),
) -> set[int]:
    """Take many."""
    return set(seen)


@shapes.action
async def anything(request: sf.Request, value: Any) -> Any:
    """Take whatever there is."""
    return value


@shapes.action
async def raw(request: sf.Request, data: bytes) -> bytes:
    """Take bytes."""
    return data


@shapes.action(durable=True)
async def later(request: sf.Request, text: str) -> str:
    """Be done some time."""
    request.emit(text)
    return text


@shapes.action(concurrency=sf.Debounce("5ms"))
async def debounced(request: sf.Request, point: Point) -> Point:
    """Be done once for a burst."""
    return point


@shapes.action(concurrency=sf.Batch(3, "5ms"))
async def batched(request: sf.Request, items: list[Point]) -> int:
    """Be done for several at a time."""
    return len(items)


@shapes.action(concurrency="latest")
async def latest(request: sf.Request, n: int) -> int:
    """Be done for the newest."""
    return n


@shapes.action(roles={"operator"})
async def operate(request: sf.Request) -> str:
    """Be done for few."""
    return "done"


app = sf.App(os.environ.get("STANDFAST_STORE", "memory://"), flows=[shapes])
