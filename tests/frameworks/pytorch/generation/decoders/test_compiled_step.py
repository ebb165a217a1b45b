"""Steps by one compiled function equal those by the decoder's layers."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.generation.decoders.compiled_step import compiled_step
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import load_generating, request
from tests.frameworks.pytorch.generation.step_parts import BLOCKS, TOLERANCE, computed, plan_of, runner_of, sizes
from tests.support.models.causal_folders import VOCABULARY_SIZE, save_causal_model

pytestmark = [
    pytest.mark.isa,
    pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"),
]

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "one key head": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 32},
    "window": {"model_type": "mistral", "sliding_window": 7},
    "head norms": {"model_type": "qwen3"},
}
HEAD_SIZES = [16, 32]
"""With the larger one, a CPU with matrix tiles uses them for attention."""
LONG_PROMPT = 316
"""Tokens that take two pieces of a step in float32."""
BFLOAT16_TOLERANCE = 0.1
"""Relative to the spread of the logits."""
# Dtype of the weights, of keys and values, and the tolerance relative to the spread of the logits.
NARROW = [
    ("f32", "bf16", 0.03),
    ("f32", "f16", 0.005),
    ("bf16", "auto", BFLOAT16_TOLERANCE),
    ("f16", "auto", 0.02),
    ("int8", "auto", 0.1),
]


@pytest.fixture(name="runner", scope="module", params=VARIANTS)
def _runner(request: pytest.FixtureRequest, made_once: FolderMaker) -> Any:
    model = load_generating(made_once(save_causal_model, **VARIANTS[request.param]), blocks=BLOCKS, kernels="compiled")
    return runner_of(model)


@given(sizes, st.permutations(range(BLOCKS)), st.booleans())
def test_step_equals_that_by_layers(
    runner: Any, sizes: list[tuple[int, int]], blocks: list[int], is_scored: bool
) -> None:
    parts = plan_of(sizes, blocks, is_scored=is_scored)
    # A plan's decodes come first.
    parts.sort(key=lambda part: part.num_tokens > 1)
    expected, expected_cache = computed(runner, parts, runner.compute_by_layers)
    found, cache = computed(runner, parts, runner.step.logits)
    assert len(found) == sum(part.num_logits for part in parts)
    assert torch.allclose(found, expected, atol=TOLERANCE * float(expected.std()), rtol=0)
    assert torch.allclose(cache, expected_cache, atol=1e-4)


@pytest.mark.extended
@given(sizes, st.permutations(range(BLOCKS)))
def test_row_does_not_depend_on_others(runner: Any, sizes: list[tuple[int, int]], blocks: list[int]) -> None:
    parts = plan_of(sizes, blocks)
    together, _ = computed(runner, parts, runner.step.logits, threads=2)
    alone = [computed(runner, [part], runner.step.logits)[0] for part in parts]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.extended
@pytest.mark.parametrize("is_scored", [False, True])
def test_step_of_pieces_equals_that_by_layers(runner: Any, is_scored: bool) -> None:
    sizes = [(3, 1), (20, 1), (0, runner.step.max_rows + 2), (10, 20)]
    parts = plan_of(sizes, range(BLOCKS), is_scored=is_scored)
    expected, expected_cache = computed(runner, parts, runner.compute_by_layers)
    found, cache = computed(runner, parts, runner.step.logits, threads=2)
    assert torch.allclose(found, expected, atol=TOLERANCE * float(expected.std()), rtol=0)
    assert torch.allclose(cache, expected_cache, atol=1e-4)


def check_parts(runner: Any, whole: StepPart, ends: list[int]) -> None:
    """Check that a prompt has the same bits in parts as at once. `ends`: of the parts."""
    parts = [StepPart(whole.sequence, start, end - start) for start, end in pairwise([0, *ends])]

    def in_parts(_: object) -> Any:
        return [runner.step.logits([part]) for part in parts][-1]

    expected, expected_cache = computed(runner, [whole], runner.step.logits)
    found, cache = computed(runner, parts, in_parts, threads=2)
    assert torch.equal(found, expected)
    assert torch.equal(cache, expected_cache)


@pytest.mark.extended
@settings(max_examples=20)
@given(st.lists(st.integers(1, LONG_PROMPT), min_size=1, max_size=6), st.permutations(range(BLOCKS)))
def test_prompt_does_not_depend_on_its_parts(runner: Any, ends: list[int], blocks: list[int]) -> None:
    """A prompt in parts, of one token too, has the same bits as at once."""
    assert runner.step.max_rows < LONG_PROMPT
    [whole] = plan_of([(0, LONG_PROMPT)], blocks)
    check_parts(runner, whole, sorted({*ends, whole.num_tokens}))


@pytest.mark.parametrize("token_id", [-1, VOCABULARY_SIZE])
def test_token_beyond_vocabulary_is_an_error(runner: Any, token_id: int) -> None:
    sequence = Sequence(request(9, [1, token_id]), 0.0)
    sequence.blocks = [0]
    with pytest.raises(IndexError, match=f"expected tokens from 0 to {VOCABULARY_SIZE - 1}"):
        runner.step.logits([StepPart(sequence, 1, 1)])


def test_nan_reaches_the_logits(runner: Any) -> None:
    """The sampler finds them there, and fails that text alone."""
    decodes = plan_of([(3, 1), (3, 1)], range(BLOCKS))
    row = runner.decoder.embedding[decodes[0].sequence.token_ids[-1]]
    kept = row.clone()
    try:
        with torch.inference_mode():
            row.fill_(torch.nan)
            logits = runner.step.logits(decodes)
            assert logits[0].isnan().all()
            assert logits[1].isfinite().all()
    finally:
        with torch.inference_mode():
            row.copy_(kept)


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize(("dtype", "kv_dtype", "tolerance"), NARROW)
def test_16_bit_logits_equal_those_by_layers(
    made_once: FolderMaker, dtype: str, kv_dtype: str, tolerance: float, head_dim: int
) -> None:
    """Layers round queries, and states of a narrow dtype, too; the compiled step rounds the rows of products alone."""
    folder = made_once(save_causal_model, head_dim=head_dim)
    model = load_generating(folder, blocks=BLOCKS, dtype=dtype, kv_cache_dtype=kv_dtype, min_cosine=0.5)
    runner = runner_of(model)
    parts = plan_of([(40, 1), (3, 1), (30, 5)], range(BLOCKS))
    expected, expected_cache = computed(runner, parts, runner.compute_by_layers)
    found, cache = computed(runner, parts, runner.step.logits)
    assert float((found - expected).square().mean().sqrt()) < tolerance * float(expected.float().std())
    assert torch.allclose(cache.float(), expected_cache.float(), atol=0.05, rtol=0.02)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_of_each_family_equals_that_by_layers(made_once: FolderMaker, variant: str) -> None:
    """With matrix tiles, states and heads of these sizes are in blocks."""
    folder = made_once(save_causal_model, **VARIANTS[variant] | {"head_dim": 32})
    model = load_generating(folder, blocks=BLOCKS, dtype="bf16", kernels="compiled")
    runner = runner_of(model)
    parts = plan_of([(40, 1), (3, 1), (30, 5), (7, 40)], range(BLOCKS))
    expected, expected_cache = computed(runner, parts, runner.compute_by_layers)
    found, cache = computed(runner, parts, runner.step.logits, threads=2)
    for own, other in ((found, expected), (cache.float(), expected_cache.float())):
        assert float((own - other).square().mean().sqrt()) < BFLOAT16_TOLERANCE * float(other.std())
    alone = [computed(runner, [part], runner.step.logits)[0] for part in parts]
    assert torch.equal(found, torch.cat(alone))
    [whole] = plan_of([(0, LONG_PROMPT)], range(BLOCKS))
    check_parts(runner, whole, [1, 18, 51, 130, LONG_PROMPT])


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_embedding_read_by_torch_gives_the_same_bits(made_once: FolderMaker, dtype: str, head_dim: int) -> None:
    """As that of packed weights is read."""
    folder = made_once(save_causal_model, head_dim=head_dim)
    runner = runner_of(load_generating(folder, blocks=BLOCKS, dtype=dtype, kernels="compiled"))
    parts = plan_of([(40, 1), (30, 5), (7, 40)], range(BLOCKS))
    expected, expected_cache = computed(runner, parts, runner.step.logits)
    runner.decoder.embedding = None
    step: Any = compiled_step(runner.decoder, runner.cache)
    found, cache = computed(runner, parts, step.logits)
    assert torch.equal(found, expected)
    assert torch.equal(cache, expected_cache)


@pytest.mark.extended
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize(("dtype", "kv_dtype"), [each[:2] for each in NARROW])
def test_16_bit_prompt_is_independent_of_parts(
    made_once: FolderMaker, dtype: str, kv_dtype: str, head_dim: int
) -> None:
    folder = made_once(save_causal_model, head_dim=head_dim)
    model = load_generating(folder, blocks=BLOCKS, dtype=dtype, kv_cache_dtype=kv_dtype, min_cosine=0.5)
    runner = runner_of(model)
    [whole] = plan_of([(0, LONG_PROMPT)], range(BLOCKS))
    check_parts(runner, whole, [1, 18, 51, 130, LONG_PROMPT])


def test_layers_of_other_kernels_have_no_compiled_step(made_once: FolderMaker) -> None:
    model = load_generating(made_once(save_causal_model), kernels="plain")
    runner = runner_of(model)
    assert runner.step is None
