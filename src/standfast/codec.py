"""Values as bytes, and back.

A stored value is its format number, a colon, and JSON: ``1:{"type":"grant","fence":17}``. Reading is bounded and
makes only what the codec was declared for: tags choose from a closed list of types, nothing is imported, called or
looked up by a name from the data, and there is no second format to fall back to. Writing reads back what it is
about to write, so what cannot be restored is refused before it is stored.

    class Grant(Struct, frozen=True, tag="grant"):
        holder: str
        fence: int

    class Vacant(Struct, frozen=True, tag="vacant"):
        last_fence: int

    GRANTS: Codec[Grant | Vacant] = Codec(Grant | Vacant, what="a grant")
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast, final, overload

import msgspec
from msgspec import Struct

from standfast.errors import DecodeError, EncodeError, FormatTooNewError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import UnionType

T = TypeVar("T")

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""Data that needs no declared type."""

FORMAT: Final = 1
"""The newest format that this version reads, and the one it writes."""

MAX_BYTES: Final = 350_000
"""The largest stored value; every store takes it."""
MAX_DEPTH: Final = 200
MAX_KEYS: Final = 50_000
MAX_DIGITS: Final = 4_300
"""The longest integer, in digits. Integers of any size up to it are exact."""

ROOM_BYTES: Final = 10_000
"""What a record may put around a value that it holds."""
_ROOM_DEPTH: Final = 20
_ROOM_KEYS: Final = 1_000

_PREFIX: Final = f"{FORMAT}:".encode()
_NUMBER: Final = re.compile(rb"([1-9][0-9]{0,5}):")
_QUOTE: Final = re.compile(r"'|unknown field `")

_encoder: Final = msgspec.json.Encoder()


class Conversions(Struct, frozen=True):
    """How a codec treats types that msgspec does not know: as JSON-shaped data, and back from it."""

    to_data: Callable[[Any], Any]
    from_data: Callable[[type, Any], Any]


@final
class Codec(Generic[T]):
    """Turns values of one declared type into bytes and back.

    Args:
        of: The type: a ``Struct``, a union of tagged ones, or any type that msgspec reads. ``Any`` takes JSON-shaped
            data: None, bool, int, float, text, lists and dicts with text keys. Tuples come back as lists. Bytes,
            ``Decimal``, ``datetime`` and the like need a declared type, since JSON alone would not restore them.
        what: What the values are, as an error shows it.
        max_bytes: The most bytes that are written or read.
        inner: The values are written inside of other ones: leave room for what is around them.
        hooks: How to treat types that msgspec does not know.
        newest: The newest format of such values. One that older versions would misread is written with a number
            that they refuse; all formats are read alike.
    """

    __slots__ = ("_decoder", "_encoder", "_newest", "_room", "_short", "max_bytes", "max_depth", "max_keys", "what")

    @overload
    def __init__(
        self,
        of: type[T],
        *,
        what: str = ...,
        max_bytes: int = ...,
        inner: bool = ...,
        hooks: Conversions | None = ...,
        newest: int = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        of: UnionType | Any,  # noqa: ANN401 -- msgspec takes any type, also those that are no class
        *,
        what: str = ...,
        max_bytes: int = ...,
        inner: bool = ...,
        hooks: Conversions | None = ...,
        newest: int = ...,
    ) -> None: ...

    def __init__(
        self,
        of: Any,
        *,
        what: str = "the value",
        max_bytes: int = MAX_BYTES,
        inner: bool = False,
        hooks: Conversions | None = None,
        newest: int = FORMAT,
    ) -> None:
        self._decoder: Final[msgspec.json.Decoder[T]] = msgspec.json.Decoder(
            of, dec_hook=hooks.from_data if hooks else None
        )
        self._encoder: Final = msgspec.json.Encoder(enc_hook=hooks.to_data) if hooks else _encoder
        self.what: Final = what
        self._newest: Final = newest
        self.max_bytes: Final = max_bytes - ROOM_BYTES * inner
        self._room: Final = self.max_bytes - len(_PREFIX)
        self.max_depth: Final = MAX_DEPTH - _ROOM_DEPTH * inner
        self.max_keys: Final = MAX_KEYS - _ROOM_KEYS * inner
        self._short: Final = min(2 * self.max_depth, self._room)  # can go past no limit

    def encode(self, value: T) -> bytes:
        """Return ``value`` as bytes that :meth:`decode` restores.

        Raises:
            EncodeError: It would not come back as it is: NaN, half a surrogate pair, a type that was not declared,
                too large, too deep. The message names the place, never the value.
        """
        return _PREFIX + self.write(value)[0]

    def write(self, value: T) -> tuple[bytes, T]:
        """Return ``value`` as bare JSON, without a format number, and as :meth:`read` will restore it.

        Raises:
            EncodeError: As :meth:`encode`.
        """
        try:
            body = self._encoder.encode(value)
            if len(body) < self._short and (restored := self._decoder.decode(body)) == value:
                return body, restored
        except Exception:  # noqa: BLE001, S110 -- what is wrong is told below
            pass
        return self._write_slowly(value)

    def _write_slowly(self, value: T) -> tuple[bytes, T]:
        """Write what is long, or find out what is wrong with it."""
        body = self._body(value)
        try:
            restored = self._read(body)
        except DecodeError as error:
            try:
                found = _not_finite(value, "$")
            except RecursionError:  # the error of the decoder says that it is too deep
                found = None
            problem = found or error.problem.removeprefix(f"{self.what} cannot be read: ")
            raise EncodeError(f"{self.what} cannot be stored: {problem}") from None
        try:
            loss = restored != value and _loss(value, restored, "$")
        except Exception:  # noqa: BLE001 -- an __eq__ of the user's making may raise anything
            loss = "it holds something that cannot be compared"
        if loss:
            raise EncodeError(f"{self.what} cannot be stored: {loss}")
        return body, restored

    def encode_own(self, value: T, form: int = FORMAT) -> bytes:
        """Return ``value`` as bytes, for a value of ours whose every part has been checked: it is not read back.

        ``form`` is the number of its format, see ``newest``.
        """
        if form != FORMAT:
            return b"%d:" % form + self._body(value)
        try:
            body = self._encoder.encode(value)
        except Exception:  # noqa: BLE001 -- what is wrong is told below
            body = self._body(value)
        if len(body) > self._room:
            self._check_size(len(_PREFIX) + len(body), EncodeError)
        return _PREFIX + body

    def decode(self, data: bytes) -> T:
        """Return the value that ``data`` was made from.

        Raises:
            DecodeError: The bytes are damaged, of another type, or go past a limit.
            FormatTooNewError: A newer version of Standfast wrote them.
        """
        self._check_size(len(data), DecodeError)
        if not data.startswith(_PREFIX):
            return self._read_strictly(self._newer_body(data))
        return self._read_strictly(data[len(_PREFIX) :])

    def read(self, body: bytes) -> T:
        """Return the value that :meth:`write` made ``body`` from.

        Raises:
            DecodeError: As :meth:`decode`.
        """
        if len(body) < self._short:  # nearly everything; the calls that are saved are most of what it costs
            try:
                value = self._decoder.decode(body)
                if self._encoder.encode(value) == body:
                    return value
            except (TypeError, ValueError, OverflowError, RecursionError):
                pass  # what is wrong is told below
        self._check_size(len(_PREFIX) + len(body), DecodeError)
        return self._read_strictly(body)

    def _body(self, value: T) -> bytes:
        try:
            body = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            place = "" if isinstance(error, RecursionError) else self._place(value)
            raise EncodeError(f"{self.what} cannot be stored: {_words(error)}{place}") from None
        self._check_size(len(_PREFIX) + len(body), EncodeError)
        return body

    def _place(self, value: object) -> str:
        """Say where in a value that is which cannot be written."""
        path = "$"
        while True:
            for name, item, _ in _inner(value, value) or ():
                try:
                    self._encoder.encode(item)
                except Exception:  # noqa: BLE001 -- it is the one, whatever its conversion raises
                    value, path = item, path + name
                    break
            else:
                return "" if path == "$" else f" - at `{path}`"

    def _read_strictly(self, body: bytes) -> T:
        value = self._read(body)
        # What we wrote ourselves is written the same way again. If not (a newer field, other spaces), look closely.
        if self._encoder.encode(value) != body:
            _refuse_duplicates(body, self.what)
        return value

    def _read(self, body: bytes) -> T:
        if len(body) >= self._short:  # fewer bytes than this cannot nest too deeply
            self._check_shape(body)
        try:
            return self._decoder.decode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DecodeError(f"{self.what} cannot be read: {_words(error)}") from None

    def _check_size(self, size: int, error: type[EncodeError | DecodeError]) -> None:
        if size > self.max_bytes:
            raise error(f"{self.what} came to {size:,} bytes, at most {self.max_bytes:,} are allowed")

    def _check_shape(self, body: bytes) -> None:
        """Refuse too deep nesting and too many keys before any parser recurses into them."""
        limit = self.max_depth
        if body.count(b"[") + body.count(b"{") > limit and _depth(_outside_strings(body, b"[]{}")) > limit:
            raise DecodeError(f"{self.what} is nested more than {limit} levels deep")
        if len(body) > self.max_keys < body.count(b":") and len(_outside_strings(body, b":")) > self.max_keys:
            raise DecodeError(f"{self.what} has more than {self.max_keys:,} keys")

    def _newer_body(self, data: bytes) -> bytes:
        """Return what follows the format number; raise if it is none, or one that is not known."""
        found = _NUMBER.match(data)
        if found and FORMAT < int(found[1]) <= self._newest:
            return data[found.end() :]
        if found and int(found[1]) > self._newest:
            raise FormatTooNewError(self.what, int(found[1]), self._newest)
        if data.startswith(b"sealed"):
            raise DecodeError(f"{self.what} cannot be read: it is sealed; open the store with encryption=Keyring(...)")
        raise DecodeError(f"{self.what} cannot be read: it does not begin with a format number")


PLAIN: Final[Codec[JsonValue]] = Codec(Any)
"""The codec for data that has no declared type."""


# --- limits -------------------------------------------------------------------------------------------------------

_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_AS_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
_PEELED: Final = 8


def _depth(brackets: bytes) -> int:
    """Return how deeply brackets nest, or more than is allowed if they do not match."""
    peeled = 0
    while brackets and peeled < _PEELED:  # each round peels off the innermost level; most JSON has few
        brackets = brackets.replace(b"[]", b"")
        peeled += 1
    if not brackets:
        return peeled
    levels = list(accumulate(array("b", brackets.translate(_AS_STEPS))))
    return peeled + max(levels) if levels[-1] == 0 <= min(levels) else MAX_DEPTH + 1


def _outside_strings(body: bytes, marks: bytes) -> bytes:
    """Return the ``marks`` of JSON that stand outside of its strings, braces as brackets.

    Done with a few passes over the whole text at the speed of C: a loop over tokens would cost more than parsing.
    """
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = body.translate(_AS_BRACKETS, bytes(set(range(256)) - set(marks + b'"')))
    # Removing quotes in pairs leaves every other character in or out of a string as it was.
    bare = bare.replace(b'""""""', b"").replace(b'""', b"")
    return b"".join(bare.split(b'"')[::2]) if b'"' in bare else bare


def _refuse_duplicates(body: bytes, what: str) -> None:
    """Refuse an object that has a key twice: two readers could see two different values."""

    def only_once(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            raise DecodeError(f"{what} cannot be read: an object in it has a key twice")

    json.loads(body, object_pairs_hook=only_once, parse_int=len, parse_float=len)


# --- what would be lost -------------------------------------------------------------------------------------------

_NAME: Final = re.compile(r"[A-Za-z_]\w{0,40}", re.ASCII)


def _loss(value: object, restored: object, path: str) -> str | None:
    """Say where and how ``restored`` is less than ``value``; None if it is as good."""
    if value == restored:
        return None
    inner = _inner(value, restored)
    if inner is not None:
        return next((loss for name, a, b in inner if (loss := _loss(a, b, path + name))), None)
    if isinstance(value, float):
        return f"{path} is not a finite number"
    if isinstance(value, dict):
        return f"{path} has keys that are not text"
    if type(value) is type(restored):
        return f"{path} is a {type(value).__name__} and would not come back equal"
    return f"{path} is a {type(value).__name__} and would come back as {type(restored).__name__}; declare a type for it"


def _not_finite(value: object, path: str) -> str | None:
    """Say where a number is that JSON has no form for; a decoder only sees that it became ``null``."""
    if isinstance(value, float) and not isfinite(value):
        return f"{path} is not a finite number"
    inner = _inner(value, value) or ()
    return next((found for name, item, _ in inner if (found := _not_finite(item, path + name))), None)


def _inner(value: object, restored: object) -> Iterable[tuple[str, object, object]] | None:
    """Pair up what two containers of the same shape hold; None if they are not."""
    if isinstance(value, Struct) and type(value) is type(restored):
        return [(f".{name}", getattr(value, name), getattr(restored, name)) for name in value.__struct_fields__]
    if is_dataclass(value) and type(value) is type(restored):
        return [(f".{each.name}", getattr(value, each.name), getattr(restored, each.name)) for each in fields(value)]
    if isinstance(value, list | tuple) and isinstance(restored, list | tuple):
        items, others = cast("list[object]", value), cast("list[object]", restored)
        return [(f"[{n}]", *pair) for n, pair in enumerate(zip(items, others, strict=True))]
    if isinstance(value, dict) and isinstance(restored, dict) and value.keys() == restored.keys():
        known, back = cast("dict[object, object]", value), cast("dict[object, object]", restored)
        return [(_step(key), item, back[key]) for key, item in known.items()]
    return None


def _step(key: object) -> str:
    """Show a key of a dict in a path, if it looks like a name and not like data."""
    return f".{key}" if isinstance(key, str) and _NAME.fullmatch(key) else "[...]"


def _words(error: Exception) -> str:
    """Say what a parser found wrong, without the data that it quotes."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(error, UnicodeEncodeError):
        return "a text in it holds half of a surrogate pair, which is not text"
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not UTF-8"
    return _QUOTE.split(str(error), maxsplit=1)[0].strip()
