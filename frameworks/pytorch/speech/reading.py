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


def read_speech(
    folder: Path, model: Any, shape: EncoderDecoderShape, max_text_tokens: int, num_blocks: int
) -> ServedSpeech:
    """Read the files of a model of Whisper. `model`: of transformers. Raises InvalidModel."""
    pipeline = load_pipeline(folder, SPEECH_TASK, model)
    config, generation = model.config, model.generation_config
    if not isinstance(getattr(generation, "no_timestamps_token_id", None), int):
        raise InvalidModel(
            f"{folder / 'generation_config.json'}: no_timestamps_token_id: expected a token id, got none; copy the "
            "file of the original model"
        )
    extractor = pipeline.feature_extractor
    window_frames = extractor.nb_max_frames
    if window_frames != 2 * shape.max_source_tokens:
        raise InvalidModel(
            f"{folder}: chunk_length: expected windows of {2 * shape.max_source_tokens} frames, which the encoder "
            f"reads, got {window_frames}; correct preprocessor_config.json"
        )
    timestamps = TimestampSpec(
        generation.no_timestamps_token_id + 1,
        window_frames,
        window_frames // shape.max_source_tokens,
        extractor.chunk_length / shape.max_source_tokens,
        getattr(generation, "max_initial_timestamp_index", None),
        bool(_alignment_heads(model)),
    )
    is_multilingual = getattr(generation, "is_multilingual", True) is not False
    languages = _ids_by_code(generation, "lang_to_id") if is_multilingual else {}
    tasks = dict(getattr(generation, "task_to_id", None) or {}) if is_multilingual else {}
    defaults = _default_ids(folder, generation, config)
    spec = SpeechSpec(
        GenerationSpec(max_text_tokens, shape.vocabulary_size),
        "input_features",
        (generation.decoder_start_token_id,),
        BLOCK_TOKENS,
        generation.max_length or max_text_tokens,
        (config.num_mel_bins, window_frames),
        shape.max_source_tokens,
        defaults,
        languages,
        tasks,
        _previous_id(generation),
        timestamps,
        bool(languages) and (not defaults or defaults[0] is None),
        num_blocks,
    )
    options = _default_options(generation, spec)
    return ServedSpeech(
        spec,
        speech_task(languages, tasks, has_timestamps=True),
        SpeechPipeline(pipeline, spec, options, lambda _: shape.max_source_tokens),
        _alignment_heads(model),
    )


def _alignment_heads(model: Any) -> tuple[tuple[int, int], ...]:
    """Return the heads in the order of their layers."""
    heads = getattr(model.generation_config, "alignment_heads", None) or ()
    return tuple(sorted((int(layer), int(head)) for layer, head in heads))


def _ids_by_code(generation: Any, name: str) -> dict[str, int]:
    """Return the tokens of the languages by code: "<|en|>" is `en`."""
    return {token.strip("<|>"): token_id for token, token_id in (getattr(generation, name, None) or {}).items()}


def _default_ids(folder: Path, generation: Any, config: Any) -> tuple[int | None, ...]:
    """Return the tokens after the start of a text, as `forced_decoder_ids` of older files name them."""
    if getattr(generation, "task", None) is not None or getattr(generation, "language", None) is not None:
        return ()
    forced = getattr(generation, "forced_decoder_ids", None) or getattr(config, "forced_decoder_ids", None) or ()
    if [position for position, _ in forced] != list(range(1, len(forced) + 1)):
        raise InvalidModel(
            f"{folder}: forced_decoder_ids: expected a token for each position from 1 on, got {forced}; correct it"
        )
    return tuple(token_id for _, token_id in forced)


def _previous_id(generation: Any) -> int | None:
    """Return the token before the text of earlier windows, found as by transformers where the files do not name it."""
    named = getattr(generation, "prev_sot_token_id", None)
    suppressed: list[int] = generation.suppress_tokens or []
    return suppressed[-2] if named is None and len(suppressed) >= 2 else named


def _default_options(generation: Any, spec: SpeechSpec) -> SpeechOptions:
    """Return the options of requests that name none."""
    task = getattr(generation, "task", None)
    language = str(getattr(generation, "language", None) or "").lower().strip("<|>")
    language = TO_LANGUAGE_CODE.get(language, language)
    return SpeechOptions(
        language=language if language in spec.language_ids else None,
        task=task if task in spec.task_ids else None,
        is_timed=bool(getattr(generation, "return_timestamps", False)),
        compression_ratio_threshold=getattr(generation, "compression_ratio_threshold", None),
        logprob_threshold=getattr(generation, "logprob_threshold", None),
        no_speech_threshold=getattr(generation, "no_speech_threshold", None),
        conditions_on_previous=bool(getattr(generation, "condition_on_prev_tokens", False)),
        max_new_tokens=generation.max_new_tokens,
    )
