"""From an entry of config.toml to a model: task, device, dtype and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.registry import TorchRegistry
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import NO_COPIES, load_torch, rows_of
from tests.support.alike import check_alike
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers, write_tokenizer
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, rewrite_weights, save_classifier, save_embedder


def refusal(folder: Path, **entry: Any) -> str:
    with pytest.raises(InvalidModel) as caught:
        load_torch(folder, **entry)
    return caught.value.message


class TestEntries:
    def test_embedder_is_loaded(self, made_once: FolderMaker) -> None:
        spec = load_torch(made_once(save_embedder), device="cpu", dtype="float32", model_type="bert").spec
        assert (spec.framework, spec.task, spec.device, spec.dtype) == ("pytorch", "embed", "cpu", "float32")
        assert [(value.name, str(value.type), value.shape) for value in (*spec.inputs, *spec.outputs)] == [
            ("text", "string", (-1,)),
            ("embeddings", "float32", (-1, HIDDEN_SIZE)),
        ]
        assert spec.text is not None
        assert (spec.text.max_tokens, spec.text.normalize, spec.text.labels) == (MAX_TOKENS, True, ())
        assert (spec.text.embedding_size, spec.text.shorter_sizes) == (HIDDEN_SIZE, ())

    def test_classifier_is_loaded(self, made_once: FolderMaker) -> None:
        spec = load_torch(made_once(save_classifier), device="cpu").spec
        assert spec.task == "classify"
        assert spec.text is not None
        assert (spec.text.labels, spec.text.multi_label) == (("fast", "slow", "late"), False)
        assert spec.text.embedding_size is None

    def test_matryoshka_embedder_is_loaded(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", matryoshka_dimensions=[HIDDEN_SIZE, 16, 8])
        spec = load_torch(folder).spec
        assert spec.text is not None
        assert spec.text.shorter_sizes == (8, 16)

    def test_embedder_has_no_labels(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", id2label={"0": "a", "1": "b"})
        spec = load_torch(folder).spec
        assert spec.text is not None
        assert spec.text.labels == ()

    def test_model_in_module_folder_is_loaded(self, copied: FolderMaker, tmp_path: Path) -> None:
        outer = tmp_path / "outer"
        outer.mkdir()
        inner = copied(save_embedder).rename(outer / "0_Transformer")
        write_sentence_transformers(outer, "cls")
        write_json(
            outer / "modules.json",
            [
                {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ],
        )
        write_sentence_transformers(inner, "cls", normalize=False)
        ours, same = load_torch(outer), load_torch(inner)
        check_alike(rows_of(ours, ["the cat"]), rows_of(same, ["the cat"]))
        assert ours.spec.text is not None
        assert not ours.spec.text.normalize

    @pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
    def test_model_type_accepts_family_name(self, made_once: FolderMaker, family: str) -> None:
        folder = made_once(save_embedder, family=family)
        for model_type in ("bert", family):
            assert load_torch(folder, model_type=model_type).spec.task == "embed"

    @pytest.mark.parametrize("model_type", ["roberta", "nonesuch", "BERT"])
    def test_other_model_type_is_refused(self, made_once: FolderMaker, model_type: str) -> None:
        message = refusal(made_once(save_embedder), model_type=model_type)
        assert f'model_type: expected "bert" as in config.json, got "{model_type}"' in message

    def test_absent_device_gives_warning(self, made_once: FolderMaker) -> None:
        with capture_logs() as logs:
            assert load_torch(made_once(save_embedder), device="cuda").spec.device == "cpu"
        assert [(log["log_level"], log["wanted"]) for log in logs] == [("warning", "cuda")]


class TestSize:
    def test_size_limit_counts_bytes_on_disk(self, made_once: FolderMaker) -> None:
        folder = made_once(save_embedder)
        size = (folder / "model.safetensors").stat().st_size
        load_torch(folder, max_model_bytes=size)
        with pytest.raises(
            InvalidModel, match=r"expected at most models\.max_model_size = .* of weights, got .*; raise it or serve"
        ):
            load_torch(folder, max_model_bytes=size - 1)

    def test_size_limit_counts_all_shards(self, made_once: FolderMaker) -> None:
        folder = made_once(save_embedder, max_shard_size="20KB")
        largest = max(file.stat().st_size for file in folder.glob("*.safetensors"))
        with pytest.raises(InvalidModel, match="max_model_size"):
            load_torch(folder, max_model_bytes=largest * 2)

    @pytest.mark.parametrize(("dtype", "element_bytes"), [("f32", 4), ("f16", 2), ("bf16", 2), (None, 2)])
    def test_need_counts_weights_in_their_dtype(
        self, made_once: FolderMaker, tmp_path: Path, dtype: str | None, element_bytes: int
    ) -> None:
        """An accelerator holds them in 16 bits by default. The last layer of the largest batch is added."""
        folder = made_once(save_embedder)
        registry = TorchRegistry(PerformanceSettings(intra_op_threads=2, max_batch_size=4), GIB, NO_COPIES)
        entry = TorchModelEntry(name="m", path=folder, dtype=dtype, kernels="plain")  # type: ignore[arg-type]
        [model] = registry.load(entry, folder, FakeProbe().host())
        assert isinstance(model, EncoderModel)
        assert model._model is not None
        elements = sum(parameter.numel() for parameter in model._model.parameters())
        states = 4 * MAX_TOKENS * HIDDEN_SIZE
        needs = registry.needs(entry, folder)
        assert needs.accelerator_bytes == (elements + states) * element_bytes
        assert needs.host_bytes == (elements + states) * (4 if dtype is None else element_bytes)

    def test_max_batch_tokens_bounds_activations(self, made_once: FolderMaker) -> None:
        folder = made_once(save_embedder)
        registry = TorchRegistry(PerformanceSettings(intra_op_threads=2), GIB, NO_COPIES)

        def needs(**settings: Any) -> int:
            return registry.needs(TorchModelEntry(name="m", path=folder, **settings), folder).accelerator_bytes

        assert needs(max_batch_size=2) - needs(max_batch_size=1) == MAX_TOKENS * HIDDEN_SIZE * 2
        assert needs(max_batch_size=2, max_batch_tokens=MAX_TOKENS) == needs(max_batch_size=1)


def _save_t5(folder: Path) -> None:
    config = transformers.T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


class TestRefusals:
    def test_encoder_decoder_with_experts_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(_save_t5)
        write_tokenizer(folder)
        change_json(folder / "config.json", architectures=["NllbMoeForConditionalGeneration"])
        message = refusal(folder)
        assert "expected an encoder (embed, classify) or a model that generates text, one of Bart" in message
        assert "got NllbMoeForConditionalGeneration" in message

    def test_encoder_decoder_without_head_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(_save_t5)
        write_tokenizer(folder)
        change_json(folder / "config.json", architectures=["T5Model"])
        assert "or a causal language model, got T5Model" in refusal(folder)

    @pytest.mark.parametrize("head", ["ForMultipleChoice", "ForNextSentencePrediction"])
    def test_class_of_other_task_is_refused(self, copied: FolderMaker, head: str) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", architectures=[f"Bert{head}"])
        assert f"got Bert{head}; the tasks served are " in refusal(folder)

    def test_encoder_with_llama_entry_is_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_embedder), model_type="llama")
        assert 'model_type: expected "bert" as in config.json, got "llama"' in message

    @pytest.mark.parametrize(
        ("more", "known"),
        [({}, '"auto", "plain", "onednn", "compiled"'), ({"dtype": "int8"}, '"auto"')],
        ids=["f32", "int8"],
    )
    def test_kernels_of_language_models_are_refused(
        self, made_once: FolderMaker, more: dict[str, str], known: str
    ) -> None:
        message = refusal(made_once(save_embedder), kernels="mkl", **more)
        assert f'kernels: expected one of {known} for a model that generates no text, got "mkl"' in message

    @pytest.mark.parametrize("key", ["kv_cache_bytes", "max_num_batched_tokens", "num_speculative_tokens"])
    def test_generation_keys_for_encoder_are_refused(self, made_once: FolderMaker, key: str) -> None:
        message = refusal(made_once(save_embedder), **{key: 64})
        assert f"{key}: expected only for models that generate text; remove it" in message

    @pytest.mark.parametrize("model_type", [None, ""])
    def test_missing_model_type_is_refused(self, copied: FolderMaker, model_type: object) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", model_type=model_type)
        assert "config.json: model_type: expected the name of an architecture, got none" in refusal(folder)

    def test_missing_config_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        (folder / "config.json").unlink()
        assert "config.json: model_type: expected the name of an architecture, got none" in refusal(folder)

    def test_missing_tokenizer_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        (folder / "tokenizer.json").unlink()
        assert "tokenizer.json: absent" in refusal(folder)

    def test_unserved_module_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        write_sentence_transformers(folder, more_modules=[])
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        lstm = {"path": "lstm", "type": "sentence_transformers.models.LSTM"}
        write_json(folder / "modules.json", [modules[0], lstm, *modules[1:]])
        assert "LSTM: expected WordEmbeddings as the first module, got Transformer" in refusal(folder)

    def test_unknown_pooling_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        write_sentence_transformers(folder)
        write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "median"})
        assert "pooling median is not served; cls, max, mean" in refusal(folder)

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"])
    def test_truncated_file_is_named(self, copied: FolderMaker, name: str) -> None:
        folder = copied(save_embedder)
        write_sentence_transformers(folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        assert str(folder / name) in refusal(folder)

    def test_model_that_cannot_run_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", vocab_size=2)
        rewrite_weights(folder, embeddings__word_embeddings__weight=torch.zeros(2, HIDDEN_SIZE))
        with pytest.raises(InvalidModel, match="the model does not run on text"):
            load_torch(folder).warm_up()
