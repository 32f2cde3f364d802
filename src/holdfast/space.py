"""A space: everything that Holdfast does with keys, in one namespace and tenant of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from holdfast.scope import Scope, checked_name
from holdfast.stores.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from holdfast.events import Hook


@final
class Space(Scope):
    """A store as seen by one namespace and tenant, with the locks in it. Get one from :func:`holdfast.open`."""


@final
class Opening:
    """A space that is about to be opened: ``async with`` it, or ``await`` it and call ``aclose`` yourself."""

    __slots__ = ("_hooks", "_names", "_space", "_url")

    def __init__(self, url: str, namespace: str, tenant: str, hooks: Iterable[Hook]) -> None:
        self._url, self._hooks = url, tuple(hooks)
        self._names = (checked_name("namespace", namespace), checked_name("tenant", tenant))
        self._space: Space | None = None

    def __await__(self) -> Generator[Any, Any, Space]:
        return self._open().__await__()

    async def __aenter__(self) -> Space:
        self._space = await self._open()
        return self._space

    async def __aexit__(self, *exc: object) -> None:
        if self._space is not None:
            await self._space.aclose()

    async def _open(self) -> Space:
        namespace, tenant = self._names
        store = await open_store(self._url, hooks=self._hooks)
        return Space(store, namespace=namespace, tenant=tenant)


def open(  # noqa: A001 -- used as hf.open
    url: str, *, namespace: str = "default", tenant: str = "default", hooks: Iterable[Hook] = ()
) -> Opening:
    """Open a store and look at one namespace and tenant of it.

    >>> async with hf.open("sqlite:///holdfast.db", namespace="prod") as space:
    ...     print(space.namespace, space.tenant)
    prod default

    ``await hf.open(...)`` works too; then call ``await space.aclose()`` when done.

    Args:
        url: Which store: ``sqlite:///holdfast.db``, ``memory://``. See :func:`holdfast.stores.opening.open_store`.
        namespace: Keeps deployments on one store apart; commits and scans stay inside one.
        tenant: Keeps the users of one deployment apart.
        hooks: Called with what happens in the store, for logs and metrics; see :class:`~holdfast.logs.LogHook`.
    """
    return Opening(url, namespace, tenant, hooks)
