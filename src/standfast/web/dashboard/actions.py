"""What can be changed from the dashboard: each change is first shown as what it will do, then done by a second form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.responses import Response

from standfast.audit import Actor
from standfast.errors import ForbiddenError, StandfastError
from standfast.keys import undeclared_key
from standfast.locks.inspect import explain, length, one_line
from standfast.redaction import mask_text
from standfast.web.dashboard.access import ACTIONS, PageError, form_token, is_own_form
from standfast.web.dashboard.screens import address_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.keys import Key
    from standfast.locks.inspect import ExplainedEntry, Explanation
    from standfast.web.dashboard.pages import View
    from standfast.workflows.engine import Engine

MOST_BODY: Final = 100_000
MOST_FIELDS: Final = 20


class Preview(Struct, frozen=True, kw_only=True):
    """What an action will do, before it is done.

    Attributes:
        subject: To what.
        will: What will happen, in sentences.
        back: The page that it is about.
        fields: What the form carries on.
        asks: What the operator still has to say: name, label, and what is there already.
        is_harmless: Whether nothing is lost by it.
    """

    subject: str
    will: tuple[str, ...]
    back: str
    fields: tuple[tuple[str, str], ...]
    asks: tuple[tuple[str, str, str], ...] = ()
    is_harmless: bool = False


Fields: TypeAlias = dict[str, list[str]]


@final
class PageAction:
    """How an action is shown before it is done, and how it is done; that returns the page to show then."""

    __slots__ = ("perform", "preview")

    def __init__(
        self,
        preview: Callable[[View, Fields], Awaitable[Preview]],
        perform: Callable[[View, Engine, Fields], Awaitable[str]],
    ) -> None:
        self.preview, self.perform = preview, perform


async def preview(view: View) -> Response:
    """Show what an action will do."""
    name, action = _allowed(view)
    fields = {key: view.query.getlist(key) for key in view.query}
    shown = await action.preview(view, fields)
    return view.page("preview.html", preview=shown, action=name, label=ACTIONS[name], token=view.token(name))


async def perform(view: View) -> Response:
    """Do what a form of ours asks for, and show the page that it was about."""
    name, action = _allowed(view)
    fields = await _form(view)
    expected = form_token(view.dashboard.secret, view.access.principal, name)
    if not is_own_form(view.request.headers, _one(fields, "form_token"), expected):
        detail = "The form did not come from a page of this dashboard, or is too old."
        raise PageError(403, "Nothing was done", detail, "Open the page again and repeat it there.")
    principal, client = view.access.principal, view.request.client
    actor = Actor(principal.user or "operator", "http", "" if client is None else client.host)
    try:
        back = await action.perform(view, view.engine.acting_as(actor), fields)
    except StandfastError as problem:
        raise PageError(409, "Nothing was done", mask_text(str(problem)), "Go back and look at it again.") from problem
    mark = "&" if "?" in back else "?"
    return Response(None, 303, {"location": f"{back}{mark}done={name}", "cache-control": "no-store"})


def _allowed(view: View) -> tuple[str, PageAction]:
    name = view.request.path_params["action"]
    if name not in PERFORMED:
        raise PageError(404, "There is no such action", "The address names none.")
    if not view.access.may(name):
        raise ForbiddenError(ACTIONS[name])
    return name, PERFORMED[name]


async def _form(view: View) -> Fields:
    """Return the fields of a form, as browsers send it. A body that is too large is not read to its end."""
    body = b""
    async for chunk in view.request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise PageError(413, "Nothing was done", f"The form has more than {MOST_BODY:,} bytes.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as problem:
        raise PageError(400, "Nothing was done", "The form cannot be read.") from problem
    fields: Fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _one(fields: Fields, name: str) -> str:
    return fields.get(name, [""])[0]


# --- runs -------------------------------------------------------------------------------------------------------------


async def _about_run(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    run_id = _one(fields, "id")
    info = await view.engine.get(run_id)
    state = f"It is {info.status.replace('_', ' ')} now."
    back = view.url("run", id=run_id)
    return Preview(subject=f"run {run_id}", will=(state, *will), back=back, fields=(("id", run_id),), **more)


async def _preview_cancel(view: View, fields: Fields) -> Preview:
    info = await view.engine.get(_one(fields, "id"))
    children = await view.engine.list(parent=info.id, limit=20)
    running = [each.id for each in children.runs if not each.has_ended]
    will = ["Its code gets RunCancelled where it waits, and may clean up. Locks that it holds are released by that."]
    if info.status in ("pending", "quarantined"):
        will = ["No worker drives it, so it ends at once."]
    if running:
        will.append(f"Its unfinished children are cancelled too: {', '.join(map(one_line, running))}.")
    return await _about_run(view, fields, *will, asks=(("reason", "Why, for the record", ""),))


async def _cancel(view: View, engine: Engine, fields: Fields) -> str:
    await engine.cancel(_one(fields, "id"), _one(fields, "reason").strip() or "cancelled in the dashboard")
    return view.url("run", id=_one(fields, "id"))


async def _preview_retry(view: View, fields: Fields) -> Preview:
    will = "It goes on from its history: the step that failed runs again, with all its attempts."
    kept = "Steps that have ended are not run again. Children that it still waits for go on too."
    return await _about_run(view, fields, will, kept, is_harmless=True)


async def _retry(view: View, engine: Engine, fields: Fields) -> str:
    await engine.retry(_one(fields, "id"))
    return view.url("run", id=_one(fields, "id"))


async def _preview_restart(view: View, fields: Fields) -> Preview:
    will = "A new run with the same input is started from its beginning. This one is left as it is."
    return await _about_run(view, fields, will, "Every step runs again, with effects of its own.", is_harmless=True)


async def _restart(view: View, engine: Engine, fields: Fields) -> str:
    return view.url("run", id=(await engine.restart(_one(fields, "id"))).id)


async def _preview_fork(view: View, fields: Fields) -> Preview:
    step = _one(fields, "step")
    history = await view.engine.history(_one(fields, "id"))
    place = next((number for number, each in enumerate(history) if each.id == step), None)
    if place is None:
        raise PageError(404, "No such step", f"The run has recorded no {one_line(step)!r}.")
    will = f"A new run has what this one recorded before {one_line(step)}: {place} entries."
    will += " That step and all after it run."
    found = await _about_run(view, fields, will, "This run is left as it is.", is_harmless=True)
    return msgspec.structs.replace(found, fields=(*found.fields, ("step", step)))


async def _fork(view: View, engine: Engine, fields: Fields) -> str:
    return view.url("run", id=(await engine.fork(_one(fields, "id"), _one(fields, "step"))).id)


async def _preview_signal(view: View, fields: Fields) -> Preview:
    asks = (("name", "The name that the run waits for", ""), ("value", "The value, as JSON", "null"))
    will = "The signal is durable when it is sent, and waits until the run takes it."
    return await _about_run(view, fields, will, asks=asks, is_harmless=True)


async def _signal(view: View, engine: Engine, fields: Fields) -> str:
    try:
        value = msgspec.json.decode(_one(fields, "value") or "null")
    except msgspec.DecodeError as problem:
        raise PageError(400, "Nothing was done", "The value is no JSON.", "Text needs quotation marks.") from problem
    await engine.signal(_one(fields, "id"), _one(fields, "name"), value)
    return view.url("run", id=_one(fields, "id"))


# --- lines ------------------------------------------------------------------------------------------------------------


async def _line_in(view: View, fields: Fields) -> tuple[tuple[str, ...], Explanation]:
    address = address_in(view, given=fields.get("at", []))
    if not address[0].isdigit():
        raise PageError(400, "Nothing was done", "Limits and requests are changed on their own pages.")
    return address, await explain(view.engine.space, address, limit=1_000)


def _key_of(address: tuple[str, ...]) -> Key | str:
    return undeclared_key(address[1], *address[2:]) if address[1] else address[2]


def _about_line(view: View, address: tuple[str, ...], told: Explanation, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    fields = (*(("at", part) for part in address), *more.pop("fields", ()))
    return Preview(subject=told.key, will=will, back=view.url("line", at=list(address)), fields=fields, **more)


def _name_of(entry: ExplainedEntry) -> str:
    return f"run {one_line(entry.run)}" if entry.run is not None else one_line(entry.owner)


async def _preview_release(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    entry = _one(fields, "entry")
    holder = next((each for each in told.holders if each.entry == entry), None)
    if holder is None:
        raise PageError(409, "It does not hold any more", "The holder has left the line meanwhile.")
    following = [each for each in told.waiters if each.is_alive][:1]
    fence = "" if holder.fence is None else f" Fence {holder.fence} is void: writes that are guarded by it are refused."
    hands = (
        f"Releasing it hands the lock to {_name_of(following[0])}, with a new and higher fence."
        if following
        else ("Nothing waits for it, so it becomes free.")
    )
    who = (
        ""
        if not holder.is_alive
        else f"{_name_of(holder)} has held it for {length(max(0.0, holder.held_for))}, and gets LeaseLostError."
    )
    gone = "" if holder.is_alive else f"{_name_of(holder)} is dead already: nothing is lost."
    will = tuple(each for each in (hands, who + gone + fence) if each)
    return _about_line(view, address, told, *will, fields=(("entry", entry),))


async def _release(view: View, engine: Engine, fields: Fields) -> str:
    address, _ = await _line_in(view, fields)
    if not await engine.space.mutex(_key_of(address)).force_release(_one(fields, "entry")):
        raise PageError(409, "Nothing was done", "The holder has left the line meanwhile.")
    return view.url("line", at=list(address))


async def _preview_withdraw(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    entry = _one(fields, "entry")
    waiter = next((each for each in told.waiters if each.entry == entry), None)
    if waiter is None:
        raise PageError(409, "It does not wait any more", "The waiter has left the line, or holds it by now.")
    will = f"{_name_of(waiter)} waits for {length(max(0.0, waiter.waited))} with {waiter.place} in front of it."
    return _about_line(
        view,
        address,
        told,
        will,
        "It leaves the line, and gets WithdrawnError where it waits.",
        fields=(("entry", entry),),
    )


async def _withdraw(view: View, engine: Engine, fields: Fields) -> str:
    address, _ = await _line_in(view, fields)
    if not await engine.space.mutex(_key_of(address)).withdraw(_one(fields, "entry")):
        raise PageError(409, "Nothing was done", "The waiter has left the line, or holds it by now.")
    return view.url("line", at=list(address))


async def _preview_resize(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    if told.kind != "semaphore":
        raise PageError(400, "Nothing was done", "Only a semaphore that is in use has permits to set.")
    used = sum(each.weight for each in told.holders)
    will = f"It has {told.permits} permits, of which {used} are in use; {told.waiting:,} wait."
    rest = "With more, waiters that fit hold it at once. With fewer, no holder is evicted."
    return _about_line(view, address, told, will, rest, asks=(("permits", "Permits", str(told.permits)),))


async def _resize(view: View, engine: Engine, fields: Fields) -> str:
    address, told = await _line_in(view, fields)
    await engine.space.semaphore(_key_of(address), permits=told.permits or 1).resize(_count(_one(fields, "permits")))
    return view.url("line", at=list(address))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 7:  # noqa: PLR2004 -- as many digits as a count may have
        raise PageError(400, "Nothing was done", "It must be a whole number, at least 1.")
    return int(text)


# --- schedules and limits ---------------------------------------------------------------------------------------------


async def _about_schedule(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    found = await view.engine.schedules.get(_one(fields, "id"))
    own = (("id", found.id),)
    return Preview(subject=f"schedule {found.id}", will=will, back=view.url("schedules"), fields=own, **more)


async def _preview_pause(view: View, fields: Fields) -> Preview:
    will = "It starts no more runs until it is resumed. Ticks that pass meanwhile are missed. Runs under way go on."
    return await _about_schedule(view, fields, will, asks=(("note", "Why, for others", ""),))


async def _pause(view: View, engine: Engine, fields: Fields) -> str:
    await engine.schedules.pause(_one(fields, "id"), _one(fields, "note"))
    return view.url("schedules")


async def _preview_resume(view: View, fields: Fields) -> Preview:
    return await _about_schedule(view, fields, "It fires again, from its next tick on.", is_harmless=True)


async def _resume(view: View, engine: Engine, fields: Fields) -> str:
    await engine.schedules.resume(_one(fields, "id"))
    return view.url("schedules")


async def _preview_trigger(view: View, fields: Fields) -> Preview:
    found = await view.engine.schedules.get(_one(fields, "id"))
    will = (
        f"A run of {one_line(found.workflow)} is started now, besides the ticks. If one is unfinished: {found.overlap}."
    )
    return await _about_schedule(view, fields, will, is_harmless=True)


async def _trigger(view: View, engine: Engine, fields: Fields) -> str:
    return view.url("run", id=(await engine.schedules.trigger(_one(fields, "id"))).id)


def _about_limit(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    workflow, key = _one(fields, "workflow"), _one(fields, "key")
    own = (("workflow", workflow), ("key", key), ("has_key", _one(fields, "has_key")))
    subject = f"limit of {workflow}{f' for {key}' if key else ''}"
    return Preview(subject=subject, will=will, back=view.url("limits"), fields=own, **more)


async def _preview_set(view: View, fields: Fields) -> Preview:
    will = "So many runs may be unfinished at a time from now on, in all processes, until the limit is cleared."
    rest = "A larger number lets waiting runs begin at once; a smaller one ends none."
    return _about_limit(view, fields, will, rest, asks=(("max", "How many runs", _one(fields, "max")),))


async def _set(view: View, engine: Engine, fields: Fields) -> str:
    key = _one(fields, "key") if _one(fields, "has_key") == "yes" else None
    await engine.set_limit(_one(fields, "workflow"), _count(_one(fields, "max")), key=key)
    return view.url("limits")


async def _preview_clear(view: View, fields: Fields) -> Preview:
    return _about_limit(view, fields, "As many runs may be unfinished as the code of the workflow says, from now on.")


async def _clear(view: View, engine: Engine, fields: Fields) -> str:
    key = _one(fields, "key") if _one(fields, "has_key") == "yes" else None
    await engine.clear_limit(_one(fields, "workflow"), key=key)
    return view.url("limits")


PERFORMED: Final[dict[str, PageAction]] = {
    "run.cancel": PageAction(_preview_cancel, _cancel),
    "run.retry": PageAction(_preview_retry, _retry),
    "run.restart": PageAction(_preview_restart, _restart),
    "run.fork": PageAction(_preview_fork, _fork),
    "run.signal": PageAction(_preview_signal, _signal),
    "lock.release": PageAction(_preview_release, _release),
    "lock.withdraw": PageAction(_preview_withdraw, _withdraw),
    "lock.resize": PageAction(_preview_resize, _resize),
    "schedule.pause": PageAction(_preview_pause, _pause),
    "schedule.resume": PageAction(_preview_resume, _resume),
    "schedule.trigger": PageAction(_preview_trigger, _trigger),
    "limit.set": PageAction(_preview_set, _set),
    "limit.clear": PageAction(_preview_clear, _clear),
}
