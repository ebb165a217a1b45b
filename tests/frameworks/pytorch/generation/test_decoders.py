"""Texts and log probabilities equal those of transformers' models, token for token."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder
from frameworks.pytorch.generation.decoders.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.loading import paged_loading
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import greedy_texts, ids_of, load_generating, request, tokens_of
from tests.support.models.causal_folders import VOCABULARY_SIZE, causal_model, save_causal_model

OWN = ["llama", "mistral", "qwen2", "qwen3"]
THEIRS = [
    *("gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox", "smollm3", "olmo2", "granite", "cohere"),
    *("starcoder2", "stablelm", "opt", "mixtral", "qwen3_moe"),
]
LOGPROB_TOLERANCE = 1e-3


def prompts_of(*lengths: int, each: int = 1, seed: int = 0) -> list[list[int]]:
    """Return `each` prompts of every length; every second shares a prefix."""
    numbers = random.Random(seed)
    common = [numbers.randrange(VOCABULARY_SIZE) for _ in range(max(lengths))]
    prompts = []
    for length in lengths:
        for i in range(each):
            shared = common[: 2 * length // 3] if i % 2 else []
            prompts.append(shared + [numbers.randrange(VOCABULARY_SIZE) for _ in range(length - len(shared))])
    return prompts


def is_own(model: Any) -> bool:
    return isinstance(model._parts.runner.decoder, LlamaDecoder)


def test_many_prompts_match_generate(made_once: FolderMaker) -> None:
    """Little memory causes preemptions, and prefixes are cached."""
    model = load_generating(made_once(save_causal_model), blocks=28, max_batch_size=16, max_num_batched_tokens=64)
    long, short = prompts_of(5, each=10), prompts_of(1, 31, 32, 33, 64, 150, each=9)
    random.Random(1).shuffle(short)
    asked = [request(i, prompt, 80) for i, prompt in enumerate(long)]
    asked += [request(100 + i, prompt, 16) for i, prompt in enumerate(short)]
    ours = ids_of(model, *asked)
    assert is_own(model)
    stats = model.step().stats
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    reference = causal_model()
    expected = greedy_texts(reference, long, 80) + greedy_texts(reference, short, 16)
    assert [ours[one.sequence_id] for one in asked] == expected
    assert len(expected) == 64


@pytest.mark.parametrize("family", [*OWN, *THEIRS])
def test_texts_match_generate(made_once: FolderMaker, family: str) -> None:
    """Lengths cross blocks, and windows of 40 in families that have them."""
    check(made_once(save_causal_model, model_type=family), family in OWN, causal_model(family))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_transformers_decoder_matches_generate(
    made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(paged_loading, "is_llama", lambda _: False)
    check(made_once(save_causal_model, model_type=family), False, causal_model(family))


def test_forward_with_all_logits_matches_generate(made_once: FolderMaker) -> None:
    model = load_generating(made_once(save_causal_model, model_type="gpt2"))
    model._parts.runner.decoder._keeps_some = False
    prompts = prompts_of(3, 40, each=2)
    ours = ids_of(model, *(request(i, prompt, 6) for i, prompt in enumerate(prompts)))
    assert [ours[i] for i in range(4)] == greedy_texts(causal_model("gpt2"), prompts, 6)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                }
            },
        ),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 7}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_llama_variants_match_generate(made_once: FolderMaker, family: str, changes: dict[str, Any]) -> None:
    folder = made_once(save_causal_model, model_type=family, **changes)
    is_by_us = "hidden_act" not in changes and changes.get("rope_parameters", {}).get("rope_type") != "dynamic"
    check(folder, is_by_us, causal_model(family, **changes))


def check(folder: Path, is_by_us: bool, reference: Any) -> None:
    """Return greedy texts with their log probabilities."""
    model = load_generating(folder, blocks=20, max_batch_size=4, max_num_batched_tokens=48)
    assert is_own(model) == is_by_us
    assert isinstance(model._parts.runner.decoder, LlamaDecoder if is_by_us else TransformersDecoder)
    prompts = prompts_of(3, 75, each=3)
    sampling = Sampling(temperature=0, top_logprobs=3)
    ours = tokens_of(model, *(request(i, prompt, 12, sampling) for i, prompt in enumerate(prompts)))
    texts = [[token.token_id for token in ours[i]] for i in range(len(prompts))]
    assert texts == greedy_texts(reference, prompts, 12)
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + texts[i]])).logits[0, len(prompt) - 1 : -1]
        for token, row in zip(ours[i], logits.log_softmax(-1), strict=True):
            assert token.logprob is not None
            assert abs(token.logprob - float(row[token.token_id])) < LOGPROB_TOLERANCE
            best = row.topk(3)
            assert [each for each, _ in token.top_logprobs] == best.indices.tolist()
            for (_, logprob), expected in zip(token.top_logprobs, best.values.tolist(), strict=True):
                assert abs(logprob - expected) < LOGPROB_TOLERANCE
