"""Texts with adapters equal those of transformers' models with merged weights, in one batch with other adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.generation.sequences import GeneratedToken
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.loading import paged_loading
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    greedy_texts,
    ids_of,
    load_generating,
    request,
    stepped,
    tokens_of,
)
from tests.frameworks.pytorch.generation.test_decoders import LOGPROB_TOLERANCE, prompts_of
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.models.lora_folders import Lora, merge, save_lora

FOUR = (
    Lora(1, rank=8, alpha=16),
    Lora(2, rank=2, alpha=2, target_modules=("q_proj", "v_proj")),
    Lora(3, rank=4, use_rslora=True, target_modules="all-linear", ranks={"down_proj": 6}, alphas={"o_proj": 12}),
    Lora(4, rank=3, target_modules=r"model\.layers\.1\.(self_attn|mlp)\.(k_proj|o_proj|up_proj)"),
)


def entries_of(folder: Path, loras: tuple[Lora, ...], model: Any) -> list[dict[str, Any]]:
    """Save adapters; return their tables in config.toml, named a1, a2 and so on."""
    named = [(f"a{number}", lora) for number, lora in enumerate(loras, 1)]
    return [{"name": name, "path": save_lora(folder / name, lora, model)} for name, lora in named]


def numbers_of(model: Any) -> dict[str, int]:
    """Return the numbers of the adapters by name; the base has 0."""
    return {"": 0} | {each.name: each.number for each in model.spec.generation.adapters}


def check(folder: Path, tmp_path: Path, family: str, loras: tuple[Lora, ...], each: int, **entry: Any) -> None:
    """Mixed in one batch, greedy texts and log probabilities equal those of merged models."""
    model = load_generating(folder, adapters=entries_of(tmp_path, loras, causal_model(family)), **entry)
    numbers = numbers_of(model)
    names = ["", *(f"a{number}" for number in range(1, len(loras) + 1))]
    prompts = prompts_of(3, 75, each=each)
    sampling = Sampling(temperature=0, top_logprobs=3)
    asked = [
        request(i, prompt, 12, sampling, adapter_id=numbers[names[i % len(names)]]) for i, prompt in enumerate(prompts)
    ]
    ours = tokens_of(model, *asked)
    texts = set()
    for place, lora in enumerate([None, *loras]):
        reference = causal_model(family) if lora is None else merge(causal_model(family), lora)
        mine = range(place, len(prompts), len(names))
        expected = greedy_texts(reference, [prompts[i] for i in mine], 12)
        assert [[token.token_id for token in ours[i]] for i in mine] == expected
        texts.add(str(expected))
        for i in mine:
            check_logprobs(reference, prompts[i], ours[i])
    assert len(texts) == len(names)


def check_logprobs(reference: Any, prompt: list[int], tokens: list[GeneratedToken]) -> None:
    """Compare the three most likely tokens and their log probabilities at each place."""
    text = [token.token_id for token in tokens]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    for token, row in zip(tokens, logits.log_softmax(-1), strict=True):
        best = row.topk(3)
        assert [each for each, _ in token.top_logprobs] == best.indices.tolist()
        for (_, logprob), expected in zip(token.top_logprobs, best.values.tolist(), strict=True):
            assert abs(logprob - expected) < LOGPROB_TOLERANCE


def test_four_adapters_and_base_match_merged(made_once: FolderMaker, tmp_path: Path) -> None:
    """32 prompts in steps of up to 16 texts, with preemptions and cached prefixes."""
    sizes = {"blocks": 40, "max_batch_size": 16, "max_num_batched_tokens": 64}
    check(made_once(save_causal_model), tmp_path, "llama", FOUR, 16, **sizes)


def test_adapters_of_equal_ranks_match_merged(made_once: FolderMaker, tmp_path: Path) -> None:
    """Their rows share batched products, with unequal numbers of rows."""
    loras = tuple(Lora(seed) for seed in range(1, 5))
    check(made_once(save_causal_model), tmp_path, "llama", loras, 4, blocks=40, max_batch_size=16)


def test_transformers_decoder_matches_merged(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_loading, "is_llama", lambda _: False)
    check(made_once(save_causal_model), tmp_path, "llama", FOUR, 5, blocks=40, max_batch_size=16)


@pytest.mark.parametrize(
    ("family", "target_modules"),
    [
        ("qwen2", ("q_proj", "down_proj")),
        ("qwen3", "all-linear"),
        ("gpt2", ("c_attn", "c_proj", "c_fc")),
        ("phi3", ("qkv_proj", "gate_up_proj")),
        ("gemma2", "all-linear"),
        ("mixtral", ("q_proj", "o_proj")),
    ],
)
def test_families_match_merged(
    made_once: FolderMaker, tmp_path: Path, family: str, target_modules: str | tuple[str, ...]
) -> None:
    fan_in = {"fan_in_fan_out": family == "gpt2"}
    lora = Lora(1, target_modules=target_modules, more=fan_in)
    check(made_once(save_causal_model, model_type=family), tmp_path, family, (lora,), 3, blocks=40, max_batch_size=8)


def test_absent_adapters_of_many_change_nothing(made_once: FolderMaker, tmp_path: Path) -> None:
    """One of eight adapters is in the step, so its product is computed alone."""
    loras = tuple(Lora(seed) for seed in range(1, 9))
    folder = made_once(save_causal_model)
    model = load_generating(folder, blocks=40, adapters=entries_of(tmp_path, loras, causal_model()))
    [prompt] = prompts_of(40)
    numbers = numbers_of(model)
    for name in ("a1", "a4", "a8"):
        lora = loras[int(name[1:]) - 1]
        expected = greedy_texts(merge(causal_model(), lora), [prompt], 8)[0]
        asked = [request(1, prompt, adapter_id=numbers[name]), request(2, prompt)]
        assert ids_of(model, *asked) == {1: expected, 2: greedy_texts(causal_model(), [prompt], 8)[0]}


def test_prefix_blocks_serve_one_adapter(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = made_once(save_causal_model)
    model = load_generating(folder, blocks=40, adapters=entries_of(tmp_path, FOUR[:2], causal_model()))
    [prompt] = prompts_of(100)
    hits = []
    for adapter_id in [0, 1, 2, 0, 1, 2]:
        before = stepped(model).stats.prefix_hit_tokens
        ids_of(model, request(1, prompt, 4, adapter_id=adapter_id))
        hits.append(stepped(model).stats.prefix_hit_tokens - before)
    assert hits == [0, 0, 0, 96, 96, 96]


def test_adapter_attached_and_detached_beside_texts(made_once: FolderMaker, tmp_path: Path) -> None:
    """A text of the base and one of another adapter are the same, whatever is attached meanwhile."""
    folder = made_once(save_causal_model)
    first, second = entries_of(tmp_path, FOUR[:2], causal_model())
    model = load_generating(folder, blocks=40)
    bare_bytes = model.spec.memory_bytes
    prompts = prompts_of(20, 30)
    adapter = model.load_adapter("a1", first["path"])
    model.list_adapters((adapter,))
    assert model.spec.memory_bytes - bare_bytes == adapter.memory_bytes > 0
    model.add(request(1, prompts[0], 20))
    model.add(request(2, prompts[1], 20, adapter_id=adapter.number))
    tokens: dict[int, list[int]] = {1: [], 2: []}
    for number in range(20):
        if number == 5:
            other = model.load_adapter("a2", second["path"])
        if number == 10:
            model.unload_adapter(other.number)
        for token in stepped(model).tokens:
            tokens[token.sequence_id].append(token.token_id)
    assert tokens[1] == greedy_texts(causal_model(), prompts[:1], 20)[0]
    assert tokens[2] == greedy_texts(merge(causal_model(), FOUR[0]), prompts[1:], 20)[0]
