"""The JSON Schema of what actions take and return, for OpenAPI and for tools."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from standfast.workflows.storing.models import HOOKS, is_model

if TYPE_CHECKING:
    from standfast.workflows.storing.values import Signature

_REFERENCE: Final = "#/$defs/"


def schema_of(annotation: Any) -> dict[str, Any]:  # noqa: ANN401 -- a type may be no class
    """Return the schema of one type. What it refers to lies in ``$defs``."""
    shared: dict[str, Any] = {}

    def schema_of_model(kind: type) -> dict[str, Any]:
        if not is_model(kind):
            raise NotImplementedError
        found = dict(cast("Any", kind).model_json_schema())
        # What a model refers to is looked for at the root of the whole, not of its own schema.
        shared.update(found.pop("$defs", {}))
        return found

    schema = msgspec.json.schema(annotation, schema_hook=schema_of_model)
    if shared:
        schema["$defs"] = shared | schema.get("$defs", {})
    return schema


def schema_of_arguments(signature: Signature) -> dict[str, Any]:
    """Return the schema of what a function takes: an object, with a property for each parameter."""
    schema = schema_of(signature.arguments)
    name = cast("str", schema.pop("$ref")).removeprefix(_REFERENCE)
    definitions = cast("dict[str, Any]", schema.pop("$defs"))
    root = cast("dict[str, Any]", definitions.pop(name))
    del root["title"]  # the name of a struct that nobody sees
    for each in signature.parameters.parameters.values():
        if each.default is not each.empty:
            _put_default(root["properties"][each.name], each.default)
    return root | ({"$defs": definitions} if definitions else {})


def _put_default(schema: dict[str, Any], default: object) -> None:
    with suppress(TypeError, ValueError):  # a default that cannot be written is only known to the function
        schema["default"] = msgspec.to_builtins(default, enc_hook=HOOKS.to_data)
