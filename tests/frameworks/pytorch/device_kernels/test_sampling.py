"""Kernels of sampling choose the tokens that the sampler of the CPU chooses."""

from copy import copy
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import ModelFailed
from frameworks.pytorch.device.queue import StreamQueue
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.sampling.device_sampler import DeviceSampler
from frameworks.pytorch.generation.sampling.multinomial import SamplingWorkspace, log_probability_table
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from tests.frameworks.pytorch.generation.sampling_cases import CPU, random_logits, state_of
from tests.support.kernel_device import IS_INTERPRETED, KERNEL_DEVICE
from tests.support.late_queue import LateQueue
from tests.support.step_recording import recording

pytest.importorskip("triton", reason="Triton has packages for Linux only")

from frameworks.pytorch.device_kernels.unread_tokens import fill_in

# The interpreter computes with numpy, which warns of infinite numbers and NaN.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    *([] if IS_INTERPRETED else [pytest.mark.gpu]),
]

SIZES = (1, 7, 300, 5000)
DEVICE = torch.device(KERNEL_DEVICE)


def sampler_of(size: int, rows: int = 40) -> DeviceSampler:
    return DeviceSampler(DEVICE, size, SampledIds(DEVICE, rows), StreamQueue(DEVICE))


def sampled(sampler: DeviceSampler, logits: torch.Tensor, states: list[SamplingState], *unread: int) -> list[Any]:
    """Return what is sampled. `unread`: rows of the last step; the states know their tokens without them."""
    return list(sampler.launch(logits.to(DEVICE), states, unread or [-1] * len(states)).read())


@settings(max_examples=15)
@given(
    size=st.sampled_from(SIZES),
    rows=st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=5),
    is_coarse=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_log_probabilities_equal_those_of_cpu(
    size: int, rows: list[int | None], is_coarse: bool, dtype: torch.dtype, seed: int
) -> None:
    """Of the unchanged logits, also where a penalty changes them, and beside rows that want none."""
    logits = random_logits(len(rows), size, seed, 2.0)
    logits = ((logits * 2).round() / 2 if is_coarse else logits).to(dtype)
    states = [state_of(size, top_logprobs=top, seed=seed, logit_bias={0: 3.0}) for top in rows]
    sampler = sampler_of(size)
    for _ in range(2):
        # The buffers of the first step are larger for the second.
        found = sampled(sampler, logits, states)
        for one, other in zip(found, Sampler(CPU, size).sample(logits, states), strict=True):
            assert isinstance(other, Sampled)
            assert (one.token_id, one.logprob is None) == (other.token_id, other.logprob is None)
            assert [each[0] for each in one.top_logprobs] == [each[0] for each in other.top_logprobs]
            wanted = [other.logprob or 0.0, *(each[1] for each in other.top_logprobs)]
            ours = [one.logprob or 0.0, *(each[1] for each in one.top_logprobs)]
            np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-6)


samplings = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.4, 1.0, 5.0]), "seed": st.integers(0, 1000)},
    optional={
        "top_k": st.integers(1, 6000),
        "top_p": st.sampled_from([1e-9, 0.1, 0.8, 0.999]),
        "min_p": st.sampled_from([1e-9, 0.02, 0.5, 1.0]),
    },
)


@settings(max_examples=25)
@given(
    size=st.sampled_from(SIZES),
    rows=st.lists(samplings, min_size=1, max_size=4),
    scale=st.sampled_from([0.0, 0.05, 2.0, 20.0]),
    is_coarse=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_tokens_equal_those_of_cpu(
    size: int, rows: list[dict[str, Any]], scale: float, is_coarse: bool, dtype: torch.dtype, seed: int
) -> None:
    """Flat and steep distributions, with equal logits, and limits that keep one token, some or nearly all."""
    logits = random_logits(len(rows), size, seed, scale)
    logits = ((logits * 2).round() / 2 if is_coarse else logits).to(dtype)
    states = [state_of(size, **row) for row in rows]
    expected = Sampler(CPU, size).sample(logits, states)
    assert sampled(sampler_of(size), logits, states) == expected


@settings(max_examples=10)
@given(
    uniforms=st.lists(st.sampled_from([0.0, 1e-12, 0.25, 0.5, 1 - 1e-16]), min_size=1, max_size=3),
    top_p=st.sampled_from([0.5, 1.0]),
)
def test_ends_of_random_numbers_equal_those_of_cpu(uniforms: list[float], top_p: float) -> None:
    logits = random_logits(len(uniforms), 200, 3)
    states = []
    for uniform in uniforms:
        state = copy(state_of(200, top_p=top_p))
        state.uniform = uniform
        states.append(state)
    expected = Sampler(CPU, 200).sample(logits, states)
    assert sampled(sampler_of(200), logits, states) == expected


penalties = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1.0]), "seed": st.integers(0, 1000)},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.25, 8.0]),
        "frequency_penalty": st.sampled_from([-0.5, 2.0]),
        "presence_penalty": st.sampled_from([0.5, 4.0]),
        "logit_bias": st.dictionaries(st.integers(0, 19), st.sampled_from([-3.0, 2.0, float("-inf")]), max_size=4),
        "top_k": st.integers(1, 9),
    },
)
edited = st.tuples(penalties, st.lists(st.integers(0, 19), min_size=1, max_size=30), st.integers(0, 4), st.booleans())


@settings(max_examples=40)
@given(rows=st.lists(edited, min_size=1, max_size=5), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_penalties_count_token_that_is_unread(
    rows: list[tuple[dict[str, Any], list[int], int, bool]], dtype: torch.dtype
) -> None:
    """Of a text, the last token stands on the device only, in any row of the last step."""
    size = 20
    logits = ((random_logits(len(rows), size) * 4).round() / 4).to(dtype)
    sampler = sampler_of(size, 9)
    known, ours, unread = [], [], []
    for row, (sampling, text, min_tokens, is_unread) in enumerate(rows):
        request = {"min_tokens": min_tokens, "stop_token_ids": frozenset({3, 7}), "prompt_ids": (1, 2, 2)}
        known.append(state_of(size, text=text, request=request, **sampling))
        ours.append(state_of(size, text=text[:-1] if is_unread else text, request=request, **sampling))
        unread.append(8 - row if is_unread else -1)
        if is_unread:
            ours[-1].expect()
            sampler._sampled.ids[8 - row] = text[-1]
    expected = Sampler(CPU, size).sample(logits, known)
    found = sampled(sampler, logits, ours, *unread)
    assert [getattr(each, "token_id", type(each)) for each in found] == [
        getattr(each, "token_id", type(each)) for each in expected
    ]


def test_edits_of_many_tokens_and_rows() -> None:
    """Of more rows than the buffers hold, which read the ids of the last step before they are replaced."""
    size, rows = 5000, 37
    logits = random_logits(rows, size)
    bias = {token_id: float(token_id % 5) for token_id in range(0, size, 2)}
    known = [state_of(size, temperature=0, text=[row, 1], logit_bias=bias, presence_penalty=9.0) for row in range(rows)]
    ours = [state_of(size, temperature=0, text=[row], logit_bias=bias, presence_penalty=9.0) for row in range(rows)]
    logits[:, 1] = 11.0
    sampler = sampler_of(size)
    sampler._sampled.ids[:] = 1
    for state in ours:
        state.expect()
    found = sampled(sampler, logits, ours, *reversed(range(rows)))
    assert found == Sampler(CPU, size).sample(logits, known)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {}, {"top_p": 0.9}], ids=["greedy", "drawn", "truncated"])
def test_logits_that_are_not_finite_fail_their_row(sampling: dict[str, Any]) -> None:
    logits = random_logits(5, 5000)
    logits[1, 4000] = torch.nan
    logits[2] = -torch.inf
    logits[3, 17] = torch.inf
    logits[4, 17:] = -torch.inf
    states = [state_of(5000, **sampling) for _ in range(5)]
    sampler = sampler_of(5000)
    found = sampled(sampler, logits, states)
    assert [type(each) for each in found] == [Sampled, ModelFailed, ModelFailed, ModelFailed, Sampled]
    expected = Sampler(CPU, 5000).sample(logits, states)
    assert [found[0], found[4]] == [expected[0], expected[4]]
    ids = sampler._sampled.ids[:5]
    assert ((ids >= 0) & (ids < 5000)).all(), "the next step may have begun with it"


def test_more_rows_than_buffers_hold() -> None:
    logits = random_logits(37, 50)
    states = [state_of(50, seed=row, temperature=row % 3) for row in range(37)]
    sampler = sampler_of(50)
    found = sampled(sampler, logits, states)
    assert found == Sampler(CPU, 50).sample(logits, states)
    assert sampler._sampled.ids[:37].tolist() == [each.token_id for each in found if isinstance(each, Sampled)]


def test_two_steps_are_read_in_order() -> None:
    sampler = sampler_of(300)
    steps = [random_logits(3, 300, seed) for seed in (1, 2)]
    states = [state_of(300, temperature=0) for _ in range(3)]
    unread = [sampler.launch(logits.to(DEVICE), states, [-1] * 3) for logits in steps]
    for given_step, logits in zip(unread, steps, strict=True):
        assert [each.token_id for each in given_step.read() if isinstance(each, Sampled)] == logits.argmax(1).tolist()


@given(sources=st.lists(st.integers(-1, 9), max_size=70), extra=st.integers(0, 3))
def test_ids_are_filled_in(sources: list[int], extra: int) -> None:
    rows = len(sources) + extra
    token_ids = torch.arange(100, 100 + rows, dtype=torch.int32, device=DEVICE)
    ids = torch.arange(10, dtype=torch.int32, device=DEVICE) + 50
    fill_in(token_ids, torch.tensor(sources, dtype=torch.int32, device=DEVICE), ids)
    own = [100 + row if source < 0 else 50 + source for row, source in enumerate(sources)]
    assert token_ids.tolist() == own + list(range(100 + len(sources), 100 + rows))


@pytest.mark.parametrize(("sampling", "launches"), [({"temperature": 0}, 2), ({}, 3), ({"top_p": 0.9}, 4)])
def test_sampling_reads_nothing_on_the_host(sampling: dict[str, Any], launches: int) -> None:
    """All rows of a step have the launches of one."""
    meta = torch.device("meta")
    sampler = DeviceSampler(meta, 5000, SampledIds(meta, 8), StreamQueue(meta))
    states = [state_of(5000, **sampling) for _ in range(8)]
    with recording(meta, runs_kernels=False) as recorded:
        sampler._sample(torch.empty(8, 5000, device=meta), [sampler._kind_of(state) for state in states], None)
    assert [name for name in recorded.names if name.startswith("_")] == recorded.names
    assert len(recorded.names) == launches


def test_log_probabilities_read_nothing_on_the_host() -> None:
    meta = torch.device("meta")
    logits, chosen = torch.empty(3, 5000, device=meta), torch.empty(3, dtype=torch.int64, device=meta)
    with recording(meta, runs_kernels=False) as recorded, torch.inference_mode():
        table = log_probability_table(logits, chosen, 20, SamplingWorkspace(meta, 5000))
    assert table.shape == (3, 41)
    assert "topk" in recorded.names


@pytest.mark.skipif(not IS_INTERPRETED, reason="the simulated device has CPU tensors")
def test_next_step_waits_for_copy_of_scored_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads pinned memory when the device gets to it: here as late as marks allow."""
    random = Random(0)
    monkeypatch.setattr(random, "choice", lambda options: 0)
    logits = random_logits(2, 300, 0, 2.0)
    sampler = DeviceSampler(CPU, 300, SampledIds(CPU, 4), LateQueue(random))
    plain, scored = state_of(300, temperature=0.0), state_of(300, temperature=0.0, top_logprobs=1)
    with torch.inference_mode():
        steps = [sampler.launch(logits, states, [-1, -1]) for states in ([scored, plain], [plain, scored])]
        found = [step.read() for step in steps]
    for row, results in enumerate(found):
        one = results[row]
        assert isinstance(one, Sampled)
        assert one.top_logprobs == ((one.token_id, one.logprob),)
        assert one.logprob == pytest.approx(float(logits[row].log_softmax(0).max()), abs=1e-5)
