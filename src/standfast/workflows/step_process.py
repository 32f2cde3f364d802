"""Steps in processes of their own: plain functions that compute, declared with ``@sf.step(process=True)``.

A thread cannot be stopped, and shares one core with the event loop; a process can be killed, and has a core to itself.
A few processes are kept, each runs one step at a time. What passes between is JSON, made and read by the types that
the function declares, and the name under which this process has imported the function: nothing is pickled, and no name
comes from a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from standfast.errors import DeclarationError, StepProcessError
from standfast.workflows.definition import CURRENT_STEP, Step
from standfast.workflows.failures import Failure, KnownErrors, describe, restore
from standfast.workflows.steps import CurrentStep

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD: Final = 4
"""Bytes in front of each message that say how long it is."""

START: Final = "from standfast.workflows.step_process import main; main()"


class StepCall(Struct, frozen=True):
    """What a process is to do: the function by its module and its name there, and its arguments by name."""

    module: str
    name: str
    arguments: Raw
    current: CurrentStep


class StepAnswer(Struct, frozen=True, omit_defaults=True):
    """What came of it: a result, or what was raised."""

    value: Raw | UnsetType = UNSET
    failure: Failure | None = None


_CALLS: Final = msgspec.json.Decoder(StepCall)
_ANSWERS: Final = msgspec.json.Decoder(StepAnswer)


# --- in the engine -------------------------------------------------------------------------------------------------


@final
class StepProcesses:
    """A few processes that run steps, each when one is free. They are started when they are first needed.

    Args:
        most: How many steps run at a time; by default as many as there are cores.
    """

    def __init__(self, most: int = 0) -> None:
        self._permits: Final = asyncio.Semaphore(most or os.cpu_count() or 1)
        self._free: Final[deque[StepProcess]] = deque()
        self._dying: Final[set[asyncio.Task[object]]] = set()
        self._is_closed = False

    async def run(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        current: CurrentStep,
        known: KnownErrors,
    ) -> Any:  # noqa: ANN401 -- whatever it returns
        """Run a step in a process, and return what it returns or raise what it raises.

        A caller that is cancelled has the process killed: nothing of the step goes on.

        Raises:
            StepProcessError: The process died.
        """
        packed = step.arguments.pack(args, kwargs)
        call = StepCall(step.function.__module__, step.function.__qualname__, Raw(packed), current)
        async with self._permits:
            process = self._free.pop() if self._free else await StepProcess.start()
            try:
                body = await process.call(msgspec.json.encode(call))
                answer = None if body is None else _ANSWERS.decode(body)
            except BaseException:
                self._kill(process)
                raise
            if answer is None:
                raise StepProcessError(current.step_id, await process.how_it_ended())
            if self._is_closed:
                self._kill(process)
            else:
                self._free.append(process)
        if answer.failure is not None:
            raise restore(answer.failure, known)
        return step.signature.result.unpack(answer.value or b"null")

    def _kill(self, process: StepProcess) -> None:
        process.kill()
        dying = asyncio.get_running_loop().create_task(process.ended())
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)

    async def aclose(self) -> None:
        """Kill the processes that are free, and return when all that were killed have ended."""
        self._is_closed = True
        while self._free:
            self._kill(self._free.pop())
        await asyncio.gather(*self._dying, return_exceptions=True)


@final
class StepProcess:
    """One process that runs steps, one after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process: Final = process

    @classmethod
    async def start(cls) -> StepProcess:
        """Start one, which finds modules where this process finds them."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            START,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _places()},
            start_new_session=True,  # what it starts is killed with it, and Ctrl-C is not for it
        )
        return cls(process)

    async def call(self, body: bytes) -> bytes | None:
        """Send a message and return the answer; None if the process has died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 -- they are pipes
        try:
            stdin.write(len(body).to_bytes(HEAD, "big") + body)
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(HEAD), "big")
            return await stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def kill(self) -> None:
        """Kill it, and whatever it has started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        return await self._process.wait()

    async def how_it_ended(self) -> str:
        """Say how it has ended, for people."""
        code = await self.ended()
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL; if no user or program sent that, the system had no memory left"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with the exit code {code}"


def _places() -> str:
    """Return where this process looks for modules."""
    return os.pathsep.join(str(Path(each).absolute()) for each in sys.path)


# --- in the process of a step --------------------------------------------------------------------------------------


def main() -> None:
    """Run steps until the other side is gone. What they print goes to stderr."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    calls: deque[bytes] = deque()
    there = threading.Semaphore(0)

    def listen() -> None:
        while len(head := asked.read(HEAD)) == HEAD:
            calls.append(asked.read(int.from_bytes(head, "big")))
            there.release()
        os._exit(0)  # the engine has gone, or wants this one no more: also in the middle of a step

    threading.Thread(target=listen, daemon=True).start()  # rule: in a process of its own, without an event loop
    while there.acquire():
        body = msgspec.json.encode(_answer(_CALLS.decode(calls.popleft())))
        answers.write(len(body).to_bytes(HEAD, "big") + body)
        answers.flush()


def _answer(call: StepCall) -> StepAnswer:
    known = KnownErrors(())
    token = CURRENT_STEP.set(call.current)
    try:
        step = _find(call.module, call.name.split("."))
        known = KnownErrors(step.options.raises)
        args, kwargs = step.arguments.unpack(call.arguments)
        return StepAnswer(Raw(step.signature.result.pack(step.function(*args, **kwargs))))
    except Exception as problem:  # noqa: BLE001 -- it is how the step ended
        return StepAnswer(failure=describe(problem, known))
    finally:
        CURRENT_STEP.reset(token)


def _find(module: str, names: Sequence[str]) -> Step[..., Any]:
    """Return the step that a module has under a name; anything else is refused, and not called."""
    found: Any = importlib.import_module(module)  # rule: named by the engine that started us, from its own step
    for name in names:
        found = getattr(found, name, None)
    if not isinstance(found, Step) or not found.options.process:
        problem = "it is not found under that name; give the decorated function the name that it was defined with"
        raise DeclarationError(f"the step {module}.{'.'.join(names)}", problem)
    return found  # pyright: ignore[reportUnknownVariableType] -- whatever it takes
