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
        return self.__dict__.get("_said") or self._text()  # what a stored error of a class that is gone said

    def _text(self) -> str:
        if not self.template:
            return super().__str__()
        return self.template.format_map({name: _joined(getattr(self, name)) for name in self._facts})


def _joined(fact: object) -> object:
    if isinstance(fact, tuple | list):  # a stored error that was restored has lists
        return ", ".join(map(str, cast("tuple[object, ...]", fact))) or "none"
    return fact


class InvalidArgumentError(StandfastError, ValueError):
    """An argument makes no sense. Nothing was read or written; fix the call.

    Attributes:
        what: What it is: ``"the lease of a lock"``.
        problem: Why it cannot be that, and what can.
        given: What was given, in short; empty if the problem says it.
    """

    what: str
    problem: str
    given: str = ""

    def _text(self) -> str:
        return f"{self.given} cannot be {self.what}: {self.problem}" if self.given else f"{self.what}: {self.problem}"


class ArgumentTypeError(StandfastError, TypeError):
    """An argument is of another type than is needed. Nothing was read or written; fix the call.

    Attributes:
        wanted: What is needed: ``"a Key"``.
        given: What was given: the name of its type, mostly.
        fix: What to write instead, if that is not plain.
    """

    wanted: str
    given: str
    fix: str = ""

    def _text(self) -> str:
        return f"expected {self.wanted}, got {self.given}{self.fix and f'; {self.fix}'}"


class DeclarationError(StandfastError, ValueError):
    """A workflow, step, flow, action, policy, schedule or key family cannot work as it is declared or used.

    Nothing was written. Fix the code that the message names.

    Attributes:
        what: Which declaration, or which part of it.
        problem: Why it cannot work, and what would.
        given: What was given, in short; empty if the problem says it.
    """

    what: str
    problem: str
    given: str = ""

    def _text(self) -> str:
        return f"{self.given} cannot be {self.what}: {self.problem}" if self.given else f"{self.what}: {self.problem}"


class UsageError(StandfastError, RuntimeError):
    """An object was used where or when it cannot work: in another task, thread or event loop, too late, or twice.

    Nothing was done. The message says what to write instead.

    Attributes:
        what: What was used.
        problem: Why that cannot work.
        fix: What to write instead.
    """

    what: str
    problem: str
    fix: str
    template = "{what} {problem}; {fix}"


class EncodeError(StandfastError, ValueError):
    """A value cannot be stored. Nothing was written; store JSON-shaped data, or convert the value first."""

    problem: str
    template = "{problem}"


class DecodeError(StandfastError, ValueError):
    """Stored bytes are not what they should be, or exceed a limit. Nothing was executed or imported."""

    problem: str
    template = "{problem}"


class FormatTooNewError(StandfastError):
    """The data was written by a newer Standfast. Upgrade this process; the data is untouched."""

    what: str
    found: int
    known: int
    template = "{what} has format {found}, this version of Standfast reads up to {known}; upgrade standfast here"
