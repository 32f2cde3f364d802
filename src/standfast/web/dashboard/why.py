"""Why something waits: from a run or an entry of a line along locks, limits and children to who is at work."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.errors import RequestNotFoundError
from standfast.flows.records import RequestKeys
from standfast.flows.view import look
from standfast.locks.inspect import explain, length, one_line
from standfast.locks.survey import addresses_awaited_by
from standfast.web.dashboard.access import PageError
from standfast.web.dashboard.diagrams import WaitEdge, WaitGraph, WaitNode, fields_of, graph
from standfast.workflows.records import find

if TYPE_CHECKING:
    from standfast.flows.records import RequestRecord
    from standfast.locks.inspect import ExplainedEntry, Explanation
    from standfast.space import Space
    from standfast.web.dashboard.pages import View
    from standfast.workflows.queries import RunInfo

MOST_NODES: Final = 40
MOST_CHILDREN: Final = 100
MOST_HOLDERS: Final = 8
"""How many holders of a line, and children of a run, are followed."""


class Why(Struct, frozen=True):
    """The answer: one sentence, and who waits for whom."""

    sentence: str
    drawing: WaitGraph
    more: bool = False


async def why(view: View, *, run_id: str, address: tuple[str, ...], entry: str, request: str = "") -> Why:
    """Say why a run waits, or a request, or an entry of a line; without its id, the first one that waits there.

    Raises:
        PageError: The entry is in the line no more.
    """
    walk = _WaitWalk(view, (await view.dashboard.engine_of_app()).space)
    if run_id:
        first = await walk.run(run_id)
    elif request:
        first = await walk.request(request)
    else:
        told = await walk.explained(address)
        entry = entry or (told.waiters[0].entry if told.waiters else "")
        found = next((each for each in (*told.waiters, *told.holders) if each.entry == entry), None)
        if found is None:
            raise PageError(404, "It waits no more", "The entry has left the line, or holds it by now.")
        first = walk.entry(found)
        if any(each.entry == entry for each in told.waiters):
            walk.edges.append(WaitEdge(first, await walk.line(address), "waits for"))
    while walk.pending and len(walk.nodes) < MOST_NODES:
        await walk.pending.pop(0)
    more = bool(walk.pending)
    for left in walk.pending:
        left.close()
    drawing = graph(list(walk.nodes.values()), walk.edges)
    return Why(_sentence(walk, first, drawing), drawing, more)


def _sentence(walk: _WaitWalk, first: str, drawing: WaitGraph) -> str:
    label = walk.nodes[first].label
    if drawing.circle:
        names = [walk.nodes[each].label for each in drawing.circle if walk.nodes[each].kind != "line"]
        chain = ", which waits for ".join([*names[1:], names[0]])
        return f"{names[0]} waits for {chain}: a circle. None of them continues until one is stopped."
    path = [first]
    while step := next((edge for edge in walk.edges if edge.source == path[-1] and edge.target not in path), None):
        path.append(step.target)
    if len(path) == 1:
        waits = walk.nodes[first].detail.partition("waits for ")[2]
        return f"{label} waits for {waits}." if waits else f"{label} waits for nothing: {walk.nodes[first].detail}."
    words = [
        f"which {'is held by' if walk.nodes[before].kind == 'line' else 'waits for'} {walk.nodes[after].label}"
        for before, after in pairwise(path)
    ]
    words[0] = words[0].removeprefix("which ")
    last = walk.nodes[path[-1]].detail
    return f"{label} {', '.join(words)}{f' ({last})' if last else ''}."


@final
class _WaitWalk:
    """A walk from what waits to what it waits for. What was found is followed breadth first, up to a bound."""

    def __init__(self, view: View, app: Space) -> None:
        self._view, self._engine, self._scope, self._app = view, view.engine, view.engine.space, app
        self._tenant: Final = view.access.principal.tenant
        self.nodes: Final[dict[str, WaitNode]] = {}
        self.edges: Final[list[WaitEdge]] = []
        self.pending: Final[list[Any]] = []

    async def _lack(self, info: RunInfo) -> str:
        """Return why no worker takes up a run, if that can be said."""
        alive = [each for each in await self._engine.workers(limit=100) if each.is_alive]
        if not alive:
            return ", and none is alive"
        if any((info.workflow, info.version) in each.workflows or not each.is_whole for each in alive):
            return ""
        version = f" in version {info.version}" if info.version else ""
        return f", and none that is alive has the code of {info.workflow}{version}"

    async def explained(self, address: tuple[str, ...]) -> Explanation:
        return await explain(self._scope, address, limit=100)

    async def run(self, run_id: str) -> str:
        """Add a run, and note that what it waits for is still to be found."""
        name = f"run {run_id}"
        if name not in self.nodes:
            info = await self._engine.get(run_id)
            detail = info.status.replace("_", " ")
            if not info.has_ended and info.waits_for:
                detail += f", waits for {info.waits_for}"
            if not info.has_ended and info.waits_for.startswith("a worker"):
                detail += await self._lack(info)
            href = self._view.url("run", id=run_id)
            self.nodes[name] = WaitNode(name, "run", one_line(run_id), one_line(detail), href)
            if not info.has_ended:
                self.pending.append(self._waits_of(name, info))
        return name

    async def request(self, request_id: str) -> str:
        """Add a request of the caller's tenant, and note that what it waits for is still to be found.

        One that is durable is a run too, and is told as that, if runs of that space are the caller's to see.
        """
        name = f"request {request_id}"
        if name not in self.nodes:
            record = (await look(self._app, RequestKeys(self._app, self._tenant, request_id))).record
            if record.durable and self._app is self._scope and not record.has_ended:
                return await self.run(request_id)
            detail = f"{record.status}, {record.flow}.{record.action}"
            href = self._view.url("flows", id=request_id)
            self.nodes[name] = WaitNode(name, "request", one_line(request_id[:15]), one_line(detail), href)
            self.pending.append(self._before(name, record))
        return name

    async def _before(self, name: str, record: RequestRecord) -> None:
        """Find who has the key that a request waits for: requests of one key are of one tenant."""
        if record.by and record.status in ("superseded", "collapsed"):
            self.edges.append(WaitEdge(name, await self.request(record.by), record.status))
        if record.status != "waiting" or record.address[:2] != ("request", self._tenant):
            return
        told = await explain(self._app, record.address, limit=100)
        line = f"line {record.address}"
        if line not in self.nodes:
            detail = f"{len(told.holders)} holding, {told.waiting:,} waiting"
            own = self._app is self._scope
            href = self._view.url("line", at=list(record.address)) if own else ""
            self.nodes[line] = WaitNode(line, "line", one_line(told.key), detail, href)
            for holder in told.holders[:MOST_HOLDERS]:
                held = f"for {length(max(0.0, holder.held_for))}"
                try:
                    self.edges.append(WaitEdge(line, await self.request(holder.owner), held))
                except RequestNotFoundError:  # it ended meanwhile
                    continue
        self.edges.append(WaitEdge(name, line, "waits for its turn"))

    async def _waits_of(self, name: str, info: RunInfo) -> None:
        found = await find(self._scope, info.id)
        if found.state.ticket is not None and found.state.admitted < len(found.header.lines):
            limit = found.header.lines[found.state.admitted]
            self.edges.append(WaitEdge(name, await self.line(limit.address), "a place in"))
            return
        history = await self._engine.history(info.id)
        held = {entry.id for entry in history if entry.kind == "held"}
        for entry in history:
            address = tuple(map(str, fields_of(entry).get("address", ()))) if entry.kind == "lock" else ()
            if address and entry.id not in held:
                self.edges.append(WaitEdge(name, await self.line(address), "waits for"))
        if "child" in info.waits_for:
            children = await self._engine.list(parent=info.id, limit=MOST_CHILDREN)
            for child in [each for each in children.runs if not each.has_ended][:MOST_HOLDERS]:
                self.edges.append(WaitEdge(name, await self.run(child.id), "its child"))

    async def line(self, address: tuple[str, ...]) -> str:
        """Add a line, and note that its holders are still to be found."""
        name = f"line {address}"
        if name not in self.nodes:
            told = await self.explained(address)
            permits = f" of {told.permits}" if told.permits and told.permits > 1 else ""
            detail = f"{told.kind or 'free'}: {told.holding:,}{permits} holding, {told.waiting:,} waiting"
            self.nodes[name] = WaitNode(
                name, "line", one_line(told.key), detail, self._view.url("line", at=list(address))
            )
            self.pending.append(self._holders_of(name, told))
        return name

    async def _holders_of(self, name: str, told: Explanation) -> None:
        for holder in told.holders[:MOST_HOLDERS]:
            target = await self.run(holder.run) if holder.run is not None else self.entry(holder)
            held = f"fence {holder.fence}, for {length(max(0.0, holder.held_for))}"
            self.edges.append(WaitEdge(name, target, held))

    def entry(self, entry: ExplainedEntry) -> str:
        """Add an owner that is no run, and note that what it waits for is still to be found."""
        name = f"owner {entry.owner}"
        if name not in self.nodes:
            where = f"process {entry.process} on {entry.host}" if entry.process is not None else ""
            detail = where if entry.is_alive else "dead; falls as soon as another needs the key"
            self.nodes[name] = WaitNode(name, "owner", one_line(entry.owner), one_line(detail))
            self.pending.append(self._lines_of(name, entry.owner))
        return name

    async def _lines_of(self, name: str, owner: str) -> None:
        for address in await addresses_awaited_by(self._scope, owner):
            target = await self.line(address)
            if not any(edge.source == name and edge.target == target for edge in self.edges):
                self.edges.append(WaitEdge(name, target, "waits for"))
