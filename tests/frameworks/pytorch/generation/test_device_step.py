"""A step by the device's kernels: the texts of the CPU, few launches, and no value that the host reads."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.pytorch import device_kernels
from frameworks.pytorch.device_kernels import launcher
from frameworks.pytorch.generation.decoders.fused_llama import FusedLlamaDecoder
from frameworks.pytorch.generation.loading import paged_loading
from frameworks.pytorch.generation.step.quantization_report import Reporter
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.pytorch.generation.weights.device_linear import DeviceGroupLinear
from frameworks.pytorch.generation.weights.packed.modules import ReorderedLinear
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.decoders.test_adapters import FOUR, entries_of, numbers_of
from tests.frameworks.pytorch.generation.generating import decoder_of, ids_of, load_generating, request
from tests.frameworks.pytorch.generation.parts import part_of
from tests.frameworks.pytorch.generation.test_decoders import OWN, THEIRS
from tests.frameworks.pytorch.generation.weights.packed.logits import logits_of, own_logits
from tests.frameworks.pytorch.generation.weights.packed.test_folders import CASES, IDS
from tests.support.kernel_device import IS_INTERPRETED
from tests.support.meta_step import DECODES, PREFILLS, MetaStep
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.packed_folders import save_packed
from tests.support.simulated_graphs import SimulatedGraphs

pytest.importorskip("triton", reason="Triton has packages for Linux only")

pytestmark = [
    pytest.mark.skipif(not IS_INTERPRETED, reason="test_gpu.py loads models on the device"),
    # The interpreter computes with numpy, which warns of infinite numbers and NaN.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

PROMPTS = [[(7 * i + j) % 250 for j in range(length)] for i, length in enumerate((1, 33))]
LAUNCHES_OF_LAYER = 9


def load_on_device(folder: Path, patch: pytest.MonkeyPatch, *, checks_logits: bool = True, **entry: Any) -> Any:
    """Load a model on the CPU as if it were a device with kernels. `checks_logits`: beside transformers' own."""
    with patch.context() as own:
        if not checks_logits:
            own.setattr(Trial, "check", lambda *arguments: None)
        own.setattr(device_kernels, "are_available", lambda device: True)
        return load_generating(folder, **entry)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as own:
        yield own


@pytest.mark.parametrize("family", ["qwen3", pytest.param("mistral", marks=pytest.mark.extended), "gemma2"])
def test_texts_equal_those_of_cpu(made_once: FolderMaker, family: str, patch: pytest.MonkeyPatch) -> None:
    """With windows, norms of heads, and soft caps; one family by transformers' own forward. A load compares logits."""
    folder = made_once(save_causal_model, model_type=family)
    asked = [request(i, prompt, 3) for i, prompt in enumerate(PROMPTS)]
    model = load_on_device(folder, patch)
    assert type(decoder_of(model)).__name__ == ("TransformersDecoder" if family == "gemma2" else "FusedLlamaDecoder")
    assert ids_of(model, *asked) == ids_of(load_generating(folder), *asked)


@pytest.mark.parametrize("family", ["qwen3", pytest.param("gemma2", marks=pytest.mark.extended)])
def test_float8_keys_and_values_are_near(made_once: FolderMaker, family: str, patch: pytest.MonkeyPatch) -> None:
    """They are rounded to 4 bits; errors are relative to the spread of the logits."""
    folder = made_once(save_causal_model, model_type=family)
    wide, narrow = (
        load_on_device(folder, patch, checks_logits=False, kv_cache_dtype=dtype) for dtype in ("auto", "fp8")
    )
    caches = [model._parts.runner.cache for model in (wide, narrow)]
    assert caches[0].size_bytes == 4 * caches[1].size_bytes
    assert wide.spec.memory_bytes - narrow.spec.memory_bytes == caches[0].size_bytes - caches[1].size_bytes
    expected, found = own_logits(wide, IDS), own_logits(narrow, IDS)
    error = (found - expected).square().mean().sqrt() / expected.std()
    assert 1e-3 < error < 0.2


def test_device_without_kernels_refuses_float8(made_once: FolderMaker) -> None:
    with pytest.raises(
        InvalidModel, match=r'kv_cache_dtype: expected .* on cpu, got "fp8", .*the device has no Triton'
    ):
        load_generating(made_once(save_causal_model), kv_cache_dtype="fp8")


def test_graphs_compute_decodes(made_once: FolderMaker, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """Texts join, leave and have adapters. Each replay has the launches and the addresses of its capture."""
    folder = made_once(save_causal_model)
    entry: dict[str, Any] = {"adapters": entries_of(tmp_path, FOUR[:1], causal_model()), "max_batch_size": 2}
    graphs: list[SimulatedGraphs] = []

    def graphs_of(device: torch.device) -> SimulatedGraphs:
        graphs.append(SimulatedGraphs(device))
        return graphs[0]

    patch.setattr(paged_loading, "graphs_of", graphs_of)
    model = load_on_device(folder, patch, checks_logits=False, **entry)
    assert model.spec.graphs == "up to 2 texts"
    assert len(graphs[0].captured) == 2
    adapter_ids = [0, 0, model.spec.generation.adapters[0].number, 0]
    asked = [request(i, PROMPTS[0], 2 + i % 3, adapter_id=adapter_id) for i, adapter_id in enumerate(adapter_ids)]
    texts = ids_of(model, *asked)
    assert texts == ids_of(load_generating(folder, **entry), *asked)
    assert graphs[0].num_replays >= 2


def test_step_that_reads_the_device_has_no_graphs(made_once: FolderMaker, patch: pytest.MonkeyPatch) -> None:
    """It is found before a capture, which it would break."""
    logits = FusedLlamaDecoder.logits

    def waiting(self: Any, layout: Any) -> torch.Tensor:
        result = logits(self, layout)
        return result if float(result[0, 0]) < 1e9 else -result

    patch.setattr(FusedLlamaDecoder, "logits", waiting)
    patch.setattr(paged_loading, "graphs_of", SimulatedGraphs)
    model = load_on_device(made_once(save_causal_model), patch, checks_logits=False)
    assert model.spec.graphs.startswith("none: a step waits for the device: ")


def test_missing_compiler_is_shown_and_logged(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton looks for the compiler of this machine, which the environment hides."""
    from triton.backends.nvidia import driver

    for each in (driver.libcuda_dirs, driver.library_dirs, launcher.failure):
        patch.setattr(each.__module__ + "." + each.__name__, cache(each.__wrapped__))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name, value in (("CC", "/nonexistent"), ("TRITON_CACHE_DIR", tmp_path), ("TRITON_LIBCUDA_PATH", tmp_path)):
        patch.setenv(name, str(value))
    load: Any = SimpleNamespace(entry=SimpleNamespace(name="llama"), device=Device("cuda", 0, "", 0, 0))
    runner: Any = SimpleNamespace(queue=None, sampled=None)
    with structlog.testing.capture_logs() as logs:
        parts = paged_loading._device_parts(load, runner, 250, 64)
    assert parts.graphs is not None
    assert parts.graphs.startswith("none: Triton needs a C compiler and the headers of Python; install gcc and ")
    assert [(each["log_level"], f"none: {each['reason']}") for each in logs] == [("warning", parts.graphs)]


def test_step_that_waits_runs_without_graphs(made_once: FolderMaker, patch: pytest.MonkeyPatch) -> None:
    class NoGraphs:
        size_bytes = 0

        def capture(self, compute: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing\nsecond line")

    patch.setattr(paged_loading, "graphs_of", lambda device: NoGraphs())
    folder = made_once(save_causal_model)
    model = load_on_device(folder, patch, checks_logits=False)
    assert model.spec.graphs == "none: operation not permitted when stream is capturing"
    asked = request(0, PROMPTS[0], 2)
    assert ids_of(model, asked) == ids_of(load_generating(folder), asked)


@pytest.mark.parametrize(
    "case", ["gptq", *[pytest.param(case, marks=pytest.mark.extended) for case in ("packed_8_bits", "gptq_act_order")]]
)
def test_packed_weights_keep_their_bits(copied: FolderMaker, case: str, patch: pytest.MonkeyPatch) -> None:
    folder = copied(save_causal_model)
    pack, scheme = CASES[case]
    reference = causal_model()
    reference.load_state_dict(save_packed(folder, pack, scheme), strict=False)
    model = load_on_device(folder, patch, checks_logits=False)
    layer = decoder_of(model).layers[0]
    linears = [layer.query_key_value, layer.output, layer.gate_up, layer.down]
    if case == "gptq_act_order":
        linears = [linear.linear for linear in linears if isinstance(linear, ReorderedLinear)]
    # The halves of 96 inputs are no whole groups: such weights are dequantized.
    has_bits = [True, True, True, "8" in case][: len(linears)]
    assert [isinstance(linear, DeviceGroupLinear) for linear in linears] == has_bits
    expected = logits_of(reference, IDS)
    assert (own_logits(model, IDS) - expected).abs().max() < 1e-4 * expected.std()


@pytest.mark.extended
@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_quantized_weights_keep_their_bits(made_once: FolderMaker, bits: str, patch: pytest.MonkeyPatch) -> None:
    """The head of an int4 model has 8 bits, and layers of odd sizes keep the dtype."""
    folder = made_once(save_causal_model)
    with patch.context() as own:
        own.setattr(Reporter, "measure", lambda *arguments: None)  # it takes a minute in the interpreter
        model = load_on_device(folder, patch, dtype=bits)
    decoder = decoder_of(model)
    assert [each.bits for each in (decoder.head, decoder.layers[0].output)] == [8, 4 if bits == "int4" else 8]
    assert {(each.kernel, each.weights) for each in model.spec.products} == {("triton", "grouped")}
    expected = logits_of(causal_model(), IDS)
    error = (own_logits(model, IDS) - expected).square().mean().sqrt() / expected.std()
    assert error < (0.3 if bits == "int4" else 0.03)


@pytest.mark.extended
def test_adapters_change_texts_as_on_cpu(made_once: FolderMaker, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    folder = made_once(save_causal_model)
    entry: dict[str, Any] = {"adapters": entries_of(tmp_path, FOUR[:3], causal_model())}
    texts = []
    for model in (load_on_device(folder, patch, **entry), load_generating(folder, **entry)):
        numbers = list(numbers_of(model).values())
        asked = [request(i, PROMPTS[i % 2], 2, adapter_id=numbers[i % len(numbers)]) for i in range(6)]
        texts.append(ids_of(model, *asked))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", [*OWN, *THEIRS])
def test_step_stays_on_its_device(family: str) -> None:
    """No operator mixes devices, and the host reads no value."""
    step = MetaStep(family)
    for parts in (DECODES, DECODES + PREFILLS, PREFILLS):
        kernels = [name for name in step.launches(parts) if name.startswith("_attend")]
        assert kernels.count("_attend_split") == (2 if parts[0] is DECODES[0] else 0)
        assert kernels.count("_attend_part") == (2 if parts[-1] is PREFILLS[-1] else 0)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_decode_has_nine_launches_a_layer(family: str) -> None:
    """Of this project and of torch. A prompt beside decodes has one more, for all prompts together."""
    one, two, three = (MetaStep(family, layers) for layers in (1, 2, 3))
    assert len(two.launches(DECODES)) - len(one.launches(DECODES)) == LAUNCHES_OF_LAYER
    mixed = DECODES + PREFILLS
    assert len(three.launches(mixed)) - len(two.launches(mixed)) == LAUNCHES_OF_LAYER + 1
    assert len(one.launches(DECODES)) - LAUNCHES_OF_LAYER <= 6, "before and after the layers"


@given(starts=st.lists(st.integers(0, 600), min_size=3, max_size=3))
def test_steps_of_three_texts_launch_the_same(starts: list[int]) -> None:
    """Whatever their lengths: a graph that was captured for one such step computes the other."""
    step = MetaStep("llama")
    parts = [part_of([*range(start // 32 + 1)], start, 1) for start in starts]
    assert step.launches(parts) == step.launches([part_of([0], 0, 1) for _ in starts])
