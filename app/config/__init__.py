"""config.toml, environment variables and flags → settings; or every fault there is, each with its line."""

from app.config.environment import CONFIG_VARIABLE
from app.config.faults import ConfigError, Fault, FaultKind
from app.config.loading import (
    CacheSettings,
    LoadedSettings,
    LoggingSettings,
    ServerSettings,
    Settings,
    check_file,
    load_settings,
    parse_model_entry,
)

__all__ = [
    "CONFIG_VARIABLE",
    "CacheSettings",
    "ConfigError",
    "Fault",
    "FaultKind",
    "LoadedSettings",
    "LoggingSettings",
    "ServerSettings",
    "Settings",
    "check_file",
    "load_settings",
    "parse_model_entry",
]
