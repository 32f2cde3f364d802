"""Pydantic models as stored values, without importing pydantic."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeGuard, cast

import msgspec

from standfast.codec import Conversions

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Model(Protocol):
    """A pydantic model, known by what it can do, so that pydantic need not be there."""

    model_fields: ClassVar[Mapping[str, Any]]

    def model_dump(self, *, mode: str = ..., by_alias: bool = ..., round_trip: bool = ...) -> Any: ...  # noqa: ANN401 -- a root model can be any data

    @classmethod
    def model_validate_json(cls, data: bytes, /) -> Any: ...  # noqa: ANN401 -- this very class, which we cannot name


def is_model(kind: type) -> TypeGuard[type[_Model]]:
    """Tell whether a class is a pydantic model."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_fields")


def _by_alias(kind: type[_Model]) -> bool:
    """Tell under which names a model reads what it has written."""
    return all(each.serialization_alias in (None, each.validation_alias) for each in kind.model_fields.values())


def _to_data(value: object) -> object:
    kind = type(value)
    if not is_model(kind):
        raise TypeError(f"objects of type {kind.__name__} cannot be stored; use a dataclass, a struct or plain data")
    try:
        return cast("_Model", value).model_dump(mode="json", by_alias=_by_alias(kind), round_trip=True)
    except Exception as error:  # noqa: BLE001 -- a model's own serializers may raise anything, and quote the value
        raise TypeError(f"{kind.__name__} cannot be written: {type(error).__name__}") from None


def _from_data(kind: type, data: object) -> object:
    model = cast("type[_Model]", kind)
    try:
        # Read as JSON, since a strict model would not take a text for a date otherwise.
        return model.model_validate_json(msgspec.json.encode(data))
    except Exception as error:  # noqa: BLE001 -- a model's own validators may raise anything, and quote the value
        raise TypeError(f"{kind.__name__} does not take it: {_without_data(error, model)}") from None


def _without_data(error: Exception, kind: type[_Model]) -> str:
    """Say what a model found wrong, and in which of its fields, without the data that it quotes."""
    names = {name for field, each in kind.model_fields.items() for name in (field, each.alias)}
    told: list[str] = []
    with suppress(Exception):  # other errors have no list of problems, or one that looks differently
        found: list[dict[str, Any]] = cast("Any", error).errors()
        told = [
            f"{each['loc'][0]} ({each['type']})" for each in found[:5] if each["loc"][:1] and each["loc"][0] in names
        ]
    return ", ".join(told) or type(error).__name__


HOOKS: Final = Conversions(_to_data, _from_data)
"""How a codec writes and reads them."""


def to_steady_data(value: object) -> object:
    """Return the fields of a model, for a digest of them."""
    if not is_model(type(value)):
        raise TypeError
    return cast("_Model", value).model_dump()  # not as JSON: sets stay sets, and are sorted
