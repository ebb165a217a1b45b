"""Build the sequences of a request whose prompts are tokenized, and the texts of its choices."""

import itertools
import secrets
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from frameworks.engine.contract import Run
from frameworks.engine.generating.prompt_echo import ShownPrompt
from frameworks.engine.generation_limits import (
    check_beams,
    check_source,
    max_tokens_of,
)
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import SequenceRequest, TokenMatcher
from frameworks.generation.text.bad_words import TokenIds, ngrams_of
from frameworks.generation.text.marked_stream import MarkedStream, ReasoningCount
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.text.text_stream import ChoiceText
from frameworks.generation.text.tokenizer import GenerationTokenizer, TokenStream
from frameworks.generation.tools.formats import THINK
from frameworks.generation.types import NOT_FORCED, ForcedTokens, GenerateRequest, GenerationSpec
from frameworks.runtime import StepModel

# A text may complete a character that the prompt begins. Special tokens between them have no text.
_MAX_TOKENS_BEFORE = 64
_SEEDS = 2**63

_sequence_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class PreparedPrompts:
    """Token ids of each prompt, the compiled constraint, and the search for the stop strings. `is_opened`: the first
    prompt ends with `<think>`. `echoes`: the text of each prompt that is echoed. `bad_sequences`: the tokens of the bad
    words. `media`: the images of the only prompt.
    """

    prompts: list[tuple[int, ...]]
    matcher: TokenMatcher | None
    stops: StopStrings | None
    is_opened: bool = False
    echoes: tuple[str, ...] = ()
    bad_sequences: tuple[TokenIds, ...] = ()
    media: PromptMedia | None = None


def sequences_of(
    request: GenerateRequest,
    prepared: PreparedPrompts,
    spec: GenerationSpec,
    run: Run,
    in_pieces: bool,
    adapter_id: int,
) -> list[SequenceRequest]:
    """Return one sequence for each choice, with ids in order of their index.

    Choice i of each prompt has the seed of the request plus i, or a random seed plus i if the request has none. The
    texts of a prompt thus do not depend on the other prompts. Raises InvalidInput if a prompt exceeds the context.
    """
    stopping = request.stopping
    stop_token_ids = stopping.token_ids if stopping.ignore_eos else stopping.token_ids | spec.eos_token_ids
    # A constraint, or a text that no end token ends, decides itself which tokens it has.
    is_free = prepared.matcher is None and not stopping.ignore_eos
    arrived_s = time.perf_counter()
    sequences: list[SequenceRequest] = []
    for i in range(len(prepared.prompts)):
        prompt = _prompt_of(request, prepared, i, spec)
        max_tokens = max_tokens_of(request, i, prompt.text_ids, spec.max_context_tokens)
        if spec.source is not None:
            check_beams(request, spec.source, len(prepared.prompts[i]), max_tokens)
        seed = secrets.randbelow(_SEEDS) if request.sampling.seed is None else request.sampling.seed
        first = SequenceRequest(
            0,
            prompt.token_ids,
            max_tokens,
            request.sampling,
            stop_token_ids,
            stopping.min_tokens,
            priority=run.priority,
            arrived_s=arrived_s,
            # A stop string is found in time only if each token is delivered at once.
            is_read_whole=not (in_pieces or stopping.strings),
            tenant=run.permit.tenant,
            prompt_logprobs=request.prompt_options.top_logprobs,
            adapter_id=adapter_id,
            bad_sequences=(*prepared.bad_sequences, *prompt.ngrams),
            forced_tokens=_forced_tokens(request, spec) if is_free else NOT_FORCED,
            media=prompt.media,
        )
        sequences += [
            replace(
                first,
                sequence_id=next(_sequence_ids),
                sampling=replace(request.sampling, seed=(seed + choice) % _SEEDS),
                is_seeded=request.sampling.seed is not None,
                matcher=prepared.matcher.copy() if prepared.matcher else None,
            )
            for choice in range(request.num_choices)
        ]
    return sequences


class _SequencePrompt(NamedTuple):
    """The prompt of a sequence. `text_ids`: the tokens that its text follows. `ngrams`: that it must not have."""

    token_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    media: PromptMedia | None
    ngrams: tuple[TokenIds, ...] = ()


def _prompt_of(
    request: GenerateRequest, prepared: PreparedPrompts, index: int, spec: GenerationSpec
) -> _SequencePrompt:
    """Return a prompt as the model reads it. Raises InvalidInput for one that its encoder does not read."""
    ids, source = prepared.prompts[index], spec.source
    if source is None:
        return _SequencePrompt(ids, ids, prepared.media)
    check_source(request, index, ids, source.max_tokens)
    token_ids, media = source.prompt_of(ids)
    return _SequencePrompt(token_ids, source.decoder_prompt, media, ngrams_of(ids, request.sampling.source_ngram_size))


def _forced_tokens(request: GenerateRequest, spec: GenerationSpec) -> ForcedTokens:
    """Return the forced tokens of a text: its language is the first one, where the request names it."""
    target = request.prompt_options.target_language
    if spec.source is None or target is None or target not in spec.source.target_ids:
        return spec.forced_tokens
    return replace(spec.forced_tokens, first=(spec.source.target_ids[target],))


def choice_texts(request: GenerateRequest, prepared: PreparedPrompts, model: StepModel) -> list[ChoiceText]:
    """Return the empty text of each choice, in order of their index."""
    texts = None if request.sampling.top_logprobs is None else model.tokenizer
    marks = request.text_format.marks
    shown = model.tokenizer.special_tokens(marks) if marks else {}
    beginning = THINK if prepared.is_opened else ""
    assert model.spec.generation is not None
    has_source = model.spec.generation.source is not None

    def stream(prompt_ids: tuple[int, ...]) -> TokenStream:
        # The text of a model with an encoder continues none.
        own = model.tokenizer.stream(() if has_source else prompt_ids[-_MAX_TOKENS_BEFORE:])
        return MarkedStream(own, shown, beginning) if marks else own

    return [
        ChoiceText(
            i * request.num_choices + choice,
            stream(prompt_ids),
            prepared.stops,
            texts,
            request.stopping.min_tokens,
            ReasoningCount() if request.text_format.thinks else None,
            lists_end=request.prompt_options.is_echoed,
        )
        for i, prompt_ids in enumerate(prepared.prompts)
        for choice in range(request.num_choices)
    ]


def shown_prompts(
    request: GenerateRequest, prepared: PreparedPrompts, tokenizer: GenerationTokenizer
) -> dict[int, ShownPrompt]:
    """Return the prompt of each choice, for a response that shows it, by the index of the choice."""
    return {
        i * request.num_choices + choice: ShownPrompt(
            prompt_ids, prepared.echoes[i] if prepared.echoes else "", request.prompt_options.top_logprobs, tokenizer
        )
        for i, prompt_ids in enumerate(prepared.prompts)
        for choice in range(request.num_choices)
    }
