"""Forced tokens compared with transformers: single rows, and texts of a model whose files force their last token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import ForcedBOSTokenLogitsProcessor, ForcedEOSTokenLogitsProcessor

from frameworks.generation.types import ForcedTokens, Sampling
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import load_generating, request, tokens_of
from tests.frameworks.pytorch.generation.sampling_cases import ids, random_logits, sample, shares, state_of
from tests.support.models.causal_folders import END_ID, save_causal_model
from tests.support.models.text_files import change_json

SIZE, LIMIT = 40, 3
PROMPT = (5, 6, 7, 8, 9)


def by_transformers(logits: torch.Tensor, prompt: tuple[int, ...], text: list[int], forced: ForcedTokens) -> int:
    """Return the greedy token after the processors of `generate`."""
    seen, scores = torch.tensor([[*prompt, *text]]), logits[None].clone()
    if forced.first:
        scores = ForcedBOSTokenLogitsProcessor(forced.first[0])(seen, scores)
    if forced.last:
        scores = ForcedEOSTokenLogitsProcessor(len(prompt) + LIMIT, list(forced.last))(seen, scores)
    return int(scores.argmax())


@pytest.mark.parametrize("prompt", [(1,), (1, 2)])
@pytest.mark.parametrize("length", range(LIMIT))
@pytest.mark.parametrize(
    "forced", [ForcedTokens(last=(7,)), ForcedTokens(last=(9, 4)), ForcedTokens((3,)), ForcedTokens((3,), (7,))]
)
def test_forced_row_matches_transformers(forced: ForcedTokens, length: int, prompt: tuple[int, ...]) -> None:
    logits = random_logits(2, SIZE)
    fields = {"prompt_ids": prompt, "max_tokens": LIMIT, "forced_tokens": forced}
    text = [11, 12, 13][:length]
    state = state_of(SIZE, temperature=0.0, text=text, request=fields)
    expected = by_transformers(logits[0], prompt, text, forced)
    assert ids(logits, state, state_of(SIZE, temperature=0.0)) == [expected, int(logits[1].argmax())]


def test_forced_token_is_drawn_evenly() -> None:
    """As from the equal logits that transformers gives them."""
    forced = {"max_tokens": 1, "forced_tokens": ForcedTokens(last=(9, 4))}
    found = shares(random_logits(1, SIZE)[0], 100, request=forced)
    assert np.flatnonzero(found).tolist() == [4, 9]
    assert found[[4, 9]].tolist() == [50, 50]


def test_forced_token_has_its_own_logprob() -> None:
    logits = random_logits(1, SIZE)
    forced = {"max_tokens": 1, "forced_tokens": ForcedTokens(last=(7,))}
    [sampled] = sample(logits, state_of(SIZE, temperature=0.0, top_logprobs=1, request=forced))
    assert (sampled.token_id, sampled.is_forced) == (7, True)
    assert sampled.logprob == pytest.approx(float(logits.log_softmax(-1)[0, 7]), abs=1e-5)


def test_states_ahead_know_their_positions() -> None:
    forced = {"max_tokens": 3, "forced_tokens": ForcedTokens(last=(7,))}
    states = state_of(SIZE, temperature=0.0, request=forced).ahead([1, 2])
    assert [state.forced_ids for state in states] == [(), (), (7,)]


def save_bart(folder: Path, **changes: Any) -> None:
    sizes: dict[str, Any] = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    save_causal_model(folder, "bart", **sizes, forced_eos_token_id=END_ID, **changes)


@pytest.mark.parametrize("has_file", [True, False], ids=["generation_config", "config"])
def test_bart_text_matches_generate(copied: FolderMaker, has_file: bool) -> None:
    """Texts that end at their limit, with the setting in either file; transformers forces their last token."""
    folder = copied(save_bart)
    if not has_file:
        (folder / "generation_config.json").unlink()
    model = load_generating(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder).eval()
    forced = model.spec.generation.forced_tokens
    assert forced == ForcedTokens(last=(END_ID,))
    inputs = torch.tensor([PROMPT])
    for limit in (1, 2, 6):
        [ours] = tokens_of(model, request(0, PROMPT, limit, **_ends(model))).values()
        with torch.inference_mode():
            theirs = reference.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=limit, do_sample=False
            )
        assert [token.token_id for token in ours] == theirs[0, len(PROMPT) :].tolist()
        assert (ours[-1].token_id, ours[-1].finish_reason, ours[-1].is_text) == (END_ID, "length", False)


def _ends(model: Any) -> dict[str, Any]:
    spec = model.spec.generation
    return {"stop_token_ids": spec.eos_token_ids, "forced_tokens": spec.forced_tokens}


def test_own_end_at_the_limit_is_stop(copied: FolderMaker) -> None:
    """A text whose model ends it by itself was not cut off."""
    folder = copied(save_bart)
    plain = load_generating(folder)
    first = tokens_of(plain, request(0, PROMPT, 1, Sampling(temperature=0)))[0][0].token_id
    change_json(folder / "generation_config.json", eos_token_id=first, forced_eos_token_id=first)
    model = load_generating(folder)
    [token] = tokens_of(model, request(0, PROMPT, 1, **_ends(model)))[0]
    assert (token.token_id, token.finish_reason, token.is_text) == (first, "stop", False)
