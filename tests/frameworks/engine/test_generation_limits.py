"""Limits of a request to generate text that need no model."""

import pytest

from frameworks.core.errors import InvalidInput
from frameworks.engine.generation_limits import check_beams
from frameworks.generation.sources import SourceSpec
from frameworks.generation.types import BeamSearch, GenerateRequest, Sampling


def request(num_beams: int | None) -> GenerateRequest:
    beams = None if num_beams is None else BeamSearch(num_beams)
    return GenerateRequest(("a",), Sampling(temperature=0, beams=beams))


def source(num_blocks: int, decoder_prompt: tuple[int, ...] = (3,)) -> SourceSpec:
    return SourceSpec("summarization", 64, decoder_prompt, 16, num_blocks=num_blocks)


@pytest.mark.parametrize(
    ("num_beams", "source_tokens", "max_tokens", "blocks"),
    [(2, 1, 15, 3), (2, 16, 15, 3), (2, 17, 15, 4), (2, 16, 16, 5), (5, 33, 100, 38), (16, 64, 127, 132)],
)
def test_beams_take_blocks_of_source_and_texts(
    num_beams: int, source_tokens: int, max_tokens: int, blocks: int
) -> None:
    check_beams(request(num_beams), source(blocks), source_tokens, max_tokens)
    with pytest.raises(InvalidInput) as refused:
        check_beams(request(num_beams), source(blocks - 1), source_tokens, max_tokens)
    assert str(refused.value) == (
        f"num_beams: expected beams that take at most {blocks - 1} blocks of the KV cache, got {num_beams} of "
        f"{max_tokens} tokens, which take {blocks}; ask for fewer beams or tokens"
    )


def test_decoder_prompt_counts_for_each_beam() -> None:
    with pytest.raises(InvalidInput):
        check_beams(request(2), source(3, (3, 4)), 16, 15)
    check_beams(request(2), source(5, (3, 4)), 16, 15)


def test_text_without_beams_is_accepted() -> None:
    """The context of the model bounds it."""
    check_beams(request(None), source(1), 64, 1000)
