"""The tenants that share a server. A scheduler divides a busy model among them by weight."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tenant:
    """A group of callers. There is one object for each tenant of the configuration.

    `name`: "" for all callers of a server without tenants. `weight`: its share of a busy model beside other tenants.
    `shares_caches`: use the cached results and prompts of the other tenants that share theirs.
    """

    name: str
    weight: float = 1.0
    shares_caches: bool = False
    cache_scope: str = field(init=False, compare=False)
    """Part of the key of every cached result and prompt. Equal for the tenants that share their caches."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_scope", "" if self.shares_caches else self.name)


DEFAULT_TENANT = Tenant("")
"""The tenant of every request to a server without keys, and of the server's own work."""
