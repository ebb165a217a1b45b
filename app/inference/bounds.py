"""The bounds of all requests: of the whole server, and of each tenant."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.auth.quotas import TenantLimits
from frameworks.core.tenants import Tenant
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit


@dataclass(frozen=True, slots=True)
class Bounds:
    """`requests`: of the whole server. `default_timeout_ms`: of a request that names no deadline. `tenants`: the
    limits of those that have any, by name. `media_hosts`: of images that are fetched.
    """

    requests: RequestLimit
    max_body_bytes: int
    default_timeout_ms: int | None
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    media_hosts: tuple[str, ...] = ()

    def byte_limit_of(self, tenant: Tenant) -> ByteLimit:
        """Return the limit that counts the bytes of a tenant."""
        limits = self.tenants.get(tenant.name)
        return self.requests.byte_limit if limits is None else limits.byte_limit
