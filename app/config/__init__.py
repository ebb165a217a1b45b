"""Load config.toml, environment variables and flags into settings, or report every issue with its line."""

from app.config.auth_settings import AuthSettings, TenantSettings
from app.config.environment import API_KEY_VARIABLE, CONFIG_VARIABLE
from app.config.issues import ConfigError, ConfigIssue, IssueKind
from app.config.loading import (
    CacheSettings,
    LoadedSettings,
    LoggingSettings,
    ServerSettings,
    Settings,
    check_file,
    load_settings,
    parse_model_entry,
    settings_class,
)

__all__ = [
    "API_KEY_VARIABLE",
    "CONFIG_VARIABLE",
    "AuthSettings",
    "CacheSettings",
    "ConfigError",
    "ConfigIssue",
    "IssueKind",
    "LoadedSettings",
    "LoggingSettings",
    "ServerSettings",
    "Settings",
    "TenantSettings",
    "check_file",
    "load_settings",
    "parse_model_entry",
    "settings_class",
]
