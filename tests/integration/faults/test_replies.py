"""Whatever piece of a talk with a server is lost or cut in half, no commit is lost, doubled or misjudged."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreUnavailableError
from standfast.stores.url import open_store
from tests.integration.faults.program import Ledger, insistently, write_a_little
from tests.integration.faults.proxy import Fault, proxy_to
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.faults.proxy import Direction

pytestmark = [pytest.mark.services, pytest.mark.heavy]

Impatient = "Callable[[str], str]"


async def undisturbed(url: str) -> dict[Direction, int]:
    """Return how many pieces travel each way when nothing happens to them."""
    async with proxy_to(url) as proxy:
        store, ledger = await open_store(proxy.url), Ledger()
        await write_a_little(store, ledger)
        await store.aclose()
        return dict(proxy.carried)


def faults(pieces: dict[Direction, int]) -> list[Fault]:
    """Return a fault for each piece, in every way it can be struck."""
    return [
        Fault(direction, number, how)
        for direction in ("reply", "request")
        for how in ("lose", "reset")
        for number in range(1, pieces[direction] + 1)
    ]


def spread(every: list[Fault]) -> list[Fault]:
    """Return all of them in an order in which the first few are from everywhere: a golden section apart."""
    step = next(each for each in range(round(len(every) * 0.618), len(every)) if math.gcd(each, len(every)) == 1)
    return [every[number * step % len(every)] for number in range(len(every))]


async def test_no_piece_is_indispensable(kind: str, url: str, impatient: Callable[[str], str]) -> None:
    """Every reply and every request is lost once, and cut in half once; what was told is what is there."""
    every = spread(faults(await undisturbed(url)))
    done = 0
    for number in rounds(f"faults on {kind}", full=len(every), quick=12):
        fault = every[number]
        async with proxy_to(impatient(url)) as proxy:
            proxy.fault = fault
            ledger = Ledger()
            try:
                store = await open_store(proxy.url)
            except StoreUnavailableError:  # it struck while the store was being opened: nothing was promised yet
                continue
            await write_a_little(store, ledger)
            await insistently(partial(store.read, ledger.key("a")))
            await store.aclose()
        direct = await open_store(url)
        try:
            await ledger.compare(direct)
        except AssertionError as problem:
            problem.add_note(str(fault))
            raise
        finally:
            await direct.aclose()
        done += 1
    assert done > 0
