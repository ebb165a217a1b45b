"""Test the text settings read from a model's JSON files, and that errors name the damaged file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.text.config import read_text_config, transformer_folder
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers

Read = Callable[..., Any]


@pytest.fixture
def config_of(tmp_path: Path) -> Read:
    """Return the config of a folder with these keys in its config.json and tokenizer_config.json."""

    def read(tokenizer: dict[str, object] | None = None, /, **config: object) -> Any:
        write_json(tmp_path / "config.json", config)
        if tokenizer is not None:
            write_json(tmp_path / "tokenizer_config.json", tokenizer)
        return read_text_config(tmp_path)

    return read


class TestMaxTokens:
    def test_default_limit_is_512(self, config_of: Read) -> None:
        assert config_of().max_tokens == 512

    def test_position_embeddings_limit_tokens(self, config_of: Read) -> None:
        assert config_of(model_type="bert", max_position_embeddings=40).max_tokens == 40

    def test_lower_limit_of_tokenizer_or_model_applies(self, config_of: Read) -> None:
        assert config_of({"model_max_length": 30}, max_position_embeddings=40).max_tokens == 30
        assert config_of({"model_max_length": 50}, max_position_embeddings=40).max_tokens == 40

    def test_older_name_of_tokenizer_limit_is_read(self, config_of: Read) -> None:
        assert config_of({"max_len": 30}, max_position_embeddings=40).max_tokens == 30
        assert config_of({"max_len": 30, "model_max_length": 20}, max_position_embeddings=40).max_tokens == 20

    @pytest.mark.parametrize("limit", [int(1e18), 1e30, 1000000000000000019884624838656, None, "many", 0, -1])
    def test_tokenizer_without_limit_is_ignored(self, config_of: Read, limit: object) -> None:
        assert config_of({"model_max_length": limit}, max_position_embeddings=40).max_tokens == 40

    @pytest.mark.parametrize("positions", [-1, 0, None, "512", True])
    def test_model_without_positions_uses_tokenizer_limit(self, config_of: Read, positions: object) -> None:
        assert config_of({"model_max_length": 100}, max_position_embeddings=positions).max_tokens == 100

    def test_sentence_limit_overrides_tokenizer_limit(self, config_of: Read, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, max_seq_length=128)
        for limit in (64, 256):
            assert config_of({"model_max_length": limit}, max_position_embeddings=512).max_tokens == 128

    def test_null_sentence_limit_is_ignored(self, config_of: Read, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, max_seq_length=None)
        assert config_of({"model_max_length": 100}, max_position_embeddings=512).max_tokens == 100

    def test_position_embeddings_cap_sentence_limit(self, config_of: Read, tmp_path: Path) -> None:
        """A longer text has no position embeddings."""
        write_sentence_transformers(tmp_path, max_seq_length=600)
        assert config_of(model_type="roberta", max_position_embeddings=514).max_tokens == 514

    @pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
    def test_sentence_config_is_found_by_any_name(self, config_of: Read, tmp_path: Path, name: str) -> None:
        write_json(tmp_path / name, {"max_seq_length": 77})
        assert config_of().max_tokens == 77


class TestTruncationOfTokenizer:
    """The limit in tokenizer.json."""

    def test_truncation_limits_tokens_without_other_limit(self, config_of: Read, tmp_path: Path) -> None:
        write_json(tmp_path / "tokenizer.json", {"truncation": {"max_length": 77, "strategy": "LongestFirst"}})
        assert config_of().max_tokens == 77
        assert config_of({"model_max_length": 1e30}, max_position_embeddings=0).max_tokens == 77

    def test_other_limits_override_truncation(self, config_of: Read, tmp_path: Path) -> None:
        write_json(tmp_path / "tokenizer.json", {"truncation": {"max_length": 77}})
        assert config_of(max_position_embeddings=40).max_tokens == 40
        assert config_of(max_position_embeddings=512).max_tokens == 512
        assert config_of({"model_max_length": 100}).max_tokens == 100
        write_sentence_transformers(tmp_path, max_seq_length=128)
        assert config_of({"model_max_length": 1e30}).max_tokens == 128

    @pytest.mark.parametrize(
        "truncation", [None, 5, [], {}, {"max_length": 0}, {"max_length": "9"}, {"max_length": 1e9}, {"max_length": -1}]
    )
    def test_other_truncation_is_ignored(self, config_of: Read, tmp_path: Path, truncation: object) -> None:
        write_json(tmp_path / "tokenizer.json", {"truncation": truncation})
        assert config_of().max_tokens == 512


class TestShorterSizes:
    """Sizes to which embeddings may be truncated."""

    def test_sizes_are_empty_by_default(self, config_of: Read) -> None:
        assert config_of(hidden_size=8).shorter_sizes == ()
        assert config_of(hidden_size=8, is_matryoshka=False).shorter_sizes == ()

    def test_matryoshka_dimensions_are_sorted_and_unique(self, config_of: Read) -> None:
        assert config_of(is_matryoshka=True, matryoshka_dimensions=[4, 2, 4]).shorter_sizes == (2, 4)

    def test_is_matryoshka_allows_any_size(self, config_of: Read) -> None:
        assert config_of(hidden_size=4, is_matryoshka=True).shorter_sizes == (1, 2, 3)
        assert config_of(is_matryoshka=True).shorter_sizes == ()

    @pytest.mark.parametrize("sizes", [4, "4", [0], [-1], [4.0], [True], [[4]]])
    def test_invalid_matryoshka_dimensions_are_refused(self, config_of: Read, sizes: object) -> None:
        with pytest.raises(InvalidModel, match=r"config\.json: matryoshka_dimensions is not a list of sizes"):
            config_of(matryoshka_dimensions=sizes)


class TestTokenTypes:
    @pytest.mark.parametrize(
        ("tokenizer", "config", "reads"),
        [
            (None, {}, True),
            ({"model_input_names": ["input_ids", "token_type_ids"]}, {"type_vocab_size": 2}, True),
            ({"model_input_names": ["input_ids", "attention_mask"]}, {"type_vocab_size": 2}, False),
            ({"model_input_names": "input_ids"}, {}, True),
            (None, {"type_vocab_size": 1}, False),
            (None, {"type_vocab_size": 0}, False),
            (None, {"type_vocab_size": None}, True),
        ],
    )
    def test_token_types_need_vocabulary_and_tokenizer(
        self, config_of: Read, tokenizer: dict[str, object] | None, config: dict[str, object], reads: bool
    ) -> None:
        assert config_of(tokenizer, **config).reads_token_types is reads


class TestSentenceTransformers:
    @pytest.fixture(autouse=True)
    def config_json(self, tmp_path: Path) -> None:
        write_json(tmp_path / "config.json", {"model_type": "bert"})

    def test_defaults_apply_without_sentence_files(self, tmp_path: Path) -> None:
        config = read_text_config(tmp_path)
        assert (config.pooling, config.normalize, config.prompt, config.lower_case) == (None, True, "", False)

    @pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
    @pytest.mark.parametrize("normalize", [True, False])
    def test_modules_set_pooling_and_normalize(self, tmp_path: Path, pooling: str, normalize: bool) -> None:
        write_sentence_transformers(tmp_path, pooling, normalize=normalize)
        config = read_text_config(tmp_path)
        assert (config.pooling, config.normalize) == (pooling, normalize)

    @pytest.mark.parametrize("modes", ["cls", ["cls"]])
    def test_pooling_mode_of_newer_versions_is_read(self, tmp_path: Path, modes: object) -> None:
        write_sentence_transformers(tmp_path)
        write_json(tmp_path / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": modes})
        assert read_text_config(tmp_path).pooling == "cls"

    @pytest.mark.parametrize(
        "content",
        [
            {"pooling_mode": "median"},
            {"pooling_mode": ["mean", "median"]},
            {"pooling_mode": ["mean"] * 7},
            {"pooling_mode": 5},
            {"pooling_mode": {"mean": True}},
        ],
    )
    def test_unsupported_pooling_is_refused_by_name(self, tmp_path: Path, content: dict[str, object]) -> None:
        write_sentence_transformers(tmp_path)
        write_json(tmp_path / "1_Pooling" / "config.json", content)
        with pytest.raises(InvalidModel, match=r"1_Pooling/config\.json: pooling .* is not served; cls, max, mean"):
            read_text_config(tmp_path)

    def test_texts_in_chat_template_are_refused(self, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, "lasttoken")
        change_json(tmp_path / "sentence_bert_config.json", modality_config={"text": {}, "message": {}})
        with pytest.raises(InvalidModel, match="modality_config: expected text, got message"):
            read_text_config(tmp_path)

    def test_absent_pooling_file_is_refused(self, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, "cls")
        (tmp_path / "1_Pooling" / "config.json").unlink()
        with pytest.raises(InvalidModel, match=r"1_Pooling/config\.json: absent"):
            read_text_config(tmp_path)

    @pytest.mark.parametrize("module", ["MultiVectorMask", "TokenPooling", "Router"])
    def test_unsupported_module_is_refused_by_name(self, tmp_path: Path, module: str) -> None:
        write_sentence_transformers(tmp_path, more_modules=[module])
        with pytest.raises(InvalidModel, match=rf"modules\.json: module {module} is not served.*Normalize"):
            read_text_config(tmp_path)

    @pytest.mark.parametrize(
        "order", [["Transformer", "Dense", "Pooling"], ["Pooling"], ["Transformer", "Dense"], ["BoW", "Pooling"]]
    )
    def test_unserved_order_of_modules_is_refused(self, tmp_path: Path, order: list[str]) -> None:
        modules = [
            {"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(order)
        ]
        write_json(tmp_path / "modules.json", modules)
        with pytest.raises(InvalidModel, match=r"modules\.json: .*this order is not served"):
            read_text_config(tmp_path)

    def test_custom_module_with_known_name_is_refused(self, tmp_path: Path) -> None:
        write_json(tmp_path / "modules.json", [{"path": "", "type": "custom_code.Transformer"}])
        with pytest.raises(InvalidModel, match=r"module custom_code\.Transformer is not served"):
            read_text_config(tmp_path)

    def test_encoder_in_module_folder_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").unlink()
        write_sentence_transformers(tmp_path, "cls")
        modules = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))
        modules[0]["path"] = "0_Transformer"
        write_json(tmp_path / "modules.json", modules)
        write_json(tmp_path / "0_Transformer" / "config.json", {"model_type": "mpnet"})
        write_json(tmp_path / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 33})
        config = read_text_config(tmp_path)
        assert transformer_folder(tmp_path) == tmp_path / "0_Transformer"
        assert (config.model_type, config.max_tokens, config.pooling) == ("mpnet", 33, "cls")

    @pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b"])
    def test_module_outside_folder_is_refused(self, tmp_path: Path, path: str) -> None:
        write_json(tmp_path / "modules.json", [{"path": path, "type": "sentence_transformers.models.Transformer"}])
        with pytest.raises(InvalidModel, match=r"modules\.json: a module's path leaves the model's own folder"):
            read_text_config(tmp_path)

    def test_default_prompt_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / "config_sentence_transformers.json"
        prompts = {"query": "query: ", "passage": "passage: ", "none": None}
        for name, prompt in (("passage", "passage: "), ("query", "query: "), ("none", ""), (None, "")):
            write_json(file, {"prompts": prompts, "default_prompt_name": name})
            assert read_text_config(tmp_path).prompt == prompt
            assert read_text_config(tmp_path).prompts == {"query": "query: ", "passage": "passage: "}
        write_json(file, {"prompts": None})
        assert read_text_config(tmp_path).prompt == ""

    @pytest.mark.parametrize("prompts", [{}, None, [], "query", {"other": "x"}])
    def test_absent_default_prompt_is_refused(self, tmp_path: Path, prompts: object) -> None:
        write_json(tmp_path / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
        with pytest.raises(InvalidModel, match=r'config_sentence_transformers\.json: .*"query" is not one of prompts'):
            read_text_config(tmp_path)

    def test_pooling_without_prompt_is_read(self, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, prompt="query: ")
        for value, pools_prompt in ((False, False), (True, True), (None, True)):
            change_json(tmp_path / "1_Pooling" / "config.json", include_prompt=value)
            assert read_text_config(tmp_path).pools_prompt is pools_prompt
        change_json(tmp_path / "1_Pooling" / "config.json", include_prompt="no")
        with pytest.raises(InvalidModel, match=r"1_Pooling/config\.json: include_prompt: expected true or false"):
            read_text_config(tmp_path)

    def test_lower_case_is_read(self, tmp_path: Path) -> None:
        write_sentence_transformers(tmp_path, do_lower_case=True)
        assert read_text_config(tmp_path).lower_case is True


class TestLabels:
    def test_labels_are_sorted_by_number(self, config_of: Read) -> None:
        assert config_of(id2label={"2": "late", "0": "fast", "1": "slow"}).labels == ("fast", "slow", "late")

    def test_more_than_nine_labels_are_sorted_numerically(self, config_of: Read) -> None:
        names = {str(i): f"l{i}" for i in sorted(range(12), key=str)}
        assert config_of(id2label=names).labels == tuple(f"l{i}" for i in range(12))

    def test_labels_without_names_are_numbered(self, config_of: Read) -> None:
        assert config_of().labels == ("LABEL_0", "LABEL_1")
        assert config_of(num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")

    @pytest.mark.parametrize("named", [["a", "b"], "a", 5, {"1": "a"}, {"0": "a", "2": "b"}, {"zero": "a"}])
    def test_incomplete_label_numbers_are_refused(self, config_of: Read, named: object) -> None:
        with pytest.raises(InvalidModel, match=r"config\.json: id2label does not name the labels"):
            config_of(id2label=named)

    def test_multi_label_follows_transformers_pipeline(self, config_of: Read) -> None:
        two = {"0": "a", "1": "b"}
        assert not config_of(id2label=two).multi_label
        assert not config_of(id2label=two, problem_type="single_label_classification").multi_label
        assert config_of(id2label=two, problem_type="multi_label_classification").multi_label
        assert config_of(id2label={"0": "a"}).multi_label

    def test_only_sequence_classifier_classifies(self, config_of: Read) -> None:
        for architecture, classifies in (
            ("BertForSequenceClassification", True),
            ("BertForTokenClassification", False),
            ("BertModel", False),
        ):
            assert config_of(architectures=[architecture]).classifies is classifies
        assert not config_of().classifies

    @pytest.mark.parametrize(
        "architecture",
        [
            "BertForTokenClassification", "BertForQuestionAnswering", "XLNetForQuestionAnsweringSimple",
            "BertForMultipleChoice", "BertForNextSentencePrediction", "DPRReader", "GPT2DoubleHeadsModel",
        ],
    )  # fmt: skip
    def test_class_of_other_task_has_none(self, config_of: Read, architecture: str) -> None:
        config = config_of(architectures=[architecture])
        assert not config.has_task
        assert replace(config, pooling="mean").has_task

    @pytest.mark.parametrize(
        "architecture",
        ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "LlamaForCausalLM", ""],
    )
    def test_class_of_served_task_has_one(self, config_of: Read, architecture: str) -> None:
        assert config_of(architectures=[architecture]).has_task

    @pytest.mark.parametrize("names", ["BertModel", 5, [5], [None], {"0": "BertModel"}])
    def test_invalid_architectures_are_refused(self, config_of: Read, names: object) -> None:
        with pytest.raises(InvalidModel, match=r"config\.json: architectures is not a list of class names"):
            config_of(architectures=names)


class TestPadToken:
    @pytest.mark.parametrize(("said", "read"), [(1, 1), (0, 0), (None, 0), ("1", 0), (True, 0)])
    def test_pad_token_id_is_number_or_zero(self, config_of: Read, said: object, read: int) -> None:
        assert config_of(pad_token_id=said).pad_token_id == read


FILES = (
    "config.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)


class TestBrokenFiles:
    @pytest.fixture(autouse=True)
    def whole_folder(self, tmp_path: Path) -> None:
        write_json(tmp_path / "config.json", {"model_type": "bert"})
        write_sentence_transformers(tmp_path, prompt="query: ")
        write_json(tmp_path / "tokenizer_config.json", {})
        read_text_config(tmp_path)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize(
        "content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"[1, 2]", b"5", b"null", b'"text"', b"NaN"]
    )
    def test_damaged_file_is_named(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidModel) as caught:
            read_text_config(tmp_path)
        assert str(tmp_path / name) in caught.value.message

    @pytest.mark.parametrize("name", FILES)
    def test_folder_instead_of_file_is_named(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(InvalidModel, match="cannot be read") as caught:
            read_text_config(tmp_path)
        assert str(tmp_path / name) in caught.value.message

    @pytest.mark.parametrize("modules", [{"0": {}}, [5], ["Transformer"], [{"type": "a"}], [{"path": ""}], [None]])
    def test_invalid_modules_are_refused(self, tmp_path: Path, modules: object) -> None:
        write_json(tmp_path / "modules.json", modules)
        with pytest.raises(InvalidModel, match=r"modules\.json: not a list of modules with type and path"):
            read_text_config(tmp_path)

    def test_absent_file_reads_as_empty(self, tmp_path: Path) -> None:
        assert read_json(tmp_path / "nothing.json") == {}
        assert read_json(tmp_path / "config.json" / "below_a_file.json") == {}
