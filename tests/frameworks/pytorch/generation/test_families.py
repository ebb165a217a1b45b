"""Every causal family of transformers: served with the texts of its own `generate`, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from frameworks.core.errors import InvalidModel
from frameworks.generation.types import Sampling
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import load_generating, request, tokens_of
from tests.frameworks.pytorch.generation.test_decoders import OWN, THEIRS, prompts_of
from tests.support.models.causal_families import ALL_FAMILIES, save_family
from tests.support.models.causal_folders import VOCABULARY_SIZE
from tests.support.models.text_files import change_json

TOKENS = 8
CALLERS = 8
LOGPROB_TOLERANCE = 1e-3
# transformers' own passes with and without a cache differ by nearly as much.
WIDE_TOLERANCE = {"zamba2": 1e-2}

# One of each kind: linear attention, windows of several sizes, sinks, latent attention, convolutions, states.
EVERY_RUN = ("qwen3_next", "gemma4_text", "gpt_oss", "deepseek_v3", "lfm2", "mamba", "recurrent_gemma", "gptj")

CACHE_DIFFERS = "with transformers' own cache the model's logits are off by"
NEEDS_AN_ENCODER = "the model does not run with a cache"
REFUSED = {
    "bart": NEEDS_AN_ENCODER,
    "bigbird_pegasus": NEEDS_AN_ENCODER,
    "blenderbot": NEEDS_AN_ENCODER,
    "blenderbot-small": NEEDS_AN_ENCODER,
    "marian": NEEDS_AN_ENCODER,
    "mbart": NEEDS_AN_ENCODER,
    "mvp": NEEDS_AN_ENCODER,
    "pegasus": NEEDS_AN_ENCODER,
    "prophetnet": NEEDS_AN_ENCODER,
    # Its attention, and its name, are those of an encoder.
    "bert-generation": "max_num_batched_tokens: expected only for models that generate text",
    # Their positions begin after the padding token, in a pass without positions only.
    "camembert": CACHE_DIFFERS,
    "data2vec-text": CACHE_DIFFERS,
    "roberta": CACHE_DIFFERS,
    "roberta-prelayernorm": CACHE_DIFFERS,
    "xlm-roberta": CACHE_DIFFERS,
    "xlm-roberta-xl": CACHE_DIFFERS,
    "openai-gpt": CACHE_DIFFERS,  # it has no cache
    "cpmant": "got logits that depend on later ones",
    "xlm": "got logits that depend on later ones",
    "xlnet": "kv_cache_bytes: expected at least",
    "xmod": "the model does not run: Input language unknown",
    "qwen4_exp_text": "the model does not run with a cache: KeyError: 'indexed_attention'",
}
"""Family → part of the reason."""

FAILS_IN_TRANSFORMERS = {
    "cohere_compass_text": "full_attention",
    "dbrx": "rope_theta",
    "gemma4_assistant": "hidden_size_per_layer_input must be 0",
    "musicgen": "dropout",
    "musicgen_melody": "dropout",
    "plbart": "embed_dim must be divisible by num_heads",
    "reformer": "axial_pos_embds",
    "whisper": "embed_dim must be divisible by num_heads",
}
"""Families of which transformers builds no model with the small config, and a part of its message."""

NOT_SMALL = ("blt", "phi4_multimodal")
"""Families whose models stay large: of bytes in patches, and with images and audio."""

# `generate` of transformers differs from the model's own pass without a cache. With a linear first layer, the attention
# of MiniMax finds no past tokens there.
GENERATE_DIFFERS = ("minimax", "moshi", "rwkv")

FAILS_IN_BFLOAT16 = ("xlstm",)
"""Families of which transformers runs no model in bfloat16 on a CPU."""


def is_composite(family: str) -> bool:
    """Whether the text model of the family has a config, and a family, of its own."""
    config = CONFIG_MAPPING[family]()
    return not config.is_encoder_decoder and config.get_text_config(decoder=True) is not config


def served_families() -> list[Any]:
    others = {*REFUSED, *FAILS_IN_TRANSFORMERS, *NOT_SMALL}
    families = [family for family in ALL_FAMILIES if family not in others]
    slow = [family for family in families if family not in EVERY_RUN and family not in {*OWN, *THEIRS}]
    return [*EVERY_RUN, *(pytest.param(family, marks=pytest.mark.nightly) for family in slow)]


def generated(reference: Any, prompt: list[int], by_generate: bool) -> tuple[list[int], torch.Tensor]:
    """Return greedy tokens, and the log probabilities [TOKENS, vocabulary] that they were chosen from."""
    ids = torch.tensor([prompt])
    if by_generate:
        output = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits).log_softmax(-1)
    rows = []
    for _ in range(TOKENS):
        rows.append(reference(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1))
        ids = torch.cat((ids, rows[-1].argmax()[None, None]), 1)
    return ids[0, len(prompt) :].tolist(), torch.stack(rows)


@pytest.mark.parametrize("family", served_families())
def test_family_matches_generate(tmp_path: Path, family: str) -> None:
    """Eight callers at once, with prompts in parts and across windows."""
    if is_composite(family):
        pytest.skip("its text model is a family of its own")
    save_family(tmp_path, family)
    model = load_generating(tmp_path, max_batch_size=CALLERS, max_num_batched_tokens=48)
    prompts = prompts_of(3, 75, each=CALLERS // 2)
    sampling = Sampling(temperature=0, top_logprobs=0)
    ours = tokens_of(model, *(request(i, prompt, TOKENS, sampling) for i, prompt in enumerate(prompts)))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tolerance = WIDE_TOLERANCE.get(family, LOGPROB_TOLERANCE)
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            text, logprobs = generated(reference, prompt, family not in GENERATE_DIFFERS)
        assert [token.token_id for token in ours[i]] == text
        expected = logprobs.gather(1, torch.tensor(text)[:, None])[:, 0].tolist()
        assert [token.logprob for token in ours[i]] == pytest.approx(expected, abs=tolerance)


def narrow_families() -> list[Any]:
    """Return the served families; a few of them in the second tier, most of them at night."""
    others = {*REFUSED, *FAILS_IN_TRANSFORMERS, *NOT_SMALL, *GENERATE_DIFFERS, *FAILS_IN_BFLOAT16, "bert"}
    tiers = {family: pytest.mark.extended if family in EVERY_RUN else pytest.mark.nightly for family in ALL_FAMILIES}
    return ["bert", *(pytest.param(family, marks=mark) for family, mark in tiers.items() if family not in others)]


@pytest.mark.parametrize("family", narrow_families())
def test_bfloat16_error_is_that_of_transformers(made_once: FolderMaker, family: str) -> None:
    """Both differ from float32 by their rounding; ours by at most twice as much."""
    if is_composite(family):
        pytest.skip("its text model is a family of its own")
    folder = made_once(save_family, family=family)
    model = load_generating(folder, dtype="bf16", max_batch_size=CALLERS)
    prompts = prompts_of(3, 75, each=CALLERS // 2)
    sampling = Sampling(temperature=0, top_logprobs=VOCABULARY_SIZE)
    given = tokens_of(model, *(request(i, prompt, TOKENS, sampling) for i, prompt in enumerate(prompts)))
    texts = [[*prompt, *(token.token_id for token in given[i])] for i, prompt in enumerate(prompts)]
    rows = [dict(token.top_logprobs) for i in range(len(prompts)) for token in given[i]]
    ours = torch.tensor([[row[token_id] for token_id in range(VOCABULARY_SIZE)] for row in rows])
    exact, theirs = (next_logprobs(folder, dtype, texts) for dtype in (torch.float32, torch.bfloat16))
    error, own_error = (float((each - exact).square().mean().sqrt()) for each in (ours, theirs))
    assert error <= 2 * own_error


def next_logprobs(folder: Path, dtype: torch.dtype, texts: list[list[int]]) -> torch.Tensor:
    """Return the log probabilities of the last TOKENS tokens of each text: float32 [rows, vocabulary]."""
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        logits = [
            reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -TOKENS - 1 : -1] for ids in texts
        ]
    return torch.cat(logits).float().log_softmax(-1)


def test_views_of_attention_are_paged(made_once: FolderMaker) -> None:
    """AFMoE takes a view of the attention's output, which has to be contiguous in every dtype."""
    model = load_generating(made_once(save_family, family="afmoe"), dtype="bf16")
    assert model.spec.generation.unpaged_because is None


@pytest.mark.parametrize("dtype", ["f32", "bf16", pytest.param("f16", marks=pytest.mark.extended)])
def test_encoder_is_refused_in_every_dtype(copied: FolderMaker, dtype: str) -> None:
    """Its tokens see later ones: less than the tolerance of a narrow dtype is off."""
    folder = copied(save_family, family="bert")
    change_json(folder / "config.json", is_decoder=False)
    with pytest.raises(InvalidModel, match=r"got logits that depend on later ones; check is_decoder in config\.json"):
        load_generating(folder, dtype=dtype)


@pytest.mark.parametrize(
    "family",
    [family if family == "openai-gpt" else pytest.param(family, marks=pytest.mark.nightly) for family in REFUSED],
)
def test_refusal_has_its_reason(made_once: FolderMaker, family: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        load_generating(made_once(save_family, family=family), max_batch_size=CALLERS, max_num_batched_tokens=48)
    assert REFUSED[family] in caught.value.message


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAILS_IN_TRANSFORMERS)
def test_transformers_still_fails(tmp_path: Path, family: str) -> None:
    errors = (AttributeError, KeyError, ValueError, StrictDataclassError)
    with pytest.raises(errors, match=FAILS_IN_TRANSFORMERS[family]):
        save_family(tmp_path, family)


def test_tables_name_known_families() -> None:
    tables = [*REFUSED, *FAILS_IN_TRANSFORMERS, *NOT_SMALL, *GENERATE_DIFFERS, *EVERY_RUN]
    assert set(tables) <= set(ALL_FAMILIES)
    assert len({*REFUSED, *FAILS_IN_TRANSFORMERS, *NOT_SMALL}) == len(REFUSED) + len(FAILS_IN_TRANSFORMERS) + 2
