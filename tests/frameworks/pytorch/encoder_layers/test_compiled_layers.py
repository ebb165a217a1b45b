"""Encoders with compiled layers give the rows of torch's kernels."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import InvalidModel, ModelFailed
from frameworks.pytorch.compiled.matmul.float_linears import FormatName, compiles
from frameworks.pytorch.compiling.background import CompilationFailed
from frameworks.pytorch.cpu_layers.compiled import CompiledLayer
from frameworks.pytorch.encoder_layers import choice
from frameworks.pytorch.encoder_layers import layers as layers_module
from frameworks.pytorch.encoder_layers.choice import compile_layers
from frameworks.pytorch.encoder_layers.forms import stacks_of
from frameworks.pytorch.encoder_layers.layers import CompiledLayers
from frameworks.pytorch.encoder_layers.packed_linears import INT8_FORMATS
from frameworks.pytorch.encoder_layers.relative_bias import relative_bias_of
from frameworks.pytorch.encoders import kernels
from frameworks.types import TEXT_OUTPUT, Array, TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch_instances, load_torch_model
from tests.frameworks.pytorch.compiled.layers import needs_integers, needs_vectors
from tests.support.held_code import wait_until
from tests.support.models.encoder_families import CHANGED_BY_PADDING, USABLE_POSITIONS, save_family
from tests.support.models.late_folders import save_pylate
from tests.support.models.text_files import TEXTS, VOCABULARY_SIZE
from tests.support.models.torch_folders import FAMILIES, Family, save_classifier, save_embedder
from tests.support.models.vision_folders import save_image_classifier

pytestmark = [pytest.mark.isa, needs_vectors]

FLOAT32_FORMATS = [*filter(compiles, layers_module._FORMATS[torch.float32])]
RAGGED = [*TEXTS, "the engine of steam runs on . " * 20, "steam"]


def load(folder: Path, kernels: str, **options: Any) -> Any:
    model: Any = load_torch_model(folder, kernels=kernels, **({"dtype": "f32"} | options))
    model.warm_up()
    return model


def rows_of(model: Any, texts: list[str]) -> list[Array]:
    """Return the numbers of each text, whatever its kind."""
    rows: Any = model.infer(TokenBatch(model.tokenizer.tokenize(texts, truncate=True)))[TEXT_OUTPUT]
    return [np.concatenate(list(row)) if isinstance(row, tuple) else np.asarray(row, np.float32) for row in rows]


def check_equal(folder: Path, texts: list[str], tolerance: float = 2e-5, **options: Any) -> Any:
    model = load(folder, "compiled", **options)
    found, expected = rows_of(model, texts), rows_of(load(folder, "plain", **options), texts)
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max(initial=0)))
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("save", [save_embedder, pytest.param(save_classifier, marks=pytest.mark.extended)])
@pytest.mark.parametrize("weights", FLOAT32_FORMATS)
def test_rows_equal_those_of_torch(
    made_once: FolderMaker,
    save: Callable[..., Path],
    family: Family,
    weights: FormatName,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers_module, "_FORMATS", {torch.float32: (weights,)})
    model = check_equal(made_once(save, family=family), RAGGED)
    assert model.packed.is_used
    assert any(isinstance(each, CompiledLayer) for each in model.module.modules())
    # ModernBERT has angles, and a norm behind its layers.
    assert (model.packed._layers._tables is None) == (family == "modernbert")


def test_token_types_change_rows_as_those_of_torch(made_once: FolderMaker) -> None:
    folder = made_once(save_classifier)
    model, other = load(folder, "compiled"), load(folder, "plain")
    token_ids = model.tokenizer.tokenize(RAGGED, truncate=True)
    types = [[int(at > len(ids) // 2) for at in range(len(ids))] for ids in token_ids]
    found, expected, without = (
        each.infer(TokenBatch(token_ids, token_type_ids=own))[TEXT_OUTPUT]
        for each, own in ((model, types), (other, types), (model, None))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(1.0, np.abs(expected).max()))
    assert np.abs(found - without).max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_rows_equal_those_of_torch(made_once: FolderMaker, family: Family) -> None:
    check_equal(made_once(save_embedder, family=family), RAGGED, 0.1, dtype="bf16")


@pytest.mark.parametrize(("family", "sizes"), [("bert", {}), ("modernbert", {"local_attention": 8})])
def test_wide_heads_equal_those_of_torch(made_once: FolderMaker, family: Family, sizes: dict[str, int]) -> None:
    """With AMX attention multiplies bfloat16, of heads of 32."""
    folder = made_once(save_embedder, family=family, num_attention_heads=1, **sizes)
    check_equal(folder, RAGGED, 0.1, dtype="bf16")


@pytest.mark.parametrize("architecture", sorted({*USABLE_POSITIONS, *CHANGED_BY_PADDING}))
def test_other_encoders_keep_their_rows(made_once: FolderMaker, architecture: str) -> None:
    """Some have layers of a known form, and some only the names of its parts."""
    folder = made_once(save_family, architecture=architecture)
    options = {"dtype": "f32"}
    found, expected = (rows_of(load(folder, kernels, **options), RAGGED) for kernels in ("auto", "plain"))
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=2e-5 * max(1.0, np.abs(wanted).max(initial=0)))


GROUPS: dict[Family, dict[str, int]] = {
    "bert": {"intermediate_size": 64},
    "roberta": {"intermediate_size": 64},
    "distilbert": {"hidden_dim": 64},
    "mpnet": {"intermediate_size": 64},
    "modernbert": {"intermediate_size": 64},
}
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
TEXT = SIZES | {
    "vocab_size": 50,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = SIZES | {"image_size": 32, "patch_size": 8}
OTHERS: dict[str, dict[str, Any]] = {
    "Electra": TEXT | {"embedding_size": 16},
    "MPNet": TEXT,
    "NomicBert": TEXT,
    "ModernBert": TEXT | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    "ViT": IMAGE,
    "Dinov2": IMAGE,
    "Dinov2WithRegisters": IMAGE | {"use_swiglu_ffn": True},
    "CLIP": {"text_config": TEXT, "vision_config": IMAGE | {"hidden_act": "quick_gelu"}},
    "Siglip": {"text_config": TEXT, "vision_config": IMAGE},
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_models_keep_all_their_outputs(name: str) -> None:
    """With and without masks; the states between their layers too."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**OTHERS[name])
    model = getattr(transformers, f"{name}Model")(config).eval()
    for scale in (each for part, each in model.named_parameters() if "layer_scale" in part):
        torch.nn.init.uniform_(scale, -2, 2)
    ids, pixels = torch.randint(3, 50, (3, 23)), torch.randn(2, 3, 32, 32)
    masks = [torch.ones_like(ids), torch.arange(23).expand(3, -1).lt(torch.tensor([[23], [5], [11]])).long()]
    inputs: list[dict[str, Any]] = [{"input_ids": ids, "attention_mask": mask} for mask in masks]
    if OTHERS[name].get("image_size"):
        inputs = [{"pixel_values": pixels}]
    elif name in ("CLIP", "Siglip"):
        inputs = [each | {"pixel_values": pixels} for each in inputs]
    with torch.inference_mode():
        before = [_tensors(model(**each, output_hidden_states=True)) for each in inputs]
        assert compile_layers(model, "compiled")
        after = [_tensors(model(**each, output_hidden_states=True)) for each in inputs]
    for found, expected in zip(after, before, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def _tensors(output: Any) -> list[torch.Tensor]:
    """Return all tensors of an output, in their order."""
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if hasattr(output, "values") else output
    return [each for value in values if value is not None for each in _tensors(value)]


def test_torch_computes_packed_scales_once() -> None:
    torch.manual_seed(3)
    model = transformers.Dinov2Model(transformers.Dinov2Config(**IMAGE)).eval()
    for layer in model.encoder.layer:
        torch.nn.init.uniform_(layer.layer_scale1.lambda1, -2, 2)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixel_values=pixels).last_hidden_state
        [compiled] = compile_layers(model, "compiled")
        compiled.is_used = False
        torch.testing.assert_close(model(pixel_values=pixels).last_hidden_state, expected, rtol=0, atol=2e-5)


def test_tokens_without_embeddings_are_refused(made_once: FolderMaker) -> None:
    """As torch refuses them: compiled code would read other memory."""
    model = load(made_once(save_embedder), "compiled")
    assert model.packed._layers._tables is not None
    for token_id in (VOCABULARY_SIZE, -1, 2**31 - 1):
        with pytest.raises((ModelFailed, IndexError)):
            model.infer(TokenBatch([[2, token_id, 3]]))


def test_vectors_of_tokens_equal_those_of_torch(made_once: FolderMaker) -> None:
    folder = made_once(save_pylate)
    model, other = load(folder, "compiled"), load(folder, "plain")
    token_ids = model.tokenizer.tokenize(TEXTS, truncate=True)
    batch = TokenBatch(token_ids)
    for row, wanted in zip(model.infer(batch)[TEXT_OUTPUT], other.infer(batch)[TEXT_OUTPUT], strict=True):
        np.testing.assert_allclose(np.concatenate(list(row)), np.concatenate(list(wanted)), rtol=0, atol=2e-5)


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=80).filter(any))
@settings(max_examples=15)
def test_text_has_same_bits_in_any_batch(layers: CompiledLayers, lengths: list[int]) -> None:
    starts = [0, *np.cumsum(lengths).tolist()]
    states = torch.randn(1, starts[-1], layers.hidden_size, generator=torch.Generator().manual_seed(1))
    together = layers(states, starts)
    for start, end in list(pairwise(starts))[:5]:
        assert torch.equal(together[:, start:end], layers(states[:, start:end], [0, end - start]))


def test_buffers_of_long_texts_are_released(layers: CompiledLayers) -> None:
    states = torch.randn(1, 700, layers.hidden_size)
    layers(states[:, :100], [0, 100])
    small = len(layers._runners)
    assert small >= 1
    layers(states, [0, 700])
    assert len(layers._runners) == small - 1
    layers(states[:, :100], [0, 100])
    assert all(each.is_small for each in layers._runners)


@pytest.fixture(scope="module", params=["bert", "mpnet", "bert in bf16"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledLayers:
    family, _, dtype = request.param.partition(" in ")
    # AMX attends with heads of 32.
    heads: dict[str, Any] = {"num_attention_heads": 1} if dtype else {}
    folder = save_embedder(tmp_path_factory.mktemp("bits"), family, **heads)
    model: Any = load_torch_model(folder, kernels="plain", dtype=dtype or "f32")
    return CompiledLayers(*stacks_of(model.module)[0])


def test_biases_of_long_texts_equal_those_of_torch() -> None:
    """Longer than the largest distance with a bias of its own, and than the buffers of most runs."""
    torch.manual_seed(4)
    sizes = TEXT | {"max_position_embeddings": 710, "initializer_range": 0.3}
    encoder = transformers.MPNetModel(transformers.MPNetConfig(**sizes)).eval().encoder
    bias = relative_bias_of(encoder)
    states = torch.randn(1, 700, 32)
    with torch.inference_mode():
        assert bias is not None
        assert torch.equal(bias.of_text(700), encoder.compute_position_bias(states))
        expected = encoder(states)[0]
        compiled = CompiledLayers(*stacks_of(torch.nn.Sequential(encoder))[0])
        compiled(states[:, :9], [0, 9])
        torch.testing.assert_close(compiled(states, [0, 700]), expected, rtol=0, atol=2e-5)


def test_threads_compute_at_once(made_once: FolderMaker) -> None:
    folder = made_once(save_embedder)
    instances: list[Any] = load_torch_instances(folder, kernels="compiled", dtype="f32", instances=3)
    for each in instances:
        each.warm_up()
    expected = rows_of(instances[0], RAGGED)
    failed: list[BaseException] = []

    def compute(model: Any) -> None:
        try:
            for _ in range(20):
                for row, wanted in zip(rows_of(model, RAGGED), expected, strict=True):
                    # torch's pooler chooses the order of its sums.
                    np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-6)
        except BaseException as error:  # noqa: BLE001 - of a thread
            failed.append(error)

    threads = [threading.Thread(target=compute, args=(each,)) for each in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_packed_weights_count_once(made_once: FolderMaker) -> None:
    folder = made_once(save_embedder)
    compiled, plain = load(folder, "compiled"), load(folder, "plain")
    # Biases are in the GEMMs, and the norms are there twice. Three bfloat16 take more bytes than a float32.
    largest = 1.1 * (1.5 if "float32_bfloat16x3" in FLOAT32_FORMATS else 1.0)
    assert 0.9 < compiled.spec.memory_bytes / plain.spec.memory_bytes < largest


def test_other_forms_are_refused_by_name(made_once: FolderMaker) -> None:
    folder = made_once(save_family, architecture="FNetModel")
    with pytest.raises(InvalidModel, match='kernels: expected another value than "compiled", as the layers of FNet'):
        load(folder, "compiled")
    assert load(folder, "auto").packed is None


def test_compiled_refused_where_nothing_is_compiled(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "lanes", lambda: 0)
    with pytest.raises(InvalidModel, match="as nothing is compiled on this machine: that needs Linux, numba"):
        load_torch_model(made_once(save_embedder), kernels="compiled")


class TestFirstStart:
    """The code of the layers is not in the cache yet."""

    @pytest.fixture
    def code(self, monkeypatch: pytest.MonkeyPatch) -> "Future[None]":
        found: Future[None] = Future()
        left = [found]
        monkeypatch.setattr(choice, "compile_parts", lambda *_: left.pop() if left else None)
        monkeypatch.setattr(choice, "_fastest", lambda compiled, _: compiled[0])
        return found

    def test_model_serves_before_its_code_is_compiled(self, made_once: FolderMaker, code: "Future[None]") -> None:
        folder = made_once(save_embedder)
        model = load(folder, "auto")
        before = rows_of(model, RAGGED)
        assert model.packed is None
        assert model.spec.awaits_kernels
        code.set_result(None)
        wait_until(lambda: not model.spec.awaits_kernels)
        packed: Any = model.packed
        assert packed.is_used
        assert model.spec.text.packs
        for row, wanted in zip(rows_of(model, RAGGED), before, strict=True):
            np.testing.assert_allclose(row, wanted, rtol=0, atol=2e-5)

    def test_failed_compilation_keeps_kernels_of_torch(self, made_once: FolderMaker, code: "Future[None]") -> None:
        model = load(made_once(save_embedder), "auto")
        with structlog.testing.capture_logs() as logs:
            code.set_exception(CompilationFailed("no space"))
        assert [each["reason"] for each in logs] == ["no space"]
        assert model.packed is None
        assert not model.spec.awaits_kernels
        assert rows_of(model, RAGGED)

    def test_closed_model_is_left_alone(self, made_once: FolderMaker, code: "Future[None]") -> None:
        model = load(made_once(save_embedder), "auto")
        module = model.module
        model.close()
        code.set_result(None)
        wait_until(lambda: all(each.name != "compile-layers" for each in threading.enumerate()))
        assert not any(isinstance(each, CompiledLayer) for each in module.modules())


def force(monkeypatch: pytest.MonkeyPatch, weights: FormatName) -> None:
    """Let int8 layers of this format be the fastest."""
    monkeypatch.setattr(
        choice, "_fastest", lambda compiled, _: next(each for each in compiled if each.format_name == weights)
    )


@needs_integers
@pytest.mark.parametrize("weights", [each for each in INT8_FORMATS if compiles(each)])
@pytest.mark.parametrize("family", FAMILIES)
def test_int8_layers_stay_near_the_original(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family, weights: FormatName
) -> None:
    force(monkeypatch, weights)
    folder = made_once(save_embedder, family=family, **GROUPS[family])
    model = load(folder, "auto", dtype="int8", cache_dir=tmp_path)
    assert (model.spec.quantization.kernel, model.spec.quantization.weights) == ("compiled", "grouped")
    assert model.packed.is_used
    original = load(folder, "plain")
    for row, wanted in zip(rows_of(model, RAGGED), rows_of(original, RAGGED), strict=True):
        assert row @ wanted / np.linalg.norm(row) / np.linalg.norm(wanted) > 0.99
    assert model.spec.memory_bytes < original.spec.memory_bytes
    alone = np.concatenate([rows_of(model, [text]) for text in RAGGED])
    # The pooler of BERT is torch's.
    np.testing.assert_allclose(alone, np.stack(rows_of(model, RAGGED)), rtol=0, atol=1e-6)


@needs_integers
def test_int8_layers_are_compared_with_the_original(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, "int8_groups")
    model = load(made_once(save_embedder, **GROUPS["bert"]), "auto", dtype="int8", cache_dir=tmp_path)
    report = model.spec.quantization
    assert 0.99 < report.cosine_min < 1 - 1e-7
    assert report.bytes_after < report.bytes_before


@needs_integers
def test_int8_originals_keep_their_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scales of DINOv2 are in its packed weights."""
    force(monkeypatch, "int8_groups")
    save_image_classifier(tmp_path, "dinov2", hidden_size=32, layerscale_value=0.1)
    report = load(tmp_path, "auto", dtype="int8", min_cosine=0.0, cache_dir=tmp_path / "cache").spec.quantization
    assert report.kernel == "compiled"
    assert report.cosine_min > 0.99


@needs_integers
def test_odd_sizes_keep_kernels_of_torch(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of weights have 32 inputs."""
    force(monkeypatch, "int8_groups")
    model = load(made_once(save_embedder), "auto", dtype="int8", cache_dir=tmp_path)
    assert model.spec.quantization.kernel != "compiled"
