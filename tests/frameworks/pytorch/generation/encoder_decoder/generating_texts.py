"""Texts of models with an encoder and a decoder: ours, and those of transformers' `generate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.text.bad_words import ngrams_of
from frameworks.generation.types import BeamSearch, Sampling
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.pytorch.generation.generating import ids_of
from tests.support.models.encoder_decoder_folders import EOS_ID, PAD_ID, START_ID, VOCABULARY_SIZE

GREEDY = Sampling(temperature=0)


def sources(count: int, seed: int = 0, longest: int = 60) -> list[tuple[int, ...]]:
    """Random sources of different lengths, each with an end token."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, count)
    return [(*random.integers(4, VOCABULARY_SIZE, length).tolist(), EOS_ID) for length in lengths]


def source_request(
    model: GeneratingModel,
    sequence_id: int,
    source_ids: Sequence[int],
    max_tokens: int = 8,
    sampling: Sampling = GREEDY,
    **more: Any,
) -> SequenceRequest:
    """A request for the text of a source, as the engine's service makes it."""
    spec = model.spec.generation
    assert spec is not None
    assert spec.source is not None
    prompt = spec.source.prompt_of(tuple(source_ids))
    fields = {
        "priority": 5,
        "forced_tokens": spec.forced_tokens,
        "stop_token_ids": spec.eos_token_ids,
        "bad_sequences": ngrams_of(tuple(source_ids), sampling.source_ngram_size),
    }
    return SequenceRequest(
        sequence_id, prompt.token_ids, max_tokens, sampling, media=prompt.media, **{**fields, **more}
    )


def texts_of(
    model: GeneratingModel, given: Sequence[Sequence[int]], max_tokens: int, sampling: Sampling = GREEDY, **more: Any
) -> list[list[int]]:
    """The tokens of all texts, computed together."""
    requests = [source_request(model, i, each, max_tokens, sampling, **more) for i, each in enumerate(given)]
    found = ids_of(model, *requests)
    return [found[i] for i in range(len(given))]


def reference_of(folder: Path) -> Any:
    """transformers' model of a folder."""
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    return model.eval()


def generated(
    reference: Any, given: Sequence[Sequence[int]], max_tokens: int, options: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """The tokens of transformers' `generate`, of one source after another."""
    config = transformers.GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=START_ID,
        **(options or {}),
    )
    with torch.inference_mode():
        return [
            reference.generate(torch.tensor([list(each)]), generation_config=config)[0].tolist()[1:] for each in given
        ]


def sampling_of(options: Mapping[str, Any]) -> Sampling:
    """The options of `generate`, as our sampling."""
    own = dict(options)
    count = own.pop("num_beams", 1)
    penalty, early = own.pop("length_penalty", 1.0), own.pop("early_stopping", False)
    ngrams = own.pop("encoder_no_repeat_ngram_size", 0)
    beams = BeamSearch(count, penalty, early) if count > 1 else None
    own.pop("min_new_tokens", None)
    return Sampling(temperature=0, beams=beams, source_ngram_size=ngrams, **own)
