"""The source of a model with an encoder: a sequence begins with it, and its text follows the tokens of the decoder."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from frameworks.generation.media import ImageGroup, PromptMedia

SourceTask = Literal["summarization", "text2text-generation", "translation"]
SOURCE_TASKS: tuple[SourceTask, ...] = get_args(SourceTask)
_TRANSLATE = ("Marian", "M2M100", "MBart")
_SUMMARIZE = ("Pegasus", "BigBirdPegasus")
"""Begins of the classes that were trained for one task."""
_PADDING = 0
"""The token id behind a source, up to a whole block. No layer reads it."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """How a model with an encoder reads a prompt.

    `task`: of transformers. `max_tokens`: of a source. `decoder_prompt`: the tokens that the text follows.
    `block_tokens`: a source takes whole blocks of the KV cache. `max_new_tokens`, `min_new_tokens`: of a text for which
    the request states none; None: up to the end of the context. `source_languages`: those that a request may name.
    `target_ids`: the first token of a text in each language. `named_targets`: languages that the tokenizer reads in the
    source.
    """

    task: SourceTask
    max_tokens: int
    decoder_prompt: tuple[int, ...]
    block_tokens: int
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    source_languages: tuple[str, ...] = ()
    target_ids: Mapping[str, int] = field(default_factory=dict, hash=False)
    named_targets: frozenset[str] = frozenset()
    num_blocks: int = 1 << 30
    """Blocks of the KV cache, of all texts."""

    def blocks_of(self, source_tokens: int, new_tokens: int, num_beams: int) -> int:
        """Return the blocks of a source and of the longest texts of its beams."""
        return blocks_of(source_tokens, len(self.decoder_prompt) + new_tokens, num_beams, self.block_tokens)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages of a text that a request may name."""
        return (*self.target_ids, *sorted(self.named_targets))

    def prompt_of(self, source_ids: tuple[int, ...]) -> "SourcePrompt":
        """Return the prompt of a sequence whose source has these tokens."""
        inputs = {"input_ids": np.asarray(source_ids, np.int64)[None]}
        source = source_of_inputs(inputs, len(source_ids), self.block_tokens, source_ids)
        return source.followed_by(self.decoder_prompt)


class SourcePrompt(NamedTuple):
    """The prompt of a sequence: its source, padded to whole blocks, then the tokens of the decoder."""

    token_ids: tuple[int, ...]
    media: PromptMedia

    def followed_by(self, decoder_ids: tuple[int, ...]) -> "SourcePrompt":
        """Return the prompt with further tokens of the decoder."""
        token_ids = (*self.token_ids, *decoder_ids)
        return SourcePrompt(token_ids, replace(self.media, num_tokens=len(token_ids)))


def source_of_inputs(
    inputs: Mapping[str, "np.ndarray[Any, Any]"],
    source_tokens: int,
    block_tokens: int,
    source_ids: tuple[int, ...] = (),
) -> SourcePrompt:
    """Return a source that no tokens of the decoder follow yet. `inputs`: of the encoder, each a batch of 1.

    `source_tokens`: states that the encoder returns. `source_ids`: empty for a source that has no tokens of its own,
    such as a sound.
    """
    padded = -(-source_tokens // block_tokens) * block_tokens
    prompt_ids = (*source_ids, *[_PADDING] * (padded - len(source_ids)))
    # Cached blocks are found by the whole source: each state of an encoder depends on all of it.
    digest = hashlib.blake2b(digest_size=8)
    for each in inputs.values():
        digest.update(np.ascontiguousarray(each).data)
    group = ImageGroup(-1 - int.from_bytes(digest.digest()), inputs, ((0, padded),))
    media = PromptMedia(padded, (group,), inputs, is_whole=True, source_tokens=source_tokens, padded_source=padded)
    return SourcePrompt(prompt_ids, media)


def blocks_of(source_tokens: int, text_tokens: int, num_beams: int, block_tokens: int) -> int:
    """Return the blocks of the KV cache that a source and the texts of its beams take."""
    source, text = (-(-each // block_tokens) for each in (source_tokens, text_tokens))
    return source + num_beams * text


def source_task(named: str | None, architecture: str, config: Mapping[str, Any]) -> SourceTask:
    """Return the task of a model with an encoder. `named`: of its entry. `config`: its config.json, whose settings for
    the pipelines of transformers may show the only one that it was trained for.
    """
    if named in SOURCE_TASKS:
        return named
    if architecture.startswith(_TRANSLATE):
        return "translation"
    if architecture.startswith(_SUMMARIZE):
        return "summarization"
    of_pipelines = config.get("task_specific_params")
    kinds = {str(name).partition("_")[0] for name in of_pipelines} if isinstance(of_pipelines, dict) else set()
    for task in SOURCE_TASKS:
        if kinds == {task}:
            return task
    return "text2text-generation"
