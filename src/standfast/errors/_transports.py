"""Errors of what comes in over a network. Each has the HTTP ``status`` that says the same."""

from __future__ import annotations

from standfast.errors._flows import FlowError, InvalidInputError


class BodyTooLargeError(FlowError):
    """The body of a request is larger than is taken here. Send less, or raise the limit where the app is made."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"the body has more than the {self.limit:,} bytes that are taken here"


class InputsTooLargeError(InvalidInputError):
    """A request brings more than can be recorded. Put the data where data is kept, and send where that is.

    Attributes:
        limit: The most bytes that there may be.
    """

    status = 413

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(where, f"the inputs take {size:,} bytes, at most {limit:,} can be recorded")
        self.args = (where, size, limit)
        self.size, self.limit = size, limit


class BodyTooSlowError(FlowError):
    """The body of a request did not arrive in time, or broke off. Send it again, in one go."""

    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the body did not arrive within {self.seconds:g} s"


class UnsupportedBodyError(FlowError):
    """The body of a request is not of a kind that is taken here. Send JSON, uncompressed, and say so in its headers."""

    status = 415

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class InvalidHeaderError(FlowError, ValueError):
    """A header of a request cannot be read. Correct it, or leave it out; nothing was started."""

    status = 400

    def __init__(self, header: str, problem: str) -> None:
        super().__init__(header, problem)
        self.header, self.problem = header, problem

    def __str__(self) -> str:
        return f"the header {self.header} {self.problem}"


class WrongHostError(FlowError):
    """A request names a host that this application is not served under. Nothing was started.

    Add it where the application is made: ``hosts=["api.example.com"]``.
    """

    status = 421

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host!r:.100} is no host of this application"


class WrongOriginError(FlowError):
    """A request comes from a page that this application does not trust. Nothing was started.

    Add it where the application is made: ``origins=["https://example.com"]``.
    """

    status = 403

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self.origin = origin

    def __str__(self) -> str:
        return f"pages of {self.origin!r:.100} may not use this application"


class LengthRequiredError(FlowError):
    """A chunked body came by a server that may show what follows it, the trailers, as headers. Nothing was started.

    Send ``Content-Length``. Or serve the application with ``standfast serve``, or with
    ``uvicorn --http standfast.web.protocol:HttpProtocol``: both keep trailers apart.
    """

    status = 411

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "a chunked body is not taken here"


class MalformedRequestError(FlowError):
    """What came is no request of HTTP/1.1, or one that others may read in another way. Nothing was started."""

    status = 400

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class HeadersTooLargeError(FlowError):
    """The headers of a request have more bytes, or are more, than is taken here. Send less of them.

    ``standfast serve --header-bytes`` and ``--headers`` say how much is taken.
    """

    status = 431

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what, self.limit = what, limit

    def __str__(self) -> str:
        return f"the headers have more than the {self.limit:,} {self.what} that are taken here"


class HeadersTooSlowError(FlowError):
    """The headers of a request did not arrive in time. Send it again, in one go."""

    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the headers did not arrive within {self.seconds:g} s"


class TooManyConnectionsError(FlowError):
    """There are as many connections as the server takes, in all or from one address. Try again after a while.

    ``standfast serve --connections`` and ``--connections-per-address`` say how many it takes. A proxy that brings the
    connections of many is named by ``--trust-proxy``: then they are not counted as those of one address.
    """

    status = 503

    def __init__(self, what: str, limit: int, retry_after: float) -> None:
        super().__init__(what, limit, retry_after)
        self.what, self.limit, self.retry_after = what, limit, retry_after

    def __str__(self) -> str:
        return f"there are {self.limit} connections {self.what} already; try again in {self.retry_after:g} s"
