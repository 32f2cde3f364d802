"""Log records with structured fields, and how they are written: as text, or as JSON with one object a line.

The fields are in ``record.standfast``, a dictionary: ``event`` for what Standfast tells, and ``run``, ``workflow``,
``step``, ``branch``, ``attempt``, ``fence``, ``request``, ``action``, ``key`` where they apply.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final

from standfast.redaction import mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from standfast.log_hook import Fact

    Fields: TypeAlias = Mapping[str, Fact]

    FieldsOf: TypeAlias = Callable[[], Fields]


LogFormat: TypeAlias = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LONGEST: Final = 20_000
"""The most characters of a traceback that are written."""

_PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "standfast"))
"""What every record has; everything else was given by ``extra``."""


@final
class FieldsLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records say of which run or request they are, in ``record.standfast``.

    Args:
        logger: Where records go.
        fields: Returns the fields of a record that is about to be made.
        is_silent: Returns True while nothing is to be logged.
    """

    def __init__(self, logger: logging.Logger, fields: FieldsOf, is_silent: Callable[[], bool] | None = None) -> None:
        super().__init__(logger, None)
        self._fields, self._is_silent = fields, is_silent

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 -- the name that logging knows
        """Return True if a record of that level would be written now."""
        return self.logger.isEnabledFor(level) and not (self._is_silent is not None and self._is_silent())

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401 -- as logging declares it
        """Add the fields to what the caller has given as ``extra``."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "standfast": self._fields()}
        return msg, kwargs


@final
class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line of ASCII, with secrets masked.

    It has ``time`` (UTC), ``level``, ``logger`` and ``message``, the fields of ``record.standfast``, what else was
    given as ``extra``, and ``exception`` with the traceback if there is one.

        handler = logging.StreamHandler()
        handler.setFormatter(sf.admin.JsonFormatter())

    Args:
        fields: Returns more fields for records that have none, such as those of libraries that a step calls.
    """

    def __init__(self, fields: FieldsOf | None = None) -> None:
        super().__init__()
        self._fields_of = fields

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_text(record.getMessage()),
        }
        own: object = vars(record).get("standfast")
        if not isinstance(own, dict):
            own = self._fields_of() if self._fields_of is not None else {}
        given = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        for name, value in {**given, **cast("Fields", own)}.items():
            told.setdefault(name, mask_text(value) if isinstance(value, str) else value)
        if record.exc_info:  # of a very long traceback the end, which says what was raised
            lines = self.formatException(record.exc_info)[-LONGEST:].splitlines()
            told["exception"] = "\n".join(map(mask_text, lines))
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        return json.dumps(told, default=_shown, separators=(",", ":"))


def _shown(value: object) -> str:
    """Return what stands for a value that JSON has no word for."""
    return mask_text(str(value))


def configure(style: LogFormat, level: str, fields: FieldsOf | None = None) -> None:
    """Let everything that is logged in this process go to stderr in one format, whatever was configured before.

    Args:
        style: ``"text"`` or ``"json"``.
        level: The least level that is written: ``"debug"``, ``"info"``, ``"warning"``, ``"error"``.
        fields: As in :class:`JsonFormatter`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(fields) if style == "json" else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(capture=True)
