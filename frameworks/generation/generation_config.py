"""Read the end-of-text tokens, forced tokens and default sampling of a generating model's files.

Sources: Hugging Face `generation_config.json` and `config.json`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_settings
from frameworks.generation.types import MAX_BEAMS, BeamSearch, ForcedTokens, Sampling

_GENERATION_CONFIG = "generation_config.json"
_CONFIG = "config.json"
_EOS = "eos_token_id"
_DECODER_START = "decoder_start_token_id"
_BEGIN_SUPPRESSED = "begin_suppress_tokens"
# Names of the part of a config.json that describes the text model, as transformers looks for it.
_TEXT_PARTS = ("decoder", "generator", "text_config")
# Of settings that are not served, the values without effect. The manual lists every key: docs/model-files.md.
_UNSERVED: dict[str, tuple[object, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0, 0.0),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "guidance_scale": (1, 1.0),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0, 0.0),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (1, 1.0),
    "typical_p": (1, 1.0),
    "watermarking_config": (),
}

_OF_SOURCES = frozenset(
    {
        *("bad_words_ids", "begin_suppress_tokens", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"),
        *("no_repeat_ngram_size", "num_beams", "suppress_tokens"),
    }
)
"""Those that are served for models with an encoder."""


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the tokens that end a text; empty if the files name none.

    generation_config.json decides, and config.json (or the part for its text model) if the former names none, as in
    vLLM. Raises InvalidModel for a value that is not a token id or a list of them.
    """
    file = folder / _GENERATION_CONFIG
    ids = _token_ids(file, read_json(file), _EOS)
    if ids is None:
        ids = _token_ids(folder / _CONFIG, _settings_of_config(folder), _EOS)
    return frozenset(ids or ())


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of a model with an encoder for its texts, as transformers' `generate` reads them.

    `decoder_prompt`: the tokens that a text follows. `max_new_tokens`: None where the files do not bound a text.
    """

    decoder_prompt: tuple[int, ...]
    max_new_tokens: int | None = None
    min_new_tokens: int = 0


def source_settings(folder: Path, vocabulary_size: int) -> SourceSettings:
    """Return the settings of a model with an encoder. Raises InvalidModel for values of another kind, and where no
    token begins the texts of the decoder.
    """
    file, settings = _settings(folder)
    config = _settings_of_config(folder)
    start: tuple[int, ...] | None = None
    for name in (_DECODER_START, "bos_token_id"):
        start = start or _token_ids(file, settings, name) or _token_ids(folder / _CONFIG, config, name)
    if not start or len(start) > 1 or start[0] >= vocabulary_size:
        raise InvalidModel(
            f"{file}: {_DECODER_START}: expected a token id below {vocabulary_size}, got "
            f"{_shown_value(settings.get(_DECODER_START))}; add it"
        )
    # transformers counts the tokens of the decoder's prompt in a length, not in a number of new tokens.
    most, least = (_count(file, settings, name) for name in ("max_new_tokens", "min_new_tokens"))
    longest, shortest = (_count(file, settings, name) for name in ("max_length", "min_length"))
    if most is None and longest is not None:
        most = max(1, longest - len(start))
    if least is None and shortest is not None:
        least = max(0, shortest - len(start))
    return SourceSettings(start, most, least or 0)


def _count(file: Path, settings: dict[str, Any], name: str) -> int | None:
    value = settings.get(name)
    if value is not None and not (_is_integer(value) and value >= 0):
        raise InvalidModel(f"{file}: {name}: expected an integer of at least 0, got {_shown_value(value)}; correct it")
    return value


def forced_tokens(folder: Path, vocabulary_size: int) -> ForcedTokens:
    """Return the tokens that are forced at the beginning and at the limit of a text.

    Raises InvalidModel for a value that is not a token id below `vocabulary_size`, or a list of them.
    """
    file, settings = _settings(folder)
    found = []
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        ids = _token_ids(file, settings, name) or ()
        if any(token_id >= vocabulary_size for token_id in ids):
            raise InvalidModel(
                f"{file}: {name}: expected token ids below {vocabulary_size}, the size of the vocabulary, got "
                f"{max(ids)}; correct or remove it"
            )
        found.append(ids)
    return ForcedTokens(*found)


def default_sampling(folder: Path, *, has_encoder: bool = False) -> Sampling:
    """Return the sampling for requests that set none, from the folder's generation_config.json; without that file,
    from its config.json.

    As vLLM's `--generation-config auto`: temperature, top_k, top_p, min_p and repetition_penalty apply as they stand,
    whatever `do_sample` says; absent ones are as in Sampling. So a file with `do_sample` false and no temperature does
    not make a model greedy: callers of OpenAI's API expect a temperature of 1 unless they set 0.

    `has_encoder`: a model that translates or summarizes is greedy unless its files say `do_sample`, as in `generate`.

    Raises InvalidModel for a value of a wrong type or range, and for a setting that is not served.
    """
    file, config = _settings(folder)
    unserved = {name: values for name, values in _UNSERVED.items() if not (has_encoder and name in _OF_SOURCES)}
    refuse_settings(file, config, unserved)
    if has_encoder and config.get("do_sample") is not True:
        config = config | {"temperature": 0.0}
    values = {
        name: _read(file, name, config[name], rule)
        for name, rule in _VALUE_RULES.items()
        if config.get(name) is not None
    }
    sampling = Sampling(**values)
    return _with_bans_and_beams(file, config, sampling) if has_encoder else sampling


def _with_bans_and_beams(file: Path, config: dict[str, Any], sampling: Sampling) -> Sampling:
    """Return the sampling of a model with an encoder: with what its files ban, and their beams."""
    words = config.get("bad_words_ids") or []
    if not (isinstance(words, list) and all(isinstance(each, list) and each for each in words)):
        raise InvalidModel(f"{file}: bad_words_ids: expected lists of token ids, got {_shown_value(words)}; correct it")
    bad = [_token_ids(file, {"bad_words_ids": each}, "bad_words_ids") or () for each in words]
    suppressed, at_begin = (_token_ids(file, config, name) or () for name in ("suppress_tokens", _BEGIN_SUPPRESSED))
    return replace(
        sampling,
        bad_sequences=(*bad, *((each,) for each in suppressed)),
        begin_suppressed_ids=at_begin,
        no_repeat_ngram_size=_count(file, config, "no_repeat_ngram_size") or 0,
        source_ngram_size=_count(file, config, "encoder_no_repeat_ngram_size") or 0,
        beams=_beams(file, config),
    )


def _beams(file: Path, config: dict[str, Any]) -> BeamSearch | None:
    num_beams = _count(file, config, "num_beams") or 1
    if num_beams < 2 or config.get("do_sample") is True:
        return None
    if num_beams > MAX_BEAMS:
        raise InvalidModel(f"{file}: num_beams: expected at most {MAX_BEAMS}, got {num_beams}; correct it")
    penalty, early = config.get("length_penalty"), config.get("early_stopping")
    penalty, early = 1.0 if penalty is None else penalty, False if early is None else early
    if not _is_number(penalty) or early not in (True, False, "never"):
        raise InvalidModel(
            f'{file}: expected a number as length_penalty, and true, false or "never" as early_stopping, got '
            f"{_shown_value(penalty)} and {_shown_value(early)}; correct them"
        )
    return BeamSearch(num_beams, float(penalty), early)


def _settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the settings of generation and their file, as transformers' `from_pretrained` finds them.

    Those of generation_config.json alone; only without that file those of config.json. Defaults of transformers' class
    for config.json have no effect.
    """
    file = folder / _GENERATION_CONFIG
    if file.is_file():
        return file, read_json(file)
    return folder / _CONFIG, _settings_of_config(folder)


def _settings_of_config(folder: Path) -> dict[str, Any]:
    """Return the keys of config.json, and for those without a value there the keys of the part for its text model."""
    config = read_json(folder / _CONFIG)
    part = next((config[name] for name in _TEXT_PARTS if config.get(name)), None)
    own = {key: value for key, value in config.items() if value is not None}
    return part | own if isinstance(part, dict) else own


def _token_ids(file: Path, settings: dict[str, Any], name: str) -> tuple[int, ...] | None:
    named = settings.get(name)
    if named is None:
        return None
    ids = named if isinstance(named, list) else [named]
    if not all(_is_integer(token_id) and token_id >= 0 for token_id in ids):
        raise InvalidModel(f"{file}: {name}: expected a token id or a list of token ids, got {_shown_value(named)}")
    return tuple(ids)


@dataclass(frozen=True, slots=True)
class _ValueRule:
    """The values that a key accepts, in words and as a check, and the conversion of a valid one."""

    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = float


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# transformers writes 0 for "all candidates", and vLLM -1.
_VALUE_RULES = {
    "temperature": _ValueRule("a number of at least 0", lambda value: _is_number(value) and value >= 0),
    "top_k": _ValueRule(
        "an integer of at least -1", lambda value: _is_integer(value) and value >= -1, lambda k: k if k > 0 else None
    ),
    "top_p": _ValueRule("a number above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1),
    "min_p": _ValueRule("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "repetition_penalty": _ValueRule("a number above 0", lambda value: _is_number(value) and value > 0),
}


def _read(file: Path, name: str, value: object, rule: _ValueRule) -> Any:
    if not rule.accepts(value):
        raise InvalidModel(f"{file}: {name}: expected {rule.expected}, got {_shown_value(value)}")
    return rule.convert(value)


def _shown_value(value: object) -> str:
    return repr(value)[:100]
