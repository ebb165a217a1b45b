"""Settings of adapters: `[[models.torch_models.adapters]]`."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from frameworks.core.settings.values import checked_path
from memory.settings import SETTINGS_RULES

MAX_ADAPTERS = 256
"""Adapters of one model."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Of the names of adapters."""


class AdapterEntry(BaseModel):
    """One `[[models.torch_models.adapters]]` entry."""

    model_config = SETTINGS_RULES

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name in requests, after that of the model: `model:name`. Letters, digits, `.`, `-` and `_`, at most 128; the
    first is a letter or a digit."""
    path: Annotated[Path, BeforeValidator(checked_path)]
    """Folder with `adapter_config.json` and `adapter_model.safetensors`, as PEFT saves them. A relative path starts at
    the folder of the config file."""


def with_unique_names(adapters: tuple[AdapterEntry, ...]) -> tuple[AdapterEntry, ...]:
    """Return the adapters of a model. Raises ValueError for a name that occurs twice."""
    names = [each.name for each in adapters]
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise ValueError(f'expected adapters with unique names, got "{again}" twice; choose another')
    return adapters


Adapters = Annotated[
    tuple[AdapterEntry, ...], Field(strict=False, max_length=MAX_ADAPTERS), AfterValidator(with_unique_names)
]
