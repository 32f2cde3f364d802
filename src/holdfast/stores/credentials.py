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
            that is changed now and then, or a token that runs out, is taken up.
        tls: True or False in place of the URL's ``tls=``, or an ``ssl.SSLContext``, for example one with a client's
            certificate.

    >>> import holdfast as hf
    >>> hf.Credentials(password="hunter2")
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
