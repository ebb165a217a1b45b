"""The draft model's texts: they follow the model's, share prefixes, and return blocks when some are missing."""

from typing import Any

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.speculation.draft_sequences import DraftSequences
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan

BLOCK_TOKENS = 4


def text(number: int, *token_ids: int, **more: Any) -> Sequence:
    """Return a sequence of the model."""
    return Sequence(SequenceRequest(number, token_ids, 100, Sampling(), priority=5, **more), 0.0)


def begun(texts: DraftSequences, sequence: Sequence, wished: set[int] | None = None) -> Sequence | None:
    """Return the draft's sequence after all of its tokens were computed."""
    plan = StepPlan()
    ours = texts.of(sequence, plan, wished or {sequence.sequence_id})
    if ours is not None:
        texts.advance(ours, ours.num_uncomputed_tokens)
    texts.check_integrity()
    return ours


def propose(texts: DraftSequences, ours: Sequence, *token_ids: int) -> None:
    """Add proposed tokens, of which all but the last are computed."""
    for place, token_id in enumerate(token_ids):
        ours.token_ids.append(token_id)
        assert texts.extend(ours, {ours.sequence_id})
        if place < len(token_ids) - 1:
            texts.advance(ours, 1)


def test_right_tokens_stay_computed() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    theirs = text(1, *range(5))
    ours = begun(texts, theirs)
    assert ours is not None
    propose(texts, ours, 50, 51, 52)
    theirs.token_ids += [50, 51, 60]
    assert texts.of(theirs, StepPlan(), {1}) is ours
    assert (ours.token_ids, ours.num_computed_tokens) == (theirs.token_ids, 7)


def test_wrong_tokens_are_computed_again() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    theirs = text(1, *range(5))
    ours = begun(texts, theirs)
    assert ours is not None
    propose(texts, ours, 50, 51, 52)
    theirs.token_ids += [50, 60]
    assert texts.of(theirs, StepPlan(), {1}) is ours
    assert (ours.token_ids, ours.num_computed_tokens) == (theirs.token_ids, 6)
    # All of them were right, but the last one was never computed.
    texts.advance(ours, 1)
    propose(texts, ours, 70, 71)
    theirs.token_ids += [70, 71, 72]
    texts.of(theirs, StepPlan(), {1})
    assert ours.num_uncomputed_tokens == 2


def test_last_token_is_always_computed_again() -> None:
    """The model had no room for the proposed tokens, and chose one of them itself."""
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    theirs = text(1, *range(5))
    ours = begun(texts, theirs)
    assert ours is not None
    propose(texts, ours, 50, 51)
    theirs.token_ids += [50]
    texts.of(theirs, StepPlan(), {1})
    assert ours.num_uncomputed_tokens == 1


def test_blocks_of_wrong_tokens_are_not_shared() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    first = text(1, *range(3))
    ours = begun(texts, first)
    assert ours is not None
    propose(texts, ours, 3, 4, 5)
    other = begun(texts, text(2, *range(6)), {1, 2})
    assert other is not None
    plan = StepPlan()
    third = texts.of(text(3, *range(6)), plan, {1, 2, 3})
    texts.take_copies(plan)
    assert third is not None
    assert [copy.source for copy in plan.copies] == [other.blocks[0]], "of the text whose tokens are known"


def test_prefix_of_ended_text_is_copied() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    begun(texts, text(1, *range(10)))
    texts.forget(1)
    texts.forget(1)
    plan = StepPlan()
    ours = texts.of(text(2, *range(10), adapter_id=3), plan, {2})
    texts.take_copies(plan)
    assert ours is not None
    assert ours.num_computed_tokens == 8
    assert [copy.destination for copy in plan.copies][-2:] == ours.blocks[:2]
    assert len(texts) == 1


def test_text_waits_while_another_computes_its_block() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    plan = StepPlan()
    first = texts.of(text(1, *range(10)), plan, {1, 2})
    assert first is not None
    assert texts.of(text(2, *range(10)), plan, {1, 2}) is None
    texts.advance(first, 10)
    second = texts.of(text(2, *range(10)), plan, {1, 2})
    assert second is not None
    assert second.num_computed_tokens == 8


def test_missing_blocks_are_those_of_other_texts() -> None:
    texts = DraftSequences(BlockPool(4, BLOCK_TOKENS))
    assert begun(texts, text(1, *range(8))) is not None
    assert begun(texts, text(2, *range(20, 26)), {1, 2}) is not None
    assert begun(texts, text(3, *range(40, 45)), {1, 2, 3}) is None
    assert len(texts) == 2
    third = begun(texts, text(3, *range(40, 45)), {2, 3})
    assert third is not None
    third.token_ids += range(4)
    assert not texts.extend(third, {2, 3})
    assert texts.extend(third, {3}), "the second text returns its blocks"
    texts.clear()
    texts.check_integrity()
    assert (len(texts), texts.pool.num_free) == (0, 4)


def test_step_computes_the_new_tokens_only() -> None:
    texts = DraftSequences(BlockPool(8, BLOCK_TOKENS))
    theirs = text(1, *range(5), prompt_logprobs=2)
    ours = begun(texts, theirs)
    theirs.token_ids += [9]
    plan = StepPlan()
    assert texts.of(theirs, plan, {1}) is ours
    assert ours is not None
    assert plan.add_part(ours, 10) == 1
    assert plan.parts == [StepPart(ours, 5, 1)], "the draft model scores no prompts"
