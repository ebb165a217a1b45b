"""From a folder to a generating model: memory, spec, dtypes, context and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.generation.types import GenerationSpec
from frameworks.pytorch import kernels
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.step.shape import GeneratorShape, kv_bytes, read_shape
from frameworks.pytorch.int8_matmul import CPU_MATMULS, FbgemmMatmul, Int8Kernel
from frameworks.pytorch.loader import DTYPE_NAMES
from frameworks.pytorch.registry import TorchRegistry
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import NO_COPIES
from tests.frameworks.pytorch.generation.generating import alone, decoder_of, load_generating, request
from tests.support.axes import one_axis_at_a_time
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.models.causal_folders import CONTEXT_TOKENS, END_ID, VOCABULARY_SIZE, save_causal_model
from tests.support.models.text_files import change_json
from tests.support.models.torch_folders import rewrite_weights

pytestmark = pytest.mark.isa

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Keys and values of two layers with two heads of 16 float32 numbers."""
PROMPT = tuple(range(40))


def generation_of(model: GeneratingModel) -> GenerationSpec:
    assert model.spec.generation is not None
    return model.spec.generation


def refusal(folder: Path, **entry: Any) -> str:
    with pytest.raises(InvalidModel) as caught:
        load_generating(folder, **entry)
    return caught.value.message


class TestKeyValueMemory:
    def entry(self, **settings: Any) -> TorchModelEntry:
        return TorchModelEntry(name="m", path=Path(), **settings)

    def shape(self, context: int, token_bytes: int = TOKEN_BYTES) -> GeneratorShape:
        shape = CacheShape(1, 1, token_bytes // 8, torch.float32)
        assert shape.token_bytes == token_bytes
        return GeneratorShape(context, VOCABULARY_SIZE, shape, 1)

    def test_kv_cache_bytes_round_to_whole_blocks(self) -> None:
        block = BLOCK_TOKENS * TOKEN_BYTES
        for given, blocks in ((block - 1, 0), (block, 1), (block * 3 - 1, 2), (block * 1000, 1000)):
            assert kv_bytes(self.entry(kv_cache_bytes=given), self.shape(64), 1, "cpu") == blocks * block

    @pytest.mark.parametrize(("context", "blocks"), [(1, 1), (32, 1), (33, 2), (256, 8)])
    def test_default_holds_max_batch_size_texts(self, context: int, blocks: int) -> None:
        found = kv_bytes(self.entry(), self.shape(context), 4, "cpu")
        assert found == 4 * blocks * BLOCK_TOKENS * TOKEN_BYTES

    @pytest.mark.parametrize(("kind", "most"), [("cpu", GIB), ("mps", 2 * GIB), ("cuda", 4 * GIB)])
    def test_default_has_an_upper_bound(self, kind: str, most: int) -> None:
        assert kv_bytes(self.entry(), self.shape(131_072, 1 << 16), 32, kind) == max(most, 131_072 << 16)
        assert kv_bytes(self.entry(), self.shape(8192, 1 << 16), 32, kind) == most

    def test_default_holds_one_whole_context(self) -> None:
        assert kv_bytes(self.entry(), self.shape(131_072, 1 << 16), 1, "cpu") == 131_072 << 16

    def test_size_below_one_block_is_refused(self, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model)
        assert load_generating(folder, kv_cache_bytes=BLOCK_TOKENS * TOKEN_BYTES)
        message = refusal(folder, kv_cache_bytes=BLOCK_TOKENS * TOKEN_BYTES - 1)
        assert f"kv_cache_bytes: expected at least 16 KiB, which {BLOCK_TOKENS} tokens take, got" in message

    @pytest.mark.parametrize(("blocks", "context"), [(1, 32), (3, 96), (8, 256), (9, 256), (None, 256)])
    def test_kv_cache_bounds_context(self, made_once: FolderMaker, blocks: int | None, context: int) -> None:
        model = load_generating(made_once(save_causal_model), blocks=blocks)
        assert generation_of(model).max_context_tokens == context
        assert len(alone(model, request(1, [7] * (context - 3), 3))) == 3

    def test_kv_cache_that_does_not_fit_is_refused(self, made_once: FolderMaker) -> None:
        with pytest.raises(OutOfMemory, match=r"kv_cache_bytes of \S+ \S+ does not fit on cpu"):
            load_generating(made_once(save_causal_model), kv_cache_bytes=1 << 50)


class TestSpec:
    def test_spec_describes_language_model(self, made_once: FolderMaker) -> None:
        spec = load_generating(made_once(save_causal_model), max_batch_size=3).spec
        assert (spec.framework, spec.task, spec.device, spec.dtype) == ("pytorch", "generate", "cpu", "float32")
        assert [(value.name, str(value.type)) for value in (*spec.inputs, *spec.outputs)] == [
            ("prompt", "string"),
            ("text", "string"),
        ]
        assert spec.quantization is None
        assert spec.generation == GenerationSpec(CONTEXT_TOKENS, VOCABULARY_SIZE, frozenset({END_ID}), True)

    def test_end_tokens_beyond_logits_are_ignored(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        change_json(folder / "generation_config.json", eos_token_id=[END_ID, 3, VOCABULARY_SIZE])
        assert generation_of(load_generating(folder)).eos_token_ids == {END_ID, 3}

    def test_spec_has_sampling_of_files(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        change_json(folder / "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9)
        sampling = generation_of(load_generating(folder)).sampling
        assert (sampling.temperature, sampling.top_p) == (0.6, 0.9)

    @pytest.mark.parametrize("model_type", ["qwen3", "llama"])
    def test_model_type_accepts_family_name(self, made_once: FolderMaker, model_type: str) -> None:
        model = load_generating(made_once(save_causal_model, model_type="qwen3"), model_type=model_type)
        assert model.spec.task == "generate"

    def test_other_family_is_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_causal_model), model_type="bert")
        assert 'model_type: expected "llama" as in config.json, got "bert"' in message


class TestDtypes:
    @pytest.mark.parametrize(
        ("family", "dtype"), one_axis_at_a_time(["llama", "gpt2", "gemma2"], ["bf16", "f16", "f32"])
    )
    def test_every_dtype_generates(self, made_once: FolderMaker, family: str, dtype: str) -> None:
        model = load_generating(made_once(save_causal_model, model_type=family), dtype=dtype)
        assert (model.spec.dtype, model.spec.quantization) == (DTYPE_NAMES[dtype], None)
        model.warm_up()
        assert len(alone(model, request(1, PROMPT, 5))) == 5

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_int8_reports_cosine(self, made_once: FolderMaker, family: str) -> None:
        folder = made_once(save_causal_model, model_type=family)
        original, model = load_generating(folder), load_generating(folder, dtype="int8", min_cosine=0.9)
        report = model.spec.quantization
        assert model.spec.dtype == "int8"
        assert report is not None
        assert 0.9 < report.cosine_min <= report.cosine_mean < 1
        assert report.bytes_after < 0.6 * report.bytes_before
        saved = report.bytes_before - report.bytes_after
        # Packed weights of the original are whole blocks.
        assert original.spec.memory_bytes - model.spec.memory_bytes == pytest.approx(saved, rel=0.05)
        assert len(alone(model, request(1, PROMPT, 5))) == 5

    def test_int8_below_min_cosine_is_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_causal_model), dtype="int8", min_cosine=1.0)
        assert "it differs too much from the original" in message
        assert 'dtype = "bf16" or "f16" is nearer, left out is the original' in message

    def test_disabled_quantization_serves_original(self, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model)
        registry = TorchRegistry(PerformanceSettings(intra_op_threads=1, enable_quantization=False), GIB, NO_COPIES)
        entry = TorchModelEntry(name="m", path=folder, dtype="int8")
        with capture_logs() as logs:
            [model] = registry.load(entry, folder, FakeProbe().host())
        assert model.spec.dtype == "float32"
        assert [log["event"] for log in logs] == ["not quantized: performance.enable_quantization is false"]

    @pytest.mark.parametrize(("has_instructions", "of_bf16"), [(True, "bfloat16"), (False, "float32")])
    def test_default_dtype_keeps_precision_of_file(
        self, made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch, has_instructions: bool, of_bf16: str
    ) -> None:
        monkeypatch.setattr(kernels, "multiplies_bf16", lambda: has_instructions)
        found = {
            dtype: load_generating(made_once(save_causal_model, dtype=dtype), dtype="default").spec.dtype
            for dtype in ("f32", "f16", "bf16")
        }
        assert found == {"f32": "float32", "f16": "float32", "bf16": of_bf16}


def held_bytes(model: GeneratingModel) -> int:
    """Return the bytes of the decoder's tensors; shared storage counts once."""
    assert model._parts is not None
    pieces: dict[int, int] = {}
    seen: set[int] = set()
    todo: list[Any] = [decoder_of(model)]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            if each.is_mkldnn:
                pieces[id(each)] = each.numel() * each.element_size()
            else:
                pieces[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        elif isinstance(each, np.ndarray):
            pieces[each.ctypes.data] = each.nbytes
        elif isinstance(each, FbgemmMatmul):
            # FBGEMM's own object has no size; its weights can be read back, and blocks of 512 inputs are filled up.
            outputs, inputs = torch.ops.quantized.linear_unpack(each._packed)[0].shape
            pieces[id(each)] = outputs * -(-inputs // 512) * 512
        elif isinstance(each, dict):
            todo += each.values()
        elif isinstance(each, list | tuple | set):
            todo += each
        elif type(each).__module__.startswith(("frameworks.", "torch.nn", "transformers.")):
            todo += vars(each).values() if hasattr(each, "__dict__") else []
    return sum(pieces.values())


class TestMemory:
    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
    @pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int4"])
    def test_memory_bytes_match_held_tensors(self, made_once: FolderMaker, family: str, dtype: str) -> None:
        """The weights dominate; there is room for few keys and values."""
        folder = made_once(save_causal_model, model_type=family)
        model = load_generating(folder, dtype=dtype, min_cosine=0.5, blocks=2)
        assert held_bytes(model) == pytest.approx(model.spec.memory_bytes, rel=0.05)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    @pytest.mark.parametrize("kernel", CPU_MATMULS, ids=lambda product: product.name, indirect=True)
    def test_memory_bytes_count_every_int8_product(
        self, made_once: FolderMaker, kernel: Int8Kernel, family: str
    ) -> None:
        folder = made_once(save_causal_model, model_type=family)
        model = load_generating(folder, dtype="int8", min_cosine=0.5, blocks=2, kernels=kernel.name)
        assert held_bytes(model) == pytest.approx(model.spec.memory_bytes, rel=0.05)
        report = model.spec.quantization
        assert report is not None
        assert (report.kernel, report.weights) == (kernel.name, kernel.weight_range.name)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    @pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
    def test_estimated_need_is_near_memory_bytes(self, made_once: FolderMaker, family: str, dtype: str) -> None:
        folder = made_once(save_causal_model, model_type=family)
        model = load_generating(folder, dtype=dtype, kv_cache_bytes=1 << 16)
        registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
        entry = TorchModelEntry(name="m", path=folder, dtype=dtype, kv_cache_bytes=1 << 16)  # type: ignore[arg-type]
        needs = registry.needs(entry, folder)
        assert needs.host_bytes == pytest.approx(model.spec.memory_bytes, rel=0.05)


class TestContext:
    def context(self, folder: Path, **config: Any) -> int:
        change_json(folder / "config.json", **config)
        return read_shape(folder, "f32").max_context_tokens

    def test_context_is_that_of_config(self, copied: FolderMaker) -> None:
        assert self.context(copied(save_causal_model)) == CONTEXT_TOKENS
        assert self.context(copied(save_causal_model, model_type="gpt2")) == CONTEXT_TOKENS

    @pytest.mark.parametrize("rope_type", ["linear", "yarn", "llama3"])
    def test_fixed_rope_scaling_is_served(self, copied: FolderMaker, rope_type: str) -> None:
        rope = {
            "rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        }  # fmt: skip
        assert self.context(copied(save_causal_model), rope_parameters=rope) == CONTEXT_TOKENS

    def test_dynamic_rope_scaling_bounds_context(self, copied: FolderMaker) -> None:
        """Otherwise a text would depend on its batch."""
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
        assert self.context(copied(save_causal_model), rope_parameters=rope) == 64

    def test_longrope_bounds_context(self, copied: FolderMaker) -> None:
        rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        folder = copied(save_causal_model, model_type="phi3")
        assert self.context(folder, rope_parameters=rope, original_max_position_embeddings=64) == 64
        model = load_generating(folder)
        assert generation_of(model).max_context_tokens == 64
        assert len(alone(model, request(1, PROMPT, 20))) == 20

    def test_head_size_of_config_is_used(self, copied: FolderMaker) -> None:
        shape = read_shape(copied(save_causal_model, head_dim=32), "bf16")
        assert (shape.cache.head_size, shape.cache.heads, shape.query_heads) == (32, 2, 4)
        assert shape.cache.dtype == torch.bfloat16


class TestUnpaged:
    """Models that run with transformers' own caches."""

    @pytest.mark.parametrize(
        ("family", "changes", "reason"),
        [
            ("bloom", {}, "by paged attention its logits are off by"),
            ("falcon", {"alibi": True}, "by paged attention"),
            ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "needs s_aux of its attention"),
            ("mamba", {}, "it has layers of linear_attention"),
        ],
    )
    def test_reason_is_named(self, made_once: FolderMaker, family: str, changes: dict[str, Any], reason: str) -> None:
        with capture_logs() as logs:
            model = load_generating(made_once(save_causal_model, model_type=family, **changes))
        assert reason in str(generation_of(model).unpaged_because)
        [line] = [line for line in logs if "paged attention does not fit" in line["event"]]
        assert reason in line["reason"]

    def test_wrong_logits_are_detected(self, made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
        rotated = LlamaDecoder._rotation
        monkeypatch.setattr(LlamaDecoder, "_rotation", lambda own, at, dtype: rotated(own, at + at, dtype))
        model = load_generating(made_once(save_causal_model))
        assert "its logits are off by" in str(generation_of(model).unpaged_because)

    def test_cache_bytes_are_part_of_memory_bytes(self, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model, model_type="bloom")
        small, large = (load_generating(folder, kv_cache_bytes=size) for size in (1 << 18, 1 << 20))
        assert large.spec.memory_bytes - small.spec.memory_bytes == pytest.approx((1 << 20) - (1 << 18), rel=0.1)
        assert small.step().stats.kv_total_bytes <= 1 << 18

    def test_kv_cache_bytes_bound_context(self, made_once: FolderMaker) -> None:
        folder = made_once(save_causal_model, model_type="bloom")
        model = load_generating(folder, kv_cache_bytes=100_000)
        context = generation_of(model).max_context_tokens
        assert 32 <= context < CONTEXT_TOKENS
        assert len(alone(model, request(1, [7] * (context - 3), 3))) == 3

    @pytest.mark.parametrize("family", ["bloom", "mamba"])
    def test_kv_cache_bytes_below_one_text_are_refused(self, made_once: FolderMaker, family: str) -> None:
        message = refusal(made_once(save_causal_model, model_type=family), kv_cache_bytes=64)
        assert "kv_cache_bytes: expected at least" in message


class TestRefusals:
    def test_int8_without_paged_attention_is_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_causal_model, model_type="mamba"), dtype="int8")
        assert 'dtype: expected "f32", "f16" or "bf16", got "int8": the model runs with' in message

    def test_logits_of_later_tokens_are_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_causal_model, model_type="bert"))
        assert "got logits that depend on later ones; check is_decoder in config.json" in message

    def test_several_instances_are_refused(self, made_once: FolderMaker) -> None:
        message = refusal(made_once(save_causal_model), instances=2)
        assert (
            "instances: expected 1, got 2; a generating model computes all texts together, raise max_batch_size instead"
            in message
        )

    def test_missing_weights_are_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        rewrite_weights(folder, lm_head__weight=None)
        assert "missing weights of LlamaForCausalLM: lm_head.weight" in refusal(folder)

    def test_tied_head_may_be_absent(self, made_once: FolderMaker) -> None:
        model = load_generating(made_once(save_causal_model, tie_word_embeddings=True))
        assert model.spec.task == "generate"

    def test_invalid_config_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        change_json(folder / "config.json", num_attention_heads="many")
        assert "config.json: transformers cannot read it" in refusal(folder)

    def test_out_of_memory_is_not_invalid_model(self, made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
        def run_out(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        folder = made_once(save_causal_model)
        decoder = "decoders.llama.LlamaDecoder"
        for where in (f"{decoder}.logits", f"{decoder}.__init__", "step.trial._timed"):
            with monkeypatch.context() as patch:
                patch.setattr(f"frameworks.pytorch.generation.{where}", run_out)
                with pytest.raises(OutOfMemory, match="does not fit on cpu"):
                    load_generating(folder)

    def test_missing_tokenizer_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_causal_model)
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
        assert "tokenizer" in refusal(folder)
