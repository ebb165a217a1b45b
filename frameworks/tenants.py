"""The tenants that share a server. A scheduler divides a busy model among them by weight."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """A group of callers. There is one object for each tenant of the configuration.

    `name`: "" for all callers of a server without tenants. `weight`: its share of a busy model beside other tenants.
    """

    name: str
    weight: float = 1.0


DEFAULT_TENANT = Tenant("")
"""The tenant of every request to a server without keys, and of the server's own work."""
