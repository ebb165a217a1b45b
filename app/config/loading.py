"""config.toml, environment and flags → frozen, composed settings; or every fault there is, each with its line."""

import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.config.checks import check_names, check_paths, validated
from app.config.environment import find_setting, put_text, read_environment
from app.config.faults import ConfigError, Fault, Location, dotted, nearest, shown
from app.config.source import Place, Source, read_toml
from frameworks.settings import (
    ModelsSettings,
    OnnxModelEntry,
    PerformanceSettings,
    SchedulingSettings,
    TorchModelEntry,
)
from memory.settings import SETTINGS_RULES, MemorySettings
from memory.sizes import Bytes

_ENTRY_TYPES: Mapping[str, type[OnnxModelEntry] | type[TorchModelEntry]] = {
    "onnx": OnnxModelEntry,
    "pytorch": TorchModelEntry,
}
WITHOUT_EFFECT = frozenset({"server.grpc_port"})
"""The keys (or single values of a key) that are known and checked, but whose feature this version does not have yet."""


class ServerSettings(BaseModel):
    """`[server]`: the doors."""

    model_config = SETTINGS_RULES

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """0: any free port."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    max_body_bytes: Annotated[Bytes, Field(ge=1)] = 128 * 1024**2
    drain_timeout_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0


class LoggingSettings(BaseModel):
    """`[logging]`: what is written, and how."""

    model_config = SETTINGS_RULES

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else json."""
    requests: Literal["all", "slow_and_failed", "none"] | None = None
    """None: all on a terminal, else slow_and_failed."""
    slow_ms: Annotated[float, Field(ge=0)] = 1000.0
    """From how long on a request counts as slow."""


class CacheSettings(BaseModel):
    """`[cache]`: answers kept for the same question."""

    model_config = SETTINGS_RULES

    max_bytes: Annotated[Bytes, Field(ge=1)] = 128 * 1024**2
    """Of all models that say `cache = true`, questions and answers together."""
    ttl_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which an answer is not used any more. None: it does not age."""


class Settings(BaseModel):
    """Everything that config.toml can say."""

    model_config = SETTINGS_RULES

    server: ServerSettings = ServerSettings()
    models: ModelsSettings = ModelsSettings()
    memory: MemorySettings = MemorySettings()
    performance: PerformanceSettings = PerformanceSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    cache: CacheSettings = CacheSettings()
    logging: LoggingSettings = LoggingSettings()


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and what belongs to having loaded them from somewhere."""

    settings: Settings
    base_dir: Path
    """Absolute: the config file's own folder, or the working directory without a file."""
    keys_without_effect: tuple[str, ...] = ()
    """Keys that were set although this version does not do yet what they say: the start-up warns of them."""

    def resolve(self, path: Path) -> Path:
        """The absolute form of a path that stands in the settings; symbolic links are left as they are."""
        return self.base_dir / os.path.expanduser(path)  # not Path's own: that one raises for an unknown ~user


_NOTHING: Mapping[str, object] = MappingProxyType({})


def load_settings(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] = _NOTHING
) -> LoadedSettings:
    """Loads the settings: overrides ({"server.port": 9000}, from flags) win over environment, environment over file.

    Raises ConfigError with all faults of all three. Whether the models' paths exist is not looked at.
    """
    source = _read(file, environ, overrides)
    settings = validated(Settings, source, all_settings=Settings)
    if settings is None or source.faults:
        raise ConfigError(source.faults_in_order())
    without_effect = _without_effect(settings, ())
    keys = tuple(dotted(source.as_written(location)) + value for location, value in without_effect)
    return LoadedSettings(settings, _base_dir(file), keys)


def check_file(file: Path, environ: Mapping[str, str]) -> tuple[Fault, ...]:
    """All that is wrong with a config file, as load_settings finds it, and the paths at which nothing is."""
    source = _read(file, environ, _NOTHING)
    validated(Settings, source, all_settings=Settings)
    check_paths(source, LoadedSettings(Settings(), _base_dir(file)).resolve)
    return source.faults_in_order()


def parse_model_entry(framework: object, body: Mapping[str, Any]) -> OnnxModelEntry | TorchModelEntry:
    """The entry that the JSON body of `POST /models` describes; its own `framework` key is passed over.

    Raises ConfigError; the faults' keys are the body's own: "name", "input_shape[0]".
    """
    source = Source("body", {key: value for key, value in body.items() if key != "framework"})
    entry_type = _ENTRY_TYPES.get(framework) if isinstance(framework, str) else None
    if entry_type is None:
        near = nearest(str(framework), _ENTRY_TYPES)
        hint = f'; did you mean "{near}"?' if near else ""
        source.fault(("framework",), f'wants "onnx" or "pytorch", but {shown(framework)} came{hint}', "invalid")
        raise ConfigError(source.faults)
    entry = validated(entry_type, source, all_settings=Settings)
    if entry is None:
        raise ConfigError(source.faults)
    return entry


def _read(file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Source:
    source = Source("no config file" if file is None else str(file))
    if file is not None:
        read_toml(file, source)
    read_environment(environ, Settings, source)
    for key, value in overrides.items():
        location, annotation = find_setting(Settings, key.split("."))
        place = Place("command line")
        if not location:
            source.faults.append(Fault(place.origin, None, key, "unknown key", "unknown_key"))
        elif isinstance(value, str):
            put_text(source, location, value, annotation, place)
        else:
            source.put(location, deepcopy(value), place)
    source.merge_other_names()
    check_names(source)
    return source


def _base_dir(file: Path | None) -> Path:
    return Path.cwd() if file is None else Path(os.path.realpath(file.parent))


def _without_effect(model: BaseModel, outer: Location) -> Iterator[tuple[Location, str]]:
    """The location of each key that was set in vain, and ` = "value"` with it where only that value is in vain."""
    for name in sorted(model.model_fields_set, key=list(type(model).model_fields).index):
        location, value = (*outer, name), getattr(model, name)
        pattern, with_value = re.sub(r"\[[0-9]+\]", "[]", dotted(location)), f' = "{value}"'
        if isinstance(value, BaseModel):
            yield from _without_effect(value, location)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _without_effect(item, (*location, index))
        elif value is not None and pattern in WITHOUT_EFFECT:
            yield location, ""
        elif pattern + with_value in WITHOUT_EFFECT:
            yield location, with_value
