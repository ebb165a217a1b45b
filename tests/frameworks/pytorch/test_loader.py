"""Load folders onto a device: complete weights only, in the requested or fastest dtype."""

from pathlib import Path

import numpy as np
import pytest
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.pytorch import kernels, loader
from frameworks.pytorch.loader import default_dtype, load_encoder
from frameworks.text.pooling import normalize_rows
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.alike import check_alike
from tests.support.axes import one_axis_at_a_time
from tests.support.fake_probe import GIB, FakeProbe, cuda
from tests.support.models.text_files import TEXTS, change_json, write_sentence_transformers
from tests.support.models.torch_folders import HIDDEN_SIZE, rewrite_weights, save_classifier, save_embedder

pytestmark = pytest.mark.isa

CPU = FakeProbe().host()
MPS = Device("mps", 0, "Apple GPU", 16 * GIB, 8 * GIB)


def refusal(folder: Path) -> str:
    with pytest.raises(InvalidModel) as caught:
        load_torch(folder)
    return caught.value.message


class TestDefaultDtype:
    @pytest.mark.parametrize(
        ("device", "file_dtype", "dtype"),
        [
            (CPU, "F32", "f32"),
            (CPU, "F16", "f32"),
            (CPU, "F64", "f32"),
            (cuda(0, GIB), "F32", "f16"),
            (cuda(0, GIB), "F16", "f16"),
            (cuda(1, GIB), "BF16", "bf16"),
            (MPS, "F32", "f16"),
            (MPS, "BF16", "bf16"),
        ],
    )
    def test_default_dtype_is_fastest_of_device(self, device: Device, file_dtype: str, dtype: str) -> None:
        assert default_dtype(device, file_dtype) == dtype

    @pytest.mark.parametrize(("has_instructions", "dtype"), [(True, "bf16"), (False, "f32")])
    def test_bfloat16_file_on_cpu_needs_instructions(
        self, monkeypatch: pytest.MonkeyPatch, has_instructions: bool, dtype: str
    ) -> None:
        monkeypatch.setattr(kernels, "multiplies_bf16", lambda: has_instructions)
        assert default_dtype(CPU, "BF16") == dtype
        assert default_dtype(CPU, "F32") == "f32"


class TestDtypes:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
    @pytest.mark.parametrize(("dtype", "name"), [("f16", "float16"), ("bf16", "bfloat16")])
    def test_16_bit_dtypes_are_close_to_f32(self, copied: FolderMaker, dtype: str, name: str, pooling: str) -> None:
        folder = copied(save_embedder)
        write_sentence_transformers(folder, pooling)
        full, narrow = load_torch(folder, dtype="f32"), load_torch(folder, dtype=dtype)
        assert (full.spec.dtype, narrow.spec.dtype) == ("float32", name)
        difference = normalize_rows(rows_of(narrow, list(TEXTS))) - normalize_rows(rows_of(full, list(TEXTS)))
        assert 0 < np.abs(difference).max() < (1e-2 if dtype == "f16" else 5e-2)

    @pytest.mark.parametrize(("saved", "dtype"), one_axis_at_a_time(["f32", "f16", "bf16"], ["f32", "f16", "bf16"]))
    def test_every_dtype_loads_from_every_file(self, made_once: FolderMaker, saved: str, dtype: str) -> None:
        model = load_torch(made_once(save_embedder, dtype=saved), dtype=dtype)
        assert model._model is not None
        assert {parameter.dtype for parameter in model._model.parameters()} == {loader.DTYPES[dtype]}
        assert rows_of(model, ["the cat"]).dtype == np.float32

    @pytest.mark.parametrize(("dtype", "element_bytes"), [("f32", 4), ("f16", 2), ("bf16", 2)])
    def test_memory_bytes_equal_weights(self, made_once: FolderMaker, dtype: str, element_bytes: int) -> None:
        model = load_torch(made_once(save_embedder), dtype=dtype, kernels="plain")
        assert model._model is not None
        elements = sum(parameter.numel() for parameter in model._model.parameters())
        buffers = sum(buffer.nbytes for buffer in model._model.buffers())
        assert model.spec.memory_bytes == elements * element_bytes + buffers
        assert buffers < 0.02 * model.spec.memory_bytes

    def test_attention_is_sdpa(self, made_once: FolderMaker) -> None:
        model = load_torch(made_once(save_embedder))._model
        assert model is not None
        assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]

    def test_encoder_without_sdpa_is_served(self, made_once: FolderMaker) -> None:
        """MPNet has no sdpa attention in transformers."""
        assert np.isfinite(rows_of(load_torch(made_once(save_embedder, family="mpnet")), ["the"])).all()


class TestShards:
    def test_sharded_model_equals_single_file(self, made_once: FolderMaker) -> None:
        parts = made_once(save_embedder, max_shard_size="20KB")
        assert len(list(parts.glob("*.safetensors"))) > 1
        rows = rows_of(load_torch(parts), list(TEXTS))
        check_alike(rows, rows_of(load_torch(made_once(save_embedder)), list(TEXTS)))


class TestWeightsThatAreNotThere:
    def test_bare_encoder_with_classifier_config_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", architectures=["BertForSequenceClassification"])
        message = refusal(folder)
        assert "missing weights of BertForSequenceClassification: classifier.bias, classifier.weight" in message
        assert "check architectures in config.json" in message

    def test_classifier_without_pooler_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_classifier)
        rewrite_weights(folder, bert__pooler__dense__weight=None, bert__pooler__dense__bias=None)
        assert "missing weights of BertForSequenceClassification: bert.pooler.dense.bias" in refusal(folder)

    def test_missing_weight_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        rewrite_weights(folder, encoder__layer__1__output__dense__bias=None)
        assert "missing weights of BertModel: encoder.layer.1.output.dense.bias;" in refusal(folder)

    def test_half_of_pooler_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        rewrite_weights(folder, pooler__dense__bias=None)
        assert "missing weights of BertModel: pooler.dense.bias" in refusal(folder)

    def test_missing_layers_are_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", num_hidden_layers=3)
        message = refusal(folder)
        assert "missing weights of BertModel: encoder.layer.2." in message
        assert "…" in message

    def test_weights_of_other_model_are_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", model_type="roberta", architectures=["RobertaModel"], pad_token_id=1)
        rewrite_weights(folder, embeddings__LayerNorm__weight=None)
        assert "RobertaModel: embeddings.LayerNorm.weight" in refusal(folder)

    def test_unneeded_weights_are_ignored(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        rows = rows_of(load_torch(folder), list(TEXTS))
        rewrite_weights(folder, cls__predictions__bias=torch.zeros(5))
        check_alike(rows_of(load_torch(folder), list(TEXTS)), rows)


class TestWrongShapes:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"embeddings__word_embeddings__weight": torch.zeros(7, HIDDEN_SIZE)}, "word_embeddings"),
            ({"encoder__layer__0__output__dense__bias": torch.zeros(3)}, "encoder.layer.0.output.dense.bias"),
        ],
    )
    def test_weights_of_other_shape_are_refused(
        self, copied: FolderMaker, changes: dict[str, torch.Tensor], named: str
    ) -> None:
        folder = copied(save_embedder)
        rewrite_weights(folder, **changes)
        message = refusal(folder)
        assert "expected weights of the shapes in config.json" in message
        assert named in message

    def test_more_labels_than_outputs_are_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_classifier)
        change_json(folder / "config.json", id2label={str(i): f"l{i}" for i in range(5)}, label2id=None)
        message = refusal(folder)
        assert "expected weights of the shapes in config.json" in message
        assert "classifier.weight" in message

    @pytest.mark.parametrize(
        "changes",
        [{"hidden_size": 33}, {"hidden_size": "32"}, {"num_attention_heads": 0}, {"hidden_act": "nonesuch"}],
    )
    def test_invalid_config_is_refused(self, copied: FolderMaker, changes: dict[str, object]) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", **changes)
        assert str(folder) in refusal(folder)


class TestArchitectures:
    def test_unknown_architecture_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(folder / "config.json", model_type="nonesuch")
        message = refusal(folder)
        assert "transformers cannot load it" in message
        assert "nonesuch" in message

    def test_code_of_folder_is_refused(self, copied: FolderMaker, tmp_path: Path) -> None:
        folder = _with_code(copied(save_embedder), tmp_path / "ran")
        change_json(folder / "config.json", model_type="own")
        message = refusal(folder)
        assert 'got "own", which needs code of the folder (auto_map); such code is never run' in message
        assert not (tmp_path / "ran").exists()

    def test_known_architecture_ignores_code_of_folder(
        self, copied: FolderMaker, made_once: FolderMaker, tmp_path: Path
    ) -> None:
        """Many folders keep code from before transformers knew the model."""
        model = load_torch(_with_code(copied(save_embedder), tmp_path / "ran"))
        check_alike(rows_of(model, list(TEXTS)), rows_of(load_torch(made_once(save_embedder)), list(TEXTS)))
        assert not (tmp_path / "ran").exists()


def test_weights_beyond_memory_raise_out_of_memory(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", run_out)
    with pytest.raises(OutOfMemory, match="the weights do not fit on cpu"):
        load_encoder(made_once(save_embedder), classifies=False, needs_pooler=False, dtype="f32", device=CPU)


def _with_code(folder: Path, ran: Path) -> Path:
    """Return the folder with a module that creates the file `ran` when it is imported."""
    (folder / "modeling.py").write_text(f"open({str(ran)!r}, 'w').close()\nConfig = Model = object\n", encoding="utf-8")
    change_json(folder / "config.json", auto_map={"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"})
    return folder
