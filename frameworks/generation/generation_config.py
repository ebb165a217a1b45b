"""What a generating model's files say about where a text ends and how its tokens are chosen by default.

Sources: Hugging Face `generation_config.json` and `config.json`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frameworks.errors import InvalidModel
from frameworks.files import read_json
from frameworks.generation.types import Sampling

_GENERATION_CONFIG = "generation_config.json"
_EOS = "eos_token_id"


def eos_token_ids(folder: Path) -> frozenset[int]:
    """The tokens of which any ends a text; empty where the files name none.

    As transformers' own `generate`: those of generation_config.json, and those of config.json (or of its text model's
    part) only where the former names none. Raises InvalidModel where a value is not a token id or a list of them.
    """
    config_file = folder / "config.json"
    config = read_json(config_file)
    parts = [(folder / _GENERATION_CONFIG, read_json(folder / _GENERATION_CONFIG)), (config_file, config)]
    if isinstance(config.get("text_config"), dict):
        parts.append((config_file, config["text_config"]))
    for file, content in parts:
        named = content.get(_EOS)
        if named is None:
            continue
        ids = named if isinstance(named, list) else [named]
        if not all(_is_integer(token_id) and token_id >= 0 for token_id in ids):
            raise InvalidModel(f"{file}: {_EOS} is {_shown(named)}; a token id or a list of token ids is served")
        return frozenset(ids)
    return frozenset()


def default_sampling(folder: Path) -> Sampling:
    """How tokens are chosen where a caller does not say, by the folder's generation_config.json.

    As vLLM's `--generation-config auto`: temperature, top_k, top_p, min_p and repetition_penalty are taken as they
    stand, whatever `do_sample` says, and what the file leaves out is as in Sampling. So a file with `do_sample` false
    and no temperature makes no model greedy: callers of OpenAI's API expect a temperature of 1 unless they say 0.

    Raises InvalidModel where a value is of a wrong type or cannot be.
    """
    file = folder / _GENERATION_CONFIG
    config = read_json(file)
    values = {
        name: _read(file, name, config[name], kind) for name, kind in _KINDS.items() if config.get(name) is not None
    }
    return Sampling(**values)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value may be, in words and as a check, and what is made of it."""

    words: str
    suits: Callable[[Any], bool]
    made: Callable[[Any], Any] = float


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# transformers writes 0 for "all candidates", and vLLM -1.
_KINDS = {
    "temperature": _Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0),
    "top_k": _Kind(
        "an integer of at least -1", lambda value: _is_integer(value) and value >= -1, lambda k: k if k > 0 else None
    ),
    "top_p": _Kind("a number above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1),
    "min_p": _Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "repetition_penalty": _Kind("a number above 0", lambda value: _is_number(value) and value > 0),
}


def _read(file: Path, name: str, value: object, kind: _Kind) -> Any:
    if not kind.suits(value):
        raise InvalidModel(f"{file}: {name} is {_shown(value)}; {kind.words} is served")
    return kind.made(value)


def _shown(value: object) -> str:
    return repr(value)[:100]
