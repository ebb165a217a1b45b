"""Compute the steps of a model with an encoder and a decoder, over the blocks of one KV cache."""

import torch

from frameworks.generation.media import PromptMedia
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheSlots, KeyValueCache
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker, TextBlocks
from frameworks.pytorch.generation.encoder_decoder.attention import TokenRows, slots_of
from frameworks.pytorch.generation.encoder_decoder.decoder import EncoderDecoder
from frameworks.pytorch.generation.sampling.beam_search import Beams
from frameworks.scheduling.steps.sequence import StepPart, StepPlan


class EncoderDecoderRunner:
    """A StepRunner: one token of each sequence in one pass, then those of several tokens, one after another.

    A sequence that begins runs its encoder, unless the keys and values of its source are cached. A sequence with beams
    has a row for each of them, as its `cache` says, a Beams.
    """

    def __init__(self, model: EncoderDecoder, cache: KeyValueCache, layouts: LayoutMaker) -> None:
        self.model = model
        self.cache = cache
        self._layouts = layouts

    @property
    def block_bytes(self) -> int:
        return self.cache.shape.token_bytes * BLOCK_TOKENS

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits, [sum of num_logits, vocabulary]."""
        if plan.copies:
            self.cache.copy(plan.copies)
        self.cache.clear([block for part in plan.parts for block in _begun_blocks(part)])
        copies = [copy for part in plan.parts if part.sequence.cache is not None for copy in part.sequence.cache.copies]
        if copies:
            self.cache.copy(copies)
        return self.compute(plan.parts)

    def compute(self, parts: list[StepPart]) -> torch.Tensor:
        """Compute the parts of a plan; return logits [sum of num_logits, vocabulary], of beams a row for each."""
        singles = [part for part in parts if self._is_single(part)]
        for part in singles:
            if part.start < _media(part).padded_source:
                self.model.write_source(self._encode(part), self._source_writes(part))
        if len(singles) == len(parts):
            return self._decode(singles)
        counts = [1 if part.sequence.cache is None else part.sequence.width for part in singles]
        rows = iter(torch.split(self._decode(singles), counts) if singles else ())
        return torch.cat([next(rows) if self._is_single(part) else self._begin(part) for part in parts])

    def _is_single(self, part: StepPart) -> bool:
        """Return whether one token of a text is computed, or of each beam, which others of the step join.

        It may be the first one, where the states of the source are written without it.
        """
        shared = _media(part).padded_source
        if part.sequence.request.is_aligned:
            return False
        is_one = part.start + part.num_tokens - max(part.start, shared) == 1
        return is_one and part.completes and (part.start >= shared or self.model.writes_sources_apart)

    def _encode(self, part: StepPart) -> torch.Tensor:
        """Return the states of the source of a sequence, [1, source tokens, hidden size]."""
        return self.model.encode(_media(part).inputs)

    def _source_writes(self, part: StepPart) -> CacheSlots:
        padded = _media(part).padded_source
        return slots_of(self.cache, part.sequence.blocks, 0, padded)

    def _decode(self, parts: list[StepPart]) -> torch.Tensor:
        """Return the logits after one token of each sequence, or of each of its beams, [rows, vocabulary]."""
        own, sources, blocks, positions, token_ids = [], [], [], [], []
        for part in parts:
            media = _media(part)
            num_blocks = media.padded_source // BLOCK_TOKENS
            position = part.start + part.num_tokens - 1 - media.padded_source
            held = part.sequence.blocks
            # Beams begin with the first block of each column.
            texts, ids = [held[num_blocks :: part.sequence.width]], part.token_ids[-1:]
            beams: Beams | None = part.sequence.cache
            if beams is not None:
                if len(beams.blocks[0]) * BLOCK_TOKENS <= position:
                    beams.add_column(held[-part.sequence.width :])
                texts, ids = beams.blocks, beams.last_ids
            for text in texts:
                own.append(TextBlocks(text, position + 1))
                blocks.append(text[position // BLOCK_TOKENS])
            sources += [TextBlocks(held[:num_blocks], media.source_tokens)] * len(texts)
            positions += [position] * len(texts)
            token_ids += ids
        device = self.cache.device
        rows = TokenRows(
            torch.tensor(positions, device=device),
            self.cache.slots(blocks, positions),
            own=self._layouts.decode_rows(own),
            source=self._layouts.decode_rows(sources),
        )
        return self.model.logits(torch.tensor(token_ids, device=device), rows, None, None)

    def _begin(self, part: StepPart) -> torch.Tensor:
        """Return the logits after the tokens of a sequence, [num_logits, vocabulary]. Its source is read if needed."""
        media, device = _media(part), self.cache.device
        num_blocks = media.padded_source // BLOCK_TOKENS
        source, own = part.sequence.blocks[:num_blocks], part.sequence.blocks[num_blocks :: part.sequence.width]
        start = max(0, part.start - media.padded_source)
        token_ids = part.token_ids[max(0, media.padded_source - part.start) :]
        rows = TokenRows(
            torch.arange(start, start + len(token_ids), device=device),
            slots_of(self.cache, own, start, len(token_ids)),
            blocks=torch.tensor(own[: -(-(start + len(token_ids)) // BLOCK_TOKENS)], device=device),
            start=start,
            source_blocks=torch.tensor(source, device=device),
            num_source=media.source_tokens,
        )
        states: torch.Tensor | None = None
        if part.start < media.padded_source:
            states, rows.source_writes = self._encode(part), self._source_writes(part)
        is_aligned = part.sequence.request.is_aligned
        self.model.attention.aligned = [] if is_aligned else None
        wanted = min(part.num_logits, len(token_ids))
        kept = torch.arange(len(token_ids) - max(1, wanted), len(token_ids), device=device)
        logits = self.model.logits(torch.tensor(token_ids, device=device), rows, states, kept)
        if is_aligned:
            part.sequence.alignment = self.model.alignment()
        return logits[len(logits) - wanted :]


def _media(part: StepPart) -> PromptMedia:
    media = part.sequence.request.media
    assert media is not None, "each sequence of such a model has a source"
    return media


def _begun_blocks(part: StepPart) -> list[int]:
    """Return the blocks of a text that the part starts and does not fill: masked values must not be NaN."""
    shared = _media(part).padded_source
    first, end = max(0, part.start - shared), part.start + part.num_tokens - shared
    column = end // BLOCK_TOKENS
    if not first <= column * BLOCK_TOKENS < end:
        return []
    width = part.sequence.width
    first_block = shared // BLOCK_TOKENS + column * width
    return part.sequence.blocks[first_block : first_block + width]
