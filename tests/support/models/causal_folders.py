"""Tiny language models, random weights from a fixed seed, with a byte-level tokenizer: saved by transformers itself."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from frameworks.core.settings.entries import ToolFormat
from tests.support.models.tool_templates import TEMPLATES, TOKENS

VOCABULARY_SIZE = 300
"""256 bytes, the special tokens, and numbers that no text has."""
END = "<|end|>"
END_ID = 256
CONTEXT_TOKENS = 256
# With these weights the two most likely tokens differ by far more than two ways to add floats do.
_SPREAD = 0.15

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
}
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 40},
    "gemma2": {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 40},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
}


def causal_config(model_type: str = "llama", **changes: Any) -> Any:
    """A small config of this architecture."""
    if model_type == "gpt2":
        sizes = {
            "vocab_size": VOCABULARY_SIZE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT_TOKENS,
            "bos_token_id": END_ID, "eos_token_id": END_ID,
        }  # fmt: skip
    else:
        sizes = _SIZES | _OF_FAMILY.get(model_type, {})
        if model_type in ("phi", "gpt_neox", "opt", "falcon", "bloom"):
            sizes = {key: value for key, value in sizes.items() if key not in ("head_dim", "num_key_value_heads")}
    return AutoConfig.for_model(model_type, **(sizes | changes))


def causal_model(model_type: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A model whose greedy texts do not turn on the last bit of a float."""
    torch.manual_seed(seed)
    return spread_weights(AutoModelForCausalLM.from_config(causal_config(model_type, **changes)).eval())


def spread_weights(model: Any) -> Any:
    """Draw the weights of a model so that its logits differ widely, and return it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, _SPREAD)
            else:  # biases, and weights of norms: not 0 and 1, as which they begin
                parameter.add_(torch.randn_like(parameter) * _SPREAD)
    return model


def save_causal_model(folder: Path, model_type: str = "llama", *, dtype: str = "f32", **changes: Any) -> Path:
    """`dtype`: f32, f16 or bf16. `changes`: of the config."""
    transformers.logging.set_verbosity_error()
    model = causal_model(model_type, **changes)
    model.generation_config.eos_token_id = END_ID
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    model.to(dtypes[dtype]).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_tool_model(folder: Path, tool_format: ToolFormat, template: str | None = None, **changes: Any) -> Path:
    """A model whose tokenizer has the tokens and, unless given, the chat template of a family with tools."""
    save_causal_model(folder, **changes)
    tokenizer = byte_tokenizer()
    names = [AddedToken(name, special=is_special, normalized=False) for name, is_special in TOKENS[tool_format].items()]
    tokenizer.add_tokens(names)
    tokenizer.chat_template = TEMPLATES[tool_format] if template is None else template
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer() -> Any:
    """A token for each byte, and one that ends a text; with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast
