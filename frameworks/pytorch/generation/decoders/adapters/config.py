"""Read PEFT's adapter_config.json: the rank and scale of each module, and which modules an adapter has.

Hu et al. 2021 (LoRA), Kalajdzievski 2023 (rank-stabilized scale). The rules of matching are PEFT's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_RANK = 1024

_ALL_LINEAR = "all-linear"
# Keys that change the computation in a way that is not served, unless they have one of these values.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
}
_READ = frozenset(
    {
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"),
        *("exclude_modules", "layers_to_transform", "layers_pattern"),
    }
)
# Keys of the training, of other files, and of the merge: `fan_in_fan_out` only transposes what is merged.
_IGNORED = frozenset(
    {
        *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
        *("lora_dropout", "fan_in_fan_out", "init_lora_weights", "megatron_config", "megatron_core", "loftq_config"),
        *("eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying", "qalora_group_size", "runtime_config"),
    }
)
# A pattern of the file may take exponential time.
_PATTERN_TIMEOUT_S = 1.0
_MAX_PATTERN_CHARACTERS = 10_000
_FIRST_INDEX = r".*?\.[^.]*\.(?P<index>\d+)\."


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The options that the computation depends on. `file`: for messages. `target_modules`: a pattern, "all-linear", or
    the ends of names.
    """

    file: Path
    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers_to_transform: tuple[int, ...]
    layers_pattern: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module."""
        return self.rank_pattern.get(self._pattern_of(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's product B·A."""
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.get(self._pattern_of(self.alpha_pattern, module), self.alpha)
        return alpha / (rank**0.5 if self.use_rslora else rank)

    def targets(self, module: str) -> bool:
        """Whether the adapter has the module. `module`: a linear layer of the base, not its head."""
        excluded = self.exclude_modules
        if self._matches(excluded, module) if isinstance(excluded, str) and excluded else _ends(module, excluded):
            return False
        if isinstance(self.target_modules, str):
            return self.target_modules == _ALL_LINEAR or self._matches(self.target_modules, module)
        return _ends(module, self.target_modules) and self._is_in_layers(module)

    def _is_in_layers(self, module: str) -> bool:
        if not self.layers_to_transform:
            return True
        patterns = [rf"(?:^|.*?\.){each}\.(?P<index>\d+)\." for each in self.layers_pattern] or [_FIRST_INDEX]
        for pattern in patterns:
            found = self._search(pattern, module)
            if found is not None:
                return int(found) in self.layers_to_transform
        return False

    def _pattern_of(self, patterns: Mapping[str, object], module: str) -> str:
        return next((key for key in patterns if self._matches(rf"(.*\.)?({key})", module)), module)

    def _matches(self, pattern: str, module: str) -> bool:
        return self._timed(lambda: regex.fullmatch(pattern, module, timeout=_PATTERN_TIMEOUT_S)) is not None

    def _search(self, pattern: str, module: str) -> str | None:
        found = self._timed(lambda: regex.match(pattern, module, timeout=_PATTERN_TIMEOUT_S))
        return None if found is None else str(found["index"])

    def _timed(self, match: Any) -> Any:
        try:
            return match()
        except (regex.error, TimeoutError) as error:
            raise InvalidModel(f"{self.file}: expected patterns of module names, got an invalid one: {error}") from None


def read_config(folder: Path) -> LoraConfig:
    """Read the config of an adapter's folder. Raises InvalidModel, which names an option that is not served."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise InvalidModel(f"{folder}: expected {CONFIG_FILE}, as PEFT saves it, got none")
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise InvalidModel(f"{file}: expected at most {MAX_CONFIG_BYTES} bytes, got {file.stat().st_size}")
    config = read_json(file)
    _check_served(file, config)
    fields = _Fields(file, config)
    return LoraConfig(
        file=file,
        rank=fields.rank("r", config.get("r", 8)),
        alpha=fields.number("lora_alpha", config.get("lora_alpha", 8)),
        use_rslora=config.get("use_rslora") is True,
        rank_pattern={key: fields.rank("rank_pattern", each) for key, each in fields.table("rank_pattern")},
        alpha_pattern={key: fields.number("alpha_pattern", each) for key, each in fields.table("alpha_pattern")},
        target_modules=fields.names("target_modules", is_required=True),
        exclude_modules=fields.names("exclude_modules"),
        layers_to_transform=fields.indices("layers_to_transform"),
        layers_pattern=_as_tuple(fields.names("layers_pattern")),
    )


def _check_served(file: Path, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise InvalidModel(f'{file}: peft_type: expected "LORA", got {_shown(config.get("peft_type"))}')
    for key, value in config.items():
        if key in _REFUSED:
            is_served = any(value is each or value == each for each in _REFUSED[key])
        else:
            is_served = key in _READ or key in _IGNORED or not value
        if not is_served:
            raise InvalidModel(
                f"{file}: {key}: expected no value, as such adapters are not served, got {_shown(value)}; merge the "
                "adapter into its base, or train one without it"
            )


class _Fields:
    """Read values of adapter_config.json with checks of their types. All methods raise InvalidModel."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self._file = file
        self._config = config

    def rank(self, key: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= MAX_RANK:
            raise self._invalid(key, f"an integer from 1 to {MAX_RANK}", value)
        return value

    def number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._invalid(key, "a number", value)
        return float(value)

    def table(self, key: str) -> list[tuple[str, Any]]:
        value = self._config.get(key) or {}
        if not isinstance(value, dict):
            raise self._invalid(key, "an object", value)
        self._check_lengths(key, value)
        return list(value.items())

    def names(self, key: str, *, is_required: bool = False) -> str | tuple[str, ...]:
        value = self._config.get(key)
        if value in (None, [], "") and not is_required:
            return ()
        if isinstance(value, str) and value:
            self._check_lengths(key, [value])
            return value
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise self._invalid(key, "a pattern or a list of names", value)
        self._check_lengths(key, value)
        return tuple(value)

    def indices(self, key: str) -> tuple[int, ...]:
        value = self._config.get(key)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if not all(type(each) is int for each in values):
            raise self._invalid(key, "an index of a layer or a list of them", value)
        return tuple(values)

    def _check_lengths(self, key: str, values: Any) -> None:
        if sum(map(len, values)) > _MAX_PATTERN_CHARACTERS:
            raise self._invalid(key, f"at most {_MAX_PATTERN_CHARACTERS} characters", values)

    def _invalid(self, key: str, expected: str, value: object) -> InvalidModel:
        return InvalidModel(f"{self._file}: {key}: expected {expected}, got {_shown(value)}; correct the file")


def _ends(module: str, ends: str | tuple[str, ...]) -> bool:
    return any(module == each or module.endswith(f".{each}") for each in _as_tuple(ends))


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
