"""Errors of access tokens: what a resource server of OAuth refuses."""

from __future__ import annotations

from standfast.errors._flows import AuthenticationError, FlowError, ForbiddenError


class AccessTokenError(AuthenticationError):
    """There is no access token, or it does not hold. Get one for this server from where the challenge leads.

    Why it does not hold is in the log, not in the answer.

    Attributes:
        challenge: What the answer says in ``WWW-Authenticate``.
    """

    def __init__(self, challenge: str) -> None:
        super().__init__("an access token is needed that holds here")
        self.args = (challenge,)
        self.challenge = challenge


class InsufficientScopeError(ForbiddenError):
    """The access token holds, and was not given what is needed here. Ask for a token with the scopes that are named.

    Attributes:
        scopes: What a token needs.
        challenge: What the answer says in ``WWW-Authenticate``.
    """

    def __init__(self, scopes: tuple[str, ...], challenge: str) -> None:
        super().__init__("this application")
        self.args = (scopes, challenge)
        self.scopes, self.challenge = scopes, challenge

    def __str__(self) -> str:
        return f"the access token needs the scopes {', '.join(map(repr, self.scopes))}"


class SigningKeysUnavailableError(FlowError):
    """The keys that access tokens are signed with cannot be had now, so nobody can be let in. Try again after a while.

    Why they cannot be had is in the log.
    """

    status = 503

    def __str__(self) -> str:
        return "the keys of the issuer of access tokens cannot be had now"
