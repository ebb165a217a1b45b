"""Test that any content of the files gives a TextConfig or InvalidModel, never another exception."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frameworks.core.errors import InvalidModel
from frameworks.text.config import read_text_config
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers

FILES = (
    "config.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
)
KEYS = (
    "architectures", "id2label", "num_labels", "pad_token_id", "max_position_embeddings", "problem_type", "model_type",
    "is_encoder_decoder", "model_max_length", "max_seq_length", "do_lower_case", "prompts", "default_prompt_name",
    "pooling_mode", "pooling_mode_cls_token", "include_prompt", "matryoshka_dimensions", "is_matryoshka", "hidden_size",
)  # fmt: skip

junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["0", "1", "query", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(file=st.sampled_from(FILES), key=st.sampled_from(KEYS), value=junk)
@example("config.json", "id2label", {})
@example("config.json", "id2label", {"0": "a", "00": "b"})
@example("config.json", "num_labels", 2**62)
@example("config.json", "num_labels", 0)
@example("config.json", "pad_token_id", -1)
@example("config.json", "matryoshka_dimensions", [4, True])
@example("config.json", "max_position_embeddings", -5)
@example("tokenizer_config.json", "model_max_length", 0.5)
def test_any_value_of_any_key_is_handled(
    tmp_path_factory: pytest.TempPathFactory, file: str, key: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_value"
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    write_sentence_transformers(folder, prompt="query: ")
    write_json(folder / "config.json", {"architectures": ["BertForSequenceClassification"]})
    if file == "modules.json":
        write_json(folder / file, value)
    else:
        change_json(folder / file, **{key: value})
    try:
        config = read_text_config(folder)
    except InvalidModel:
        return
    assert isinstance(config.max_tokens, int)
    assert config.pad_token_id >= 0
    assert all(size > 0 for size in config.shorter_sizes)
    assert 1 <= len(config.labels) <= 10**6
    assert config.pooling in ("mean", "cls", "max", None)


SCORE_KEYS = ("true_token_id", "false_token_id", "modality_config", "processing_kwargs", "architectures")
parts = ("message", "format", "chat_template", "add_generation_prompt", "text")
score_junk = st.recursive(
    st.one_of(junk, st.booleans(), st.just("structured"), st.just("flat")),
    lambda inner: st.dictionaries(st.sampled_from(parts), inner, max_size=2),
    max_leaves=5,
)


@given(key=st.sampled_from(SCORE_KEYS), value=score_junk, other=score_junk)
@example("processing_kwargs", {"chat_template": {"add_generation_prompt": 1}}, {"message": {}})
@example("processing_kwargs", [1], {"message": {}})
@example("true_token_id", True, None)
def test_any_value_of_scoring_model_is_handled(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object, other: object
) -> None:
    """`other`: the modality_config beside the value."""
    folder = tmp_path_factory.getbasetemp() / "any_scoring_value"
    names = {"": "Transformer", "1_LogitScore": "LogitScore"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in names.items()]
    write_json(folder / "modules.json", modules)
    contents: dict[str, dict[str, object]] = {
        "config.json": {"architectures": ["Qwen3ForCausalLM"]},
        "1_LogitScore/config.json": {"true_token_id": 2, "false_token_id": 1},
        "sentence_bert_config.json": {"modality_config": other},
    }
    for name, content in contents.items():
        write_json(folder / name, {**content, key: value})
    try:
        config = read_text_config(folder)
    except InvalidModel:
        return
    assert config.answers is not None
    assert config.classifies
    assert not config.generates
    assert config.labels == ("LABEL_0",)
    assert config.pair_messages.is_used in (True, False)
    assert "add_generation_prompt" in config.pair_messages.variables or not config.pair_messages.is_used


@pytest.mark.parametrize(("problem", "is_regression"), [("regression", True), ("single_label_classification", False)])
def test_regression_is_read(tmp_path: Path, problem: str, is_regression: bool) -> None:
    """Its number is not a probability; the pipeline of transformers returns it unchanged."""
    write_json(tmp_path / "config.json", {"architectures": ["BertForSequenceClassification"], "problem_type": problem})
    assert read_text_config(tmp_path).is_regression is is_regression
