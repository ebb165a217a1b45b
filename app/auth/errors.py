"""The refusals of authentication and authorization."""

from frameworks.errors import RoundhouseError


class Unauthenticated(RoundhouseError):
    """The request has no valid key, or its signature is not valid."""


class Forbidden(RoundhouseError):
    """The key or the server's configuration forbids the request: a scope, a path, a Host, or the Origin of a page."""
