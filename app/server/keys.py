"""Open the keys of the server, and check that a server beyond loopback has one."""

import ipaddress
import os
import shlex
import socket
import stat
from pathlib import Path

import structlog

from app.auth.key_file import InvalidKeysFile
from app.auth.key_store import KeyStore
from app.auth.keys import ENVIRONMENT_TENANT, InvalidEnvironmentKey, Key, environment_key
from app.config import ConfigError, ConfigIssue, LoadedSettings

log = structlog.get_logger(__name__)


def open_keys(loaded: LoadedSettings, api_key: str | Key, logs_warnings: bool = True) -> KeyStore:
    """Return the keys of a server with these settings.

    `api_key`: the text of ROUNDHOUSE_API_KEY or its key, or "". `logs_warnings`: False in workers, as the supervisor
    has logged them. Raises ConfigError if the keys cannot be read, or if the server needs a key and has none.
    """
    store, issues = _open(loaded, api_key)
    errors = [issue for issue in issues if issue.is_error]
    if errors:
        raise ConfigError(errors)
    for issue in issues if logs_warnings else ():
        log.warning("insecure configuration", key=issue.key, reason=issue.message)
    return store


def key_issues(loaded: LoadedSettings, api_key: str) -> tuple[ConfigIssue, ...]:
    """Return the errors and warnings that `open_keys` has for these settings."""
    return _open(loaded, api_key)[1]


def _open(loaded: LoadedSettings, api_key: str | Key) -> tuple[KeyStore, tuple[ConfigIssue, ...]]:
    settings = loaded.settings.auth
    file = loaded.resolve(settings.keys_file)
    key = api_key if isinstance(api_key, Key) else None
    try:
        key = environment_key(api_key) if isinstance(api_key, str) and api_key else key
        store = KeyStore(file, settings, key)
        if settings.mode != "off":
            store.load()
            # Certificates that name tenants serve as keys.
            store.required = store.required or _accepts_certificates(loaded)
    except InvalidEnvironmentKey as error:
        return KeyStore(file, settings), (ConfigIssue("", None, "", str(error), "invalid"),)
    except InvalidKeysFile as error:
        return KeyStore(file, settings, key), (ConfigIssue("", None, "auth.keys_file", str(error), "unreadable"),)
    found = (
        _missing_key(loaded, store, file),
        _open_mode(file) if len(store) else None,
        _unused_certificates(loaded, store),
    )
    return store, tuple(issue for issue in found if issue is not None)


def _open_mode(file: Path) -> ConfigIssue | None:
    """Return a warning for a file that other users can read: the digest of a signed key signs requests."""
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() and os.name != "nt" else 0o600
    message = f"expected mode 0600, got {mode:04o}; run `chmod 600 {shlex.quote(str(file))}`"
    return ConfigIssue("", None, "auth.keys_file", message, "unprotected") if mode & 0o077 else None


def _missing_key(loaded: LoadedSettings, store: KeyStore, file: Path) -> ConfigIssue | None:
    mode, host = loaded.settings.auth.mode, loaded.settings.server.host
    if mode == "off":
        message = f'every caller has all scopes at server.host "{host}"; remove auth.mode = "off" to require keys'
        return None if is_loopback(host) else ConfigIssue("", None, "auth.mode", message, "unprotected")
    if len(store) or _accepts_certificates(loaded) or (mode == "auto" and is_loopback(host)):
        return None
    reason = f'server.host "{host}" is not loopback' if mode == "auto" else 'auth.mode is "required"'
    unused = f" for the tenants of auth.tenants ({store.ignored} of others)" if store.ignored else ""
    create = create_command(loaded)
    other = "`roundhouse serve --host 127.0.0.1`" if mode == "auto" else 'set auth.mode = "auto"'
    message = f"expected a key, as {reason}, got none{unused}; run `{create}` or set ROUNDHOUSE_API_KEY, or {other}"
    return ConfigIssue("", None, "auth", message, "missing")


def create_command(loaded: LoadedSettings) -> str:
    """Return the command that makes a key for a server with these settings."""
    auth = loaded.settings.auth
    tenant = next((each.name for each in auth.tenants), ENVIRONMENT_TENANT)
    file = shlex.quote(str(loaded.resolve(auth.keys_file)))
    return f"roundhouse keys create --tenant {tenant} --scopes infer,read,manage --file {file}"


def _accepts_certificates(loaded: LoadedSettings) -> bool:
    """Whether a client without a key may have a certificate that names its tenant."""
    has_names = any(tenant.client_certificates for tenant in loaded.settings.auth.tenants)
    return has_names and loaded.settings.server.tls_client_ca is not None


def _unused_certificates(loaded: LoadedSettings, store: KeyStore) -> ConfigIssue | None:
    if not len(store.certificates) or loaded.settings.server.tls_client_ca is not None:
        return None
    message = "expected server.tls_client_ca beside client_certificates, got none; set it, or these tenants need keys"
    return ConfigIssue("", None, "auth.tenants", message, "unprotected")


def is_loopback(host: str) -> bool:
    """Whether every address of a host name is loopback. False for a name without an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(_is_loopback_address(str(address[0])) for *_, address in found)


def _is_loopback_address(text: str) -> bool:
    return ipaddress.ip_address(text.partition("%")[0]).is_loopback  # after %: the interface of an IPv6 address
