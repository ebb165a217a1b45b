"""The refusals of authentication and authorization."""

from frameworks.errors import RoundhouseError


class Unauthenticated(RoundhouseError):
    """The request has no valid key, or its signature is not valid."""

    def __init__(self, message: str, reason: str = "signature", is_guess: bool = False) -> None:
        """`reason`: label of the metric. `is_guess`: the request may be one of many that try keys."""
        super().__init__(message)
        self.reason = reason
        self.is_guess = is_guess


class Forbidden(RoundhouseError):
    """The key or the server's configuration forbids the request: a scope, a path, a Host, or the Origin of a page."""
