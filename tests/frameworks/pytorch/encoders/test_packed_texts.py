"""Texts in one row of tokens get the rows of padded ones, on a simulated device too."""

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import OutOfMemory
from frameworks.pytorch.device.graphs import Graphs, OnDevice
from frameworks.pytorch.device.queue import DeviceQueue, StreamQueue
from frameworks.pytorch.encoder_layers.token_rows import TokenRow
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.encoders.packed_layers import PackedLayers, Run, running
from frameworks.pytorch.encoders.packed_texts import PackedTexts, buckets_of
from frameworks.pytorch.encoders.varlen_attention import VarlenAttention, flash_attention
from frameworks.text.padding import pad
from frameworks.types import TEXT_OUTPUT, Array, TokenBatch, Vectors
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch_model
from tests.support.late_queue import LateQueue
from tests.support.masked_attention import masked_attention
from tests.support.models.combined_folders import save_combined
from tests.support.models.decoder_folders import save_decoder_classifier, save_decoder_embedder
from tests.support.models.encoder_families import save_family
from tests.support.models.late_folders import save_pylate
from tests.support.models.sparse_folders import save_splade
from tests.support.models.text_files import TEXTS
from tests.support.models.torch_folders import FAMILIES, MAX_TOKENS, Family, save_classifier, save_embedder
from tests.support.no_memory import memory_ends_at
from tests.support.simulated_graphs import SimulatedGraphs
from tests.support.step_recording import recording

CPU, META = torch.device("cpu"), torch.device("meta")
RAGGED = [*TEXTS, "the engine of steam runs on . " * 20]
MAX_TEXTS = 4
PACKED_FAMILIES: tuple[Family, ...] = tuple(family for family in FAMILIES if family != "mpnet")


def packed(
    folder: Path,
    graphs: Graphs | None = None,
    queue: DeviceQueue | None = None,
    attention: VarlenAttention = masked_attention,
    **options: Any,
) -> Any:
    """Load a model whose texts are run as on a GPU, and warm it up."""
    model: Any = load_torch_model(folder, dtype="f32", kernels="plain", **options)
    layers = PackedLayers(model._model, attention)
    model.packed = PackedTexts(layers, CPU, queue or StreamQueue(CPU), graphs, MAX_TEXTS, model.spec.text.max_tokens)
    model.warm_up()
    return model


def padded(folder: Path, **options: Any) -> Any:
    model: Any = load_torch_model(folder, dtype="f32", kernels="plain", **options)
    model.warm_up()
    return model


def rows_of(model: EncoderModel, token_ids: list[list[int]], **options: Any) -> list[Array]:
    """Return the numbers of each text, whatever its kind."""
    rows: Any = model.infer(TokenBatch(token_ids, **options))[TEXT_OUTPUT]
    return [np.concatenate(list(row)) if isinstance(row, tuple) else np.asarray(row, np.float32) for row in rows]


def check_equal(model: EncoderModel, other: EncoderModel, token_ids: list[list[int]], **options: Any) -> None:
    for row, wanted in zip(rows_of(model, token_ids, **options), rows_of(other, token_ids, **options), strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=2e-5 * max(1.0, np.abs(wanted).max(initial=0)))


def tokens_of(model: EncoderModel, texts: list[str]) -> list[list[int]]:
    assert model.tokenizer is not None
    return model.tokenizer.tokenize(texts, truncate=True)


@pytest.mark.parametrize("family", PACKED_FAMILIES)
@pytest.mark.parametrize("save", [save_embedder, pytest.param(save_classifier, marks=pytest.mark.extended)])
def test_rows_equal_padded_ones(made_once: FolderMaker, save: Callable[..., Path], family: Family) -> None:
    folder = made_once(save, family=family)
    model, other = packed(folder), padded(folder)
    assert model.packed.is_used, model.spec.graphs
    assert model.spec.graphs == "none: the device has no graphs"
    check_equal(model, other, tokens_of(model, RAGGED))


@pytest.mark.parametrize("save", [save_decoder_embedder, save_decoder_classifier])
@pytest.mark.parametrize("model_type", ["qwen3", pytest.param("mistral", marks=pytest.mark.extended), "gemma3_text"])
def test_decoder_rows_equal_padded_ones(made_once: FolderMaker, save: Callable[..., Path], model_type: str) -> None:
    folder = made_once(save, model_type=model_type)
    model, other = packed(folder), padded(folder)
    assert model.packed.is_used, model.spec.graphs
    check_equal(model, other, tokens_of(model, RAGGED))


@pytest.mark.parametrize("save", [save_splade, save_pylate])
def test_other_vectors_equal_padded_ones(made_once: FolderMaker, save: Callable[..., Path]) -> None:
    """Those of queries too, some tokens of which the others do not attend to."""
    folder = made_once(save)
    model, other = packed(folder), padded(folder)
    assert model.packed.is_used
    token_ids = tokens_of(model, RAGGED)
    check_equal(model, other, token_ids)
    if save is save_pylate:
        check_equal(model, other, token_ids, attended=[max(1, len(ids) - 3) for ids in token_ids])


def test_kinds_of_one_run_equal_padded_ones(tmp_path: Path) -> None:
    folder = save_combined(tmp_path)
    model, other = packed(folder, allow_pickled_weights=True), padded(folder, allow_pickled_weights=True)
    token_ids = tokens_of(model, RAGGED)
    kinds: list[tuple[Vectors, ...]] = [("dense", "sparse", "multi")] * len(token_ids)
    answers: list[Any] = [each.infer(TokenBatch(token_ids, kinds=kinds))[TEXT_OUTPUT] for each in (model, other)]
    assert model.packed.is_used
    for row, wanted in zip(*answers, strict=True):
        np.testing.assert_allclose(row["dense"], wanted["dense"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(row["multi"], wanted["multi"], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(row["sparse"][0], wanted["sparse"][0])
        np.testing.assert_allclose(row["sparse"][1], wanted["sparse"][1], rtol=0, atol=1e-5)


def test_pairs_keep_their_types(made_once: FolderMaker) -> None:
    folder = made_once(save_classifier, family="bert")
    model, other = packed(folder, SimulatedGraphs(CPU)), padded(folder)
    token_ids = tokens_of(model, RAGGED[:3])
    types = [[int(at > len(ids) // 2) for at in range(len(ids))] for ids in token_ids]
    check_equal(model, other, token_ids, token_type_ids=types)
    one, none = (rows_of(model, token_ids, token_type_ids=each) for each in (types, None))
    assert max(np.abs(row - plain).max() for row, plain in zip(one, none, strict=True)) > 1e-3


@pytest.mark.parametrize("architecture", ["FNetModel", "EsmModel", "LukeModel", "XLNetForSequenceClassification"])
def test_model_that_cannot_pack_is_padded(made_once: FolderMaker, architecture: str) -> None:
    folder = made_once(save_family, architecture=architecture)
    model, other = packed(folder), padded(folder)
    assert not model.packed.is_used
    assert model.spec.graphs.startswith("none: texts are padded, as ")
    assert model.spec.text.unpadded_because == other.spec.text.unpadded_because
    check_equal(model, other, tokens_of(model, RAGGED))


def test_wrong_window_is_found_by_trial(made_once: FolderMaker) -> None:
    """The texts of the trial are shorter than the window; a longer one is tried too."""
    folder = made_once(save_decoder_embedder, model_type="gemma3_text")

    def without_window(query: Any, key: Any, value: Any, starts: Any, longest: int, scale: Any, window: Any) -> Any:
        return masked_attention(query, key, value, starts, longest, scale, (-1, window[1]))

    model = packed(folder, attention=without_window)
    window = model._model.config.sliding_window
    assert window >= max(map(len, tokens_of(model, RAGGED[:2]))), "the first trial would show it"
    assert not model.packed.is_used
    assert model.spec.graphs == "none: texts are padded, as their rows differ without padding"
    assert packed(folder).packed.is_used


def test_texts_without_tokens_are_run(made_once: FolderMaker) -> None:
    folder = made_once(save_decoder_embedder)
    model, other = packed(folder, SimulatedGraphs(CPU)), padded(folder)
    ids = tokens_of(model, RAGGED[:1])[0]
    batches: list[list[list[int]]] = [[[]], [[], ids], [ids, []], [[], []]]
    for token_ids in batches:
        check_equal(model, other, token_ids)


@settings(max_examples=12, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.lists(st.integers(5, 40), min_size=1, max_size=MAX_TOKENS), min_size=1, max_size=MAX_TEXTS + 2),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**16),
)
def test_graphs_on_late_device_compute_rows(
    late_models: Callable[[int], tuple[Any, Any]], batches: list[list[list[int]]], seed: int
) -> None:
    """Whatever the run before it left in the buffers, and however late the device is."""
    model, other = late_models(seed)
    replays = model.packed._graphs.num_replays
    for batch in batches:
        check_equal(model, other, batch)
    expected = sum(len(batch) <= MAX_TEXTS for batch in batches)
    assert model.packed._graphs.num_replays - replays == expected


@pytest.fixture(scope="module", params=["roberta", "modernbert"])
def late_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_embedder(tmp_path_factory.mktemp("late"), request.param)
    random = Random(0)
    model, other = packed(folder, SimulatedGraphs(CPU), LateQueue(random)), padded(folder)
    assert model.spec.graphs == f"up to {MAX_TEXTS * MAX_TOKENS} tokens"

    def seeded(seed: int) -> tuple[Any, Any]:
        random.seed(seed)
        return model, other

    return seeded


def test_next_run_waits_for_copy_of_tokens(made_once: FolderMaker) -> None:
    """A copy reads pinned memory when the device gets to it."""
    queue = LateQueue(Random(1))
    model = packed(made_once(save_embedder, family="bert"), SimulatedGraphs(CPU), queue)
    texts, seen = model.packed, []
    bucket = min(texts._captured)
    states = texts._captured[bucket][1]
    texts._captured[bucket] = (lambda: seen.append(texts._tables.row(bucket).values[0].tolist()), states)
    # torch's operators follow on a GPU; here they would have to run at once.
    queue.catch_up = lambda: None  # type: ignore[method-assign]
    runs = [[at] * (3 + at % 5) for at in range(1, 30)]
    for ids in runs:
        texts._padded_states(pad([ids], 0))
    queue.mark().synchronize()
    assert [[each for each in row if each] for row in seen] == runs
    assert queue.num_late > 10


def test_instances_share_graphs(made_once: FolderMaker) -> None:
    """Two threads, whose tokens and states are in the same buffers."""
    folder = made_once(save_embedder, family="bert")
    model, other = packed(folder, SimulatedGraphs(CPU)), padded(folder)
    token_ids = tokens_of(model, RAGGED)
    wanted = rows_of(other, token_ids)
    wrong: list[int] = []

    def ask(first: int) -> None:
        order = [*range(first, len(token_ids)), *range(len(token_ids))] * 2
        found = [rows_of(model, [token_ids[at]])[0] for at in order]
        wrong.extend(
            at for at, row in zip(order, found, strict=True) if not np.allclose(row, wanted[at], rtol=0, atol=1e-5)
        )

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_failed_capture_is_named(made_once: FolderMaker) -> None:
    class Refusing(SimulatedGraphs):
        def capture(self, compute: Any) -> Any:
            if self.captured:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            return super().capture(compute)

    folder = made_once(save_embedder, family="bert")
    model, other = packed(folder, Refusing(CPU)), padded(folder)
    assert model.packed.is_used
    assert model.spec.graphs == "none: operation not permitted when stream is capturing"
    assert model.spec.memory_bytes == other.spec.memory_bytes
    check_equal(model, other, tokens_of(model, RAGGED))


def test_memory_counts_graphs(made_once: FolderMaker) -> None:
    class Large(SimulatedGraphs):
        def capture(self, compute: Any) -> Any:
            self.size_bytes += 1000
            return super().capture(compute)

    folder = made_once(save_embedder, family="bert")
    model, other = packed(folder, Large(CPU)), padded(folder)
    buckets = buckets_of(MAX_TEXTS * MAX_TOKENS)
    more = model.spec.memory_bytes - other.spec.memory_bytes
    assert 1000 * len(buckets) + 12 * buckets[-1] <= more <= 1000 * len(buckets) + 13 * buckets[-1]


def test_device_without_memory_fails_one_batch(made_once: FolderMaker) -> None:
    folder = made_once(save_embedder, family="bert")
    fails = [False]

    def attention(*arguments: Any) -> torch.Tensor:
        if fails[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return masked_attention(*arguments)

    model, other = packed(folder, attention=attention), padded(folder)
    token_ids = tokens_of(model, RAGGED)
    fails[0] = True
    with pytest.raises(OutOfMemory):
        model.infer(TokenBatch(token_ids))
    fails[0] = False
    check_equal(model, other, token_ids)


@pytest.mark.parametrize("has_graphs", [False, True])
def test_model_survives_end_of_memory_at_each_allocation(made_once: FolderMaker, has_graphs: bool) -> None:
    """The batch fails, and nothing else: the next one is computed."""
    model = packed(made_once(save_classifier, family="bert"), SimulatedGraphs(CPU) if has_graphs else None)
    token_ids = tokens_of(model, RAGGED[:3])
    expected = rows_of(model, token_ids)
    number, has_failed = 0, True
    while has_failed:
        number += 1
        failures: list[str] = []
        with memory_ends_at(number) as memory:
            try:
                model.infer(TokenBatch(token_ids))
            except OutOfMemory as error:
                failures.append(error.message)
        has_failed = memory.has_failed
        assert failures == ["a batch of 3 texts of 20 tokens does not fit on cpu"] * has_failed
        for row, wanted in zip(rows_of(model, token_ids), expected, strict=True):
            np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-5)
    assert number > 20


def test_closed_model_keeps_no_weights(made_once: FolderMaker) -> None:
    """By reference counts: a cycle would hold them until the next collection."""
    import gc
    import weakref

    model = packed(made_once(save_embedder, family="bert"), SimulatedGraphs(CPU))
    rows_of(model, tokens_of(model, RAGGED[:2]))
    gc.collect()
    weights = weakref.ref(next(model._model.parameters()))
    gc.disable()
    try:
        model.close()
        assert weights() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("family", PACKED_FAMILIES)
def test_runs_read_no_values(made_once: FolderMaker, family: Family) -> None:
    """On a device without values: neither in one row of tokens, nor with padding."""
    loaded: Any = load_torch_model(made_once(save_embedder, family=family), dtype="f32", kernels="plain")
    model = loaded._model
    layers = PackedLayers(model, flash_attention)
    assert layers.reason is None
    model.to(META)
    row = TokenRow(
        torch.zeros(3, 64, dtype=torch.int32, device=META), torch.zeros(5, dtype=torch.int32, device=META), 40
    )
    with torch.inference_mode(), recording(META) as recorded, OnDevice():  # type: ignore[no-untyped-call]
        states = layers.states(row)
    assert states.shape == (64, 32)
    names = recorded.names
    assert names.count("_varlen_attn") == 2
    assert not {"scaled_dot_product_attention", "_scaled_dot_product_attention_math"} & set(names)
    for is_padded in (False, True):
        mask = torch.ones(3, 12, dtype=torch.int64, device=META)
        run = running(Run(None, is_padded))
        with run, torch.inference_mode(), recording(META), OnDevice():  # type: ignore[no-untyped-call]
            output = model(input_ids=mask, attention_mask=mask)
        assert output.last_hidden_state.shape == (3, 12, 32)


def test_buckets_waste_a_quarter_at_most() -> None:
    assert buckets_of(10) == [10]
    assert buckets_of(16) == [16]
    assert buckets_of(100) == [16, 32, 64, 80, 96, 100]
    buckets = buckets_of(2048)
    assert buckets[-1] == 2048
    assert len(buckets) == 23
    for below, bucket in pairwise(buckets[2:]):
        assert bucket <= below * 1.25


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    window=st.sampled_from([(-1, -1), (-1, 0), (2, 2), (3, 0)]),
    seed=st.integers(0, 2**16),
)
def test_masked_attention_equals_text_alone(
    lengths: list[int], heads: tuple[int, int], window: tuple[int, int], seed: int
) -> None:
    """The reference of the other tests, against torch's attention of each text."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    query, key, value = (torch.randn(tokens, count, 8, generator=generator) for count in (heads[0], heads[1], heads[1]))
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    found = masked_attention(query, key, value, starts, max(lengths), 0.3, window)
    for start, length in zip(starts.tolist(), lengths, strict=False):
        if not length:
            continue
        one, two, three = (each[start : start + length].transpose(0, 1)[None] for each in (query, key, value))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        is_seen = torch.ones(length, length, dtype=torch.bool)
        if window[0] >= 0:
            is_seen &= distance <= window[0]
        if window[1] >= 0:
            is_seen &= -distance <= window[1]
        alone = torch.nn.functional.scaled_dot_product_attention(
            one, two, three, attn_mask=is_seen, scale=0.3, enable_gqa=heads[0] != heads[1]
        )
        torch.testing.assert_close(found[start : start + length], alone[0].transpose(0, 1), rtol=0, atol=1e-5)
