"""Prompt lookup finds what a plain search finds, whatever the tokens and however the text grows."""

from collections.abc import Sequence as Rows

from hypothesis import given
from hypothesis import strategies as st

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.speculation.proposals import PromptLookup, Wish
from frameworks.scheduling.steps.sequence import Sequence


def sequence_of(token_ids: Rows[int], sequence_id: int = 1) -> Sequence:
    return Sequence(SequenceRequest(sequence_id, tuple(token_ids), 100, Sampling(), priority=5), 0.0)


def searched(token_ids: list[int], most: int) -> tuple[int, ...]:
    """Return the proposal by a plain search: of three tokens, then of two, the latest first."""
    for count in (3, 2):
        last = token_ids[-count:]
        for start in range(len(token_ids) - count - 1, -1, -1):
            if token_ids[start : start + count] == last:
                whole = list(token_ids)
                for place in range(most):
                    whole.append(whole[start + count + place])
                return tuple(whole[len(token_ids) :])
    return ()


# The bytes of 256 and of 65,536 are those of 1, shifted by one and two tokens' parts.
tokens = st.lists(st.sampled_from([0, 1, 2, 256, 257, 65536, 2**31]), min_size=1, max_size=40)


@given(tokens, st.lists(tokens, max_size=3), st.integers(1, 9))
def test_proposal_equals_that_of_plain_search(prompt: list[int], later: list[list[int]], most: int) -> None:
    lookup, sequence = PromptLookup(), sequence_of(prompt)
    for more in ([], *later):
        sequence.token_ids += more
        assert lookup.propose([Wish(sequence, most)]) == [searched(sequence.token_ids, most)]


def test_unknown_ending_has_no_proposal() -> None:
    assert PromptLookup().propose([Wish(sequence_of([1, 2, 3, 4, 5]), 4)]) == [()]


def test_loop_is_continued() -> None:
    assert PromptLookup().propose([Wish(sequence_of([9, 1, 2, 1, 2, 1, 2]), 5)]) == [(1, 2, 1, 2, 1)]


def test_longer_match_is_preferred_to_later_one() -> None:
    text = [1, 2, 3, 40, 7, 2, 3, 50, 1, 2, 3]
    assert PromptLookup().propose([Wish(sequence_of(text), 2)]) == [(40, 7)]


def test_sequences_are_searched_apart_and_forgotten() -> None:
    lookup = PromptLookup()
    first, second = sequence_of([1, 2, 3, 1, 2]), sequence_of([1, 2, 4, 1, 2], 2)
    assert lookup.propose([Wish(first, 1), Wish(second, 1)]) == [(3,), (4,)]
    lookup.forget(1)
    assert lookup.propose([Wish(sequence_of([5, 6, 7, 5, 6]), 1)]) == [(7,)], "the id of an ended sequence is new"
