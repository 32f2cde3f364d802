"""Health: whether a process lives, whether it takes work, and how much more of it there should be.

``/health/live`` answers while the event loop runs. ``/health/ready`` answers 200 while the store answers and takes
writes, and the process is not about to stop. ``/scale`` says what an autoscaler needs. Under systemd, ``sd_notify``
tells the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.errors import MissingExtraError, StandfastError
from standfast.telemetry.gauges import COUNTED, Gauges
from standfast.workflows.overview import refused_writes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.telemetry.exporters import AttachedMetrics, PrometheusMetrics
    from standfast.workflows.engine import Engine

LATELY: Final = 5.0
"""Seconds within which the store has answered lately. If it has not, it is asked."""

ANSWERS_WITHIN: Final = 2.0
"""Seconds that the store has to answer when it is asked."""


class Readiness(Struct, frozen=True):
    """Whether a process takes work; ``reason`` says why not."""

    is_ready: bool
    reason: str = ""

    @property
    def status(self) -> int:
        """The status of the answer over HTTP."""
        return 200 if self.is_ready else 503

    def as_json(self) -> dict[str, str]:
        """Return it as a probe is told."""
        return {"status": "ok"} if self.is_ready else {"status": "not ready", "reason": self.reason}


@final
class Health:
    """The health of one engine.

    Args:
        engine: Which; it may be open or not.
        is_draining: Says whether the process is about to stop.
    """

    def __init__(self, engine: Engine, is_draining: Callable[[], bool] = bool) -> None:
        self._engine, self._is_draining = engine, is_draining
        self._gauges: Gauges | None = None

    async def ready(self) -> Readiness:
        """Return whether the process takes work."""
        worker = self._engine.worker
        if self._is_draining() or (worker is not None and worker.is_stopping):
            return Readiness(is_ready=False, reason="it is about to stop")
        try:
            runtime = self._engine.runtime
            if runtime.silent_for > LATELY:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    runtime.saw((await runtime.space.read(runtime.space.key("worker"))).at)
            refused = await refused_writes(runtime.space)
        except (StandfastError, TimeoutError) as problem:
            return Readiness(is_ready=False, reason=f"the store does not answer ({type(problem).__name__})")
        if refused:
            return Readiness(is_ready=False, reason=f"the store refuses writes: {refused}")
        return Readiness(is_ready=True)

    async def scale(self) -> dict[str, Any]:
        """Return what an autoscaler needs to know.

        ``load`` is the runs that wait for a worker and those that workers have claimed: divided by how many one worker
        is to have, it is how many workers there should be. How many wait alone would scale busy workers to none.
        Runs that no worker's code fits count as one: more workers do not help them, and one is to try them again.
        Without ``load`` it is not known, and an autoscaler is to leave things as they are.
        """
        backlog = await self._of_engine().backlog()
        if not self._of_engine().is_up:
            return {"reason": "the store does not answer, or refuses writes"}
        worker = self._engine.worker
        helped = backlog.ready - backlog.misfits + min(1, backlog.misfits)
        return {
            "load": min(helped + backlog.claimed, COUNTED),
            "ready": backlog.ready,
            "misfits": backlog.misfits,
            "claimed": backlog.claimed,
            "oldest_seconds": round(backlog.oldest, 3),
            "workers": backlog.workers,
            "utilisation": None if worker is None else round(worker.utilisation, 3),
        }

    def _of_engine(self) -> Gauges:
        if self._gauges is None:
            self._gauges = Gauges(self._engine)
        return self._gauges


def metrics_of(engine: Engine) -> PrometheusMetrics | None:
    """Return the metrics for Prometheus that are a hook of an engine; None: it has none."""
    from standfast.telemetry.exporters import PrometheusMetrics  # noqa: PLC0415 -- they need what is here

    return next((each for each in engine.hooks if isinstance(each, PrometheusMetrics)), None)


def own_metrics() -> AttachedMetrics:
    """Return metrics of a process of ours, in a registry of their own, with those of the process besides.

    Raises:
        MissingExtraError: ``prometheus-client`` is not there.
    """
    from standfast.telemetry.exporters import PrometheusMetrics  # noqa: PLC0415 -- they need what is here

    try:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 -- it comes with an extra
    except ModuleNotFoundError as problem:
        raise MissingExtraError("metrics for Prometheus", "standfast[metrics]") from problem
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return PrometheusMetrics(registry)


# --- systemd: ``Type=notify`` and ``WatchdogSec=`` -----------------------------------------------------------------


def sd_notify(state: str) -> bool:
    """Tell systemd the state: ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1``; False: systemd does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    place = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), place)
    except OSError:  # no reason to fail
        return False
    return True


def watchdog_seconds() -> float | None:
    """Return how often systemd wants to hear of this process at the least; None: it does not ask for that."""
    given, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not given.isdigit() or (process and process != str(os.getpid())):
        return None
    return int(given) / 1_000_000


@contextlib.asynccontextmanager
async def notifying_systemd() -> AsyncGenerator[None]:
    """Tell systemd that this process is ready, that it lives, and that it is about to stop.

    That it lives means that its event loop runs. It says so also while the store does not answer: a restart would not
    mend that.
    """
    sd_notify("READY=1")
    every = watchdog_seconds()
    alive = None if every is None else asyncio.get_running_loop().create_task(_tell_alive(every / 2))
    try:
        yield
    finally:
        sd_notify("STOPPING=1")
        if alive is not None:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)


async def _tell_alive(every: float) -> None:
    while True:
        sd_notify("WATCHDOG=1")
        await asyncio.sleep(every)
