"""The refusals of authentication and authorization."""

from frameworks.core.errors import RoundhouseError


class Unauthenticated(RoundhouseError):
    """The request has no valid key, or its signature is not valid."""

    def __init__(self, message: str, reason: str = "signature", is_guess: bool = False) -> None:
        """`reason`: label of the metric. `is_guess`: the request may be one of many that try keys."""
        super().__init__(message)
        self.reason = reason
        self.is_guess = is_guess


class Forbidden(RoundhouseError):
    """The key or the server's configuration forbids the request: a scope, a path, a Host, or the Origin of a page."""


class QuotaExceeded(RoundhouseError):
    """The tenant has reached one of its limits; the server itself could serve it."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: seconds after which the request is accepted, if the tenant sends no other one."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
