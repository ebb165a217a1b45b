"""Read how a model with an encoder of sounds makes texts: its windows, languages and timestamps."""

from pathlib import Path
from typing import Any

from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from frameworks.core.errors import InvalidModel
from frameworks.generation.speech.spec import SpeechOptions, SpeechSpec, TimestampSpec
from frameworks.generation.types import GenerationSpec
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.encoder_decoder.shape import EncoderDecoderShape
from frameworks.pytorch.generation.loading.served import ServedSpeech
from frameworks.pytorch.speech.pipeline import SpeechPipeline
from frameworks.pytorch.tasks.loading import load_pipeline
from frameworks.tasks.speech_decoders import SPEECH_TASK, speech_task

_FILE = "generation_config.json"


def read_speech(
    folder: Path, model: Any, shape: EncoderDecoderShape, max_text_tokens: int, num_blocks: int
) -> ServedSpeech:
    """Read the files of a model of Whisper. `model`: of transformers. Raises InvalidModel."""
    pipeline = load_pipeline(folder, SPEECH_TASK, model)
    config, generation = model.config, model.generation_config
    if not isinstance(getattr(generation, "no_timestamps_token_id", None), int):
        raise InvalidModel(
            f"{folder / _FILE}: no_timestamps_token_id: expected a token id, got none; copy the "
            "file of the original model"
        )
    extractor = pipeline.feature_extractor
    window_frames = extractor.nb_max_frames
    if window_frames != 2 * shape.max_source_tokens:
        raise InvalidModel(
            f"{folder}: chunk_length: expected windows of {2 * shape.max_source_tokens} frames, which the encoder "
            f"reads, got {window_frames}; correct preprocessor_config.json"
        )
    heads = _alignment_heads(folder, generation, shape)
    timestamps = TimestampSpec(
        generation.no_timestamps_token_id + 1,
        window_frames,
        window_frames // shape.max_source_tokens,
        extractor.chunk_length / shape.max_source_tokens,
        getattr(generation, "max_initial_timestamp_index", None),
        bool(heads),
    )
    is_multilingual = getattr(generation, "is_multilingual", True) is not False
    spec = SpeechSpec(
        GenerationSpec(max_text_tokens, shape.vocabulary_size),
        timestamps,
        (generation.decoder_start_token_id,),
        BLOCK_TOKENS,
        num_blocks,
        generation.max_length or max_text_tokens,
        (config.num_mel_bins, window_frames),
        shape.max_source_tokens,
        _default_ids(folder, generation, config),
        _named_ids(folder, generation, "lang_to_id") if is_multilingual else {},
        _named_ids(folder, generation, "task_to_id") if is_multilingual else {},
        _previous_id(generation),
    )
    _check_ids(folder, spec, shape.vocabulary_size)
    options = _default_options(folder, generation, spec)
    task = speech_task(spec.language_ids, spec.task_ids)
    return ServedSpeech(spec, task, SpeechPipeline(pipeline, spec, options), heads)


def _check_ids(folder: Path, spec: SpeechSpec, vocabulary_size: int) -> None:
    """Raise InvalidModel for tokens that the model does not have: no text could be masked by them."""
    ids = (
        *(*spec.start_ids, *spec.default_ids, *spec.language_ids.values(), *spec.task_ids.values()),
        *(spec.previous_id, spec.timestamps.first_id, spec.timestamps.no_speech_id),
    )
    wrong = [each for each in ids if each is not None and not (type(each) is int and 0 <= each < vocabulary_size)]
    if wrong:
        raise InvalidModel(
            f"{folder / _FILE}: expected token ids below {vocabulary_size}, the vocabulary's size, got {wrong[0]}; "
            "copy the file of the original model"
        )


def _alignment_heads(folder: Path, generation: Any, shape: EncoderDecoderShape) -> tuple[tuple[int, int], ...]:
    """Return the heads in the order of their layers. Raises InvalidModel for those that the decoder does not have."""
    heads = getattr(generation, "alignment_heads", None) or []
    known = {(layer, head) for layer in range(shape.cache.layers) for head in range(shape.query_heads)}
    if not isinstance(heads, list) or not all(isinstance(each, list) and tuple(each) in known for each in heads):
        raise InvalidModel(
            f"{folder / _FILE}: alignment_heads: expected pairs of a layer below {shape.cache.layers} and a head below "
            f"{shape.query_heads}, got {str(heads)[:100]}; correct or remove it"
        )
    return tuple(sorted((layer, head) for layer, head in heads))


def _named_ids(folder: Path, generation: Any, name: str) -> dict[str, int]:
    """Return tokens by name: "<|en|>" is `en`. Raises InvalidModel."""
    named = getattr(generation, name, None) or {}
    if not isinstance(named, dict):
        raise InvalidModel(f"{folder / _FILE}: {name}: expected an object of names and token ids; correct it")
    return {token.strip("<|>"): token_id for token, token_id in named.items()}


def _default_ids(folder: Path, generation: Any, config: Any) -> tuple[int | None, ...]:
    """Return the tokens after the start of a text, as `forced_decoder_ids` of older files name them."""
    if getattr(generation, "task", None) is not None or getattr(generation, "language", None) is not None:
        return ()
    forced = getattr(generation, "forced_decoder_ids", None) or getattr(config, "forced_decoder_ids", None) or ()
    if [each[0] for each in forced if len(each) == 2] != list(range(1, len(forced) + 1)):
        raise InvalidModel(
            f"{folder}: forced_decoder_ids: expected a token for each position from 1 on, got {forced}; correct it"
        )
    return tuple(token_id for _, token_id in forced)


def _previous_id(generation: Any) -> int | None:
    """Return the token before the text of earlier windows, found as by transformers where the files do not name it."""
    named = getattr(generation, "prev_sot_token_id", None)
    suppressed: list[int] = generation.suppress_tokens or []
    return suppressed[-2] if named is None and len(suppressed) >= 2 else named


def _default_options(folder: Path, generation: Any, spec: SpeechSpec) -> SpeechOptions:
    """Return the options of requests that name none. Raises InvalidModel for those that cannot be."""
    task = getattr(generation, "task", None)
    language = getattr(generation, "language", None)
    code = None if language is None else str(language).lower().strip("<|>")
    code = TO_LANGUAGE_CODE.get(code, code)
    for name, value, known in (("language", code, spec.language_ids), ("task", task, spec.task_ids)):
        if value is not None and value not in known:
            raise InvalidModel(
                f"{folder / _FILE}: {name}: expected one of {', '.join(known) or 'none'}, got {value}; "
                "correct or remove it"
            )
    options = SpeechOptions(
        language=code,
        task=task,
        is_timed=bool(getattr(generation, "return_timestamps", False)),
        compression_ratio_threshold=getattr(generation, "compression_ratio_threshold", None),
        logprob_threshold=getattr(generation, "logprob_threshold", None),
        no_speech_threshold=getattr(generation, "no_speech_threshold", None),
        conditions_on_previous=bool(getattr(generation, "condition_on_prev_tokens", False)),
        max_new_tokens=generation.max_new_tokens,
    )
    if options.no_speech_threshold is not None and options.logprob_threshold is None:
        raise InvalidModel(
            f"{folder / _FILE}: no_speech_threshold: expected logprob_threshold too, got none; add it, or remove both"
        )
    if options.logprob_threshold is not None and (generation.num_beams or 1) > 1:
        raise InvalidModel(
            f"{folder / _FILE}: num_beams: expected 1 with logprob_threshold, as beams have no mean, got "
            f"{generation.num_beams}; remove one of them"
        )
    return options
