"""Histories in files: saved from real runs, and replayed against the code of today."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from standfast.errors import DeclarationError, DecodeError, NondeterminismError
from standfast.workflows.activation import Activation
from standfast.workflows.context import Context
from standfast.workflows.engine import Engine
from standfast.workflows.records import RunKeys
from standfast.workflows.saved_history import SavedHistory, read_saved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.workflows.definition import Step, Workflow
    from standfast.workflows.run import Run


class Replayed(Struct, frozen=True):
    """How a replay went that found nothing wrong.

    Attributes:
        events: How many events were replayed.
        has_ended: Whether the code came to its end; if not, the run was saved while it was waiting.
        result: What it returned.
    """

    events: int
    has_ended: bool
    result: Any = None


async def save_history(run: Run[Any], path: str | Path | None = None) -> bytes:
    """Return the history of a run as JSON, and write it to a file if one is given.

    Save a few from production, masked as need be, and replay them in your tests before you deploy changed code: see
    :func:`replay_history`.

    Args:
        run: A handle on the run.
        path: Where to write it.
    """
    space = run._engine.runtime.space  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- where the run lies
    text = (await read_saved(space, run.id)).as_json()
    if path is not None:
        Path(path).write_bytes(text)  # noqa: ASYNC240 -- a small file, in a test or a script
    return text


def load_history(history: bytes | str | Path) -> SavedHistory:
    """Return a history that :func:`save_history` has saved: its bytes, or the file that they are in."""
    data = history if isinstance(history, bytes) else Path(history).read_bytes()
    try:
        return msgspec.json.decode(data, type=SavedHistory)
    except msgspec.DecodeError as problem:
        raise DecodeError(f"this is no saved history: {problem}") from problem


async def replay_history(
    workflow: Workflow[..., Any],
    history: bytes | str | Path,
    *,
    steps: Iterable[Step[..., Any] | Any] = (),
    errors: Iterable[type[Exception]] = (),
) -> Replayed:
    """Replay a saved history against a workflow's code. Nothing is executed, and nothing is written.

        @pytest.mark.parametrize("path", Path("histories").glob("order-*.json"))
        async def test_orders_that_are_under_way_go_on_with_this_code(path):
            await replay_history(order, path)

    Args:
        workflow: The workflow as it is now.
        history: What :func:`save_history` saved: its bytes, or the file that they are in.
        steps: Steps that it calls by name.
        errors: Exceptions that come back as themselves.

    Raises:
        NondeterminismError: The code does something else than what is recorded; a deployed run would be left alone.
    """
    saved = load_history(history)
    if saved.header.workflow != workflow.name:
        raise DeclarationError(workflow.name, f"the history is one of the workflow {saved.header.workflow!r}")
    async with Engine("memory://", workflows=[workflow], steps=steps, errors=errors, drive=False) as engine:
        keys = RunKeys(engine.runtime.space, saved.run)
        copy = Activation(engine.runtime, keys, workflow, saved.header, saved.state, None, saved.events)
        copy.context = Context(copy)
        try:
            how, value = await copy.run_code()
        except DecodeError as problem:
            raise NondeterminismError(saved.run, "another input", str(problem)) from problem
    if copy.mismatch is not None:
        raise copy.mismatch
    if how == "unloaded" and saved.state.status in ("completed", "failed"):
        raise NondeterminismError(saved.run, "the end of the run", "something more")
    return Replayed(len(saved.events), how != "unloaded", value if how == "returned" else None)
