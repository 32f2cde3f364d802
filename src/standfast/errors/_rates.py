"""Errors of rate limiters."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidRateError(StandfastError, ValueError):
    """A rate limiter was given something that makes no sense. Nothing was read or written; fix the call."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a rate limiter: {self.problem}"


class CostTooHighError(StandfastError, ValueError):
    """More tokens were asked for than the bucket ever holds, so waiting would never end.

    Ask for fewer at a time, or give the limiter a larger capacity.
    """

    def __init__(self, cost: int, capacity: int) -> None:
        super().__init__(cost, capacity)
        self.cost, self.capacity = cost, capacity

    def __str__(self) -> str:
        return f"{self.cost:,} tokens were asked for, and the bucket never holds more than {self.capacity:,}"


class RateMismatchError(StandfastError):
    """Two sites use one rate limiter with different rates. Nothing was taken.

    Let all of them name the same capacity and interval. If the rate is meant to change, ``await
    limiter.change_rate()`` once; a limiter made with ``follow=True`` takes whatever rate is in use.
    """

    def __init__(self, key: str, capacity: int, interval: float, used_capacity: int, used_interval: float) -> None:
        super().__init__(key, capacity, interval, used_capacity, used_interval)
        self.key, self.capacity, self.interval = key, capacity, interval
        self.used_capacity, self.used_interval = used_capacity, used_interval

    def __str__(self) -> str:
        used = f"capacity {self.used_capacity:,} and a token every {self.used_interval:g} s"
        return f"{self.key} is in use with {used}, not capacity {self.capacity:,} and a token every {self.interval:g} s; name the same rate everywhere, or change_rate()"


class RateTimeoutError(StandfastError, TimeoutError):
    """The turn did not come in time. The caller no longer waits and took nothing; try again later."""

    def __init__(self, key: str, timeout: float, retry_after: float) -> None:
        super().__init__(key, timeout, retry_after)
        self.key, self.timeout, self.retry_after = key, timeout, retry_after

    def __str__(self) -> str:
        return f"the turn at {self.key} did not come within {self.timeout:g} s; it would have come {self.retry_after:.3g} s later"
