"""Compiled constraints are shared, bounded and evicted; masks leave other rows alone."""

import threading
from typing import Any

import pytest
import torch
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Constraint
from frameworks.pytorch.generation.sampling import token_masks
from frameworks.pytorch.generation.sampling.constraint_grammar import grammar_of_constraint
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from tests.frameworks.pytorch.generation.sampling_cases import (
    CPU,
    ENDS,
    SIZE,
    allowed,
    choice,
    id_of,
    ids,
    random_logits,
    sample,
    state_of,
)


class TestCompiling:
    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Record the grammars that are compiled."""
        grammars: list[str] = []
        original = grammar_of_constraint

        def counted(constraint: Constraint) -> str:
            grammars.append(constraint.definition)
            return original(constraint)

        monkeypatch.setattr(token_masks, "grammar_of_constraint", counted)
        return grammars

    def test_equal_constraints_are_compiled_once(self, tokenizer: Tokenizer, compiled: list[str]) -> None:
        masks = TokenMasks(tokenizer, SIZE, ENDS)
        first = masks.compile(choice("ab"))
        first.accept(id_of(tokenizer, "a"))
        assert allowed(masks.compile(choice("ab"))) != allowed(first)
        threads = [threading.Thread(target=masks.compile, args=(choice("abc"),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(compiled) == 2

    def test_vocabulary_is_read_once(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        original, sizes = LLTokenizer, []

        def counted(text: str, size: int, ends: list[int]) -> Any:
            sizes.append(size)
            return original(text, size, ends)

        monkeypatch.setattr(token_masks, "LLTokenizer", counted)
        masks = TokenMasks(tokenizer, SIZE, ENDS)
        assert not sizes, "not before it is needed"
        masks.prepare()
        masks.prepare()
        masks.compile(choice("a"))
        assert sizes == [SIZE]
        TokenMasks(tokenizer, SIZE, []).prepare()

    def test_least_recently_used_constraint_is_evicted(
        self, tokenizer: Tokenizer, compiled: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Less than three constraints are at least counted with, and more than two of these take.
        monkeypatch.setattr(token_masks, "_MAX_CACHED_BYTES", 3 * token_masks._LEAST_COMPILED_BYTES)
        monkeypatch.setattr(token_masks, "in_use_bytes", lambda: 0)
        masks = TokenMasks(tokenizer, SIZE, ENDS)
        for text in ("a", "b", "a", "c", "a"):
            masks.compile(choice(text))
        assert len(compiled) == 3
        masks.compile(choice("b"))
        assert len(compiled) == 4

    def test_constraint_beyond_its_bound_is_recompiled(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lexer's states are shared and exceed their bound: one sequence fails, later ones start."""
        monkeypatch.setattr(token_masks, "_MAX_LEXER_STATES", 300)
        masks = TokenMasks(tokenizer, SIZE, ENDS)
        constraint = Constraint("regex", r"(?s).*a.{14}b")
        for seed in range(2):
            state = state_of(SIZE, seed=seed, request={"matcher": masks.compile(constraint)})
            for step in range(500):
                (token,) = Sampler(CPU, SIZE).sample(random_logits(1, SIZE, step, scale=0.1), [state])
                if isinstance(token, Exception):
                    break
                state.accept(token.token_id)
            assert isinstance(token, InvalidInput)
            assert "too many states" in token.message
            assert state.num_generated > 3

    def test_unconstrained_rows_are_unchanged(self, masks: TokenMasks) -> None:
        logits = random_logits(3, SIZE)
        free = [state_of(SIZE, seed=seed, top_logprobs=2) for seed in range(2)]
        bound = state_of(SIZE, request={"matcher": masks.compile(Constraint("json_object"))})
        together = sample(logits, free[0], bound, free[1])
        assert [together[0], together[2]] == sample(logits[[0, 2]], *free)

    def test_half_precision_logits_are_masked(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        matcher = masks.compile(choice("x"))
        logits = torch.full((1, SIZE), 60_000.0, dtype=torch.float16)
        assert ids(logits, state_of(SIZE, request={"matcher": matcher})) == [id_of(tokenizer, "x")]
