"""Health: alive, ready, and how much more there should be; told to probes and to systemd."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, NoReturn

import pytest

import standfast as sf
from standfast.errors import StoreFullError
from standfast.stores import Delete, Put
from standfast.stores.group_commit import GroupedStore
from standfast.telemetry import health as module
from standfast.telemetry.gauges import Gauges
from standfast.telemetry.health import Health, notifying_systemd, sd_notify, watchdog_seconds
from standfast.telemetry.instruments import STORE_UP
from standfast.workflows import overview

if TYPE_CHECKING:
    from pathlib import Path


@sf.workflow
async def waits(ctx: sf.Context) -> None:
    """Wait for a signal."""
    await ctx.wait_signal("go")


async def test_an_open_engine_is_ready_and_a_closed_one_is_not() -> None:
    """Probes may come before it is open, and after it was closed."""
    engine = sf.Engine("memory://")
    health = Health(engine)
    assert not (await health.ready()).is_ready
    async with engine:
        assert (await health.ready()).is_ready
    assert (await health.ready()).status == 503


async def test_a_process_that_is_about_to_stop_is_not_ready() -> None:
    """A load balancer sends nothing more while it drains."""
    is_draining = False
    async with sf.Engine("memory://") as engine:
        health = Health(engine, lambda: is_draining)
        is_draining = True
        assert (await health.ready()).reason == "it is about to stop"


async def test_a_store_that_does_not_answer_makes_it_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked only if it has not answered lately."""
    monkeypatch.setattr(module, "LATELY", -1.0)
    async with sf.open("memory://") as space, sf.Engine(space, drive=False) as engine:
        health = Health(engine)
        assert (await health.ready()).is_ready
        await space.store.aclose()
        readiness = await health.ready()
    assert not readiness.is_ready
    assert "the store does not answer" in readiness.reason


async def test_a_store_that_refuses_writes_makes_it_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is so from the first commit that fails until one can be made, though reads are answered all the while."""
    async with sf.open(f"sqlite:///{tmp_path}/jobs.db") as space, sf.Engine(space, drive=False) as engine:
        health, store, gauges = Health(engine), space.store, Gauges(engine)
        assert isinstance(store, GroupedStore)
        with monkeypatch.context() as disk:
            disk.setattr(store.backend, "apply_now", _full)
            with pytest.raises(StoreFullError):
                await space.commit(Put(space.key("k"), b"{}"))
            readiness, scale = await health.ready(), await health.scale()
            await gauges.refresh()
            told = await engine.overview()
        again = await health.ready()

    assert (readiness.status, again.status) == (503, 200)
    assert readiness.reason.startswith("the store refuses writes: ")
    assert "load" not in scale
    assert [each.value for each in gauges.read() if each.instrument is STORE_UP] == [0.0]
    assert [each.kind for each in told.concerns] == ["refused-writes"]


async def test_a_write_that_is_not_answered_says_what_it_may_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are answered meanwhile, so it is no server that is away."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with sf.open("memory://") as space:
        monkeypatch.setattr(overview, "WRITES_WITHIN", 0.001)
        monkeypatch.setattr(type(space), "update", never)
        assert "is a replica away that it waits for?" in await overview.refused_writes(space, is_suspected=True)


def _full(batch: object) -> NoReturn:
    del batch
    raise StoreFullError("jobs.db", "the disk is full")


async def test_workers_that_cannot_say_so_are_not_told_to_be_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store refuses writes, no presence is renewed, of workers that live as of others."""
    async with sf.Engine(f"sqlite:///{tmp_path}/jobs.db", workflows=[waits]) as engine:
        await engine.start(waits)
        worker = engine.runtime.worker
        assert worker is not None
        presence = engine.space.key("presence", *worker.presence.split(".", 1))
        found = (await engine.space.read(presence)).records[presence]
        await engine.space.commit(Delete(presence, found.version))
        store = engine.space.store
        assert isinstance(store, GroupedStore)
        with monkeypatch.context() as disk:
            disk.setattr(store.backend, "apply_now", _full)
            told = await engine.overview()

    assert [each.kind for each in told.concerns] == ["refused-writes"]
    assert "the disk is full" in told.concerns[0].words


async def test_scale_counts_what_workers_have_besides_what_waits(tmp_path: Path) -> None:
    """Depth alone would scale busy workers to none."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with sf.Engine(url, workflows=[waits], worker=sf.admin.WorkerLimits(linger=60)) as worker:
        await worker.start(waits)
        async with sf.Engine(url, drive=False) as starter:
            scale = await Health(starter).scale()
        own = await Health(worker).scale()
    assert (scale["ready"], scale["claimed"], scale["load"], scale["workers"]) == (0, 1, 1, 1)
    assert scale["utilisation"] is None
    assert own["utilisation"] == 0  # it waits, and so it needs no room


async def test_systemd_is_told_ready_alive_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Type=notify`` and ``WatchdogSec=`` work without a library."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{tmp_path}/notify")
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        loop = asyncio.get_running_loop()
        async with notifying_systemd():
            heard = [await loop.sock_recv(systemd, 100) for _ in range(3)]
        heard.append(systemd.recv(100))
        while heard[-1] == b"WATCHDOG=1":
            heard.append(systemd.recv(100))
    assert heard[:3] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert heard[-1] == b"STOPPING=1"


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a watchdog of another process is none of ours."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not sd_notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    assert not sd_notify("READY=1")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() is None
