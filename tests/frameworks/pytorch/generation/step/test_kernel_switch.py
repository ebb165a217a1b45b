"""A model serves with torch's kernels while its code is compiled, and then changes to the compiled ones."""

import gc
import os
import signal
import threading
import weakref
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.compiling import background
from frameworks.pytorch.generation.loading import generator as loading
from frameworks.pytorch.generation.step import kernel_switch
from frameworks.pytorch.generation.step.quantization_report import Reporter
from frameworks.pytorch.generation.step.shape import NotPaged
from frameworks.pytorch.generation.weights.group_linear import QuantizedGroupLinear
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.decoders.test_adapters import FOUR, entries_of, numbers_of
from tests.frameworks.pytorch.generation.generating import alone, ids_of, load_generating, request, run_out, stepped
from tests.frameworks.pytorch.generation.step_parts import BLOCKS, TOLERANCE, computed, plan_of, runner_of
from tests.frameworks.pytorch.generation.weights.packed.logits import logits_of, own_logits
from tests.support.gguf_files import reference_model, save_gguf
from tests.support.held_code import CodeGate, wait_until
from tests.support.models.causal_folders import causal_model, save_causal_model

pytestmark = [
    pytest.mark.isa,
    pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"),
]

SIZES = [(3, 1), (40, 1), (0, 20)]
PROMPT = range(1, 30)
QUANTIZED = {"dtype": "int8", "min_cosine": 0.5}
# Rows of super-blocks are multiples of 256.
GGUF_SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


@pytest.fixture(name="gate")
def _gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeGate:
    folder = tmp_path / "gate"
    folder.mkdir()
    return CodeGate(folder, monkeypatch)


def kernels_of(model: Any) -> set[str]:
    return {each.kernel.partition("-")[0] for each in model.spec.products}


def has_step(model: Any) -> bool:
    """Return whether the compiled step serves."""
    return runner_of(model).step is not None


def load(made_once: FolderMaker, **options: Any) -> Any:
    return load_generating(made_once(save_causal_model), blocks=BLOCKS, **options)


def switched(model: Any, gate: CodeGate) -> None:
    """Open the gate, and wait until the kernels have changed."""
    gate.open()
    wait_until(lambda: not model.spec.awaits_kernels)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", TOLERANCE), ("bf16", 0.1), ("f16", 0.02)])
def test_kernels_change_when_code_is_compiled(
    made_once: FolderMaker, gate: CodeGate, dtype: str, tolerance: float
) -> None:
    model = load(made_once, dtype=dtype)
    runner, parts = runner_of(model), plan_of(SIZES, range(BLOCKS))
    assert model.spec.awaits_kernels
    assert not has_step(model)
    assert "compiled" not in kernels_of(model)
    layers = sum(each.layers for each in model.spec.products)
    before, cache_before = computed(runner, parts, runner.compute)
    switched(model, gate)
    assert has_step(model)
    assert kernels_of(model) == {"compiled"}
    assert sum(each.layers for each in model.spec.products) == layers
    after, cache = computed(runner, parts, runner.compute)
    assert torch.allclose(after.float(), before.float(), atol=tolerance * float(before.std()), rtol=0)
    assert torch.allclose(cache.float(), cache_before.float(), atol=tolerance * float(cache_before.std()))
    model.close()


def test_text_spans_the_change(made_once: FolderMaker, gate: CodeGate) -> None:
    model = load(made_once)
    expected = alone(model, request(1, PROMPT, 12))
    model.add(request(2, PROMPT, 12))
    first = [token.token_id for _ in range(4) for token in stepped(model).tokens]
    switched(model, gate)
    rest = [token.token_id for result in run_out(model) for token in result.tokens]
    assert 0 < len(first) < 12
    assert first + rest == expected


def test_layers_change_while_steps_run(made_once: FolderMaker, gate: CodeGate) -> None:
    model = load(made_once)
    expected = alone(model, request(1, PROMPT, 12))
    gate.open()
    number = 2
    while model.spec.awaits_kernels:
        assert alone(model, request(number, PROMPT, 12)) == expected
        number += 1
    assert has_step(model)
    assert alone(model, request(number, PROMPT, 12)) == expected


def test_other_family_changes_layers(made_once: FolderMaker, gate: CodeGate) -> None:
    folder = made_once(save_causal_model, model_type="gpt2")
    model = load_generating(folder, blocks=BLOCKS)
    expected = alone(model, request(1, PROMPT, 12))
    switched(model, gate)
    assert kernels_of(model) == {"compiled"}
    assert "step" not in gate.requested[0][1]
    assert alone(model, request(2, PROMPT, 12)) == expected


# A row of whole numbers may be rounded to a neighbour, where sums differ.
@pytest.mark.parametrize(
    ("options", "tolerance"), [({}, TOLERANCE), pytest.param(QUANTIZED, 0.2, marks=pytest.mark.extended)]
)
def test_adapters_are_kept(
    made_once: FolderMaker, gate: CodeGate, tmp_path: Path, options: Any, tolerance: float
) -> None:
    *known, late = entries_of(tmp_path, FOUR, causal_model())
    model = load(made_once, adapters=known, **options)
    expected_bytes = load(made_once, adapters=known, kernels="plain").spec.generation.adapters[0].memory_bytes * 2
    assert model.spec.generation.adapters[0].memory_bytes == expected_bytes
    runner, numbers = runner_of(model), sorted(numbers_of(model).values())
    parts = plan_of(SIZES, range(BLOCKS), adapters=numbers)
    before, _ = computed(runner, parts, runner.compute)
    switched(model, gate)
    assert has_step(model)
    after, _ = computed(runner, parts, runner.compute)
    assert torch.allclose(after, before, atol=tolerance * float(before.std()), rtol=0)
    added = model.load_adapter(late["name"], late["path"])
    parts = plan_of(SIZES, range(BLOCKS), adapters=[added.number, numbers[1]])
    by_layers, _ = computed(runner, parts, runner.compute_by_layers)
    by_step, _ = computed(runner, parts, runner.compute)
    assert torch.allclose(by_step, by_layers, atol=tolerance * float(by_layers.std()), rtol=0)
    model.unload_adapter(added.number)


@pytest.mark.parametrize("options", [{}, pytest.param(QUANTIZED, marks=pytest.mark.extended)])
def test_draft_model_changes_too(made_once: FolderMaker, gate: CodeGate, options: Any) -> None:
    model = load(made_once, draft_model=made_once(save_causal_model), **options)
    expected = alone(model, request(1, PROMPT, 12))
    runners = [switch._parts.runner for switch in model._helpers]
    switched(model, gate)
    wait_until(lambda: all(runner.step is not None for runner in runners))
    assert len(runners) == 2
    assert alone(model, request(2, PROMPT, 12)) == expected


@pytest.mark.parametrize("options", [{}, QUANTIZED])
def test_failed_process_leaves_torch_kernels(made_once: FolderMaker, gate: CodeGate, options: Any) -> None:
    with capture_logs() as logs:
        model = load(made_once, **options)
        kernels, report = kernels_of(model), model.spec.quantization
        gate.open("no compiler here")
        wait_until(lambda: not model.spec.awaits_kernels)
    [warning] = [each for each in logs if each["event"].startswith("the model keeps torch's kernels")]
    assert warning["reason"] == "no compiler here"
    assert kernels_of(model) == kernels
    assert model.spec.quantization == report
    assert not has_step(model)
    assert len(alone(model, request(1, PROMPT, 5))) == 5


def test_killed_process_leaves_torch_kernels(made_once: FolderMaker, gate: CodeGate) -> None:
    with capture_logs() as logs:
        model = load(made_once)
        os.kill(gate.pid(), signal.SIGKILL)
        wait_until(lambda: not model.spec.awaits_kernels)
    assert [each["reason"] for each in logs if "reason" in each][-1] == "the process ended with status -9"
    assert not has_step(model)


def test_wrong_layer_is_not_used(made_once: FolderMaker, gate: CodeGate, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(made_once)
    layers = sum(each.layers for each in model.spec.products)
    expected = alone(model, request(1, PROMPT, 12))
    checked, check = [], kernel_switch._check

    def failing(*arguments: Any) -> None:
        checked.append(arguments)
        if len(checked) == 3:
            raise ValueError("the product is off")
        check(*arguments)

    monkeypatch.setattr(kernel_switch, "_check", failing)
    switched(model, gate)
    assert len(checked) == 3
    assert not has_step(model)
    products = model.spec.products
    assert sum(each.layers for each in products if each.kernel.startswith("compiled")) == 2
    assert sum(each.layers for each in products) == layers
    assert alone(model, request(2, PROMPT, 12)) == expected


@pytest.mark.parametrize("options", [{}, QUANTIZED])
def test_closed_model_is_released(made_once: FolderMaker, gate: CodeGate, options: Any) -> None:
    model = load(made_once, **options)
    decoder = weakref.ref(runner_of(model).decoder)
    code = model._helpers[0]._code
    model.close()
    gc.collect()
    assert decoder() is None
    gate.open()
    wait_until(code.done)
    assert model.spec.awaits_kernels


@pytest.mark.parametrize(
    ("kind", "family", "dtype"),
    [
        ("Q8_0", "llama", "f32"),
        ("mixed", "llama", "f32"),
        ("Q4_0", "qwen2", "bf16"),
        *(pytest.param(each, "llama", "f32", marks=pytest.mark.extended) for each in ("Q4_0", "Q4_K", "Q6_K")),
    ],
)
def test_packed_weights_serve_before_code(
    made_once: FolderMaker, gate: CodeGate, tmp_path: Path, kind: str, family: str, dtype: str
) -> None:
    """The numbers of the file, by torch's products and then by ours: rows are rounded, and some weights once more."""
    file = made_once(save_gguf, kind=kind, model_type=family, **GGUF_SIZES) / "model.gguf"
    model = load_generating(file, cache_dir=tmp_path, dtype=dtype)
    reference = reference_model(file)
    expected = logits_of(reference, [*PROMPT])
    assert model.spec.awaits_kernels
    assert not has_step(model)
    assert len(alone(model, request(1, PROMPT, 3))) == 3
    before = own_logits(model, [*PROMPT])
    switched(model, gate)
    # Query, key and value of different bits are several products, which the step does not have.
    assert has_step(model) == (kind != "mixed")
    after = own_logits(model, [*PROMPT])
    for logits, tolerance in ((before, 0.05), (after, 0.1)):
        # The median of the tokens: random weights have near ties in attention.
        error = (logits - expected).square().mean(1).sqrt().median() / expected.std()
        assert float(error) < tolerance
    assert len(alone(model, request(2, PROMPT, 3))) == 3
    model.close()


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [
        ("llama", "int8", 0.1),
        ("gpt2", "int4", 0.5),
        *(pytest.param(*each, marks=pytest.mark.extended) for each in (("llama", "int4", 0.5), ("gpt2", "int8", 0.1))),
    ],
)
def test_quantized_weights_serve_before_code(
    made_once: FolderMaker, gate: CodeGate, family: str, dtype: str, tolerance: float
) -> None:
    """Both kinds of layers have the same whole numbers, so they are as far from the original."""
    folder = made_once(save_causal_model, model_type=family)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    expected = logits_of(reference, [*PROMPT])
    model = load_generating(folder, blocks=BLOCKS, dtype=dtype, min_cosine=0.5)
    first = model.spec.quantization
    assert model.spec.awaits_kernels
    assert not has_step(model)
    assert kernels_of(model) == {first.kernel} == {"widened"}
    assert {"float32", "int8_groups"} <= set(gate.requested[0][1])
    assert len(alone(model, request(1, PROMPT, 3))) == 3
    before = own_logits(model, [*PROMPT])
    switched(model, gate)
    last = model.spec.quantization
    assert has_step(model) == (family == "llama")
    assert kernels_of(model) == {last.kernel} == {"compiled"}
    after = own_logits(model, [*PROMPT])
    for logits in (before, after):
        error = (logits - expected).square().mean(1).sqrt().median() / expected.std()
        assert float(error) < tolerance
    # Sums in another order may round a number of a row to its neighbour.
    assert float((after - before).square().mean().sqrt() / expected.std()) < 0.2 * tolerance
    assert last.scheme == first.scheme
    assert last.cosine_min == pytest.approx(first.cosine_min, abs=0.1 * (1 - first.cosine_min))
    assert last.perplexity == pytest.approx(first.perplexity, rel=0.01)
    assert len(alone(model, request(2, PROMPT, 3))) == 3
    model.close()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_memory_of_quantized_weights_is_counted(made_once: FolderMaker, gate: CodeGate, dtype: str) -> None:
    """Before and after the change: in whole blocks, within two bytes for each number that the load reserves."""
    model = load(made_once, dtype=dtype, min_cosine=0.5)
    decoder = runner_of(model).decoder
    table_bytes = decoder.embedding.nbytes
    for _ in range(2):
        linears = [getattr(each.owner, each.attribute) for each in decoder.linear_attributes]
        actual = table_bytes + sum(held_bytes_of(each) for each in linears)
        counted = model.spec.quantization.bytes_after
        assert actual <= counted <= 1.4 * actual
        assert counted <= model.spec.memory_bytes
        switched(model, gate)
    assert {type(each).__name__ for each in linears} == {"CompiledLinear"}


def test_close_ends_measurement(made_once: FolderMaker, gate: CodeGate, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(made_once, **QUANTIZED)
    ended: list[type[Exception]] = []

    def measure(_: Reporter, compute: Any, *__: Any) -> None:
        model._helpers[0]._parts = None
        try:
            compute([])
        except Exception as error:
            ended.append(type(error))
            raise

    monkeypatch.setattr(Reporter, "measure", measure)
    gate.open()
    wait_until(lambda: ended)
    model.close()
    assert ended == [kernel_switch._Closed]
    assert model.spec.awaits_kernels


def held_bytes_of(linear: Any) -> int:
    """Return the bytes of the weights, scales and shifts."""
    if not isinstance(linear, QuantizedGroupLinear):
        return int(linear.weights.nbytes)
    weights = linear._linear.weights
    tensors = [getattr(weights, each.name) for each in fields(weights)]
    return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))


def test_inexact_model_is_refused_before_code(made_once: FolderMaker, gate: CodeGate) -> None:
    with pytest.raises(InvalidModel, match="cosine"):
        load(made_once, dtype="int4", min_cosine=0.9999)
    gate.open()


@pytest.mark.parametrize("is_file", [True, False])
def test_change_of_quantized_activations_waits_for_texts(
    made_once: FolderMaker, gate: CodeGate, tmp_path: Path, is_file: bool
) -> None:
    if is_file:
        file = made_once(save_gguf, kind="Q4_0", **GGUF_SIZES) / "model.gguf"
        model = load_generating(file, cache_dir=tmp_path)
    else:
        model = load(made_once, **QUANTIZED)
    expected = alone(model, request(1, PROMPT, 8))
    model.add(request(2, PROMPT, 8))
    first = [token.token_id for _ in range(4) for token in stepped(model).tokens]
    gate.open()
    model._helpers[0]._code.result()
    rest = [token.token_id for result in run_out(model) for token in result.tokens]
    assert first + rest == expected
    wait_until(lambda: not model.spec.awaits_kernels)
    assert has_step(model)


@pytest.mark.parametrize("options", [{"kernels": "compiled"}, QUANTIZED | {"kernels": "compiled"}])
def test_load_waits_for_code_that_it_needs(made_once: FolderMaker, gate: CodeGate, options: Any) -> None:
    loaded: list[Any] = []
    thread = threading.Thread(target=lambda: loaded.append(load(made_once, **options)))
    thread.start()
    gate.pid()
    assert not loaded
    gate.open()
    thread.join()
    assert has_step(loaded[0])
    assert not loaded[0].spec.awaits_kernels


def test_unpaged_packed_model_waits_for_code(
    made_once: FolderMaker, gate: CodeGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers are made once."""

    def refuse(_: Any) -> None:
        raise NotPaged("of this test")

    monkeypatch.setattr(loading, "load_paged", refuse)
    file = made_once(save_gguf, kind="Q6_K", **GGUF_SIZES) / "model.gguf"
    loaded: list[Any] = []
    thread = threading.Thread(target=lambda: loaded.append(load_generating(file, cache_dir=tmp_path)))
    thread.start()
    gate.pid()
    assert not loaded
    assert gate.requested[0][1] == ["int8_groups"]
    gate.open()
    thread.join()
    assert not loaded[0].spec.awaits_kernels
    assert len(alone(loaded[0], request(1, PROMPT, 3))) == 3


def test_cached_code_needs_no_process(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_compiler", lambda: pytest.fail("a process was started"))
    model = load(made_once)
    assert has_step(model)
    assert not model.spec.awaits_kernels
    assert ids_of(model, request(1, PROMPT, 3))
