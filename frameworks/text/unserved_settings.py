"""Refuse the settings of sentence-transformers' files that are not served, by their keys.

Source: the modules of sentence-transformers 6, which read these files. The manual lists every key: docs/model-files.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_settings, refuse_unknown
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.order import of_tokens

_Served = Mapping[str, tuple[object, ...]]

_MODEL_FILE: _Served = {
    "keep_in_fp32_modules": ([],),
    "model_type": ("SentenceTransformer", "CrossEncoder", "ColBERT", "SparseEncoder"),
    "truncate_dim": (),
}
_TRANSFORMER: _Served = {
    "document_length": (),
    "module_output_name": ("token_embeddings", "sentence_embedding", "scores", "causal_logits"),
    "query_expansion": (),
    "query_length": (),
    "tokenizer_name_or_path": (),
    "transformer_task": ("feature-extraction", "sequence-classification", "text-generation"),
}
_TRANSFORMER_READ = ("do_lower_case", "max_seq_length", "modality_config", "processing_kwargs", "unpad_inputs")
# Arguments that change no number, by the keys that hold them. Older versions write the second key of a line.
_WITHOUT_EFFECT = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("model_kwargs", "model_args"),
    (
        "add_pooling_layer", "attn_implementation", "device_map", "dtype", "export", "file_name", "low_cpu_mem_usage",
        "provider", "torch_dtype", "use_safetensors",
    ),
) | {
    "processor_kwargs": ("padding_side", "use_fast"), "tokenizer_args": ("padding_side", "use_fast"),
    "config_kwargs": ("use_cache",), "config_args": ("use_cache",),
}  # fmt: skip
_OF_VECTORS: _Served = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding",),
}
_OF_TOKENS: _Served = {
    "module_input_name": ("token_embeddings",),
    "module_output_name": ("token_embeddings",),
}
_MODULES: Mapping[str, _Served] = {
    "Dense": _OF_VECTORS,
    "LogitScore": {"module_input_name": ("causal_logits",)},
    "Normalize": _OF_VECTORS,
}
# Keys of the modules whose classes accept no others.
_READ: Mapping[str, tuple[str, ...]] = {
    "BoW": ("cumulative_term_frequency", "unknown_word_weight", "vocab", "word_weights"),
    "CNN": ("in_embedding_dimension", "in_word_embedding_dimension", "kernel_sizes", "out_channels", "stride_sizes"),
    "LSTM": (
        "bidirectional", "dropout", "embedding_dimension", "hidden_dim", "num_layers", "word_embedding_dimension",
    ),
    "Pooling": (
        "embedding_dimension", "include_prompt", "pooling_mode", "pooling_mode_cls_token", "pooling_mode_lasttoken",
        "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_mean_tokens",
        "pooling_mode_weightedmean_tokens", "word_embedding_dimension",
    ),
    "SpladePooling": ("activation_function", "embedding_dimension", "pooling_strategy", "word_embedding_dimension"),
    "SparseAutoEncoder": ("dead_threshold", "hidden_dim", "input_dim", "k", "k_aux", "normalize"),
    "SparseStaticEmbedding": ("frozen",),
    "WeightedLayerPooling": (
        "embedding_dimension", "layer_start", "num_hidden_layers", "word_embedding_dimension",
    ),
    "WordEmbeddings": ("max_seq_length", "tokenizer_class", "update_embeddings"),
    "WordWeights": ("unknown_word_weight", "vocab", "word_weights"),
}  # fmt: skip


def refuse_unserved(folder: Path, modules: Sequence[Module], sentence: Mapping[str, Any], file: Path) -> None:
    """Raise InvalidModel for a setting of a model's files that would be ignored.

    `modules`: of `modules.json`. `sentence`, `file`: `sentence_bert_config.json`.
    """
    if modules:
        model_file = folder / "config_sentence_transformers.json"
        refuse_settings(model_file, read_json(model_file), _MODEL_FILE)
    for module in modules:
        if module.kind in _MODULES:
            known = _OF_TOKENS if of_tokens(module) else _MODULES[module.kind]
            refuse_settings(module.config_file, module.config, known)
        elif module.kind in _READ:
            refuse_unknown(module.config_file, module.config, _READ[module.kind])
    refuse_unknown(file, sentence, (*_TRANSFORMER, *_TRANSFORMER_READ, *_ARGUMENTS))
    transformer = _TRANSFORMER
    if any(module.kind == "SpladePooling" for module in modules):
        transformer = {**_TRANSFORMER, "transformer_task": ("fill-mask",)}
    refuse_settings(file, sentence, transformer)
    for key, served in _ARGUMENTS.items():
        _refuse_arguments(file, f"{key}.", sentence.get(key), (*served, *_WITHOUT_EFFECT))
    processing = sentence.get("processing_kwargs")
    if isinstance(processing, dict):
        for key in ("common", "text"):
            _refuse_arguments(file, f"processing_kwargs.{key}.", processing.get(key), ("padding",))
    _check_method(file, sentence.get("modality_config"))


def _refuse_arguments(file: Path, prefix: str, arguments: object, served: Sequence[str]) -> None:
    if isinstance(arguments, dict):
        stated = {f"{prefix}{key}": value for key, value in arguments.items()}
        refuse_settings(file, stated, {key: () for key in stated if key.removeprefix(prefix) not in served})


def _check_method(file: Path, modalities: object) -> None:
    """Raise InvalidModel where texts are not read by the model's own forward pass."""
    text = modalities.get("text") if isinstance(modalities, dict) else None
    method = text.get("method", "forward") if isinstance(text, dict) else "forward"
    # The second one is that of towers of texts.
    if method not in ("forward", "get_text_features"):
        raise InvalidModel(
            f"{file}: modality_config: expected texts read by forward, got {str(method)[:100]}; "
            "this setting is not served"
        )
