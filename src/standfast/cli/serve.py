"""``standfast serve``: serve an application over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
import stat
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

import click
import uvicorn
from uvicorn.config import LOGGING_CONFIG

from standfast.cli.output import configure_log, log_options, print_table
from standfast.cli.target import FAILED, NOT_LOADED, Target, Wanted, end, grace_of, load, made
from standfast.cli.worker import listen_at, listen_option, watch
from standfast.durations import typed
from standfast.errors import DeclarationError, MissingExtraError
from standfast.flows.request import Principal
from standfast.log_hook import as_logfmt
from standfast.telemetry.health import notifying_systemd
from standfast.telemetry.listener import EngineProbes, listening_at
from standfast.web.app import App
from standfast.web.protocol import HttpProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from standfast.log_budget import LogBudget
    from standfast.log_hook import Fact
    from standfast.web.edge import Edge
    from standfast.workflows.engine import Engine


# --- ``standfast serve``: serve an application over HTTP -----------------------------------------------------------

APP: Final = Wanted("app", App, "shop.web:app", "sf.App(url, flows=[...])")
TOKEN: Final = "STANDFAST_TOKEN"  # noqa: S105 -- the name of a variable, and no token
HOST, PORT = "127.0.0.1", 8_000


def _limit(name: str, default: str | int | None, words: str) -> Callable[[Any], Any]:
    kind = int if default is None or isinstance(default, int) else str
    metavar = "TIME" if kind is str else "NUMBER"
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=default is not None, help=words)


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--host", metavar="ADDRESS", help=f"Where to listen.  [default: {HOST}]")
@click.option("--port", metavar="NUMBER", type=int, help=f"Where to listen; 0 for any.  [default: {PORT}]")
@click.option("--uds", metavar="FILE", default="", help="Listen at a unix socket that only its owner can open.")
@click.option(
    "--trust-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy, or a network of them, that says where requests come from; unix for one at --uds. May be repeated.",
)
@_limit("--header-bytes", 32_768, "Bytes of the headers of one request.")
@_limit("--headers", 100, "How many headers one request has.")
@_limit("--header-time", "10s", "Time for headers to arrive.")
@_limit("--body-time", "60s", "Time for a body to arrive, at any address.")
@_limit("--body-rate", 500, "Bytes of a body that arrive in a second, on average.")
@_limit("--body-grace", "5s", "Time before that is looked at.")
@_limit("--idle", "75s", "Time that a connection may be open between two requests.")
@_limit("--connections", 2_000, "How many connections are open.")
@_limit("--connections-per-address", None, "How many of them from one address.  [default: half of them]")
@listen_option
@click.option("--grace", metavar="TIME", default="10s", show_default=True, help="Time for requests to end.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option("--quiet", is_flag=True, help="Say nothing but why it failed.")
@log_options
@click.pass_context
def serve(context: click.Context, /, name: str, app_dir: str, **given: Any) -> None:  # noqa: ANN401 -- click hands over texts and numbers
    """Serve an application until a signal says to stop.

    MODULE:APP names an sf.App, or a function that returns one; without :APP it is called app. SIGTERM or SIGINT takes
    no more requests and lets those under way end; a second one ends it at once, and others go on with its runs when
    they notice.

    An application without authentication is served on this machine only, and to callers with its token: it is shown
    on the terminal, or is what STANDFAST_TOKEN says. At --uds the file decides, and no token is needed.

    \b
    standfast serve shop.web:app --port 8080
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    if given["uds"] and (given["host"] is not None or given["port"] is not None):
        raise click.UsageError("--uds is another place to listen than --host and --port; give one of them.")
    grace = grace_of(given["grace"])
    edge = _edge(given)
    found = load(name, app_dir, APP)
    given["has_log"] = configure_log(given["log_format"], given["log_level"])
    context.exit(asyncio.run(_run_server(found, name, given, edge, grace)))


def _edge(given: dict[str, Any]) -> Edge:
    """Return what the options say about what is taken from anybody."""
    # was a local import
    from standfast.web.edge import Edge, EdgeLimits  # noqa: PLC0415 -- for this command only

    times: dict[str, Any] = {each: typed(given[each]) for each in ("header_time", "body_time", "body_grace", "idle")}
    counts: dict[str, Any] = {each: given[each] for each in ("header_bytes", "headers", "body_rate")}
    try:
        limits = EdgeLimits(
            **times,
            **counts,
            connections=connections(given["connections"], descriptors()),
            per_address=given["connections_per_address"],
        )
        return Edge(limits, given["proxies"], is_private=bool(given["uds"]))
    except DeclarationError as problem:
        raise click.UsageError(str(problem)) from None


async def _run_server(found: object, name: str, given: dict[str, Any], edge: Edge, grace: float) -> int:
    try:
        pass  # was a local import
    except ModuleNotFoundError as problem:
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    app = await made(found, name, APP)
    token = "" if app.is_guarded else _token(app, name, given, is_needed=not edge.is_private)
    with _listening(app, given) as listener:
        more: dict[str, Any] = {"has_log": given["has_log"], "place": listen_at(given["listen"])}
        return await run(app, name, listener, edge, grace, shows=token, quiet=given["quiet"], **more)


def _listening(app: App, given: dict[str, Any]) -> contextlib.AbstractContextManager[socket.socket]:
    # was a local import

    if given["uds"]:
        return on_file(given["uds"])
    port = PORT if given["port"] is None else given["port"]
    return on_port(given["host"] or HOST, port, app.limits.patience)


def _token(app: App, name: str, given: dict[str, Any], *, is_needed: bool) -> str:
    """Give an application without authentication its token; return it if it is to be shown.

    It is shown on a terminal only: what is printed elsewhere is kept, in a journal or a file that others read.
    """
    host = given["host"] or HOST
    if is_needed and not _is_this_machine(host):
        advice = "Give the app authenticate=..., for instance sf.web.BearerTokens({...}), or leave --host at 127.0.0.1."
        end(f"without authentication, {name} is served on this machine only, not on {host}", NOT_LOADED, advice)
    if known := os.environ.get(TOKEN, ""):
        try:
            app.token = known
        except DeclarationError as problem:
            end(f"{TOKEN} is no token: {problem.problem}", NOT_LOADED, "Make one with sf.web.new_token().")
        return ""
    if not is_needed:
        return ""
    if given["quiet"] or not sys.stdout.isatty():
        advice = f"Set {TOKEN} to one of sf.web.new_token(), listen with --uds, or give the app authenticate=..."
        end(f"{name} has no authentication, and there is no terminal to show its token on", NOT_LOADED, advice)
    return app.token


def _is_this_machine(host: str) -> bool:
    from standfast.web.asgi import is_loopback  # noqa: PLC0415 -- for this command only

    return is_loopback(host)


# --- ``standfast mcp``: offer the tools of an application over stdin and stdout ------------------------------------


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--as", "user", metavar="USER", default="", help="Who calls the tools; without a name by default.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role that the user has; may be given again.")
@click.option("--list", "is_list", is_flag=True, help="Say which tools there are and what they collide by, and end.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.pass_context
def mcp(context: click.Context, name: str, user: str, roles: tuple[str, ...], app_dir: str, *, is_list: bool) -> None:
    """Offer the tools of an application to the program that starts this one.

    It speaks the Model Context Protocol over stdin and stdout, until stdin ends. MODULE:APP names an sf.App with tools,
    or a function that returns one. Its user is trusted: there are no credentials. Tools are called for the
    tenant of --tenant.

    \b
    standfast mcp shop.web:app --as ada --role clerk
    standfast mcp shop.web:app --list
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    target = context.ensure_object(Target)
    if target.store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    found = load(name, app_dir, APP)
    principal = Principal(target.tenant, user, frozenset(roles))
    asyncio.run(_run(found, name, None if is_list else principal))


async def _run(found: object, name: str, principal: Principal | None) -> None:
    app = await made(found, name, APP)
    if not app.toolbox:
        end(f"{name} has no tools", NOT_LOADED, "Say which there are: sf.App(url, flows=[shop], tools=[shop]).")
    if principal is None:
        print_table(("tool", "policy", "collides by", "roles"), app.toolbox.rows())
        return
    async with app:
        await app.serve_tools(principal)


# --- where a server listens, and how it takes connections, also when its descriptors run out -----------------------

BACKLOG: Final = 2_048
AT_ONCE: Final = 64
"""How many connections are taken before others have their turn."""

PAUSE: Final = 0.5
"""Seconds after which it is tried again when there are no descriptors left."""

KEPT: Final = 64
"""Descriptors that are kept for everything but connections: the store, its files, and what actions open."""

SPENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
OWNER_ONLY: Final = 0o177
"""The mask of a file that only its owner may use."""

_log: Final = logging.getLogger("standfast.edge")


def descriptors() -> int:
    """Raise the limit of open files as far as the system lets us, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections(wanted: int, most: int) -> int:
    """Return how many connections there may be within a limit of open files; it is said if that is less than wanted."""
    possible = wanted if most == resource.RLIM_INFINITY else max(1, most - KEPT)
    if possible < wanted:
        facts: dict[str, Fact] = {"wanted": wanted, "connections": possible, "descriptors": most}
        _log.warning("%s", as_logfmt({"event": "connections-lowered", **facts}))
    return min(wanted, possible)


@contextlib.contextmanager
def on_port(host: str, port: int, patience: float) -> Generator[socket.socket]:
    """Listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as problem:
        end(f"cannot listen on {host} port {port}: {problem}", FAILED, "Choose another with --host and --port.")
    with listener:
        # Whatever is accepted inherits it. Without it an answer's body waits 40 ms for the caller to confirm the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Likewise: a connection whose other side does not read is cut off, with all that waits in it. Where a system
        # cannot do that, what waits is as much as its buffers hold.
        if (unread := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, unread, max(1, round(patience * 1_000)))
        yield listener


@contextlib.contextmanager
def on_file(path: str) -> Generator[socket.socket]:
    """Listen at a unix socket that only its owner can open. What a server has left that was killed is taken away."""
    _clear(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(OWNER_ONLY)  # it never has another mode, not even for a moment
    try:
        listener.bind(path)
        made = Path(path).stat()
    except OSError as problem:
        listener.close()
        end(f"cannot listen at {path}: {problem}", FAILED, "Choose another file with --uds.")
    finally:
        os.umask(mask)
    with listener:
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(Path(path).stat(), made):  # and not that of a server that came after us
                    Path(path).unlink()


def _clear(path: str) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        end(f"cannot listen at {path}: it is no socket", FAILED, "Choose another file with --uds.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except OSError as problem:
            end(f"cannot listen at {path}: {problem}", FAILED, "Choose another file with --uds.")
    end(f"cannot listen at {path}: another server does", FAILED, "Stop it, or choose another file with --uds.")


def address_of(listener: socket.socket) -> str:
    """Return where a server can be reached."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@final
class Acceptor:
    """Takes connections. When there are no descriptors left, it waits for a while, and says so once in a while.

    asyncio's own server tries again 2,000 times in a row then, and logs each with a traceback.

    Args:
        listener: Where they come in.
        make: Makes the protocol of one.
        log: Where it says so.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol], log: LogBudget) -> None:
        self._listener, self._make, self._log = listener, make, log
        self._loop: Final = asyncio.get_running_loop()
        self._connecting: Final[set[asyncio.Task[object]]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.settimeout(0)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Take no more."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Return when those that were being taken are taken."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as problem:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE, self._go_on)
                name = "descriptors-spent" if problem.errno in SPENT else "accept-failed"
                self._log.warning(name, problem=str(problem), pause=PAUSE)
                return
            connection.settimeout(0)
            task: asyncio.Task[object] = self._loop.create_task(self._take(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _take(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # it has gone
            connection.close()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)


# --- serving an application with uvicorn until a signal says to stop -----------------------------------------------

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WS_MESSAGE: Final = 262_144
"""Bytes of one message over a WebSocket."""

WS_PING: Final = 20.0
PATIENCE: Final = 5
"""Seconds that requests have which were told to stop when their grace was over. Then their callers are cut off."""

OBJECTS: Final = 10_000
"""How many more objects there have to be before the youngest are looked through for cycles."""


async def run(  # noqa: PLR0913 -- keyword options
    app: App,
    name: str,
    listener: socket.socket,
    edge: Edge,
    grace: float,
    *,
    shows: str = "",
    quiet: bool,
    has_log: bool = False,
    place: tuple[str, int] | None = None,
) -> int:
    """Open an application, serve it, close it, and return the exit code to end with.

    Args:
        app: What is served.
        name: What it is called.
        listener: Where.
        edge: What is taken from anybody.
        grace: How long requests have to end.
        shows: The token, if it is to be printed.
        quiet: Say nothing.
        has_log: Logs are configured, and uvicorn writes to them.
        place: Where probes and scrapes are answered besides.
    """
    app.grace = grace
    if place is not None:
        watch(app.engine)
    async with app, listening_at(place, EngineProbes(app.engine, app.health)) as probes:
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            loop="asyncio",
            ws="websockets-sansio",
            lifespan="off",  # it is open already: what goes wrong then is told in our words
            log_level="warning",
            log_config=None if has_log else LOGGING_CONFIG,
            access_log=False,
            proxy_headers=False,  # the edge knows whose word is taken
            server_header=False,
            timeout_graceful_shutdown=math.ceil(grace) + PATIENCE,
            ws_max_size=WS_MESSAGE,
            ws_ping_interval=WS_PING,
            ws_per_message_deflate=False,  # a few bytes could become megabytes
        )
        server = _Server(config, app, edge, quiet=quiet)
        _let_garbage_be()
        address = address_of(listener)
        server.tell(f"serving {name} at {address} (process {os.getpid()})")
        if shows:
            server.tell(f"with this token a caller may do everything: {shows}")
            for page in app.pages:
                server.tell(f"open {address}{page}?token={shows}")
        if probes is not None:
            server.tell(f"probes and metrics at {probes.address}/health/ready and {probes.address}/metrics")
        async with notifying_systemd(), _ending_with(app.engine, server):
            await server.serve(sockets=[listener])
    server.tell("stopped")
    return 0


@contextlib.asynccontextmanager
async def _ending_with(engine: Engine, server: uvicorn.Server) -> AsyncGenerator[None]:
    """Stop the server if what drives its runs ends by itself, and raise why: another process must take over."""
    worker = engine.worker
    if worker is None:
        yield
        return

    def stop(_: object) -> None:
        server.should_exit = True

    joined = asyncio.ensure_future(worker.join())
    joined.add_done_callback(stop)
    yield
    if joined.done():
        await joined
    joined.cancel()


def _let_garbage_be() -> None:
    """Look for cycles less often, and never among what was there before the first request.

    What a request leaves behind goes when it ends, without being looked for. Looking for it after every 700 objects
    took a third of the time of a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


@final
class _Server(uvicorn.Server):
    """uvicorn with signals of ours: the first lets requests end, the second ends the process as it would any other."""

    def __init__(self, config: uvicorn.Config, app: App, edge: Edge, *, quiet: bool) -> None:
        super().__init__(config)
        self._app, self._edge, self._quiet = app, edge, quiet

    def tell(self, words: str) -> None:
        """Print a line for the person who started this, if something reads it still."""
        if not self._quiet:
            with contextlib.suppress(OSError):
                click.echo(words)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Listen for signals while serving, and until the application is closed."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._hear, number)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections in our way."""
        await self.lifespan.startup()
        make = partial(HttpProtocol, self.config, self.server_state, self.lifespan.state, edge=self._edge)
        taking = [Acceptor(each, make, self._edge.log) for each in sockets or ()]
        self.servers = cast("Any", taking)  # all that uvicorn does with them is to close them
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving; callers whose requests are stopped after their grace are told so."""
        ending = asyncio.get_running_loop().create_task(self._app.let_end())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    def _hear(self, number: int) -> None:
        if self.should_exit:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.tell(f"{signal.Signals(number).name}: letting requests end; once more to end at once")
        self.should_exit = True
        self._app.drain()
