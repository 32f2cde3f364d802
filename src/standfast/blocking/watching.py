"""Hints for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, final

from standfast.blocking._background import BackgroundCall, call

if TYPE_CHECKING:
    from standfast.blocking._background import Background
    from standfast.durations import Duration
    from standfast.stores.protocol import Notification
    from standfast.stores.protocol import Watch as AsyncWatch


@final
class Watch:
    """A subscription to hints. Use it as a context manager; outside of it, it hears nothing."""

    __slots__ = ("_background", "_watch")

    def __init__(self, background: Background, watch: AsyncWatch) -> None:
        self._background: Final = background
        self._watch: Final = watch

    def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return the hints since the last call, waiting for one if there is none; None after ``timeout``.

        Raises:
            ForkedError: This is a forked child: the parent listens. Watch anew.
        """
        self._background.guard.check()
        return call(self._background, lambda: self._watch.wait(timeout))

    def __enter__(self) -> Self:
        self._background.guard.check()
        entering = BackgroundCall(self._background, self._watch.__aenter__, lambda watch: watch.__aexit__())
        try:
            entering.result()
        except BaseException:
            entering.abandon()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._background.guard.crossed:
            call(self._background, self._watch.__aexit__, shielded=True)
