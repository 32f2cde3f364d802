"""The shell of the dashboard: its static files, its templates, and what a page needs to answer a request."""

from __future__ import annotations

from functools import cache, lru_cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from standfast.clock import MICROSECONDS, Instant
from standfast.locks.inspect import length, moment, one_line
from standfast.web.dashboard.access import ACTIONS, form_token

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from standfast.flows.flow import Flow
    from standfast.space import Space
    from standfast.web.dashboard.access import Access
    from standfast.web.dashboard.bulk import Jobs
    from standfast.web.dashboard.live import Watcher
    from standfast.workflows.engine import Engine

    Screen: TypeAlias = Callable[["View"], Awaitable[Response]]


PART: Final = "standfast-part"
"""The header with which our script asks for the changing part of a page."""

STATIC_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MENU: Final = (
    ("", "Now"),
    ("runs", "Runs"),
    ("lines", "Lines"),
    ("flows", "Flows"),
    ("schedules", "Schedules"),
    ("limits", "Limits"),
    ("workers", "Workers"),
    ("store", "Store"),
    ("audit", "Audit"),
)
DONE: Final = {
    "run.cancel": "The run was asked to stop.",
    "run.retry": "The run resumes.",
    "run.restart": "A new run was started. This is it.",
    "run.fork": "A new run was started from the step. This is it.",
    "run.signal": "The signal was sent.",
    "run.update": "It was answered.",
    "run.query": "It was answered.",
    "run.purge": "The run was deleted.",
    "runs.cancel": "It has begun.",
    "runs.retry": "It has begun.",
    "runs.purge": "It has begun.",
    "runs.stop": "It was stopped.",
    "schedule.backfill": "The runs were started.",
    "rate.close": "The rate limiter is closed for a while.",
    "rate.open": "The rate limiter is open.",
    "request.cancel": "The request was asked to stop.",
    "lock.release": "The holder was evicted.",
    "lock.withdraw": "The waiter was cancelled.",
    "lock.resize": "The number of permits was set.",
    "schedule.pause": "The schedule is paused.",
    "schedule.resume": "The schedule fires again.",
    "schedule.trigger": "A run was started. This is it.",
    "limit.set": "The limit was set.",
    "limit.clear": "The limit is that of the code again.",
}


# --- files, under names that change with what is in them --------------------------------------------------------------


@lru_cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the static files and their types, each under a name that has its hash in it."""
    found: dict[str, tuple[bytes, str]] = {}
    for each in files("standfast.web.dashboard").joinpath("static").iterdir():
        stem, _, kind = each.name.rpartition(".")
        content = each.read_bytes()
        found[f"{stem}-{sha256(content).hexdigest()[:16]}.{kind}"] = content, STATIC_TYPES[kind]
    return found


def static_name(name: str) -> str:
    """Return the name under which a static file is served."""
    stem, _, kind = name.rpartition(".")
    return next(each for each in static_files() if each.startswith(f"{stem}-") and each.endswith(f".{kind}"))


# --- templates --------------------------------------------------------------------------------------------------------


def _length(seconds: float | None) -> str:
    return "" if seconds is None else length(max(0.0, seconds))


def _moment(instant: Instant | None) -> str:
    return "" if instant is None else moment(instant)


def _error(name: str) -> str:
    """Return the name of an exception as code calls it."""
    return one_line(name.removeprefix("builtins."))


def _brief(seconds: float) -> str:
    return "under 1 ms" if seconds < 0.001 else length(seconds)  # noqa: PLR2004 -- what can be told apart


def _iso(instant: Instant) -> str:
    return moment(instant).replace(" ", "T")


_FILTERS: Final[dict[str, Any]] = {
    "length": _length,
    "length_of": len,
    "moment": _moment,
    "line": one_line,
    "error": _error,
    "brief": _brief,
    "iso": _iso,
}
_GLOBALS: Final[dict[str, Any]] = {
    "static_name": static_name,
    "menu": MENU,
    "buttons": ACTIONS,
    "seconds": MICROSECONDS,
}
_templates: Final = Environment(
    loader=PackageLoader("standfast.web.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(_FILTERS)
_templates.globals.update(_GLOBALS)


@cache
def compile_templates() -> None:
    """Compile all templates, so that the first page takes no longer than the next one."""
    for name in _templates.list_templates():
        _templates.get_template(name)


class SharedByPages(Protocol):
    """What all pages of a dashboard share: as much of it as a page may use."""

    @property
    def title(self) -> str:
        """What the pages are called."""
        ...

    @property
    def secret(self) -> bytes:
        """What forms are signed with."""
        ...

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flows of the application, as far as it was given them."""
        ...

    @property
    def jobs(self) -> Jobs:
        """The changes of many runs."""
        ...

    @property
    def watchers(self) -> dict[Space, Watcher]:
        """What wakes the streams of each tenant."""
        ...

    @property
    def closing(self) -> asyncio.Event:
        """Set when streams are to end."""
        ...

    async def engine_of_app(self) -> Engine:
        """Return the engine in the space that the application serves from: requests of all tenants lie there."""
        ...


@final
class View:
    """One request that was let in: what a screen needs to answer it.

    Attributes:
        request: The request.
        access: Who asks, and what it may do.
        engine: The engine of the caller's tenant; it may drive nothing.
        dashboard: What it shares with other pages.
    """

    def __init__(self, dashboard: SharedByPages, request: Request, access: Access, engine: Engine) -> None:
        self.dashboard, self.request, self.access, self.engine = dashboard, request, access, engine
        self.query: Final = request.query_params

    def url(self, path: str, **query: Any) -> str:  # noqa: ANN401 -- texts, numbers and lists of them
        """Return the address of a page of ours; what is empty or None is left out of its query."""
        given = {name: value for name, value in query.items() if value not in (None, "", ())}
        root = self.request.scope.get("root_path", "")
        return f"{root}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def with_query(self, **changed: Any) -> str:  # noqa: ANN401 -- texts, numbers and lists of them
        """Return the address of this page with some of its query changed."""
        given: dict[str, Any] = {name: self.query.getlist(name) for name in self.query if name != "done"}
        return self.url(self.path, **(given | changed))

    @property
    def path(self) -> str:
        """The path of this page below where the dashboard is mounted."""
        root = self.request.scope.get("root_path", "")
        return str(self.request.scope["path"]).removeprefix(root).lstrip("/")

    @property
    def now(self) -> int:
        """The store's time, as last seen."""
        return self.engine.runtime.now()

    def since(self, instant: int | None) -> float:
        """Return how many seconds ago something was."""
        return 0.0 if instant is None else max(0.0, (self.now - instant) / MICROSECONDS)

    def left(self, instant: int) -> float:
        """Return in how many seconds something will be."""
        return max(0.0, (instant - self.now) / MICROSECONDS)

    def token(self, action: str) -> str:
        """Return the token of a form that does something."""
        return form_token(self.dashboard.secret, self.access.principal, action)

    def page(self, template: str, **facts: Any) -> Response:  # noqa: ANN401 -- whatever the template shows
        """Return a page; only the part that changes if our script asks for that."""
        shell = "part.html" if PART in self.request.headers else "shell.html"
        text = _templates.get_template(template).render(
            view=self,
            shell=shell,
            title=self.dashboard.title,
            may=self.access.may,
            done=DONE.get(self.query.get("done", ""), ""),
            live=self.url("live"),
            **facts,
        )
        return Response(text, HTTPStatus.OK, {"cache-control": "no-store"}, "text/html; charset=utf-8")


def error_page(title: str, root: str, status: int, heading: str, detail: str, advice: str) -> Response:
    """Return a page that says what went wrong; it needs no credentials."""
    text = _templates.get_template("error.html").render(
        title=title, root=root, status=status, heading=heading, detail=detail, advice=advice
    )
    return Response(text, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")
