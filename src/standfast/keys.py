"""Keys that cannot collide.

A :class:`KeyFamily` is declared once, at import, and makes :class:`Key` values; two subsystems that choose the
same name find out at import and not in production. A :class:`RecordKey` says where a store keeps a record; only
a space makes them, from its namespace and tenant and what lies inside them.

Both rest on one encoding of tuples of text: injective, reversible, and ordered like the tuples themselves when
compared as bytes. NUL becomes ``00 FF`` and each part ends with ``00 01``, so no part can imitate a boundary.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final, final

from standfast.errors import ArgumentTypeError, DeclarationError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

MAX_KEY_BYTES: Final = 1_000
"""The longest encoded key that every store accepts."""

_END: Final = b"\x00\x01"
_ESCAPED_NUL: Final = b"\x00\xff"
_MAX_SHOWN: Final = 100
_AFTER_ALL: Final = b"\xff"  # sorts after every encoded part: UTF-8 never contains it


def encode_parts(parts: tuple[str, ...]) -> bytes:
    """Encode a tuple of text so that the bytes sort like the tuple and no two tuples share them."""
    return b"".join([encode_part(part) for part in parts])


def encode_part(part: str) -> bytes:
    """Encode one part, as :func:`encode_parts` does."""
    if not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ArgumentTypeError("a str as a key part (choose its text yourself, with str(...))", type(part).__name__)
    try:
        data = str.encode(part)  # not part.encode(): a subclass could have its own
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            "part of a key", "it holds half of a surrogate pair, which is not text", _short(ascii(part))
        ) from None
    if b"\x00" in data:
        data = data.replace(b"\x00", _ESCAPED_NUL)
    return data + _END


def decode_parts(encoded: bytes) -> tuple[str, ...]:
    """Return the tuple that :func:`encode_parts` made ``encoded`` from."""
    try:
        # An end is 00 01 and an escaped NUL 00 FF, so splitting at 00 01 can never cut an escape in half.
        parts = tuple(part.replace(_ESCAPED_NUL, b"\x00").decode() for part in encoded.split(_END)[:-1])
    except UnicodeDecodeError:
        parts = ()
    if encode_parts(parts) != encoded:
        raise InvalidArgumentError("part of a key", "it is not an encoded key", _short(repr(bytes(encoded))))
    return parts


def display(parts: tuple[str, ...]) -> str:
    r"""Show parts as ``name(part, part)`` on one line, injectively: quotes, controls and commas are escaped.

    >>> display(("repo", "/srv/a"))
    'repo(/srv/a)'
    >>> display(("repo", "a,b", "c\n"))
    "repo('a,b', 'c\\n')"
    """
    name, *rest = (part if _is_plain(part) else ascii(part) for part in parts) if parts else ("",)
    return f"{name}({', '.join(rest)})"


def _is_plain(part: str) -> bool:
    return part.isascii() and part.isprintable() and part != "" and not any(mark in part for mark in "(),'\" \\")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@final
class KeyFamily:
    """A named family of keys, declared once in the process.

    ``KeyFamily("gitstore-operation")`` registers the name. Declaring it again from another place fails at once
    and names both places; the same file and line again (a reload, a notebook cell) is the same family.

    Args:
        name: What the keys protect. Unique in the process.
        modes: Ways of holding a key that several holders may share with each other.
        alone: Ways of holding a key that exclude every other holder, their own kind included.
        after: Families whose keys must be taken before keys of this one. Checked whenever a key is taken.
        history: How many past holds of each key durable locks keep, up to 100, but no fewer than 20; see
            :meth:`Space.history <standfast.Space.history>`. Those that ended by death, eviction or expiry are kept in
            any case; this keeps those that were released too, which makes each release dearer.

    A family without ``modes`` and ``alone`` has plain mutual exclusion and takes no ``mode=``.
    """

    __slots__ = ("after", "alone", "encoded_name", "has_modes", "history", "modes", "name", "place")

    name: str
    modes: tuple[str, ...]
    alone: tuple[str, ...]
    after: tuple[KeyFamily, ...]
    place: str
    encoded_name: bytes
    has_modes: bool
    history: int

    def __new__(
        cls,
        name: str,
        *,
        modes: tuple[str, ...] = (),
        alone: tuple[str, ...] = (),
        after: tuple[KeyFamily, ...] = (),
        history: int = 0,
    ) -> KeyFamily:
        """Declare the family, or return it if this very place has declared it before."""
        caller = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the cheap way to find it
        place = _place(caller)
        return _register(_declare(name, modes, alone, after, place, history))

    def __call__(self, *parts: str) -> Key:
        """Make the key of this family for ``parts``; no parts is the family's single key."""
        return Key(self, parts)

    def __repr__(self) -> str:
        return f"<KeyFamily {self.name!r} declared at {self.place}>"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _family_named, (self.name,)


def _place(frame: FrameType) -> str:
    """Say where the code of ``frame`` stands; all cells of a notebook or prompt are one place, as they are rerun."""
    file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "?")
    if module == "__main__" and (file.startswith(_PROMPTS) or "ipykernel_" in file):
        return "the interactive session"
    suffix = f" in module {module}" if file.startswith("<") else ""  # code without a file: many are called <string>
    return f"{file}:{frame.f_lineno}{suffix}"


def _declare(
    name: str,
    modes: tuple[str, ...],
    alone: tuple[str, ...],
    after: tuple[KeyFamily, ...],
    place: str,
    history: int,
) -> KeyFamily:
    _check_name(name, "a family name")
    if isinstance(modes, str) or isinstance(alone, str):
        raise InvalidArgumentError(
            "part of a key", 'modes are a tuple of names; write modes=("pull",)', repr(modes or alone)
        )
    if isinstance(after, KeyFamily):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError(
            "part of a key", "families are given as a tuple; write after=(FIRST,)", f"after={after!r}"
        )
    modes, alone, after = tuple(modes), tuple(alone), tuple(after)
    for mode in (*modes, *alone):
        _check_name(mode, "a mode")
    for earlier in after:
        if type(earlier) is not KeyFamily:
            raise ArgumentTypeError("a KeyFamily in after=", _described(earlier))
    if len({*modes, *alone}) != len(modes) + len(alone):
        raise InvalidArgumentError("part of a key", "each mode is declared once", repr((*modes, *alone)))
    if type(history) is not int or not 0 <= history <= LONGEST_HISTORY:
        problem = f"history is a number of holds from 0 to {LONGEST_HISTORY}"
        raise InvalidArgumentError("part of a key", problem, ascii(history)[:40])
    family = object.__new__(KeyFamily)
    family.name, family.modes, family.alone = name, modes, alone
    family.after, family.place, family.history = after, place, history
    family.has_modes = bool(modes or alone)
    family.encoded_name = encode_part(name)
    return family


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ArgumentTypeError(f"a str as {what}", type(name).__name__)
    if not name or not name.isprintable():
        raise InvalidArgumentError("part of a key", f"{what} is printable text and not empty", _short(ascii(name)))


LONGEST_HISTORY: Final = 100
"""The most past holds that are kept of one key: they share one record."""

_PROMPTS: Final = ("<stdin>", "<ipython-input-", "<python-input-")

_families: dict[str, KeyFamily] = {}


def unknown_mode(name: str, mode: str | None, known: tuple[str, ...]) -> InvalidArgumentError:
    """Return the error for a mode that a key family or a lock does not declare, or for the lack of one."""
    if not known:
        problem = "it declares no modes; leave the mode out, or declare modes=..."
    else:
        problem = f"choose one of {', '.join(map(repr, known))}"
    return InvalidArgumentError(f"the mode of {name!r}", problem, "no mode" if mode is None else f"mode {mode!r}")


def _register(family: KeyFamily) -> KeyFamily:
    known = _families.setdefault(family.name, family)  # atomic: of several threads, one is the first
    if _declaration(known) != _declaration(family):
        if known.place == family.place:
            problem = f"it was declared again at {known.place} with other modes or order; restart the process"
        else:
            problem = f"it is declared at {known.place} and again at {family.place}; rename one, or import the first"
        raise DeclarationError(f"key family {family.name!r}", problem)
    return known


def find_family(name: str) -> KeyFamily | None:
    """Return the family that this process has declared by that name; None: there is none."""
    return _families.get(name)


def undeclared_key(family: str, *parts: str) -> Key:
    """Return a key by the name of its family, which need not be declared here and does not become so by this."""
    known = find_family(family) or _declare(family, (), (), (), "", 0)
    return known(*parts)


def _declaration(family: KeyFamily) -> tuple[object, ...]:
    return family.place, family.modes, family.alone, family.after, family.history


def _family_named(name: str) -> KeyFamily:
    """Find a family of this process for ``copy`` and ``pickle``; an unknown one is refused, never made."""
    try:
        return _families[name]
    except KeyError:
        raise InvalidArgumentError(
            "part of a key", "no key family of that name is declared in this process", repr(name)
        ) from None


@final
class Key:
    """A key of a family: what exclusion in one process takes, and what durable locks take too.

    Made only by calling a family. Equal when family and parts are equal; hashable; never equal to a string.
    """

    __slots__ = ("encoded", "family", "parts")

    def __init__(self, family: KeyFamily, parts: tuple[str, ...]) -> None:
        if type(family) is not KeyFamily:
            raise ArgumentTypeError("a KeyFamily", _described(family))
        self.family: Final = family
        self.parts: Final = parts
        self.encoded: Final = family.encoded_name + encode_parts(parts)

    def __eq__(self, other: object) -> bool:
        return type(other) is Key and self.encoded == other.encoded

    def __lt__(self, other: Key) -> bool:
        return self.encoded < other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __reduce__(self) -> tuple[object, tuple[KeyFamily, tuple[str, ...]]]:
        return Key, (self.family, self.parts)

    def __str__(self) -> str:
        return display((self.family.name, *self.parts))

    def __repr__(self) -> str:
        return f"<Key {self}>"


def require_key(value: object) -> Key:
    """Return ``value`` if a family made it; a look-alike or raw text is refused, with the fix in the message."""
    if type(value) is Key:
        return value
    raise ArgumentTypeError(
        "a Key",
        _described(value),
        'declare a family once, FAMILY = KeyFamily("what-it-protects"), and make the key with FAMILY(...)',
    )


def _described(value: object) -> str:
    return f"the text {_short(ascii(value))}" if isinstance(value, str) else f"an object of type {type(value).__name__}"


@final
class RecordKey(bytes):
    """Where a record lies in a store: a tuple of text, as its encoded bytes.

    The first part is the namespace. Being bytes, record keys hash, compare and sort exactly as every store
    sorts them. A key over 1,000 bytes is refused.
    """

    __slots__ = ()

    def __new__(cls, *parts: str) -> RecordKey:
        """Encode ``parts`` as a key."""
        return cls._sized(encode_parts(parts))

    @classmethod
    def _sized(cls, encoded: bytes) -> RecordKey:
        if len(encoded) > MAX_KEY_BYTES:
            problem = f"it takes {len(encoded):,} bytes encoded, and at most {MAX_KEY_BYTES:,} are allowed"
            raise InvalidArgumentError("a key", f"{problem}; put a digest of its long part into it")
        return bytes.__new__(cls, encoded)

    @classmethod
    def from_encoded(cls, encoded: bytes) -> RecordKey:
        """Take over bytes that a store returned, as they are."""
        return bytes.__new__(cls, encoded)

    @property
    def parts(self) -> tuple[str, ...]:
        """The tuple of text that this key stands for."""
        return decode_parts(self)

    @property
    def namespace(self) -> bytes:
        """The encoded first part, which bounds commits and scans."""
        return self[: self.find(_END) + 2]  # which is as long as _END; a slice is plain bytes

    def child(self, *parts: str) -> RecordKey:
        """Return the key that continues this one by ``parts``."""
        return self._sized(self + encode_parts(parts))

    def within(self, *parts: str) -> tuple[RecordKey, RecordKey]:
        """Return ``start, end`` of the range that holds every key that continues this one (by ``parts``)."""
        start = RecordKey.from_encoded(self + encode_parts(parts)) if parts else self
        return start, RecordKey.from_encoded(start + _AFTER_ALL)

    def successor(self) -> RecordKey:
        """Return the first possible key after this one, to continue a scan."""
        return RecordKey.from_encoded(bytes(self) + b"\x00")

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return RecordKey.from_encoded, (bytes(self),)

    def __str__(self) -> str:
        try:
            return display(self.parts)
        except InvalidArgumentError:  # the bound of a range is not itself a key
            return repr(bytes(self))

    def __repr__(self) -> str:
        return f"<RecordKey {self}>"


record_key: Final[Callable[[bytes], RecordKey]] = partial(bytes.__new__, RecordKey)
"""As :meth:`RecordKey.from_encoded`, without a function of ours that is called: every run makes a dozen keys."""
