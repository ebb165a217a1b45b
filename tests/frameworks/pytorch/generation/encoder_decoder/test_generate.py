"""Texts of models with an encoder and a decoder compared with transformers' `generate`, 16 at once."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.generation.types import BeamSearch, Sampling
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.encoder_decoder.shape import read_encoder_decoder_shape
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.pytorch.generation.encoder_decoder.generating_texts import (
    GREEDY,
    generated,
    reference_of,
    sampling_of,
    source_request,
    sources,
    texts_of,
)
from tests.frameworks.pytorch.generation.generating import alone, load_generating, run_out, stepped
from tests.support.models.encoder_decoder_folders import CLASSES, save_encoder_decoder

SEARCH = {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 1.4}
OPTIONS: list[dict[str, Any]] = [
    {},
    SEARCH,
    {"num_beams": 4, "early_stopping": True, "length_penalty": -0.7},
    {"num_beams": 2, "early_stopping": "never", "repetition_penalty": 1.3},
    {"num_beams": 5, "min_new_tokens": 6},
    {"no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2, "num_beams": 2},
]


@pytest.fixture(scope="module", params=["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder_decoder(tmp_path_factory.mktemp("model") / "m", request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> GeneratingModel:
    loaded: GeneratingModel = load_generating(folder)
    return loaded


@pytest.mark.parametrize("architecture", CLASSES)
def test_class_generates_as_transformers(architecture: str, tmp_path: Path) -> None:
    folder = save_encoder_decoder(tmp_path / "m", architecture)
    loaded = load_generating(folder)
    reference, given = reference_of(folder), sources(16)
    for options in ({}, SEARCH):
        assert texts_of(loaded, given, 12, sampling_of(options)) == generated(reference, given, 12, options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_generate_as_transformers(options: dict[str, Any], folder: Path, model: GeneratingModel) -> None:
    given = sources(8, seed=3)
    # Beyond the first block of a text.
    count = BLOCK_TOKENS + 12
    own = texts_of(model, given, count, sampling_of(options), min_tokens=options.get("min_new_tokens", 0))
    assert own == generated(reference_of(folder), given, count, options)


def test_preempted_texts_are_the_same(folder: Path) -> None:
    shape = read_encoder_decoder_shape(folder, "f32")
    size = 12 * BLOCK_TOKENS * shape.cache.token_bytes
    narrow, wide = load_generating(folder, kv_cache_bytes=size), load_generating(folder)
    given = sources(6, seed=4)
    for sampling in (GREEDY, Sampling(temperature=0, beams=BeamSearch(2))):
        own, wanted = (texts_of(each, given, 90, sampling, stop_token_ids=frozenset()) for each in (narrow, wide))
        assert own == wanted
    assert narrow.step().stats.preemptions > 0


def test_known_source_is_not_encoded_again(model: GeneratingModel) -> None:
    [source] = sources(1, seed=5)
    first = alone(model, source_request(model, 1, source))
    model.add(source_request(model, 2, source))
    assert stepped(model).begun == [(2, len(source))]
    run_out(model)
    # Another source that begins with the same tokens has other states.
    model.add(source_request(model, 3, (*source[:-1], 7, source[-1])))
    assert stepped(model).begun == [(3, 0)]
    run_out(model)
    assert alone(model, source_request(model, 4, source)) == first


@settings(deadline=None)
@given(
    widths=st.lists(st.sampled_from([1, 2, 3]), min_size=5, max_size=5),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20),
)
def test_text_is_independent_of_others(
    widths: list[int], steps: list[tuple[bool, int]], model: GeneratingModel
) -> None:
    """Whatever begins, ends and is cancelled beside it. `steps`: whether a text begins, and which other one ends."""
    given = sources(5, seed=6)
    samplings = [Sampling(temperature=0, beams=BeamSearch(width) if width > 1 else None) for width in widths]
    pairs = list(zip(given, samplings, strict=True))
    expected = [alone(model, source_request(model, 1, each, sampling=sampling)) for each, sampling in pairs]
    waiting, found = list(range(len(given))), {10 + each: list[int]() for each in range(len(given))}
    for begins, cancelled in itertools.cycle(steps):
        if waiting and (begins or not model.has_work):
            each = waiting.pop()
            model.add(source_request(model, 10 + each, given[each], sampling=samplings[each]))
            model.add(source_request(model, 100 + each, given[each][::-1], sampling=samplings[each - 1]))
        for token in stepped(model).tokens:
            found.setdefault(token.sequence_id, []).append(token.token_id)
        model.abort(100 + cancelled)
        if not waiting and not model.has_work:
            break
    assert [found[10 + each] for each in range(len(given))] == expected
