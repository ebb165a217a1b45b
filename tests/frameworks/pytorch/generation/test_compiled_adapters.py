"""Adapters in compiled steps: rows of several adapters and of the base in one step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frameworks.pytorch.compiled.cpu_features import lanes
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.decoders.test_adapters import FOUR, check, entries_of, numbers_of
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.step_parts import BLOCKS, TOLERANCE, computed, plan_of, runner_of, sizes
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.models.lora_folders import Lora

pytestmark = [
    pytest.mark.isa,
    pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"),
]

# Heads of 20 numbers: query, key and value do not end where blocks of outputs do.
ODD_HEADS = {"head_dim": 20, "num_key_value_heads": 1}
# Up alone changes, and gate does not; one module of three; a rank above one vector.
LORAS = (
    *FOUR,
    Lora(5, rank=2, target_modules=("up_proj",)),
    Lora(6, rank=1, target_modules=("k_proj",)),
    Lora(7, rank=40, alpha=4),
)
NARROW = [("bf16", 0.1), ("f16", 0.02), ("int8", 0.1)]


@pytest.fixture(name="adapted", scope="module", params=[{}, ODD_HEADS], ids=["even", "odd"])
def _adapted(request: pytest.FixtureRequest, made_once: FolderMaker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a runner, and the numbers of its adapters."""
    model = load_generating(
        made_once(save_causal_model, **request.param),
        blocks=BLOCKS,
        kernels="compiled",
        adapters=entries_of(tmp_path_factory.mktemp("adapters"), LORAS, causal_model(**request.param)),
    )
    return runner_of(model), sorted(numbers_of(model).values())


@pytest.mark.parametrize("threads", [1, 2])
@given(data=st.data(), sizes=sizes, blocks=st.permutations(range(BLOCKS)))
def test_mixed_step_equals_that_by_layers(
    adapted: Any, threads: int, data: st.DataObject, sizes: list[tuple[int, int]], blocks: list[int]
) -> None:
    runner, numbers = adapted
    parts = plan_of(sizes, blocks, adapters=data.draw(st.permutations(numbers)))
    parts.sort(key=lambda part: (part.num_tokens > 1, part.sequence.request.adapter_id))
    expected, expected_cache = computed(runner, parts, runner.compute_by_layers)
    found, cache = computed(runner, parts, runner.step.logits, threads)
    assert torch.allclose(found, expected, atol=TOLERANCE * float(expected.std()), rtol=0)
    assert torch.allclose(cache, expected_cache, atol=1e-4 * float(expected_cache.abs().max()))


@pytest.mark.extended
@given(data=st.data(), sizes=sizes, blocks=st.permutations(range(BLOCKS)))
def test_row_does_not_depend_on_other_adapters(
    adapted: Any, data: st.DataObject, sizes: list[tuple[int, int]], blocks: list[int]
) -> None:
    """Those of the base neither: they are bit for bit as without adapters in the step."""
    runner, numbers = adapted
    parts = plan_of(sizes, blocks, adapters=data.draw(st.permutations(numbers)))
    together, _ = computed(runner, parts, runner.step.logits, threads=2)
    alone = [computed(runner, [part], runner.step.logits)[0] for part in parts]
    assert torch.equal(together, torch.cat(alone))


def test_texts_of_compiled_steps_match_merged(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps are compiled ones, with steps of the base alone between."""
    sizes = {"blocks": 40, "max_batch_size": 16, "max_num_batched_tokens": 64, "kernels": "compiled"}

    def fail(*_: object) -> None:
        raise AssertionError("expected compiled steps alone")

    folder = made_once(save_causal_model)
    monkeypatch.setattr("frameworks.pytorch.generation.decoders.adapters.layers.StepAdapters.add_to", fail)
    check(folder, tmp_path, "llama", FOUR, 6, **sizes)


@pytest.mark.extended
@pytest.mark.parametrize(("dtype", "tolerance"), NARROW)
def test_16_bit_adapters_equal_those_by_layers(
    made_once: FolderMaker, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    model = load_generating(
        made_once(save_causal_model),
        blocks=BLOCKS,
        dtype=dtype,
        kernels="compiled",
        min_cosine=0.5,
        adapters=entries_of(tmp_path, FOUR, causal_model()),
    )
    runner, numbers = runner_of(model), sorted(numbers_of(model).values())
    parts = plan_of([(40, 1), (3, 1), (3, 1), (3, 1), (20, 5)], range(BLOCKS), adapters=numbers)
    expected, _ = computed(runner, parts, runner.compute_by_layers)
    found, _ = computed(runner, parts, runner.step.logits)
    assert float((found - expected).square().mean().sqrt()) < tolerance * float(expected.float().std())


@pytest.mark.extended
@pytest.mark.parametrize("dtype", [dtype for dtype, _ in NARROW])
def test_16_bit_base_does_not_depend_on_adapters(made_once: FolderMaker, tmp_path: Path, dtype: str) -> None:
    """Without adapters, rows are put in the order of products earlier, and products are computed together."""
    model = load_generating(
        made_once(save_causal_model, head_dim=32),
        blocks=BLOCKS,
        dtype=dtype,
        kernels="compiled",
        min_cosine=0.5,
        adapters=entries_of(tmp_path, FOUR, causal_model(head_dim=32)),
    )
    runner, number = runner_of(model), max(numbers_of(model).values())
    parts = plan_of([(40, 1), (20, 5), (0, 30)], range(BLOCKS), adapters=[0, number, 0])
    together, _ = computed(runner, parts, runner.step.logits)
    alone = [computed(runner, [part], runner.step.logits)[0] for part in parts]
    assert torch.equal(together, torch.cat(alone))


def test_removed_adapter_leaves_others_as_before(made_once: FolderMaker, tmp_path: Path) -> None:
    first, second = entries_of(tmp_path, LORAS[:2], causal_model())
    model = load_generating(made_once(save_causal_model), blocks=BLOCKS, kernels="compiled", adapters=[first])
    runner, number = runner_of(model), numbers_of(model)["a1"]
    parts = plan_of([(3, 1), (40, 2)], range(BLOCKS), adapters=[0, number])
    expected, _ = computed(runner, parts, runner.step.logits)
    other = model.load_adapter("a2", second["path"]).number
    both = plan_of([(3, 1), (40, 2)], range(BLOCKS), adapters=[0, other])
    assert not torch.equal(computed(runner, both, runner.step.logits)[0], expected)
    model.unload_adapter(other)
    assert torch.equal(computed(runner, parts, runner.step.logits)[0], expected)
