"""Settings of keys and tenants: `[auth]`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from frameworks.core.settings.entries import Count, SettingsPath
from memory.settings import SETTINGS_RULES
from memory.sizes import Bytes

TENANT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
TenantName = Annotated[str, Field(pattern=TENANT_NAME)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]


SubjectName = Annotated[str, Field(min_length=1, max_length=256)]


class TenantSettings(BaseModel):
    """`[[auth.tenants]]`: one group of callers."""

    model_config = SETTINGS_RULES

    name: TenantName
    """Name in keys, metrics and logs: 1 to 64 letters, digits, dots, underscores and hyphens."""
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Share of a busy model beside other tenants."""
    models: Annotated[tuple[Pattern, ...], Field(strict=False)] = ("*",)
    """Glob patterns of the models that the tenant may use and see."""
    collections: Annotated[tuple[Pattern, ...], Field(strict=False)] = ("*",)
    """Glob patterns of the collections that the tenant may use and see."""
    client_certificates: Annotated[tuple[SubjectName, ...], Field(strict=False)] = ()
    """Common names, DNS names or URIs of client certificates whose requests need no key, with
    `server.tls_client_ca`."""
    share_caches: bool = False
    """Whether the tenant uses the cached results and prompts of other tenants that share theirs, and they its own."""
    operator: bool = False
    """Whether statistics and metrics show the tenant the requests of all tenants, and of the whole server."""
    max_concurrent_requests: Count | None = None
    """Maximum inference requests of the tenant in progress; more are refused with 429. None: no limit."""
    requests_per_minute: Count | None = None
    """Inference requests in a minute, of which a tenth may arrive at once. None: no limit."""
    tokens_per_minute: Count | None = None
    """Tokens in a minute: of prompts, of generated text, and of texts that are embedded, classified or scored. None:
    no limit."""
    max_buffered_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Bytes of the bodies and responses of the tenant's requests in progress. None: only the server's limit."""
    max_waiting_sequences: Count | None = None
    """Maximum texts of the tenant that wait to be generated. None: no limit."""

    @property
    def has_limits(self) -> bool:
        limits = (
            self.max_concurrent_requests,
            self.requests_per_minute,
            self.tokens_per_minute,
            self.max_buffered_bytes,
            self.max_waiting_sequences,
        )
        return any(limit is not None for limit in limits)


def _unique_names(tenants: tuple[TenantSettings, ...]) -> tuple[TenantSettings, ...]:
    names = [tenant.name for tenant in tenants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f'expected unique names of tenants, got "{twice}" twice; choose another name')
    subjects = [subject for tenant in tenants for subject in tenant.client_certificates]
    twice = next((subject for subject in subjects if subjects.count(subject) > 1), None)
    if twice is not None:
        raise ValueError(f'expected each client certificate once, got "{twice}" twice; remove one of them')
    return tenants


class AuthSettings(BaseModel):
    """`[auth]`: keys, and the tenants that they belong to."""

    model_config = SETTINGS_RULES

    mode: Literal["auto", "required", "off"] = "auto"
    """Whether requests need a key. `auto`: unless the server listens on loopback only and has no key."""
    keys_file: SettingsPath = Path("./keys.toml")
    """File of hashed keys, written by `roundhouse keys`; read again when it changes."""
    tenants: Annotated[tuple[TenantSettings, ...], AfterValidator(_unique_names), Field(strict=False)] = ()
    """The tenants. If any is configured, keys of other tenants are not valid."""
