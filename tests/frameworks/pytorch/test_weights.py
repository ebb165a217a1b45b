"""Weight files that are read; others are refused with reason and remedy."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.weights import read_weight_files
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, load_torch_model
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.support.models.causal_families import save_family
from tests.support.models.causal_folders import save_causal_model
from tests.support.models.text_files import change_json, write_json
from tests.support.models.torch_folders import rewrite_weights, save_classifier, save_embedder
from tests.support.models.vision_folders import save_image_classifier

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(copied: FolderMaker) -> Path:
    return copied(save_embedder, max_shard_size="20KB")


def refusal(folder: Path, load: Callable[[Path], Any] = load_torch) -> str:
    """Return the reason of the registry's refusal."""
    with pytest.raises(InvalidModel) as caught:
        load(folder)
    return caught.value.message


class TestHeaders:
    def test_header_of_single_file_is_read(self, made_once: FolderMaker) -> None:
        folder = made_once(save_embedder)
        files = read_weight_files(folder)
        assert files.files == (folder / "model.safetensors",)
        assert files.file_bytes == (folder / "model.safetensors").stat().st_size
        assert 4 * files.elements < files.file_bytes < 4 * files.elements + 10_000
        assert files.dtype == "F32"
        assert "pooler.dense.weight" in files.names

    def test_headers_of_shards_equal_single_file(self, made_once: FolderMaker, sharded: Path) -> None:
        whole, parts = read_weight_files(made_once(save_embedder)), read_weight_files(sharded)
        assert len(parts.files) > 1
        assert (parts.elements, parts.names, parts.dtype) == (whole.elements, whole.names, whole.dtype)
        assert parts.file_bytes == sum(file.stat().st_size for file in sharded.glob("*.safetensors"))

    @pytest.mark.parametrize(("dtype", "name"), [("f16", "F16"), ("bf16", "BF16")])
    def test_dtype_is_that_of_most_elements(self, made_once: FolderMaker, dtype: str, name: str) -> None:
        assert read_weight_files(made_once(save_embedder, dtype=dtype)).dtype == name

    def test_large_tensor_outweighs_small_ones(self, tmp_path: Path) -> None:
        tensors = {f"small{i}": torch.zeros(2) for i in range(9)} | {"large": torch.zeros(5, 5, dtype=torch.bfloat16)}
        save_file(tensors, tmp_path / "model.safetensors")
        files = read_weight_files(tmp_path)
        assert (files.dtype, files.elements) == ("BF16", 43)

    def test_single_file_overrides_shards(self, sharded: Path) -> None:
        """The file is read as in transformers."""
        save_file({"own": torch.zeros(2)}, sharded / "model.safetensors")
        assert read_weight_files(sharded).names == {"own"}

    def test_pickles_beside_safetensors_are_ignored(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        (folder / "pytorch_model.bin").write_bytes(b"no pickle")
        assert load_torch(folder).spec.task == "embed"


class TestPickles:
    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.pkl", "a.pickle", "a.ckpt"])
    def test_folder_with_pickles_only_is_refused(self, copied: FolderMaker, name: str) -> None:
        folder = copied(save_embedder)
        (folder / "model.safetensors").rename(folder / name)
        message = refusal(folder)
        assert f"{folder / name}: expected safetensors, got a pickle, which can run any code" in message
        assert "save_pretrained" in message

    def test_pickle_is_never_opened(self, copied: FolderMaker, tmp_path: Path) -> None:
        folder = copied(save_embedder)
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Writes(tmp_path / "ran")))
        refusal(folder)
        change_json(folder / "config.json", transformers_weights="adapter_model.bin")
        (folder / "pytorch_model.bin").rename(folder / "adapter_model.bin")
        refusal(folder)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
    def test_path_of_pickle_is_refused(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"x")
        message = refusal(tmp_path / name)
        assert "expected safetensors, got a pickle, which can run any code" in message
        assert "save_pretrained" in message

    def test_training_arguments_are_not_weights(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        (folder / "model.safetensors").unlink()
        (folder / "training_args.bin").write_bytes(b"x")
        assert "expected model.safetensors or model.safetensors.index.json, got neither" in refusal(folder)

    @pytest.mark.parametrize("name", ["adapter_model.bin", "other.safetensors", "../model.safetensors"])
    def test_config_json_cannot_name_another_file(self, copied: FolderMaker, name: str) -> None:
        folder = copied(save_embedder)
        torch.save({"embeddings.word_embeddings.weight": torch.zeros(1)}, folder / "adapter_model.bin")
        change_json(folder / "config.json", transformers_weights=name)
        message = refusal(folder)
        assert "config.json: transformers_weights: expected none" in message
        assert "remove the key" in message


class TestBrokenFiles:
    def test_missing_folder_is_refused(self, tmp_path: Path) -> None:
        assert "no such folder" in refusal(tmp_path / "absent")

    def test_file_of_other_kind_is_refused(self, copied: FolderMaker) -> None:
        assert "expected a folder with config.json" in refusal(copied(save_embedder) / "model.safetensors")

    @pytest.mark.parametrize("kept", [0, 7, 100, -1])
    def test_truncated_file_is_refused(self, copied: FolderMaker, kept: int) -> None:
        file = copied(save_embedder) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:kept])
        message = refusal(file.parent)
        assert f"{file}: not a readable safetensors file" in message
        assert "check that the copy is complete" in message

    @pytest.mark.parametrize(
        "content", [b"\xff" * 64, b"PK\x03\x04" + bytes(64), b"version https://git-lfs.github.com/spec/v1\n"]
    )
    def test_other_content_is_refused(self, copied: FolderMaker, content: bytes) -> None:
        file = copied(save_embedder) / "model.safetensors"
        file.write_bytes(content)
        assert f"{file}: not a readable safetensors file" in refusal(file.parent)

    def test_file_without_tensors_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        save_file({}, folder / "model.safetensors")
        assert "expected tensors in the safetensors files, got none" in refusal(folder)

    def test_truncated_shard_is_refused(self, sharded: Path) -> None:
        shard = max(sharded.glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-1])
        assert f"{shard}: not a readable safetensors file" in refusal(sharded)


class TestIndexThatLies:
    def test_missing_shard_is_refused(self, sharded: Path) -> None:
        shard = max(sharded.glob("*.safetensors"))
        shard.unlink()
        message = refusal(sharded)
        assert "missing shards of the index" in message
        assert shard.name in message

    @pytest.mark.parametrize(
        "name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "model.bin", "", "..", 5, None]
    )
    def test_shard_outside_folder_is_refused(self, sharded: Path, name: object) -> None:
        weight_map = json.loads((sharded / INDEX).read_text(encoding="utf-8"))["weight_map"]
        weight_map["pooler.dense.weight"] = name
        change_json(sharded / INDEX, weight_map=weight_map)
        message = refusal(sharded)
        assert f'{INDEX}: expected .safetensors shards in the folder itself, got "{name}"' in message

    @pytest.mark.parametrize("weight_map", [{}, [], "model.safetensors", 5])
    def test_index_without_map_is_refused(self, sharded: Path, weight_map: object) -> None:
        write_json(sharded / INDEX, {"metadata": {}, "weight_map": weight_map})
        assert f"{INDEX}: weight_map: expected an object, got none" in refusal(sharded)

    def test_empty_index_is_refused(self, sharded: Path) -> None:
        write_json(sharded / INDEX, {})
        assert f"{INDEX}: weight_map: expected an object, got none" in refusal(sharded)

    @pytest.mark.parametrize("content", ["", "{", "[]"])
    def test_broken_index_is_refused(self, sharded: Path, content: str) -> None:
        (sharded / INDEX).write_text(content, encoding="utf-8")
        assert str(sharded / INDEX) in refusal(sharded)

    def test_shard_missing_in_index_is_refused(self, sharded: Path) -> None:
        """Its weights would be random."""
        weight_map = json.loads((sharded / INDEX).read_text(encoding="utf-8"))["weight_map"]
        one = max(weight_map.values())
        change_json(sharded / INDEX, weight_map={name: shard for name, shard in weight_map.items() if shard != one})
        assert "missing weights of BertModel" in refusal(sharded)


def _retype(folder: Path, part: str, dtype: torch.dtype) -> str:
    """Store the first weight whose name has the part in this dtype; return its name."""
    tensors = load_file(folder / "model.safetensors")
    name = min(name for name in tensors if part in name)
    save_file(tensors | {name: tensors[name].to(dtype)}, folder / "model.safetensors", metadata={"format": "pt"})
    return name


class TestIntegers:
    """transformers casts a weight of integers to the dtype of the model."""

    @pytest.mark.parametrize(
        ("dtype", "name"), [(torch.int32, "I32"), (torch.int64, "I64"), (torch.bool, "BOOL"), (torch.uint8, "U8")]
    )
    def test_weight_of_integers_is_refused(self, copied: FolderMaker, dtype: torch.dtype, name: str) -> None:
        folder = copied(save_embedder)
        weight = _retype(folder, "query.weight", dtype)
        expected = f"{weight}: expected a weight of floating point (F32, F16, BF16), got {name}; save the weights"
        assert f"{folder / 'model.safetensors'}: {expected}" in refusal(folder)

    @pytest.mark.parametrize(
        ("save", "options", "part", "load"),
        [
            (save_classifier, {}, "classifier.bias", load_torch),
            (save_causal_model, {}, "embed_tokens", load_generating),
            (save_causal_model, {"model_type": "mixtral"}, "expert", load_generating),
            (save_image_classifier, {"family": "resnet"}, "running_mean", load_torch_model),
        ],
        ids=["ranker", "generating", "experts", "images"],
    )
    def test_every_kind_of_model_refuses_integers(
        self,
        copied: FolderMaker,
        save: Callable[..., Any],
        options: dict[str, Any],
        part: str,
        load: Callable[[Path], Any],
    ) -> None:
        folder = copied(save, **options)
        weight = _retype(folder, part, torch.int32)
        assert f"{weight}: expected a weight of floating point" in refusal(folder, load)

    def test_integers_without_effect_are_served(self, copied: FolderMaker) -> None:
        """Positions of older files, and tensors that the model does not read."""
        folder = copied(save_embedder)
        names = ("embeddings__position_ids", "bert__other", "cls__bias")
        rewrite_weights(folder, **{name: torch.arange(40)[None] for name in names})
        assert load_torch(folder).spec.task == "embed"

    def test_counts_of_normalisation_are_served(self, made_once: FolderMaker) -> None:
        folder = made_once(save_image_classifier, family="resnet")
        assert "num_batches_tracked" in str(list(read_weight_files(folder).others))
        assert load_torch_model(folder).spec.task == "classify"

    @pytest.mark.extended
    def test_table_with_another_name_is_served(self, tmp_path: Path) -> None:
        """A router of DeepSeek V4 has a table of experts, whose path in the file is not that of the model."""
        assert "tid2eid" in str(list(read_weight_files(save_family(tmp_path, "deepseek_v4")).others))
        assert load_generating(tmp_path).spec.task == "generate"


class _Writes:
    """An object that creates a file when its pickle is read."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)
