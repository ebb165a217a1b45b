"""Hold the keys of the running server: those of the keys file, read again when it changes, and the environment's."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import structlog

from app.auth.client_certificates import CERTIFICATE_KEY_ID, CERTIFICATE_SCOPES, ClientCertificates
from app.auth.key_file import FileVersion, InvalidKeysFile, file_version, read_keys
from app.auth.keys import ENVIRONMENT_TENANT, Key
from app.auth.principal import Principal
from app.config.auth_settings import AuthSettings, TenantSettings
from frameworks.core.tenants import Tenant

log = structlog.get_logger(__name__)

_CHECK_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key and the principal of its requests."""

    key: Key
    principal: Principal


@dataclass(frozen=True, slots=True)
class _Content:
    """The keys of one version of the file. `tenants`: those of its keys. `ignored`: keys of unconfigured tenants."""

    keys: dict[str, StoredKey]
    tenants: dict[str, Tenant]
    ignored: int


class KeyStore:
    """The valid keys and their tenants. Owned by the event loop; any thread may call `find`.

    A change of the file is applied as a whole. While the file cannot be used, the keys of the last good one stay valid.
    """

    def __init__(self, file: Path, settings: AuthSettings, environment_key: Key | None = None) -> None:
        """`file`: absolute; it may be missing. `environment_key`: that of ROUNDHOUSE_API_KEY."""
        self._file = file
        self._mode = settings.mode
        self._environment_key = environment_key
        self._settings: dict[str, TenantSettings] = {tenant.name: tenant for tenant in settings.tenants}
        self._tenants = {each.name: Tenant(each.name, each.weight, each.share_caches) for each in settings.tenants}
        self.certificates = self._certificates()
        """The tenants that client certificates name."""
        self._version: FileVersion | None = None
        self._failure = ""
        self._reading = asyncio.Lock()
        self.by_id: Mapping[str, StoredKey] = {}
        """The keys by their ids, expired ones included. A reload replaces it."""
        self.reloads: Counter[str] = Counter()
        """Reads of a changed file, by outcome: `loaded`, `failed`."""
        self.ignored = 0
        """Keys of the file whose tenants are not configured."""
        self.required = settings.mode == "required"
        """Whether requests need a key. With `auto` true from the first key on, also after the last is revoked."""

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """All tenants by name. An object stays the same while the process runs."""
        return MappingProxyType(self._tenants)

    def __len__(self) -> int:
        """Return the number of keys, expired ones included."""
        return len(self.by_id)

    def find(self, key_id: str) -> StoredKey | None:
        """Return the key with this id, which may have expired; None without one."""
        return self.by_id.get(key_id)

    def load(self) -> None:
        """Read the file for the first time; a missing one has no keys. Raises InvalidKeysFile."""
        keys, self._version = read_keys(self._file)
        self._apply(self._content(keys.values()))

    async def watch(self) -> None:
        """Read the file again when it changes, until cancelled. Looks once a second. With mode `off`: nothing."""
        while self._mode != "off":
            await asyncio.sleep(_CHECK_PERIOD_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Apply the file if it changed. An error is logged and counted once for each version of the file.

        With mode `off`: nothing.
        """
        if self._mode != "off":
            # One at a time: of two versions of the file, the later one is applied last.
            async with self._reading:
                await self._refresh()

    async def _refresh(self) -> None:
        before = self._version
        try:
            content = await asyncio.to_thread(self._read_changed)
        except (InvalidKeysFile, OSError) as error:
            if (str(error), self._version) != (self._failure, before):
                self._failure = str(error)
                self.reloads["failed"] += 1
                log.error("keys file not loaded; the last good one stays valid", reason=self._failure)
            return
        self._failure = ""
        if content is not None:
            self._apply(content)
            self.reloads["loaded"] += 1
            log.info("keys file loaded", keys=len(self), ignored=content.ignored)

    def _read_changed(self) -> _Content | None:
        """Return the content of a changed file; None for an unchanged one. Changes only `_version`."""
        version = file_version(self._file)
        if version == self._version:
            return None
        self._version = version
        keys, self._version = read_keys(self._file)
        if self._version is None:
            raise InvalidKeysFile(f"{self._file}: expected a file, got none; restore it, or revoke keys one by one")
        return self._content(keys.values())

    def _content(self, keys: Iterable[Key]) -> _Content:
        """Return the stored keys. Those that did not change are the same objects as before."""
        found: dict[str, StoredKey] = {}
        tenants = dict(self._tenants)
        ignored = 0
        for key in keys:
            if not self._settings or key.tenant in self._settings:
                before = self.by_id.get(key.key_id)
                if before is None or before.key != key:
                    before = self._store(key, tenants)
                found[key.key_id] = before
            else:
                ignored += 1
        if self._environment_key is not None:
            found[self._environment_key.key_id] = self._store(self._environment_key, tenants)
        return _Content(found, tenants, ignored)

    def _certificates(self) -> ClientCertificates:
        principals: dict[str, Principal] = {}
        for each in self._settings.values():
            tenant = self._tenants[each.name]
            principal = Principal(
                tenant,
                CERTIFICATE_KEY_ID,
                CERTIFICATE_SCOPES,
                (each.models,),
                each.operator,
                collections=(each.collections,),
            )
            principals.update(dict.fromkeys(each.client_certificates, principal))
        return ClientCertificates(principals)

    def _apply(self, content: _Content) -> None:
        self._tenants.update(content.tenants)
        self.by_id, self.ignored = content.keys, content.ignored
        if content.keys and self._mode == "auto":
            self.required = True

    def _store(self, key: Key, tenants: dict[str, Tenant]) -> StoredKey:
        tenant = tenants.setdefault(key.tenant, Tenant(key.tenant))
        settings = self._settings.get(key.tenant)
        patterns = () if settings is None else (settings.models,)
        collections = () if settings is None else (settings.collections,)
        is_operator = key.tenant == ENVIRONMENT_TENANT if settings is None else settings.operator
        principal = Principal(
            tenant,
            key.key_id,
            key.scopes,
            (*patterns, key.models),
            is_operator,
            key.is_signed,
            (*collections, key.collections),
        )
        return StoredKey(key, principal)
