"""Load config.toml, environment and flags into frozen settings, or raise every issue with its line."""

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import structlog
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, create_model

from app.config.auth_settings import AuthSettings
from app.config.checks import (
    check_input_values,
    check_isolation,
    check_names,
    check_paths,
    check_sources,
    check_tls,
    validate,
)
from app.config.environment import find_setting, read_environment, set_from_text
from app.config.issues import ConfigError, ConfigIssue, format_value, nearest
from app.config.source import Place, Source, read_toml
from app.config.tables import extension_tables
from app.config.tls_files import TlsFiles
from app.config.web_names import HostPattern, MediaHost, ProxyNetwork, RootPath, WebOrigin
from frameworks.core.cpus import usable_cpus
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.core.settings.entries import Isolation, ModelsSettings, OnnxModelEntry, SettingsPath, TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from memory.settings import SETTINGS_RULES, MemorySettings
from memory.sizes import Bytes

log = structlog.get_logger(__name__)

_Table = TypeVar("_Table")

_MAX_WORKERS = 256

_ENTRY_TYPES: Mapping[str, type[OnnxModelEntry] | type[TorchModelEntry]] = {
    "onnx": OnnxModelEntry,
    "pytorch": TorchModelEntry,
}


def _holds_one_body(max_buffered_bytes: int, info: ValidationInfo) -> int:
    max_body_bytes = info.data.get("max_body_bytes", 0)
    if max_buffered_bytes < max_body_bytes:
        raise ValueError(f"expected at least max_body_bytes, {max_body_bytes}; raise it or lower max_body_bytes")
    return max_buffered_bytes


def _worker_count(workers: object) -> object:
    if workers == "auto" or (type(workers) is int and 1 <= workers <= _MAX_WORKERS):
        return workers
    raise ValueError(f'expected "auto" or an integer from 1 to {_MAX_WORKERS}')


_Workers = Annotated[Annotated[int, Field(ge=1, le=_MAX_WORKERS)] | Literal["auto"], BeforeValidator(_worker_count)]


def _fits_certificate(key: Path | None, info: ValidationInfo) -> Path | None:
    if "tls_certificate" not in info.data:
        return key  # reported already
    certificate = info.data["tls_certificate"]
    if certificate is not None and key is None:
        raise ValueError("expected the key of tls_certificate, got none; set server.tls_key")
    return _needs_certificate(key, info)


def _needs_certificate(file: Path | None, info: ValidationInfo) -> Path | None:
    if file is not None and info.data.get("tls_certificate", file) is None:
        raise ValueError("expected server.tls_certificate beside it, got none; set it or remove this key")
    return file


class ServerSettings(BaseModel):
    """`[server]`: addresses and bounds of connections."""

    model_config = SETTINGS_RULES

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of HTTP; 0 takes any free port."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """A port for gRPC alone, besides `port`; 0 switches gRPC off."""
    grpc_max_connection_age_s: Annotated[float, Field(ge=1, le=1_000_000)] = 3600.0
    """Age from which a connection of HTTP/2 or gRPC ends; clients connect again. Calls may run as long again."""
    allowed_hosts: Annotated[tuple[HostPattern, ...], Field(strict=False)] = ()
    """Names in the Host header that are answered beside the default ones. `"*.example.org"` is every name below this
    one, `"*"` every name. Default: `localhost`, IP addresses, the names of the machine, and names that the public DNS
    does not have."""
    media_hosts: Annotated[tuple[MediaHost, ...], Field(strict=False)] = ()
    """Hosts from which images of conversations are fetched, like `"images.example.org"` or `"*.example.org"`. An
    address or a network, like `"10.0.0.0/8"`, may be private; all others must be public. Default: no URL is fetched."""
    cors_origins: Annotated[tuple[WebOrigin, ...], Field(strict=False)] = ()
    """Origins like `"https://app.example.org"` whose pages may call; `"*"` is every page. Default: none."""
    root_path: RootPath = ""
    """Prefix of all paths for clients behind a proxy, like `"/llm"`. Requests are answered with and without it.
    Default: none."""
    trusted_proxies: Annotated[tuple[ProxyNetwork, ...], Field(strict=False)] = ()
    """IP addresses or networks of proxies whose `X-Forwarded-Prefix` is the prefix of paths. Default: none."""
    max_body_bytes: Annotated[Bytes, Field(ge=1)] = 128 * 1024**2
    """Maximum size of a request body and of a gRPC message; a larger one is refused."""
    max_buffered_bytes: Annotated[Bytes, AfterValidator(_holds_one_body), Field(validate_default=True)] = 512 * 1024**2
    """Maximum bytes of all bodies in progress: received, decompressed, decoded or not yet sent. Further requests are
    refused with 503. At least `max_body_bytes`."""
    workers: _Workers = 1
    """Number of processes that accept, decode and encode; `auto`: one per CPU that the server may use. Models with
    `isolation = "process"` are shared by all."""
    web: bool = True
    """Whether browsers get the web page at `/`. Its files need no key."""
    tls_certificate: SettingsPath | None = None
    """PEM file of the certificate and its intermediate ones, for HTTP and gRPC. Read again when it changes. None: no
    TLS."""
    tls_key: Annotated[SettingsPath | None, AfterValidator(_fits_certificate), Field(validate_default=True)] = None
    """PEM file of the certificate's private key, without a password. Read again when it changes."""
    tls_client_ca: Annotated[SettingsPath | None, AfterValidator(_needs_certificate)] = None
    """PEM file of certificates. Each client must then have a certificate that one of them signed, also for
    `/health`. Read again when it changes."""
    max_connections: Annotated[int, Field(ge=1, le=2**31 - 1)] = 20_000
    """Maximum open connections over HTTP; more are refused with 503, over TLS without an answer."""
    header_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    """Maximum time for the head of a request, from its first byte or from the start of the connection."""
    body_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """Maximum time for every 64 KiB of a request body."""
    drain_timeout_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Maximum time that a stop waits for requests in progress."""

    @property
    def num_workers(self) -> int:
        """The number of `workers`; 1 where the system has no fork."""
        if not hasattr(os, "fork"):
            return 1
        return usable_cpus() if self.workers == "auto" else self.workers


class LoggingSettings(BaseModel):
    """`[logging]`: level, format and selection of log lines."""

    model_config = SETTINGS_RULES

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """Format of a line; `auto` is `console` on a terminal, else `json`."""
    requests: Literal["all", "slow_and_failed", "none"] | None = None
    """Which requests are logged. None: `all` on a terminal, else `slow_and_failed`."""
    slow_ms: Annotated[float, Field(ge=0)] = 1000.0
    """Duration from which a request counts as slow."""


class CacheSettings(BaseModel):
    """`[cache]`: cached responses."""

    model_config = SETTINGS_RULES

    max_bytes: Annotated[Bytes, Field(ge=1)] = 128 * 1024**2
    """Maximum bytes of cached requests and responses, over all models with `cache = true`."""
    ttl_s: Annotated[float, Field(gt=0)] | None = None
    """Age at which a cached response expires. None: never."""


class Settings(BaseModel):
    """The settings of config.toml; `settings_class` has those of the extensions too."""

    model_config = SETTINGS_RULES

    server: ServerSettings = ServerSettings()
    models: ModelsSettings = Field(default_factory=ModelsSettings)
    memory: MemorySettings = MemorySettings()
    performance: PerformanceSettings = PerformanceSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    cache: CacheSettings = CacheSettings()
    logging: LoggingSettings = LoggingSettings()
    auth: AuthSettings = AuthSettings()

    def table(self, name: str, default: _Table) -> _Table:
        """Return the table of an extension; `default` in settings that were made without it."""
        found: _Table = getattr(self, name, default)
        return found

    def composites(self) -> Iterator[tuple[str, CompositeModelEntry]]:
        """Yield each composite model after the name of its table."""
        for table in extension_tables():
            if table.composite is not None:
                for entry in getattr(self, table.name, ()):
                    yield table.name, table.composite(entry)


@cache
def settings_class() -> type[Settings]:
    """Return Settings with the tables of the extensions."""
    tables: dict[str, Any] = {each.name: (each.annotation, each.default) for each in extension_tables()}
    return create_model("Settings", __base__=Settings, __doc__="All settings of config.toml.", **tables)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, the folder of their relative paths, and the warnings of their loading."""

    settings: Settings
    base_dir: Path
    """Absolute: the config file's own folder, or the working directory without a file."""
    warnings: tuple[ConfigIssue, ...] = ()
    """Deprecated keys that the configuration uses."""
    file: Path | None = None
    """The config file."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Of flags."""

    def load_again(self, environ: Mapping[str, str]) -> "LoadedSettings":
        """Return the settings as file, environment and flags are now. Raises ConfigError."""
        return load_settings(self.file, environ, self.overrides)

    def resolve(self, path: Path) -> Path:
        """Return a path of the settings as an absolute one. Symbolic links are kept."""
        return self.base_dir / os.path.expanduser(path)  # not Path's own: that one raises for an unknown ~user

    def tls_files(self) -> TlsFiles | None:
        """Return the files of `[server]`; None without TLS."""
        server = self.settings.server
        if server.tls_certificate is None or server.tls_key is None:
            return None
        client_ca = None if server.tls_client_ca is None else self.resolve(server.tls_client_ca)
        return TlsFiles(self.resolve(server.tls_certificate), self.resolve(server.tls_key), client_ca)


_NOTHING: Mapping[str, object] = MappingProxyType({})


def load_settings(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] = _NOTHING
) -> LoadedSettings:
    """Load the settings. Overrides ({"server.port": 9000}, from flags) replace environment, environment replaces file.

    Raises ConfigError with all errors of all three. The models' paths are not checked.
    """
    source = _read(file, environ, overrides)
    settings = validate(settings_class(), source, all_settings=settings_class())
    issues = source.sorted_issues()
    errors = [issue for issue in issues if issue.is_error]
    if settings is None or errors:
        raise ConfigError(errors)
    absolute = None if file is None else file.absolute()
    return LoadedSettings(settings, _base_dir(file), issues, absolute, dict(overrides))


def check_file(file: Path, environ: Mapping[str, str]) -> tuple[ConfigIssue, ...]:
    """Return the errors and warnings of load_settings for a config file, and those of its paths."""
    source = _read(file, environ, _NOTHING)
    settings = validate(settings_class(), source, all_settings=settings_class())
    loaded = LoadedSettings(settings or settings_class()(), _base_dir(file))
    check_paths(source, loaded.resolve)
    check_sources(source)
    check_input_values(source, loaded.resolve)
    check_tls(source, loaded.tls_files())
    return source.sorted_issues()


def parse_model_entry(
    framework: object, body: Mapping[str, Any], isolation: Isolation = "none"
) -> OnnxModelEntry | TorchModelEntry:
    """Parse the JSON body of `POST /models` into a model's entry. Its `framework` key is ignored.

    `isolation`: that of a model that has none of its own. Logs a warning for each deprecated key. Raises ConfigError;
    keys are named as in the body: "input_shape[0]".
    """
    source = Source("body", {key: value for key, value in body.items() if key != "framework"})
    entry_type = _ENTRY_TYPES.get(framework) if isinstance(framework, str) else None
    if entry_type is None:
        near = nearest(str(framework), _ENTRY_TYPES)
        hint = f'; did you mean "{near}"?' if near else ""
        message = f'expected "onnx" or "pytorch", got {format_value(framework)}{hint}'
        source.add_issue(("framework",), message, "invalid")
        raise ConfigError(source.issues)
    source.rename_deprecated_keys((), source.document, entry_type.deprecated_keys)
    check_isolation(source, (), source.document, isolation)
    entry = validate(entry_type, source, all_settings=settings_class())
    errors = [issue for issue in source.issues if issue.is_error]
    if entry is None or errors:
        raise ConfigError(errors)
    for warning in source.issues:
        log.warning("deprecated key", model=entry.name, key=warning.key, reason=warning.message)
    return entry


def _read(file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Source:
    source = Source("no config file" if file is None else str(file))
    if file is not None:
        read_toml(file, source)
    read_environment(environ, settings_class(), source)
    for key, value in overrides.items():
        location, annotation = find_setting(settings_class(), key.split("."))
        place = Place("command line")
        if not location:
            source.issues.append(ConfigIssue(place.origin, None, key, "unknown key", "unknown_key"))
        elif isinstance(value, str):
            set_from_text(source, location, value, annotation, place)
        else:
            source.set_value(location, deepcopy(value), place)
    source.merge_table_aliases()
    performance = source.document.get("performance")
    isolation = performance.get("isolation") if isinstance(performance, dict) else None
    for location, entry in source.model_entries():
        check_isolation(source, location, entry, isolation)
        framework = "onnx" if location[1] == "onnx_models" else "pytorch"
        source.rename_deprecated_keys(location, entry, _ENTRY_TYPES[framework].deprecated_keys)
    check_names(source)
    for table in extension_tables():
        table.check(source)
    return source


def _base_dir(file: Path | None) -> Path:
    return Path.cwd() if file is None else Path(os.path.realpath(file.parent))
