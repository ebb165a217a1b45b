"""Limits of a request to generate text: numbers of texts, tokens and log probabilities."""

import sys
from dataclasses import replace

from frameworks.core.errors import InvalidInput
from frameworks.generation.sources import SourceSpec
from frameworks.generation.types import Conversation, GenerateRequest, Prompt

MAX_SEQUENCES = 128
"""Limit of one request: number of prompts times `num_choices`."""

MAX_LOGPROBS = 128 * 1024
"""Log probabilities of a response: tokens and their alternatives, of all texts."""


def check_request(request: GenerateRequest) -> None:
    """Raise InvalidInput for a request that no model accepts."""
    if request.constraint is not None and request.stopping.ignore_eos:
        raise InvalidInput("ignore_eos", "expected false with a constraint, got true; leave it out")
    num_prompts = len(request.prompts)
    if not num_prompts:
        raise InvalidInput("prompt", "expected at least one prompt, got an empty list; send a prompt")
    if num_prompts * request.num_choices > MAX_SEQUENCES:
        raise InvalidInput(
            "n",
            f"expected at most {MAX_SEQUENCES} texts in a request, got {num_prompts * request.num_choices} "
            f"({num_prompts} prompts of {request.num_choices} choices each); send several requests",
        )

    options = request.prompt_options
    if request.stopping.max_tokens == 0 and not options.is_echoed and options.top_logprobs is None:
        raise InvalidInput("max_tokens", "expected at least 1 without echo, got 0; ask for a token, or send echo")
    most, requested = _most_tokens(request), request.stopping.max_tokens
    if requested is not None and requested > most and not request.stopping.may_be_fewer:
        raise InvalidInput(
            "max_tokens",
            f"expected at most {most} with logprobs, got {requested}: {num_prompts * request.num_choices} texts with "
            f"{request.sampling.top_logprobs} alternatives to each token have more than {MAX_LOGPROBS} log "
            "probabilities; ask for fewer tokens, texts or alternatives",
        )


def check_prompt_logprobs(request: GenerateRequest, top: int, num_tokens: int) -> None:
    """Raise InvalidInput for too many log probabilities of prompts. `top`: alternatives to each of their tokens.
    `num_tokens`: of all prompts.
    """
    most = MAX_LOGPROBS // ((1 + top) * request.num_choices)
    if num_tokens > most:
        raise InvalidInput(
            "prompt",
            f"expected at most {most} tokens in all prompts whose log probabilities are returned, got {num_tokens}: "
            f"with {top} alternatives to each token and {request.num_choices} choices they are more than "
            f"{MAX_LOGPROBS} log probabilities; send fewer prompts in a request, or ask for fewer alternatives",
        )


def _most_tokens(request: GenerateRequest) -> int:
    """Return the number of tokens of each text for which the log probabilities are not too many."""
    top = request.sampling.top_logprobs
    return sys.maxsize if top is None else MAX_LOGPROBS // ((1 + top) * len(request.prompts) * request.num_choices)


def field_of(prompts: tuple[Prompt, ...], index: int) -> str:
    """Return the name of a prompt in the request, with its index where there are several."""
    field = "messages" if isinstance(prompts[index], Conversation) else "prompt"
    return f"{field}[{index}]" if len(prompts) > 1 else field


def max_tokens_of(request: GenerateRequest, prompt_index: int, prompt_ids: tuple[int, ...], context: int) -> int:
    """Return how many tokens may follow a prompt. Raises InvalidInput, whose message has all lengths."""
    field = field_of(request.prompts, prompt_index)
    if not prompt_ids:
        raise InvalidInput(field, "expected at least one token, got none; send a text to continue")
    left = context - len(prompt_ids)
    requested = request.stopping.max_tokens
    least = 0 if requested == 0 else 1
    if left < least:
        raise InvalidInput(
            field,
            f"expected fewer than {context - least + 1} tokens, by the model's context for prompt and text, got "
            f"{len(prompt_ids)}; shorten it",
        )
    most = min(left, _most_tokens(request))
    if requested is not None and request.stopping.may_be_fewer:
        requested = min(requested, most)
    if requested is not None and not least <= requested <= left:
        raise InvalidInput(
            "max_tokens",
            f"expected {least} to {left}, as {field} has {len(prompt_ids)} of the {context} tokens of the model's "
            f"context, got {requested}; ask for fewer tokens or shorten {field}",
        )
    max_tokens = most if requested is None else requested
    if request.stopping.min_tokens > max_tokens:
        raise InvalidInput(
            "min_tokens", f"expected at most {max_tokens} (max_tokens), got {request.stopping.min_tokens}; lower it"
        )
    return max_tokens


def check_options_of_source(request: GenerateRequest) -> None:
    """Raise InvalidInput for an option of prompts that a model with an encoder does not have."""
    options = request.prompt_options
    remedy = "expected none for a model whose encoder reads the prompt, got some; omit the field"
    given = {"echo": options.is_echoed, "prompt_logprobs": options.top_logprobs, "suffix": options.suffix}
    for field, value in given.items():
        if value is not None and value is not False:
            raise InvalidInput(field, remedy)


def check_beams(request: GenerateRequest, source: SourceSpec, source_tokens: int, max_tokens: int) -> None:
    """Raise InvalidInput for beams that do not fit the KV cache alone: such a search would never end."""
    beams = request.sampling.beams
    if beams is None:
        return
    needed = source.blocks_of(source_tokens, max_tokens, beams.num_beams)
    check_blocks("num_beams", beams.num_beams, max_tokens, needed, source.num_blocks)


def check_blocks(field: str, num_beams: int, num_tokens: int, needed: int, num_blocks: int) -> None:
    """Raise InvalidInput for beams that need more blocks than the KV cache has. `num_tokens`: of each."""
    if needed > num_blocks:
        raise InvalidInput(
            field,
            f"expected beams that take at most {num_blocks} blocks of the KV cache, got {num_beams} of "
            f"{num_tokens} tokens, which take {needed}; ask for fewer beams or tokens",
        )


def check_source(request: GenerateRequest, prompt_index: int, source_ids: tuple[int, ...], most: int) -> None:
    """Raise InvalidInput for a prompt that an encoder does not read. `most`: tokens of a source."""
    field = field_of(request.prompts, prompt_index)
    if not source_ids:
        raise InvalidInput(field, "expected at least one token, got none; send a text")
    if len(source_ids) > most:
        raise InvalidInput(
            field, f"expected at most {most} tokens, which the encoder reads, got {len(source_ids)}; shorten it"
        )


def without_beams(request: GenerateRequest) -> GenerateRequest:
    """Return the request without the beams of the model's files, where it cannot search them."""
    if request.sampling.beams is None or can_search(request):
        return request
    return replace(request, sampling=replace(request.sampling, beams=None))


def can_search(request: GenerateRequest) -> bool:
    """Return whether beams can be searched: not of sampled tokens, several choices, log probabilities, constraints."""
    sampling = request.sampling
    is_greedy = sampling.temperature == 0 and request.num_choices == 1
    return is_greedy and sampling.top_logprobs is None and request.constraint is None and not request.stopping.strings
