"""Tiny decoders that embed or classify texts, random weights from a fixed seed, saved by transformers itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from tests.support.models.causal_folders import causal_config, causal_model, spread_weights
from tests.support.models.generation_tokenizers import EOS, SPECIAL_TOKENS, make_tokenizer, write_generation_tokenizer
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers

ANSWERS = ("no", "yes")
JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ANSWERING = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The prompt of Qwen3-Reranker: `JUDGE`, the pair and `ANSWERING`."""
RANKING_TEMPLATE = (
    f"{JUDGE}<Instruct>: {{{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first "
    f"| default('{INSTRUCTION}') }}}}{{{{ '\\n' }}}}"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}{{ '\\n' }}"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    f"{ANSWERING}\n"
)
HIDDEN_SIZE = 64
PROMPTS = {"query": "Instruct: Find the engine of steam.\nQuery:", "document": ""}
_VOCABULARY_SIZE = 512
_EOS_ID = 2


def save_decoder_embedder(
    folder: Path,
    model_type: str = "qwen3",
    *,
    has_head: bool = True,
    max_seq_length: int | None = None,
) -> Path:
    """A decoder with last-token pooling, as Qwen3-Embedding and E5-Mistral are published.

    `has_head`: saved as a ForCausalLM model. The tokenizer appends `</s>`, its padding token too, and pads on the left.
    """
    model = causal_model(model_type, vocab_size=_VOCABULARY_SIZE, eos_token_id=_EOS_ID, pad_token_id=None)
    (model if has_head else model.model).save_pretrained(folder)
    write_decoder_tokenizer(folder)
    write_sentence_transformers(folder, "lasttoken", max_seq_length=max_seq_length, dimension=HIDDEN_SIZE)
    write_json(folder / "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": None})
    return folder


def save_decoder_classifier(
    folder: Path,
    model_type: str = "qwen3",
    labels: Sequence[str] = ("fast", "slow", "late"),
    pad_token_id: int | None = _EOS_ID,
) -> Path:
    """A decoder with a head for these labels. Its tokenizer pads with the end token, as Qwen's."""
    torch.manual_seed(0)
    config = causal_config(
        model_type,
        vocab_size=_VOCABULARY_SIZE,
        eos_token_id=_EOS_ID,
        pad_token_id=pad_token_id,
        max_position_embeddings=512,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    spread_weights(AutoModelForSequenceClassification.from_config(config).eval()).save_pretrained(folder)
    write_decoder_tokenizer(folder)
    return folder


def write_decoder_tokenizer(folder: Path, **changes: Any) -> None:
    """A byte-level tokenizer that puts `<s>` before a text and `</s>` after it. `changes`: of its configuration."""
    write_generation_tokenizer(folder, "gpt2", behind=True)
    change_json(folder / "tokenizer_config.json", **({"pad_token": EOS, "padding_side": "left"} | changes))


def save_ranking_model(folder: Path, model_type: str = "qwen3", max_tokens: int = 320) -> Path:
    """A language model without a template for pairs, as Qwen3-Reranker was published first."""
    positions = {"n_positions": 512} if model_type == "gpt2" else {"max_position_embeddings": 512}
    sizes = {"vocab_size": _VOCABULARY_SIZE, "eos_token_id": _EOS_ID, "pad_token_id": _EOS_ID}
    causal_model(model_type, **(sizes | positions)).save_pretrained(folder)
    write_decoder_tokenizer(folder, model_max_length=max_tokens)
    tokenizer: Tokenizer = make_tokenizer("gpt2")
    tokenizer.add_tokens([*ANSWERS])
    tokenizer.add_special_tokens([*SPECIAL_TOKENS, "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_logit_score(folder: Path, positive_id: int, negative_id: int | None, **sentence: Any) -> None:
    """The files that sentence-transformers reads for such a model. `sentence`: of `sentence_bert_config.json`."""
    method = {"method": "forward", "method_output_name": "logits"}
    modalities = {"text": method, "message": {**method, "format": "flat"}}
    config = {
        "transformer_task": "text-generation", "modality_config": modalities, "module_output_name": "causal_logits",
    }  # fmt: skip
    write_json(folder / "sentence_bert_config.json", config | sentence)
    kinds = {"": "base.modules.transformer.Transformer", "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": positive_id, "false_token_id": negative_id})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder", "prompts": {}})
    (folder / "chat_template.jinja").write_text(RANKING_TEMPLATE, encoding="utf-8")
