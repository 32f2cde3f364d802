"""How arguments and results are stored: as JSON, through the types that the functions declare.

What user code sees is always what was read back, live as in replay, so the two cannot differ. What would not come
back equal is refused before it is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from types import SimpleNamespace
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    NoReturn,
    Protocol,
    TypeGuard,
    TypeVar,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec
import msgspec.inspect

from standfast.codec import Codec, Conversions
from standfast.errors import DeclarationError, DecodeError, WrongArgumentsError
from standfast.exits import FAILURES, failure_of

# --- pydantic models as stored values, without importing pydantic --------------------------------------------------


class _Model(Protocol):
    """A pydantic model, known by what it can do, so that pydantic need not be there."""

    model_fields: ClassVar[Mapping[str, Any]]

    def model_dump(self, *, mode: str = ..., by_alias: bool = ..., round_trip: bool = ...) -> Any: ...  # noqa: ANN401 -- a root model can be any data

    @classmethod
    def model_validate_json(cls, data: bytes, /) -> Any: ...  # noqa: ANN401 -- this very class, which we cannot name


def is_model(kind: type) -> TypeGuard[type[_Model]]:
    """Return True if a class is a pydantic model."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_fields")


def _to_data(value: object) -> object:
    kind = type(value)
    if not is_model(kind):
        raise TypeError(f"objects of type {kind.__name__} cannot be stored; use a dataclass, a struct or plain data")
    try:
        # Under those names by which the model reads what it has written.
        by_alias = all(each.serialization_alias in (None, each.validation_alias) for each in kind.model_fields.values())
        return cast("_Model", value).model_dump(mode="json", by_alias=by_alias, round_trip=True)
    except FAILURES as error:  # a model's own serializers may raise anything, and quote the value
        failure_of(error)
        raise TypeError(f"{kind.__name__} cannot be written: {type(error).__name__}") from None


def _from_data(kind: type, data: object) -> object:
    model = cast("type[_Model]", kind)
    try:
        # Read as JSON, since a strict model would not take a text for a date otherwise.
        return model.model_validate_json(msgspec.json.encode(data))
    except FAILURES as error:  # a model's own validators may raise anything, and quote the value
        failure_of(error)
        raise TypeError(f"{kind.__name__} does not take it: {_without_data(error, model)}") from None


def _without_data(error: BaseException, kind: type[_Model]) -> str:
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


# --- how arguments and results are stored: as JSON, through the types that the functions declare -------------------

T = TypeVar("T")

_PLAIN: Final = frozenset({Any, object, inspect.Parameter.empty})  # annotations that say nothing
_VARIADIC: Final = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


@final
class Typed(Generic[T]):
    """Values of one declared type, as JSON and back.

    Args:
        annotation: The type: JSON data, dataclasses, msgspec structs, pydantic models, ``TypedDict``, ``NamedTuple``,
            enums, ``datetime``, ``Decimal``, ``UUID``, ``bytes``, and lists, dicts, sets, tuples, unions of them.
            ``Any`` takes JSON-shaped data only.
        what: What the values are, as an error shows it.

    Attributes:
        pack_and_restore: Returns a value as JSON, and as :meth:`unpack` will restore it: what user code is to see. It
            raises as :meth:`pack` does.

    Raises:
        DeclarationError: Values of that type cannot be stored.
    """

    __slots__ = ("_codec", "annotation", "pack_and_restore", "what")

    @overload
    def __init__(self, annotation: type[T], what: str) -> None: ...
    @overload
    def __init__(self: Typed[Any], annotation: Any, what: str) -> None: ...  # noqa: ANN401 -- a type may be no class

    def __init__(self, annotation: Any, what: str) -> None:
        self._codec: Final = cast("Codec[T]", _codec_for(annotation, what))
        self.annotation: Final = annotation
        self.pack_and_restore: Final = self._codec.write
        self.what: Final = what

    def pack(self, value: T) -> bytes:
        """Return ``value`` as bare JSON, to be embedded in a record with ``msgspec.Raw``.

        Raises:
            EncodeError: It would not come back equal, or is too large. The message names the place, never the value.
        """
        return self._codec.write(value)[0]

    def unpack(self, data: bytes | msgspec.Raw) -> T:
        """Return the value that ``data`` was made from.

        Raises:
            DecodeError: The data is damaged, or the type has changed since.
        """
        return self._codec.read(bytes(data))


@final
class Signature:
    """What a function takes and returns, as far as it is stored.

    Attributes:
        name: What errors call the function.
        result: How its results are stored.
        parameters: What it takes.
        arguments: The same as a struct, with the types that the annotations stand for. What has a default is optional.
    """

    __slots__ = ("_codec", "_least", "_places", "_positional", "arguments", "name", "parameters", "result")

    def __init__(self, name: str, parameters: inspect.Signature, arguments: type[msgspec.Struct], result: Any) -> None:  # noqa: ANN401 -- a type may be no class
        self.name: Final = name
        self.result: Final[Typed[Any]] = Typed(result, f"the result of {name}")
        self.parameters: Final = parameters
        self.arguments: Final = arguments
        known = parameters.parameters.values()
        self._positional: Final = tuple(each.name for each in known if each.kind <= each.POSITIONAL_OR_KEYWORD)
        self._places: Final = tuple((each.name, each.kind is each.POSITIONAL_ONLY) for each in known)
        needed = [each.name for each in known if each.default is each.empty]
        # How many arguments by place are enough; more than there can be if one has to be given by name.
        self._least: Final = len(needed) if {*needed} <= {*self._positional} else len(self._positional) + 1
        self._codec: Final = _codec_for(arguments, f"the arguments of {name}")

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a call as JSON, by name. Defaults are not stored: the function fills them in.

        Raises:
            WrongArgumentsError: The function cannot be called with these; it is a ``TypeError``.
            EncodeError: An argument would not come back equal, or is too large.
        """
        return self.pack_and_restore(args, kwargs)[0]

    def pack_and_restore(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, msgspec.Struct]:
        """Return the arguments of a call as :meth:`pack` does, and as :meth:`read` will restore them.

        Raises:
            WrongArgumentsError: As :meth:`pack`.
            EncodeError: Likewise.
        """
        if not kwargs and self._least <= len(args) <= len(self._positional):
            return self._codec.write(self.arguments(**dict(zip(self._positional, args, strict=False))))
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArgumentsError(self.name, str(error)) from None
        return self._codec.write(self.arguments(**bound.arguments))

    def read(self, body: bytes) -> msgspec.Struct:
        """Return the arguments that ``body`` was made from, as :attr:`arguments`; what was left out is ``UNSET``.

        Raises:
            DecodeError: As :meth:`unpack`.
        """
        try:
            found: msgspec.Struct = self._codec.read(body)
        except DecodeError:
            self._refuse_unknown(body)
            raise
        return found

    def unpack(self, data: bytes | msgspec.Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that ``data`` was made from, to call the function with.

        Raises:
            DecodeError: The data is damaged, or the function takes other arguments now.
        """
        return self.spread(self.read(bytes(data)))

    def spread(self, found: msgspec.Struct) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments that were restored, to call the function with."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, is_positional in self._places:
            value = getattr(found, name)
            if value is msgspec.UNSET:
                continue
            if is_positional:
                args.append(value)
            else:
                kwargs[name] = value
        return tuple(args), kwargs

    def bind(self, data: bytes | msgspec.Raw) -> inspect.BoundArguments:
        """Return the arguments that ``data`` was made from, by their places: for functions that name them otherwise."""
        args, kwargs = self.unpack(data)
        return self.parameters.bind(*args, **kwargs)

    def _refuse_unknown(self, body: bytes) -> None:
        names: set[str] = set()
        with suppress(ValueError, RecursionError):
            names = set(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
        if unknown := sorted(names - set(self.parameters.parameters)):
            known = ", ".join(map(repr, self.parameters.parameters)) or "none"
            raise DecodeError(f"{self.name} has no argument {', '.join(map(ascii, unknown[:5]))}; it takes {known}")


def signature_of(function: Callable[..., Any], *, skip_first: bool, stored: bool = True) -> Signature:
    """Read what a function takes and returns from its annotations. What has none takes JSON-shaped data.

    Args:
        function: An ``async def`` or plain function.
        skip_first: Leave out the first parameter, the context.
        stored: The arguments are stored. If not, only the result is looked at, and the function may take anything.

    Raises:
        DeclarationError: A type cannot be stored or found, or the arguments have no names to be stored under.
    """
    name = repr(getattr(function, "__qualname__", None) or type(function).__qualname__)
    parameters = list(inspect.signature(function).parameters.values())[skip_first:] if stored else []
    for each in parameters:
        if each.kind in _VARIADIC:
            raise DeclarationError(
                name,
                f"stored arguments need names, so it cannot take {str(each).partition(':')[0]}; name them one by one",
            )
    hints = _hints(function, name, {each.name for each in parameters} | {"return"})
    fields = tuple((each.name, hints.get(each.name, Any), each.default is not each.empty) for each in parameters)
    try:
        arguments = _cached_struct(fields)
    except TypeError:  # a type cannot be hashed
        arguments = _new_struct(fields)
    return Signature(name, inspect.Signature(parameters), arguments, _awaited(hints.get("return", Any)))


def _new_struct(fields: tuple[tuple[str, Any, bool], ...]) -> type[msgspec.Struct]:
    """Return a struct for arguments: their names and types, and which may be left out."""
    found = [(name, kind, msgspec.UNSET) if is_optional else (name, kind) for name, kind, is_optional in fields]
    return msgspec.defstruct("Arguments", found, kw_only=True, forbid_unknown_fields=True)


# Functions that take the same, such as those of all durable actions, share a struct and so its codec: making them is
# most of what a declaration costs.
_cached_struct: Final = lru_cache(maxsize=1024)(_new_struct)


def _hints(function: Callable[..., Any], name: str, wanted: set[str]) -> dict[str, Any]:
    """Return the types that the wanted annotations stand for. The others need not make sense at run time."""
    function = inspect.unwrap(function)
    found = {each: what for each, what in inspect.get_annotations(function).items() if each in wanted}
    try:
        hints = get_type_hints(
            SimpleNamespace(__annotations__=found), getattr(function, "__globals__", {}), include_extras=True
        )
    except Exception as error:  # noqa: BLE001 -- an annotation is code, which may raise anything
        problem = f"its annotations cannot be read ({error}); import the types at run time, not only for type checkers"
        raise DeclarationError(name, problem) from None
    return {each: Any if _is_plain(what) else what for each, what in hints.items()}


def _is_plain(annotation: Any) -> bool:  # noqa: ANN401 -- a type may be no class
    try:
        return annotation in _PLAIN
    except TypeError:  # an Annotated with something unhashable
        return False


def _awaited(annotation: Any) -> Any:  # noqa: ANN401 -- a type may be no class
    """Return the type of what a function gives in the end, if it is annotated to return an awaitable."""
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return get_args(annotation)[-1] if issubclass(origin, Coroutine) else get_args(annotation)[0]
    return None if annotation in (Never, NoReturn) else annotation


# --- digests ------------------------------------------------------------------------------------------------------


def digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a short digest of a step's arguments, the same in every process; "" if they cannot be encoded."""
    try:
        body = _steady.encode((args, kwargs))
    except Exception:  # noqa: BLE001 -- steps may take anything, and what cannot be compared is not compared
        return ""
    made = _short_digest.copy()  # which takes less than to make one
    made.update(body)
    return made.hexdigest()


_short_digest: Final = blake2b(digest_size=8)
_steady: Final = msgspec.json.Encoder(enc_hook=to_steady_data, order="deterministic")


# --- types ----------------------------------------------------------------------------------------------------------


_IN_A_MODEL: Final = "; put a union with pydantic models into a model of its own: class Either(RootModel[A | B])"


def _codec_for(annotation: Any, what: str) -> Codec[Any]:  # noqa: ANN401 -- a type may be no class
    try:
        return _cached_codec(annotation, what)
    except TypeError:  # it cannot be hashed
        return _new_codec(annotation, what)


def _new_codec(annotation: Any, what: str) -> Codec[Any]:  # noqa: ANN401 -- a type may be no class
    try:
        codec: Codec[Any] = Codec(annotation, what=what, inner=True, hooks=HOOKS)
        strangers = {kind.__qualname__ for kind in _custom(msgspec.inspect.type_info(annotation), set())}
    except (TypeError, ValueError, NameError) as error:
        fix = _IN_A_MODEL if "custom type" in str(error) else ""  # the only custom types are models
        raise DeclarationError(what, f"cannot be stored: {error}{fix}") from None
    if strangers:
        names = ", ".join(sorted(strangers))
        raise DeclarationError(
            what, f"{names} cannot be stored; use a dataclass, a struct, a pydantic model or plain data"
        )
    return codec


_cached_codec: Final = lru_cache(maxsize=1024)(_new_codec)


def _custom(node: object, seen: set[int]) -> Iterator[type]:
    """Find the classes in a type that neither msgspec nor pydantic reads."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        if not is_model(node.cls):
            yield node.cls
    elif isinstance(node, tuple):
        for item in cast("tuple[object, ...]", node):
            yield from _custom(item, seen)
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from _custom(getattr(node, name), seen)


PLAIN: Final[Typed[Any]] = Typed(Any, "the value")
"""Data without a declared type."""
