"""The cache of compiled constraints stays within its bytes, and counts those that texts use."""

import gc
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput, Overloaded
from frameworks.generation.sequences import TokenMatcher
from frameworks.generation.types import Constraint
from frameworks.pytorch.generation.sampling import token_masks
from frameworks.pytorch.generation.sampling.grammar_cache import Grammar, GrammarCache
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from tests.frameworks.pytorch.generation.sampling_cases import ENDS, SIZE, allowed, choice

MIB = 1 << 20


class FakeMatcher:
    """A compiled constraint of a chosen size; its copies share the grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def copy(self) -> "FakeMatcher":
        return FakeMatcher(self.grammar)

    def fill_mask(self, mask: object) -> None:
        raise NotImplementedError

    def accept(self, token_id: int) -> None:
        raise NotImplementedError

    def num_allowed(self, token_ids: object) -> int:
        raise NotImplementedError


def matcher(num_bytes: int) -> FakeMatcher:
    return FakeMatcher(Grammar(num_bytes, max_bytes=100))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.booleans()), max_size=30))
def test_bytes_are_bounded_and_those_in_use_counted(steps: list[tuple[int, int, bool]]) -> None:
    cache = GrammarCache(100)
    used: list[FakeMatcher] = []
    for number, num_bytes, is_used in steps:
        constraint = Constraint("regex", str(number))
        beginning = cache.find(constraint)
        if beginning is None:
            if sum({id(each.grammar): each.grammar.num_bytes for each in used}.values()) >= 100:
                with pytest.raises(Overloaded, match="the constraints of the texts in progress take"):
                    cache.check_room()
                used.clear()
            cache.check_room()
            cache.add(constraint, matcher(num_bytes))
            beginning = cache.find(constraint)
        assert beginning is not None
        if is_used:
            used.append(FakeMatcher(beginning.grammar))
        del beginning
        in_use = sum({id(each.grammar): each.grammar.num_bytes for each in used}.values())
        assert cache.num_bytes <= max(100, in_use) + 60
    used.clear()
    cache.check_room()
    assert cache.num_bytes < 100


def test_masks_count_up_to_the_bound_of_states() -> None:
    grammar = Grammar(MIB, max_bytes=2 * MIB)
    assert grammar.num_bytes == MIB
    grammar.num_masks = 100
    assert MIB < grammar.num_bytes < 2 * MIB
    grammar.num_masks = 100_000
    assert grammar.num_bytes == 2 * MIB
    assert Grammar(3 * MIB, max_bytes=2 * MIB).num_bytes == 3 * MIB


def use_many(masks: TokenMasks, in_use: list[TokenMatcher]) -> None:
    for number in range(100):
        in_use.append(masks.compile(choice(f"a{number}")))  # noqa: PERF401 - those before an error count


def test_constraints_in_use_refuse_further_ones(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_masks, "_MAX_CACHED_BYTES", 1 * MIB)
    masks = TokenMasks(tokenizer, SIZE, ENDS)
    in_use: list[TokenMatcher] = []
    with pytest.raises(Overloaded, match=r"constraint: .* of 1 MiB; try again"):
        use_many(masks, in_use)
    assert 3 < len(in_use) < 20
    # A constraint that is cached is shared, and needs no room. All others start when a text has ended.
    in_use.clear()
    gc.collect()
    assert allowed(masks.compile(choice("b")))


def test_measured_bytes_are_counted(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compilation takes 10 MiB; the cache holds as many as its bytes allow."""
    measured = count(0, 10 * MIB)
    monkeypatch.setattr(token_masks, "in_use_bytes", lambda: next(measured))
    masks = TokenMasks(tokenizer, SIZE, ENDS)
    masks.compile(choice("a"))
    assert masks.cache.num_bytes == 10 * MIB
    for number in range(40):
        masks.compile(choice(f"b{number}"))
    assert len(masks.cache) == 25
    assert masks.cache.num_bytes == 250 * MIB
    # A model is loaded at the same time, so the measurement says nothing; then there is no measurement.
    for bytes_before, bytes_after in ((0, 1 << 40), (1 << 40, 0), (None, None)):
        taken = iter((bytes_before, bytes_after))
        monkeypatch.setattr(token_masks, "in_use_bytes", lambda taken=taken: next(taken))
        before = masks.cache.num_bytes
        masks.cache.drop(choice("b39"))
        masks.compile(choice(f"c{bytes_before}"))
        assert masks.cache.num_bytes <= before + token_masks._MAX_COMPILED_BYTES


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("choice", '["' + '", "'.join(f"a{i}b{i * i}" for i in range(3000)) + '"]'),
        Constraint("regex", "|".join(f"[a-m]{{2,{90 + i}}}x{i}" for i in range(500))),
    ],
    ids=["many choices", "long pattern"],
)
def test_single_constraint_is_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, constraint: Constraint
) -> None:
    monkeypatch.setattr(token_masks, "_MAX_PATTERN_FUEL", 5_000)
    masks = TokenMasks(tokenizer, SIZE, ENDS)
    with pytest.raises(InvalidInput, match=r"^constraint: this (choice|regex) cannot be used: .*; simplify it$"):
        masks.compile(constraint)
    assert masks.cache.num_bytes == 0
