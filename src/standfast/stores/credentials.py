"""What opens a server's door, kept out of its URL and out of sight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


@final
class Credentials:
    """A password and a TLS context for a server, so that neither has to stand in a URL. Its ``repr`` shows neither.

    Args:
        password: The password, or a function that returns it: called for every new connection, so that a password
            that is changed now and then, or a token that runs out, is taken up. (MongoDB and DynamoDB: when a store is
            opened.)
        tls: True or False in place of the URL's ``tls=``, or an ``ssl.SSLContext``, for example one with a client's
            certificate. (MongoDB takes no context; see the options of its URL.)

    >>> import standfast as sf
    >>> sf.Credentials(password="hunter2")
    <Credentials with a password>
    """

    __slots__ = ("_password", "tls")

    def __init__(
        self, password: str | Callable[[], str] | None = None, *, tls: ssl.SSLContext | bool | None = None
    ) -> None:
        self._password: Final = password
        self.tls: Final = tls

    def password(self) -> str | None:
        """Return the password to use now."""
        return self._password() if callable(self._password) else self._password

    def __repr__(self) -> str:
        return f"<Credentials with{'out' if self._password is None else ''} a password>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("credentials are not copied to another process; make them there")


NO_CREDENTIALS: Final = Credentials()

_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_EOF",
    "rejected SSL upgrade",
    "SSL handshake failed",
)


def tls_trouble(said: str) -> str:
    """Return what a driver's words mean if they are about TLS, and what to do; empty if they are not.

    Drivers wrap what Python says of a failed handshake in errors of their own, and only the words are left of it.
    """
    if "CERTIFICATE_VERIFY_FAILED" in said:
        if "mismatch" in said:
            return "its certificate is for another name; connect by the name that it has"
        return "its certificate is not trusted; name its authority with ?tls_ca=, or pass a TLS context"
    return "TLS could not be agreed on; does it speak TLS there?" if any(sign in said for sign in _NO_TLS) else ""
