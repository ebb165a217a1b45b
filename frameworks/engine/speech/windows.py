"""Generate the tokens of the windows of one sound, each as a sequence of a generating model."""

import itertools
import math
import secrets
import time
from dataclasses import replace

from frameworks.engine.contract import Run
from frameworks.engine.generation_limits import check_blocks
from frameworks.generation.sequences import NO_TOKEN, Alignment, GeneratedToken, SequenceRequest
from frameworks.generation.sources import SourcePrompt, blocks_of
from frameworks.generation.speech.spec import SpeechOptions, SpeechSpec
from frameworks.generation.speech.transcription import WindowText
from frameworks.generation.types import NOT_FORCED, BeamSearch, Sampling, TimestampRules
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.token_feed import TokenFeed

_SEEDS = 2**63
_sequence_ids = itertools.count(1)


class Windows:
    """Generate the tokens of windows of one sound, a sequence each. A prompt begins with the source of its window."""

    def __init__(self, spec: SpeechSpec, dispatcher: StepDispatcher, run: Run, options: SpeechOptions) -> None:
        self._spec = spec
        self._dispatcher = dispatcher
        self._run = run
        self._options = options
        self._seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed

    async def language_id(self, source: SourcePrompt) -> int:
        """Return the token of the most likely language."""
        ids = tuple(sorted(self._spec.language_ids.values()))
        sampling = Sampling(temperature=0, allowed_ids=ids)
        [token], _ = await self._read(source.followed_by(self._spec.start_ids), 1, sampling)
        return token.token_id

    async def no_speech_prob(self, before: SourcePrompt) -> float:
        """Return the probability of no speech. `before`: the prompt without the tokens that begin the text."""
        sampling = Sampling(temperature=0, allowed_ids=(self._spec.timestamps.no_speech_id,), top_logprobs=0)
        [token], _ = await self._read(before.followed_by(self._spec.start_ids), 1, sampling)
        assert token.logprob is not None
        return math.exp(token.logprob)

    async def text(self, prompt: SourcePrompt, max_tokens: int, temperature: float) -> WindowText:
        """Return the text of a window. Raises InvalidInput for beams that do not fit the KV cache."""
        sampling = self._sampling(temperature)
        if sampling.beams is not None:
            self._check_beams(sampling.beams.num_beams, len(prompt.token_ids) - prompt.media.padded_source + max_tokens)
        tokens, _ = await self._read(prompt, max_tokens, sampling)
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        mean = sum(logprobs) / len(logprobs) if logprobs else None
        return WindowText(tuple(token.token_id for token in tokens), temperature, mean)

    async def alignment(self, prompt: SourcePrompt, tokens: tuple[int, ...]) -> Alignment | None:
        """Return the attention of the tokens of a text to the states of its window; None without tokens.

        As in transformers, the last token has none: it was not read by the model.
        """
        if not tokens:
            return None
        _, feed = await self._read(prompt.followed_by(tokens), 0, Sampling(temperature=0), is_aligned=True)
        [alignment] = feed.alignments.values()
        return alignment[:, -len(tokens) :]

    def _sampling(self, temperature: float) -> Sampling:
        spec, options = self._spec, self._options
        timestamps, end_id = spec.timestamps, min(spec.generation.eos_token_ids)
        rules = TimestampRules(timestamps.first_id, end_id, timestamps.max_initial, options.is_timed)
        sampling = replace(spec.generation.sampling, temperature=temperature, seed=self._seed, timestamps=rules)
        if options.num_beams is not None:
            sampling = replace(sampling, beams=BeamSearch(options.num_beams) if options.num_beams > 1 else None)
        if temperature > 0 or options.logprob_threshold is not None:
            sampling = replace(sampling, beams=None)
        asks = options.needs_scores or options.logprob_threshold is not None
        return replace(sampling, top_logprobs=0) if asks and sampling.beams is None else sampling

    def _check_beams(self, num_beams: int, num_tokens: int) -> None:
        """Raise InvalidInput for beams that do not fit the KV cache alone: such a search would never end."""
        spec = self._spec
        needed = blocks_of(spec.source_tokens, num_tokens, num_beams, spec.block_tokens)
        check_blocks("parameters.num_beams", num_beams, num_tokens, needed, spec.num_blocks)

    async def _read(
        self, prompt: SourcePrompt, max_tokens: int, sampling: Sampling, *, is_aligned: bool = False
    ) -> tuple[list[GeneratedToken], TokenFeed]:
        """Return the tokens after a prompt, with the one that ends them, and the feed at its end."""
        run, generation = self._run, self._spec.generation
        request = SequenceRequest(
            next(_sequence_ids),
            prompt.token_ids,
            max_tokens,
            sampling,
            frozenset() if sampling.allowed_ids else generation.eos_token_ids,
            priority=run.priority,
            arrived_s=time.perf_counter(),
            is_read_whole=True,
            tenant=run.permit.tenant,
            is_seeded=self._options.seed is not None,
            forced_tokens=NOT_FORCED if sampling.allowed_ids else generation.forced_tokens,
            media=prompt.media,
            is_aligned=is_aligned,
        )
        feed = self._dispatcher.open([request], run.permit.begin)
        opened_s = time.perf_counter()
        tokens: list[GeneratedToken] = []
        try:
            while arrived := await feed.read():
                tokens += [each.token for each in arrived if each.token.token_id != NO_TOKEN]
                if run.permit.token_budget is not None:
                    run.permit.token_budget.use(len(arrived))
        finally:
            feed.close()
            now_s = time.perf_counter()
            begun_s = now_s if feed.begun_s is None else max(feed.begun_s, opened_s)
            run.timings.queued(opened_s, begun_s)
            run.timings.computed(begun_s, now_s)
        return tokens, feed
