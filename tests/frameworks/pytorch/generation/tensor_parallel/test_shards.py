"""The parts of a model: slices of its files, messages of steps, devices and bytes of ranks, and refusals by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch.generation.decoders.llama import MODEL_TYPES
from frameworks.pytorch.generation.decoders.step_tables import make_tables
from frameworks.pytorch.generation.loading import generator
from frameworks.pytorch.generation.loading.served import GeneratorLoad, GeneratorPerformance
from frameworks.pytorch.generation.tensor_parallel import shard_weights
from frameworks.pytorch.generation.tensor_parallel.checks import rank_devices
from frameworks.pytorch.generation.tensor_parallel.shard import Shard, split_axis
from frameworks.pytorch.generation.tensor_parallel.shard_weights import load_shard
from frameworks.pytorch.generation.tensor_parallel.step_messages import decode_step, encode_step
from frameworks.pytorch.registry import TorchRegistry
from frameworks.scheduling.steps.blocks import Copy
from frameworks.scheduling.steps.sequence import StepPlan
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import GIB, NO_COPIES, load_torch
from tests.frameworks.pytorch.generation.parts import part_of
from tests.support.models.causal_folders import save_causal_model
from tests.support.models.torch_folders import save_embedder
from tests.support.packed_folders import compressed, compressed_scheme, save_packed

CPU = Device("cpu", 0, "", 0, 0)


def needs(folder: Path, **entry: Any) -> Any:
    registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
    return registry.needs(TorchModelEntry(name="m", path=folder, **({"dtype": "f32"} | entry)), folder)


def shard_of(folder: Path, rank: int, dtype: str = "f32") -> Any:
    entry = TorchModelEntry(name="m", path=folder, tensor_parallel=2)
    return load_shard(GeneratorLoad(folder, entry, CPU, dtype, None, GeneratorPerformance(1, 1)), Shard(rank, 2))


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Record each tensor that is read of a file within the block."""
    read: list[torch.Tensor] = []
    opened: Any = safe_open

    class Slice:
        def __init__(self, own: Any) -> None:
            self.own, self.get_shape = own, own.get_shape

        def __getitem__(self, index: Any) -> torch.Tensor:
            read.append(self.own[index])
            return read[-1]

    class Opened:
        def __init__(self, *words: Any, **options: Any) -> None:
            self.own = opened(*words, **options)

        def __enter__(self) -> Any:
            self.own.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.own.__exit__(*error)

        def keys(self) -> list[str]:
            return list(self.own.keys())

        def get_slice(self, name: str) -> Slice:
            return Slice(self.own.get_slice(name))

    with patch.context() as own:
        own.setattr(shard_weights, "safe_open", Opened)
        yield read


class TestWeights:
    @pytest.mark.parametrize("is_tied", [False, True])
    def test_ranks_join_to_whole_model(self, is_tied: bool, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model, attention_bias=True, vocab_size=301, tie_word_embeddings=is_tied)
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        parts = [shard_of(folder, rank).state_dict() for rank in range(2)]
        assert parts[0].keys() == whole.keys()
        for name, expected in whole.items():
            own = [each[name] for each in parts if name in each]
            axis = split_axis(name)
            if axis is None:
                assert all(torch.equal(each, expected) for each in own)
                assert len(own) == (1 if name.endswith("o_proj.bias") else 2)
            else:
                assert torch.equal(torch.cat(own, axis)[: len(expected)], expected)

    def test_rank_reads_only_its_slices(self, made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = made_once(save_causal_model)
        with recorded(monkeypatch) as read:
            model = shard_of(folder, 1)
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        split = sum(each.numel() for name, each in whole.named_parameters() if split_axis(name) is not None)
        kept = sum(each.numel() for name, each in whole.named_parameters() if split_axis(name) is None)
        assert sum(each.numel() for each in read) == split // 2 + kept
        # Rows of a file that is mapped are not copied.
        query = model.model.layers[0].self_attn.q_proj.weight
        assert any(query.data_ptr() == each.data_ptr() for each in read)

    def test_missing_weight_is_named(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
        with pytest.raises(InvalidModel, match=r"missing weights: model\.layers\.2"):
            shard_of(folder, 0)

    def test_weights_of_another_size_are_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 80'))
        with pytest.raises(InvalidModel, match=r"mlp\.\w+\.weight: expected a part of 2560 elements"):
            shard_of(folder, 0)

    @pytest.mark.parametrize("family", MODEL_TYPES)
    def test_axes_are_those_of_transformers_plan(self, family: str) -> None:
        config: Any = AutoConfig.for_model(family)
        axes = {"colwise": 0, "rowwise": 1}
        for name, style in config.base_model_tp_plan.items():
            assert split_axis(name.replace("*", "0") + ".weight") == axes.get(style)


class TestMessages:
    def test_step_is_same_after_message(self) -> None:
        parts = [
            part_of([3, 9], 40, 1),
            part_of([4], 0, 1),
            part_of([5, 6, 7], 20, 50),
            replace(part_of([8], 2, 5), is_scored=True),
            part_of([1], 3, 4, is_last=False),
        ]
        sent = decode_step(encode_step(StepPlan([Copy(2, 8), Copy(0, 1)], parts)))
        assert sent.copies == [Copy(2, 8), Copy(0, 1)]
        own, other = (make_tables(each, torch.device("cpu")) for each in (parts, sent.parts))
        for name in ("token_ids", "positions", "blocks", "offsets", "logit_rows", "lengths", "table"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name), name)
        assert [each.num_logits for each in sent.parts] == [1, 1, 1, 5, 0]


class TestNeeds:
    def test_bytes_are_those_of_one_rank(self, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model)
        whole, rank = needs(folder, kv_cache_bytes="1MiB"), needs(folder, kv_cache_bytes="1MiB", tensor_parallel=2)
        embedding = 300 * 64 * 4
        assert rank.wanted == ("cpu", "cpu")
        assert rank.host_bytes == embedding + (whole.host_bytes - embedding) // 2

    def test_ranks_divide_threads_of_cpu(self, made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
        loads: list[GeneratorLoad] = []

        def load_nothing(load: GeneratorLoad, *_: object, **__: object) -> None:
            loads.append(load)

        monkeypatch.setattr(generator, "load_generator", load_nothing)
        folder = made_once(save_causal_model)
        registry = TorchRegistry(PerformanceSettings(intra_op_threads=5), GIB, NO_COPIES)
        for ranks in (1, 2):
            registry.load(TorchModelEntry(name="m", path=folder, tensor_parallel=ranks), folder, CPU)
        assert [each.performance.intra_op_threads for each in loads] == [5, 2]

    @pytest.mark.parametrize(
        ("device", "num_cuda", "devices"),
        [
            ("auto", 0, ("cpu", "cpu")),
            ("cpu", 4, ("cpu", "cpu")),
            ("auto", 2, ("cuda:0", "cuda:1")),
            ("cuda", 3, ("cuda:0", "cuda:1")),
            ("cuda:1", 3, ("cuda:1", "cuda:2")),
        ],
    )
    def test_ranks_have_adjacent_devices(self, device: str, num_cuda: int, devices: tuple[str, ...]) -> None:
        entry = TorchModelEntry(name="m", path=Path("m"), device=device, tensor_parallel=2)
        assert rank_devices(entry, num_cuda) == devices

    @pytest.mark.parametrize(("device", "num_cuda"), [("auto", 1), ("cuda", 0), ("cuda:1", 2), ("cuda:3", 2)])
    def test_too_few_devices_are_refused(self, device: str, num_cuda: int) -> None:
        entry = TorchModelEntry(name="m", path=Path("m"), device=device, tensor_parallel=2)
        with pytest.raises(InvalidModel, match=r"tensor_parallel: expected 2 CUDA devices from cuda:\d on, got [01]; "):
            rank_devices(entry, num_cuda)


class TestRefusals:
    @pytest.mark.parametrize(
        ("ranks", "changes", "size"),
        [
            (4, {}, r"num_key_value_heads, 2, got 4; .*num_attention_heads \(4\), intermediate_size \(96\)"),
            (3, {"num_attention_heads": 4, "num_key_value_heads": 4}, "num_key_value_heads, 4"),
            (2, {"intermediate_size": 95}, "intermediate_size, 95"),
        ],
    )
    def test_sizes_without_divisor_are_named(
        self, ranks: int, changes: dict[str, int], size: str, made_once: FolderMaker
    ) -> None:
        with pytest.raises(InvalidModel, match=f"tensor_parallel: expected a divisor of {size}"):
            needs(made_once(save_causal_model, **changes), tensor_parallel=ranks)

    @pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral"])
    def test_other_decoders_are_named(self, family: str, made_once: FolderMaker) -> None:
        with pytest.raises(InvalidModel, match=f"expected a model of llama, .* got {family}; remove tensor_parallel"):
            needs(made_once(save_causal_model, model_type=family), tensor_parallel=2)

    @pytest.mark.parametrize(
        ("entry", "option"),
        [
            ({"dtype": "int8"}, 'dtype = "int8"'),
            ({"dtype": "int4"}, 'dtype = "int4"'),
            ({"draft_model": Path("other")}, "draft_model"),
            ({"instances": 2}, "instances"),
        ],
    )
    def test_options_are_named(self, entry: dict[str, Any], option: str, made_once: FolderMaker) -> None:
        with pytest.raises(InvalidModel, match=f"tensor_parallel: expected no {option} beside it in this version; "):
            needs(made_once(save_causal_model), tensor_parallel=2, **entry)

    def test_adapters_are_named(self, made_once: FolderMaker) -> None:
        adapters = [{"name": "a", "path": Path("adapter")}]
        with pytest.raises(InvalidModel, match="tensor_parallel: expected no adapters beside it"):
            needs(made_once(save_causal_model), tensor_parallel=2, adapters=adapters)

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [
            ({"device": ["cpu", "cpu"]}, "name the first device"),
            ({"device": "cuda:*"}, "name the first device"),
            ({"device": "mps"}, "name the first device"),
            ({"isolation": "none"}, 'expected no isolation = "none" beside it'),
        ],
    )
    def test_keys_that_exclude_ranks_are_named(self, keys: dict[str, Any], reason: str) -> None:
        with pytest.raises(ValidationError, match=f"tensor_parallel\n.*{reason}"):
            TorchModelEntry(name="m", path=Path("m"), tensor_parallel=2, **keys)
        assert TorchModelEntry(name="m", path=Path("m"), tensor_parallel=1, **keys).num_ranks == 1

    def test_encoder_is_refused(self, made_once: FolderMaker) -> None:
        with pytest.raises(InvalidModel, match="tensor_parallel: expected only for models that generate text"):
            load_torch(made_once(save_embedder), tensor_parallel=2)

    def test_ranks_imply_own_process(self) -> None:
        entry = TorchModelEntry(name="m", path=Path("m"), tensor_parallel=2)
        assert PerformanceSettings().isolation_of(entry) == "process"

    def test_quantized_weights_are_named(self, tmp_path: Path) -> None:
        save_causal_model(tmp_path)
        save_packed(tmp_path, compressed(4), compressed_scheme("pack-quantized", 4))
        with pytest.raises(InvalidModel, match="tensor_parallel: expected no quantized weights beside it"):
            needs(tmp_path, tensor_parallel=2)
