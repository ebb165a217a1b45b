"""Pairs in a chat template: token ids and scores equal those of sentence-transformers' CrossEncoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.pooling import scores
from frameworks.types import TEXT_OUTPUT
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch
from tests.support.models.decoder_folders import save_decoder_classifier
from tests.support.models.text_files import TEXTS, change_json, write_json
from tests.support.models.torch_folders import save_classifier

LONG = "the cat sat on the turntable . " * 20
PAIRS = [("the engine of steam", text) for text in (*TEXTS, LONG)] + [("", ""), (LONG, "steam"), (LONG, LONG)]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FLAT = "query: {{ messages[-2].content }} document: {{ messages[-1].content }} end ."
IN_PARTS = "query: {{ messages[0].content[0].text }} document: {{ messages[1].content[0].text }} end ."
CHANGED = "{{ messages[0].content | upper }} {{ messages[1].content | length }}"
FOR_USERS = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"

Make = Callable[..., Path]


@pytest.fixture
def templated(copied: FolderMaker) -> Make:
    """Return a folder with a classifier of one label and this chat template."""

    def make(template: str | None, family: str = "modernbert", **tokenizer: Any) -> Path:
        if family == "modernbert":
            folder = copied(save_classifier, family=family, labels=("relevant",))
        else:
            folder = copied(save_decoder_classifier, model_type=family, labels=("relevant",))
        if tokenizer:
            change_json(folder / "tokenizer_config.json", **tokenizer)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder

    return make


def assert_equals_cross_encoder(folder: Path, pairs: list[tuple[str, str]] = PAIRS) -> EncoderModel:
    """Compare token ids exactly, and scores to 1e-5, of all pairs in one batch."""
    from sentence_transformers import CrossEncoder

    reference: Any = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    model = load_torch(folder, dtype="f32")
    assert model.tokenizer is not None
    batch = model.tokenizer.tokenize_pairs(pairs, truncate=True)
    prompt = reference.prompts.get(reference.default_prompt_name)
    read = [reference[0].preprocess([pair], prompt=prompt)["input_ids"][0].tolist() for pair in pairs]
    assert batch.token_ids == read
    logits = model.infer(batch)[TEXT_OUTPUT]
    assert isinstance(logits, np.ndarray)
    wanted = reference.predict(pairs, show_progress_bar=False)
    np.testing.assert_allclose(scores(logits, multi_label=True)[:, 0], wanted, rtol=0, atol=1e-5)
    assert np.ptp(wanted) > 0.01, "pairs that all get one score would prove nothing"
    return model


@pytest.mark.parametrize("template", [FLAT, IN_PARTS, CHANGED])
def test_templated_pairs_equal_cross_encoder(templated: Make, template: str) -> None:
    assert_equals_cross_encoder(templated(template))


def test_answer_is_not_begun(templated: Make) -> None:
    """Unless the files set add_generation_prompt, as of other templates of conversations."""
    assert_equals_cross_encoder(templated(CHATML, "qwen3"))


@pytest.mark.extended
@pytest.mark.parametrize("template", [FLAT, IN_PARTS, CHANGED])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_pairs_of_decoders_equal_cross_encoder(templated: Make, template: str, family: str) -> None:
    assert_equals_cross_encoder(templated(template, family))


@pytest.mark.extended
@pytest.mark.parametrize("max_tokens", [60, 64, 80, 96, 100])
def test_cut_prompts_equal_cross_encoder(templated: Make, max_tokens: int) -> None:
    """Prompts shorter than the limit, of just the limit, and longer."""
    assert_equals_cross_encoder(templated(CHATML, "qwen3", model_max_length=max_tokens))


@pytest.mark.parametrize("max_tokens", [40, *(pytest.param(each, marks=pytest.mark.extended) for each in (60, 64, 96))])
def test_left_cut_prompts_equal_cross_encoder(templated: Make, max_tokens: int) -> None:
    """The end of the template is kept in any case."""
    assert_equals_cross_encoder(templated(FLAT, "qwen3", model_max_length=max_tokens, truncation_side="left"))


@pytest.mark.extended
@pytest.mark.parametrize("template", [FLAT, IN_PARTS])
def test_named_templates_equal_cross_encoder(templated: Make, template: str) -> None:
    named = [{"name": "default", "template": template}, {"name": "tool_use", "template": CHATML}]
    assert_equals_cross_encoder(templated(None, "qwen3", chat_template=named))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("template", "message_format"), [(FLAT, "flat"), (IN_PARTS, "structured"), (FLAT, "auto"), (FLAT, "structured")]
)
def test_message_format_of_files_is_used(templated: Make, template: str, message_format: str) -> None:
    folder = templated(template, "qwen3")
    method = {"method": "forward", "method_output_name": "logits"}
    config = {
        "transformer_task": "sequence-classification",
        "modality_config": {"text": method, "message": {**method, "format": message_format}},
        "module_output_name": "scores",
        "processing_kwargs": {"chat_template": {"mood": "calm"}},
    }
    write_json(folder / "sentence_bert_config.json", config)
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
    prompts = {"model_type": "CrossEncoder", "prompts": {"steam": "find steam"}, "default_prompt_name": "steam"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    (folder / "chat_template.jinja").write_text(template + "{{ mood }} {{ messages | length }}", encoding="utf-8")
    if template == FLAT:
        assert_equals_cross_encoder(folder)
    else:
        change_json(folder / "config_sentence_transformers.json", default_prompt_name=None)
        assert_equals_cross_encoder(folder)


def test_template_without_pairs_is_logged(templated: Make) -> None:
    """CrossEncoder refuses such pairs. transformers' pipeline reads them as two texts, and so do we."""
    with capture_logs() as logs:
        model = load_torch(templated(FOR_USERS), dtype="f32")
    assert any("chat template reads no pairs" in entry["event"] for entry in logs)
    plain = load_torch(templated(None), dtype="f32")
    assert model.tokenizer is not None
    assert plain.tokenizer is not None
    read = model.tokenizer.tokenize_pairs(PAIRS, truncate=True)
    assert read.token_ids == plain.tokenizer.tokenize_pairs(PAIRS, truncate=True).token_ids
