"""What every error has in common: facts that are declared as fields, and one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, cast, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

_REQUIRED: Final = object()


class _Signature:
    """The signature that ``help()`` and the reference show, made from the declared facts when it is asked for."""

    def __get__(self, instance: object, kind: type[StandfastError]) -> Signature:
        from inspect import Parameter, Signature  # noqa: PLC0415 -- only the reference asks

        facts = kind.declared_facts()
        default = {name: Parameter.empty if value is _REQUIRED else value for name, value in facts.items()}
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default[name]) for name in facts])


@dataclass_transform(eq_default=False)
class StandfastError(Exception):
    """The root of every error that Standfast raises on purpose.

    A class of errors declares its facts as annotated fields, and its message as a ``template`` with their names. The facts
    are attributes, the arguments in that order, and travel with the error when it is pickled or copied. A message that
    depends on the facts in another way is returned by ``_text``.
    """

    template: ClassVar[str] = ""
    masks: ClassVar[tuple[tuple[str, Callable[[str], str]], ...]] = ()
    """Functions that hide the secrets in a fact, so that no caller can forget to."""
    _facts: ClassVar[Mapping[str, object]] = {}
    __signature__: ClassVar[Any] = _Signature()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__
        names = (name for name, kind in own.get("__annotations__", {}).items() if not str(kind).startswith("ClassVar"))
        cls._facts = {**cls._facts, **{name: own.get(name, _REQUIRED) for name in names}}

    def __init__(self, *args: object, **named: object) -> None:
        facts = {**self._facts, **dict(zip(self._facts, args, strict=False)), **named}
        missing = [name for name, value in facts.items() if value is _REQUIRED]
        if self._facts and (missing or len(args) > len(self._facts) or len(facts) > len(self._facts)):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._facts)}; got {args!r} and {named!r}")
        for name, mask in self.masks:
            facts[name] = mask(str(facts[name]))
        self.args = tuple(facts.values()) if self._facts else args
        self.__dict__.update(facts)

    @classmethod
    def declared_facts(cls) -> Mapping[str, object]:
        """Return the names of the facts in order, each with its default."""
        return cls._facts

    def __str__(self) -> str:
        return self._text()

    def _text(self) -> str:
        if not self.template:
            return super().__str__()
        return self.template.format_map({name: _joined(getattr(self, name)) for name in self._facts})


def _joined(fact: object) -> object:
    return ", ".join(map(str, cast("tuple[object, ...]", fact))) or "none" if isinstance(fact, tuple) else fact


class InvalidDurationError(StandfastError, ValueError):
    """A duration could not be read. Write ``"5 seconds"``, ``"1.5 hours"``, a ``timedelta`` or seconds."""

    given: str
    problem: str
    what: str = "duration"

    def _text(self) -> str:
        article = "" if self.what.startswith("the ") else "an " if self.what[:1] in "aeiou" else "a "
        return f'{self.given} cannot be {article}{self.what}: {self.problem}; write "5 seconds", "1.5 hours", a timedelta or a number of seconds'


class EncodeError(StandfastError, ValueError):
    """A value cannot be stored. Nothing was written; store JSON-shaped data, or convert the value first."""

    problem: str
    template = "{problem}"


class DecodeError(StandfastError, ValueError):
    """Stored bytes are not what they should be, or go past a limit. Nothing was executed or imported."""

    problem: str
    template = "{problem}"


class FormatTooNewError(StandfastError):
    """The data was written by a newer Standfast. Upgrade this process; the data is untouched."""

    what: str
    found: int
    known: int
    template = "{what} has format {found}, this version of Standfast reads up to {known}; upgrade standfast here"


class BlockingInLoopError(StandfastError, RuntimeError):
    """A call that blocks was made where an event loop runs: everything on that loop would stand still meanwhile.

    Use the same name with ``await``: ``async with sf.open(...)``. From a coroutine that must call blocking code, go
    through ``asyncio.to_thread``.
    """

    call: str
    instead: str
    template = (
        "{call} blocks, and an event loop runs in this thread; use {instead}, or call it through asyncio.to_thread"
    )


class PatchedThreadsError(StandfastError, RuntimeError):
    """Threads have been replaced by green ones, so the background event loop would never get its turn.

    Use real threads: ``gunicorn --worker-class gthread``, ``celery --pool prefork`` or ``--pool threads``; or talk to
    Standfast from a process in which nothing is patched.
    """

    library: str
    module: str
    template = "{library} has replaced the module {module}, so the background event loop could not run beside this code; use a worker with real threads (gunicorn --worker-class gthread, celery --pool prefork or threads), or a process without it"
