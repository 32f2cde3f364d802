"""Events as log lines that are safe to keep.

Nothing that was stored is ever logged. Keys appear as digests unless they are asked for, addresses lose their
passwords, and whatever could break a line or colour a terminal is escaped.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, cast, final

from msgspec.structs import asdict

from standfast.errors import MissingExtraError
from standfast.events import Hooks
from standfast.keys import Key, RecordKey
from standfast.redaction import mask_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.events import Event, Hook


Fact: TypeAlias = str | int | float | bool | list["Fact"] | None
"""What a log line shows of an event: plain data, nothing else."""

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_BARE: Final = re.compile(r"[\w.:/@#%+*(),-]+", re.ASCII)
codecs.lookup("unicode_escape")  # it is loaded from a file, and a line may have to be written when none can be opened
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@final
class ShownFacts:
    """How much of an event a log shows.

    Args:
        show_keys: Show keys as they are.
        secret: Mixed into the digests that are shown instead.
    """

    __slots__ = ("_secret", "_show_keys")

    def __init__(self, *, show_keys: bool, secret: bytes) -> None:
        self._show_keys: Final = show_keys
        self._secret: Final = secret

    def of(self, event: Event) -> dict[str, Fact]:
        """Return the fields of an event as they may be shown, and its name first."""
        facts: dict[str, Fact] = {"event": event_name(type(event))}
        told = {name: value for name, value in asdict(event).items() if value not in ("", None) and name != "at"}
        return facts | {name: self._shown(name, value) for name, value in told.items()}

    def _shown(self, name: str, value: object) -> Fact:
        # Durable locks name their keys by text.
        if name == "key" and isinstance(value, str) and not self._show_keys:
            return key_digest(value, self._secret)
        return self._fact(value)

    def _fact(self, value: object) -> Fact:
        """Turn a field into plain data. What is not known to be harmless is shown by its type alone."""
        if isinstance(value, Key | RecordKey):
            return str(value) if self._show_keys else key_digest(value, self._secret)
        if isinstance(value, str):
            return mask_text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, tuple | list | frozenset):
            return [self._fact(item) for item in cast("Iterable[object]", value)]
        return f"<{type(value).__name__}>"


@final
class LogHook:
    """A hook that writes each event to a logger, as one line.

    The line is logfmt, ``event=slow-commit store=sqlite:///jobs.db seconds=1.2 riders=8``, or JSON. The facts are
    also attached to the record as ``record.standfast``, for handlers that take structure.

    Args:
        logger: Where to write. The logger named ``standfast`` by default.
        style: ``"logfmt"`` or ``"json"``.
        show_keys: Show keys as they are. By default only the family's name and a digest of the rest are shown:
            keys often hold customers' names and numbers.
        secret: Mixed into the digests, so that a reader of the log cannot find a key by trying out likely ones.
            Use the same secret in all processes to follow a key from one log to another.
    """

    __slots__ = ("_logger", "_shown", "_style")

    writes_log: ClassVar[bool] = True

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        style: Literal["logfmt", "json"] = "logfmt",
        show_keys: bool = False,
        secret: bytes = b"",
    ) -> None:
        self._shown: Final = ShownFacts(show_keys=show_keys, secret=secret)
        self._logger: Final = logger or logging.getLogger("standfast")
        self._style: Final = style

    def __repr__(self) -> str:
        return f"<LogHook to {self._logger.name!r}>"

    def __call__(self, event: Event, /) -> None:
        """Write ``event`` to the log, if its level is wanted there."""
        level = _LEVELS[event.level]
        if self._logger.isEnabledFor(level):
            facts = self._shown.of(event)
            line = as_json(facts) if self._style == "json" else as_logfmt(facts)
            self._logger.log(level, "%s", line, extra={"standfast": facts})


@final
class StructlogHook:
    """A hook that writes each event with structlog: its name as the event, its facts as key-value pairs.

        sf.Engine("sqlite:///jobs.db", workflows=[fulfil], hooks=[sf.admin.StructlogHook()])

    Args:
        logger: Where to write; by default ``structlog.get_logger("standfast")``.
        show_keys: As in :class:`LogHook`.
        secret: As in :class:`LogHook`.

    Raises:
        MissingExtraError: structlog is not installed.
    """

    __slots__ = ("_logger", "_shown")

    writes_log: ClassVar[bool] = True

    def __init__(self, logger: Any = None, *, show_keys: bool = False, secret: bytes = b"") -> None:  # noqa: ANN401 -- structlog binds loggers of any class
        self._shown: Final = ShownFacts(show_keys=show_keys, secret=secret)
        if logger is None:
            try:
                import structlog  # noqa: PLC0415 -- it is an extra
            except ModuleNotFoundError as error:
                raise MissingExtraError("logging with structlog", "standfast[structlog]") from error
            logger = structlog.get_logger("standfast")
        self._logger: Final = logger

    def __repr__(self) -> str:
        return "<StructlogHook>"

    def __call__(self, event: Event, /) -> None:
        """Write ``event`` at its level."""
        facts = self._shown.of(event)
        name = facts.pop("event")
        getattr(self._logger, event.level)(name, **facts)


def with_log(hooks: Iterable[Hook]) -> Hooks:
    """Return hooks to emit events to. If none of them writes a log, warnings and errors go to ``logging`` all the same.

    A hook writes a log if it has a true attribute ``writes_log``.
    """
    given = tuple(hooks)
    is_logged = any(getattr(each, "writes_log", False) for each in given)
    return Hooks(given, log=None if is_logged else LogHook())


def event_name(kind: type[Event]) -> str:
    """Return an event's name as the log shows it: ``slow-commit`` for ``SlowCommit``."""
    return _WORD_START.sub("-", kind.__name__).lower()


def key_digest(key: Key | RecordKey | str, secret: bytes = b"") -> str:
    """Return what the log shows in place of ``key``: its family, which is code, and a digest of the rest.

    Events of durable locks name their keys by text, ``str(key)``; of that there is only a digest.

    >>> from standfast.keys import KeyFamily
    >>> key_digest(KeyFamily("customer")("Ada"))
    'customer(#689d7320dac1f96b)'
    """
    data = key.encoded if isinstance(key, Key) else key.encode() if isinstance(key, str) else key
    digest = blake2b(data, digest_size=8, key=secret[:64]).hexdigest()
    if not isinstance(key, Key):
        return f"#{digest}"
    return f"{key.family.name}(#{digest})" if key.parts else str(key)


def as_logfmt(facts: dict[str, Fact]) -> str:
    """Write facts as ``name=value`` pairs on one line of ASCII."""
    return " ".join(f"{name}={_logfmt_value(value)}" for name, value in facts.items())


def as_json(facts: Fact | dict[str, Fact]) -> str:
    """Write facts as JSON on one line of ASCII."""
    return json.dumps(facts, separators=(",", ":")).replace("\x7f", "\\u007f")


def _logfmt_value(value: Fact) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else as_json(value)
    if _BARE.fullmatch(text):
        return text
    # It stays one line and one value: controls and everything past ASCII are escaped.
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
