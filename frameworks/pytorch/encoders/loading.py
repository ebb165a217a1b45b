"""Load encoders from a folder, as its sentence-transformers and config files describe them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.encoders.answer_scoring import AnswerScorer
from frameworks.pytorch.encoders.encoder import EncoderModel, TextHead
from frameworks.pytorch.encoders.kernels import EncoderKernels
from frameworks.pytorch.encoders.positions import usable_positions_of
from frameworks.pytorch.encoders.sparse import load_token_weights
from frameworks.pytorch.encoders.static_encoder import StaticEncoder, load_table
from frameworks.pytorch.encoders.token_modules import TokenModules, load_token_modules
from frameworks.pytorch.encoders.vector_kinds import with_vector_heads
from frameworks.pytorch.encoders.words import WordBagModel, load_words
from frameworks.pytorch.loader import DTYPE_NAMES, load_causal_model, load_encoder, load_model_of
from frameworks.pytorch.packed_files import PackedFiles
from frameworks.pytorch.quantize import held_bytes, quantize_encoder
from frameworks.pytorch.weights import WeightFiles
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.texts import text_batches
from frameworks.scheduling.merging.text_padding import TextPadding
from frameworks.text.config import TextConfig
from frameworks.text.late.tokenizer import LateTokenizer
from frameworks.text.pair_scores import has_chat_template
from frameworks.text.sentence_modules.vector_modules import VectorModules
from frameworks.text.tokenizer import TextTokenizer
from frameworks.text.words.tokenizer import load_word_tokenizer
from frameworks.types import ModelSpec, TensorType, TextSpec, ValueSpec
from memory.tensor_pool import TensorPool


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model before anything is loaded. `folder`: of config.json. `packed`: the quantized weights of the
    files; None where all are floats.
    """

    folder: Path
    entry: TorchModelEntry
    config: TextConfig
    weights: WeightFiles
    packed: PackedFiles | None = None


@dataclass(frozen=True, slots=True)
class EncoderLoading:
    """How encoders are loaded. `dtype`: f32, f16 or bf16. `intra_op_threads`: CPU threads of one run. `pool`: of pinned
    memory. `max_batch_size`: texts or images of one run.
    """

    device: Device
    dtype: str
    intra_op_threads: int
    enable_memory_mapping: bool
    pool: TensorPool | None
    max_batch_size: int


def load_encoders(files: ModelFiles, loading: EncoderLoading, copies: QuantizedCopies | None) -> list[EncoderModel]:
    """Load as many instances as the entry says, on one set of weights. `copies`: cache of int8 reports; None: the model
    is not quantized.

    Raises InvalidModel, OutOfMemory.
    """
    config, device, dtype = files.config, loading.device, loading.dtype
    pooling = _pooling(config, files.weights)
    has_layers = config.static is None and config.words is None
    kind = _kind_without_int8(config)
    if copies is not None and kind is not None:
        raise InvalidModel(f'{files.folder}: dtype: expected no "int8" for {kind}; remove it')
    tokenizer = _tokenizer(files)
    model = _model(files, loading, tokenizer)
    kernels = EncoderKernels(files.entry, device, loading.max_batch_size)
    if has_layers and copies is None:
        kernels.choose(model)
    usable = usable_positions_of(model, tokenizer) if has_layers else None
    if usable is not None and usable < config.max_tokens:
        config = replace(config, max_tokens=usable)
        files = replace(files, config=config)
        tokenizer = _tokenizer(files)
    tokens = load_token_modules(model, config, tokenizer.vocabulary_size, files.entry.allow_pickled_weights)
    head = TextHead(pooling, _vectors(model, files, pooling, tokens), tokens)
    spec = _spec(model, config, head, device, dtype)
    # A sum of rows is shorter than the start of a second thread.
    threads = loading.intra_op_threads if has_layers or config.token_modules else 1
    padding = TextPadding(_pad_token_id(model, config))
    if copies is not None:
        encoder = EncoderModel(model, tokenizer, spec, head, padding, threads)
        make_batches = partial(text_batches, tokenizer.tokenize)
        report = quantize_encoder(model, encoder, make_batches, files.entry, files.weights, copies)
        spec = replace(_spec(model, config, head, device, "int8"), quantization=report)
    # A run does not change the module: one is enough for any number of threads.
    spec, make = _with_own_class(files, model, tokenizer, spec)
    found = [make(model, tokenizer, spec, head, padding, threads, loading.pool) for _ in range(files.entry.instances)]
    if has_layers:
        spare = make(model, tokenizer, spec, head, padding, threads, loading.pool) if kernels.awaits_code else None
        kernels.let_run(found, spare, config.max_tokens)
    return found


def _kind_without_int8(config: TextConfig) -> str | None:
    """Return what a model is that is not quantized; None for one that is."""
    if config.static is not None or config.words is not None:
        return "static embeddings"
    if config.late is not None:
        return "a model of late interaction"
    is_sparse = config.sparse is not None or config.sparse_module is not None
    return "a model of sparse vectors" if is_sparse else None


def _with_own_class(
    files: ModelFiles, model: torch.nn.Module, tokenizer: TextTokenizer, spec: ModelSpec
) -> tuple[ModelSpec, Callable[..., EncoderModel]]:
    """Return the spec of a model, and what makes an instance of it, as EncoderModel. `spec`: of its dense vectors.

    Raises InvalidModel.
    """
    config, allow_pickled = files.config, files.entry.allow_pickled_weights
    if config.late is not None:
        # A process of another encoder needs none of it.
        from frameworks.pytorch.encoders.token_vectors import with_token_vectors

        return with_token_vectors(model, spec, config.late, files.weights)
    if config.sparse is not None or config.sparse_module is not None:
        from frameworks.pytorch.encoders.sparse import with_sparse_module

        return with_sparse_module(model, spec, config, allow_pickled)
    if config.static is not None:
        return spec, StaticEncoder
    if config.words is not None and config.pooling is None:
        return spec, WordBagModel
    if config.classifies:
        return spec, EncoderModel
    return with_vector_heads(model, spec, files.folder, tokenizer, allow_pickled)


def _tokenizer(files: ModelFiles) -> TextTokenizer:
    folder, config = files.folder, files.config
    if config.late is not None:
        return LateTokenizer(folder, config)
    if config.words is not None:
        return load_word_tokenizer(folder, config)
    is_templated = config.answers is not None or config.pair_messages.is_used or has_chat_template(folder)
    if is_templated and config.classifies and len(config.labels) == 1:
        # A process of another encoder needs none of it.
        from frameworks.pytorch.encoders.pair_prompts import load_tokenizer

        return load_tokenizer(folder, config)
    return TextTokenizer(folder, config)


def _model(files: ModelFiles, loading: EncoderLoading, tokenizer: TextTokenizer) -> torch.nn.Module:
    folder, config, dtype, device = files.folder, files.config, loading.dtype, loading.device
    if config.static is not None and config.sparse_module is not None:
        return load_token_weights(config.static, tokenizer.vocabulary_size, files.entry.allow_pickled_weights)
    if config.static is not None:
        return load_table(config.static, device, tokenizer.vocabulary_size, files.entry.allow_pickled_weights)
    if config.words is not None:
        return load_words(config.words, device, dtype, tokenizer.vocabulary_size, files.entry.allow_pickled_weights)
    if config.sparse is not None:
        from transformers import AutoModelForMaskedLM

        return load_model_of(AutoModelForMaskedLM, folder, dtype, device, loading.enable_memory_mapping)
    if config.answers is None:
        needs_pooler = _pooling(config, files.weights) in ("pooler", "logits")
        is_mapped, is_pickled = loading.enable_memory_mapping, files.weights.is_pickled
        return load_encoder(folder, config.classifies, needs_pooler, dtype, device, is_mapped, is_pickled)
    ids = [_answer_id(answer, tokenizer, folder) for answer in (config.answers.positive, config.answers.negative)]
    assert ids[0] is not None
    causal = load_causal_model(folder, dtype, device, loading.enable_memory_mapping)
    try:
        return AnswerScorer(causal, ids[0], ids[1]).eval()
    except InvalidModel as error:
        raise InvalidModel(f"{folder}: {error.message}") from error


def _answer_id(answer: int | str | None, tokenizer: TextTokenizer, folder: Path) -> int | None:
    if not isinstance(answer, str):
        return answer
    token_id = tokenizer.id_of(answer)
    if token_id is None:
        raise InvalidModel(f'{folder}: score_tokens: expected tokens of tokenizer.json, got "{answer}"')
    return token_id


def _pooling(config: TextConfig, weights: WeightFiles) -> str:
    """Choose the pooling: sentence-transformers' files decide, else BERT's own pooler if its weights exist, else the
    mean.
    """
    if config.classifies:
        return "logits"
    if config.late is not None or config.sparse is not None:
        return "mean"
    if config.pooling is not None:
        return config.pooling
    return "pooler" if any(name.endswith("pooler.dense.weight") for name in weights.names) else "mean"


def _pad_token_id(model: Any, config: TextConfig) -> int | None:
    """Return the padding token; None where texts cannot be padded.

    The head of a decoder reads the last token that is not this one. Without it transformers refuses batches.
    """
    is_decoder = "past_key_values" in signature(model.forward).parameters
    if not (config.classifies and is_decoder):
        return config.pad_token_id
    own = model.config.get_text_config().pad_token_id
    return own if isinstance(own, int) and own >= 0 else None


def _vectors(
    model: torch.nn.Module, files: ModelFiles, pooling: str, tokens: TokenModules | None
) -> VectorModules | None:
    """Read the modules after the pooling; None where nothing is computed after it. Raises InvalidModel."""
    modules = files.config.vector_modules
    if files.config.classifies or not modules:
        return None
    return VectorModules(modules, _pooled_size(model, pooling, tokens), files.entry.allow_pickled_weights)


def _pooled_size(model: torch.nn.Module, pooling: str, tokens: TokenModules | None) -> int:
    """Return the size of a pooled vector; 0 or less where the model does not state that of its states."""
    size = int(getattr(model.config, "hidden_size", -1)) if tokens is None else tokens.size
    return size * len(pooling.split("+"))


def _spec(model: torch.nn.Module, config: TextConfig, head: TextHead, device: Device, dtype: str) -> ModelSpec:
    vectors = head.vectors
    if config.classifies:
        size = len(config.labels)
    else:
        size = _pooled_size(model, head.pooling, head.tokens) if vectors is None else vectors.size
    embedding_size = 0 if config.classifies else max(0, size)
    return ModelSpec(
        framework="pytorch",
        task="classify" if config.classifies else "embed",
        inputs=(ValueSpec("text", TensorType("string", (-1,))),),
        outputs=(ValueSpec("predictions" if config.classifies else "embeddings", TensorType("float32", (-1, size))),),
        device=device.id,
        dtype=DTYPE_NAMES[dtype],
        memory_bytes=held_bytes(model) + sum(each.memory_bytes for each in (vectors, head.tokens) if each is not None),
        text=TextSpec(
            max_tokens=config.max_tokens,
            normalize=config.normalize,
            labels=config.labels if config.classifies else (),
            multi_label=config.multi_label,
            embedding_size=embedding_size or None,
            shorter_sizes=tuple(shorter for shorter in config.shorter_sizes if shorter < embedding_size),
            pooling=head.pooling,
            prompts=config.prompts,
            scores_are_logits=config.scores_are_logits,
            is_regression=config.is_regression,
            # A row for each token, or the weights of words, need no padding.
            pads=config.static is None and (config.words is None or config.pooling is not None),
        ),
    )
