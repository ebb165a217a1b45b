"""Scores of language models that rank equal the published code of Qwen3-Reranker and sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.pooling import scores
from frameworks.types import TEXT_OUTPUT, Array
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch
from tests.support.models.causal_folders import CHAT_TEMPLATE
from tests.support.models.decoder_folders import (
    ANSWERING,
    ANSWERS,
    INSTRUCTION,
    JUDGE,
    save_decoder_embedder,
    save_ranking_model,
    write_logit_score,
)
from tests.support.models.text_files import TEXTS, change_json
from tests.support.models.torch_folders import save_embedder

MAX_TOKENS = 320
PAIRS = [("the engine of steam", text) for text in TEXTS] + [("", ""), ("the cat", "the engine of steam " * 60)]
TOLERANCE = 1e-5


def scored(model: EncoderModel, pairs: list[tuple[str, str]]) -> Array:
    """Return the scores of a caller."""
    assert model.tokenizer is not None
    logits = model.infer(model.tokenizer.tokenize_pairs(pairs, truncate=True))[TEXT_OUTPUT]
    assert isinstance(logits, np.ndarray)
    return scores(logits, multi_label=True)[:, 0]


def published_scores(folder: Path, pairs: list[tuple[str, str]], instruction: str = INSTRUCTION) -> Array:
    """Return the scores as the README of Qwen3-Reranker computes them, with transformers alone."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), padding_side="left")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    before, after = (tokenizer.encode(each, add_special_tokens=False) for each in (JUDGE, ANSWERING))
    texts = [f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}" for query, document in pairs]
    room = MAX_TOKENS - len(before) - len(after)
    read = tokenizer(texts, padding=False, truncation="longest_first", max_length=room, return_attention_mask=False)
    prompts = {"input_ids": [before + ids + after for ids in read["input_ids"]]}
    inputs = tokenizer.pad(prompts, padding=True, return_tensors="pt")
    no, yes = tokenizer.convert_tokens_to_ids([*ANSWERS])
    with torch.inference_mode():
        logits = model(**inputs).logits[:, -1, :]
    likely = torch.nn.functional.log_softmax(torch.stack([logits[:, no], logits[:, yes]], dim=1), dim=1)
    result: Array = likely[:, 1].exp().numpy()
    return result


def cross_encoder_scores(folder: Path, pairs: list[tuple[str, str]]) -> Array:
    from sentence_transformers import CrossEncoder

    model: Any = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    result: Array = model.predict(pairs, activation_fn=torch.nn.Sigmoid(), show_progress_bar=False)
    return result


def answer_ids(folder: Path) -> tuple[int, int]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    no, yes = tokenizer.convert_tokens_to_ids([*ANSWERS])
    return no, yes


def refusal(folder: Path, **entry: Any) -> str:
    with pytest.raises(InvalidModel) as caught:
        load_torch(folder, **entry)
    return caught.value.message


@pytest.fixture
def ranking(copied: FolderMaker) -> Path:
    """A folder with a LogitScore module and a template for pairs."""
    folder = copied(save_ranking_model)
    no, yes = answer_ids(folder)
    write_logit_score(folder, yes, no)
    return folder


def test_scores_equal_published_code(made_once: FolderMaker) -> None:
    """Of pairs alone and together; the last one is cut. The folder names neither tokens nor template."""
    folder = made_once(save_ranking_model)
    model = load_torch(folder, dtype="f32", score_tokens=ANSWERS)
    model.warm_up()
    assert model.spec.text is not None
    assert (model.spec.task, model.spec.text.labels, model.spec.text.multi_label) == ("classify", ("LABEL_0",), True)
    assert model.tokenizer is not None
    assert len(model.tokenizer.tokenize_pairs(PAIRS[-1:], truncate=True).token_ids[0]) == MAX_TOKENS
    together = scored(model, PAIRS)
    np.testing.assert_allclose(together, published_scores(folder, PAIRS), rtol=0, atol=TOLERANCE)
    alone = np.concatenate([scored(model, [pair]) for pair in PAIRS])
    np.testing.assert_allclose(alone, together, rtol=0, atol=TOLERANCE)
    assert np.ptp(together) > 0.01, "pairs that all get one score would prove nothing"


def test_scores_equal_cross_encoder(ranking: Path) -> None:
    model = load_torch(ranking, dtype="f32")
    np.testing.assert_allclose(scored(model, PAIRS), cross_encoder_scores(ranking, PAIRS), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(scored(model, PAIRS), published_scores(ranking, PAIRS), rtol=0, atol=TOLERANCE)


def test_default_prompt_is_instruction(ranking: Path) -> None:
    prompts = {"steam": "Find steam"}
    change_json(ranking / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="steam")
    ours = scored(load_torch(ranking, dtype="f32"), PAIRS[:2])
    np.testing.assert_allclose(ours, published_scores(ranking, PAIRS[:2], "Find steam"), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(ours, cross_encoder_scores(ranking, PAIRS[:2]), rtol=0, atol=TOLERANCE)


def test_positive_answer_alone_is_scored(ranking: Path) -> None:
    """As zerank-2, whose template also reads add_generation_prompt."""
    _, yes = answer_ids(ranking)
    options = {"chat_template": {"add_generation_prompt": True}}
    write_logit_score(ranking, yes, None, processing_kwargs=options)
    template = CHAT_TEMPLATE.replace("assistant:", "answer:")
    (ranking / "chat_template.jinja").write_text(template, encoding="utf-8")
    ours = scored(load_torch(ranking, dtype="f32"), PAIRS)
    np.testing.assert_allclose(ours, cross_encoder_scores(ranking, PAIRS), rtol=0, atol=TOLERANCE)
    write_logit_score(ranking, yes, None)
    (ranking / "chat_template.jinja").write_text(template, encoding="utf-8")
    without = scored(load_torch(ranking, dtype="f32"), PAIRS)
    np.testing.assert_allclose(without, cross_encoder_scores(ranking, PAIRS), rtol=0, atol=TOLERANCE)
    assert np.abs(ours - without).max() > 1e-3


def test_padding_changes_no_learned_positions(made_once: FolderMaker) -> None:
    """GPT-2 adds an embedding for each position: those of a text begin behind its padding."""
    model = load_torch(made_once(save_ranking_model, model_type="gpt2"), dtype="f32", score_tokens=ANSWERS)
    alone = np.concatenate([scored(model, [pair]) for pair in PAIRS])
    np.testing.assert_allclose(scored(model, PAIRS), alone, rtol=0, atol=TOLERANCE)


def test_long_pair_is_refused_without_truncation(made_once: FolderMaker) -> None:
    tokenizer = load_torch(made_once(save_ranking_model), score_tokens=ANSWERS).tokenizer
    assert tokenizer is not None
    with pytest.raises(InvalidInput, match=r"text\[1\]: expected at most 320 tokens, got"):
        tokenizer.tokenize_pairs([PAIRS[0], PAIRS[-1]], truncate=False)


def test_unsuitable_settings_are_refused(made_once: FolderMaker) -> None:
    folder = made_once(save_ranking_model)
    assert 'score_tokens: expected tokens of tokenizer.json, got "maybe"' in refusal(
        folder, score_tokens=("maybe", "yes")
    )
    assert "kv_cache_bytes: expected only for models that" in refusal(folder, score_tokens=ANSWERS, kv_cache_bytes=99)
    for save in (save_embedder, save_decoder_embedder):
        assert "score_tokens: expected a causal language model" in refusal(made_once(save), score_tokens=ANSWERS)


def test_unsuitable_files_are_refused(ranking: Path) -> None:
    (ranking / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    assert "expected a chat template for messages of the roles query and document, got another" in refusal(ranking)
    (ranking / "chat_template.jinja").unlink()
    assert "of the roles query and document, got none" in refusal(ranking)
    change_json(ranking / "sentence_bert_config.json", processing_kwargs={"chat_template": {"tools": []}})
    assert "processing_kwargs: chat_template: expected variables of the template, got tools" in refusal(ranking)
    change_json(ranking / "sentence_bert_config.json", processing_kwargs=None)
    change_json(ranking / "1_LogitScore" / "config.json", true_token_id="yes")
    assert "expected the token ids true_token_id and false_token_id" in refusal(ranking)
    change_json(ranking / "config.json", architectures=["Qwen3Model"])
    change_json(ranking / "1_LogitScore" / "config.json", true_token_id=1)
    assert "LogitScore: expected a causal language model, got Qwen3Model" in refusal(ranking)


def test_answer_outside_vocabulary_is_refused(ranking: Path) -> None:
    change_json(ranking / "1_LogitScore" / "config.json", true_token_id=512)
    assert "expected answers among the 512 tokens of the model, got 512" in refusal(ranking)
