"""Blocks of the key/value cache: allocated from below, cached above, matched by all tokens up to their end."""

import pytest

from frameworks.scheduling.steps.blocks import BlockPool, Chain, Copy, PrefixMatch

A, B, C, D = (1, 2), (3, 4), (5, 6), (7, 8)


def filled(pool: BlockPool, *contents: tuple[int, int]) -> list[int]:
    """Return the blocks of a sequence of these tokens, all computed."""
    blocks = pool.allocate(len(contents))
    assert blocks is not None
    pool.cache_full_blocks(Chain(), sum(contents, ()), 2 * len(contents), blocks)
    return blocks


def found(pool: BlockPool, *token_ids: int) -> list[int]:
    return pool.match(token_ids).blocks


class TestAllocate:
    def test_allocate_returns_lowest_blocks(self) -> None:
        pool = BlockPool(5, 2)
        assert pool.allocate(2) == [0, 1]
        assert pool.allocate(2) == [2, 3]
        assert (pool.num_blocks, pool.num_free, pool.num_used, pool.num_cached) == (5, 1, 4, 0)
        pool.release([1])
        pool.release([3])
        assert pool.allocate(2) == [1, 3]

    def test_allocate_all_or_nothing(self) -> None:
        pool = BlockPool(3, 2)
        pool.allocate(1)
        assert pool.allocate(3) is None
        assert pool.num_free == 2
        assert pool.allocate(2) == [1, 2]
        assert pool.allocate(0) == []
        assert pool.allocate(1) is None

    def test_least_recently_used_block_evicted_first(self) -> None:
        pool = BlockPool(3, 2)
        for content in (A, B, C):
            pool.release(filled(pool, content))
        assert (pool.num_cached, pool.num_free) == (3, 3)
        pool.match((*A, 0))
        pool.allocate(1)
        assert not found(pool, *B, 0)
        pool.allocate(1)
        assert not found(pool, *C, 0)
        assert found(pool, *A, 0)

    def test_end_of_text_evicted_before_beginning(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B, C))
        pool.allocate(1)
        assert len(found(pool, *A, *B, *C, 0)) == 2
        pool.allocate(1)
        assert len(found(pool, *A, *B, *C, 0)) == 1

    def test_end_evicted_first_after_match(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B))
        pool.release(filled(pool, C))
        assert len(found(pool, *A, *B, 0)) == 2
        pool.allocate(2)
        assert len(found(pool, *A, *B, 0)) == 1
        assert not found(pool, *C, 0)

    def test_matched_prefix_counts_as_used(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B))
        pool.release(filled(pool, C))
        kept = found(pool, *A, *D, 0)
        assert len(kept) == 1
        pool.allocate(2)
        assert found(pool, *A, *D, 0) == kept
        assert not found(pool, *C, 0)

    def test_end_evicted_first_after_allocate_with_keep(self) -> None:
        pool = BlockPool(4, 2)
        pool.release(filled(pool, A, B, C))
        blocks = found(pool, *A, *B, *C, 0)
        taken = pool.allocate(1, keep=blocks)
        assert taken is not None
        pool.allocate(1)
        assert found(pool, *A, *B, *C, 0) == blocks[:2]

    def test_blocks_to_copy_are_not_evicted(self) -> None:
        pool = BlockPool(3, 2)
        for content in (A, B, C):
            pool.release(filled(pool, content))
        keep = found(pool, *A, 0)
        pool.match((*C, 0))
        assert pool.allocate(3, keep) is None
        assert pool.allocate(2, keep) is not None
        assert found(pool, *A, 0) == keep
        assert pool.num_cached == 1

    def test_held_blocks_in_keep_need_no_block(self) -> None:
        pool = BlockPool(3, 2)
        held = filled(pool, A)
        assert pool.allocate(2, keep=held) == [1, 2]


class TestMatch:
    def test_match_by_tokens_and_previous_block(self) -> None:
        pool = BlockPool(4, 2)
        blocks = filled(pool, A, B)
        assert pool.match((*A, *B, 0)) == PrefixMatch(blocks, is_pending=False)
        assert found(pool, *A, *C, 0) == blocks[:1]
        assert found(pool, *B, 0) == []
        assert found(pool, *A, 3) == blocks[:1]

    @pytest.mark.parametrize(("length", "known"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)])
    def test_match_excludes_last_prompt_token(self, length: int, known: int) -> None:
        """At least one token must be computed, or there are no logits to sample from."""
        pool = BlockPool(4, 2)
        blocks = filled(pool, A, B, C)
        assert found(pool, *(*A, *B, *C)[:length]) == blocks[:known]

    def test_partial_block_not_matched(self) -> None:
        pool = BlockPool(4, 2)
        blocks = pool.allocate(2)
        assert blocks is not None
        chain = Chain()
        pool.cache_full_blocks(chain, (*A, *B), 3, blocks)
        assert found(pool, *A, *B, 0) == blocks[:1]
        pool.cache_full_blocks(chain, (*A, *B), 4, blocks)
        assert found(pool, *A, *B, 0) == blocks

    def test_same_text_cached_once(self) -> None:
        pool = BlockPool(4, 2)
        first, second = filled(pool, A, B), filled(pool, A, B)
        assert found(pool, *A, *B, 0) == first
        pool.release(second)
        assert pool.num_cached == 0
        assert found(pool, *A, *B, 0) == first
        pool.check_integrity(first)

    def test_match_joins_blocks_of_different_sequences(self) -> None:
        pool = BlockPool(6, 2)
        first, second = filled(pool, A, B), filled(pool, A, C)
        assert found(pool, *A, *C, 0) == [first[0], second[1]]

    def test_no_match_after_evicted_block(self) -> None:
        """A block whose predecessor was evicted matches no other text with the same tokens."""
        pool = BlockPool(4, 2)
        head, tail = filled(pool, A), Chain()
        pool.cache_full_blocks(tail, A, 2, head)
        blocks = [*head, *(pool.allocate(1) or [])]
        pool.cache_full_blocks(tail, (*A, *B), 4, blocks)
        pool.clear_cache()
        assert found(pool, *A, *B, 0) == []
        again = filled(pool, A)
        assert found(pool, *A, *B, 0) == again

    def test_clear_cache_frees_cached_blocks(self) -> None:
        pool = BlockPool(4, 2)
        pool.release(filled(pool, A, B))
        held = filled(pool, C)
        pool.clear_cache()
        assert (pool.num_cached, pool.num_free, pool.num_used) == (0, 3, 1)
        pool.check_integrity(held)
        assert pool.release(held) == []
        assert (pool.num_cached, pool.num_free) == (0, 4)
        assert not found(pool, *C, 0)


class TestRelease:
    def test_release_moves_matchable_blocks_to_top(self) -> None:
        pool = BlockPool(6, 2)
        blocks = filled(pool, A, B)
        assert pool.release([*blocks, *(pool.allocate(1) or [])]) == [Copy(0, 5), Copy(1, 4)]
        assert (pool.num_free, pool.num_cached, pool.num_used) == (6, 2, 0)
        assert found(pool, *A, *B, 0) == [5, 4]
        assert pool.allocate(4) == [0, 1, 2, 3]
        pool.check_integrity([0, 1, 2, 3])

    def test_release_keeps_block_without_free_one_above(self) -> None:
        pool = BlockPool(3, 2)
        blocks = filled(pool, A, B, C)
        assert pool.release(blocks) == []
        assert found(pool, *A, *B, *C, 0) == blocks
        pool.check_integrity([])

    def test_release_never_moves_blocks_down(self) -> None:
        pool = BlockPool(3, 2)
        below = pool.allocate(1)
        above = filled(pool, A, B)
        assert below is not None
        pool.release(below)
        assert pool.release(above) == []
        assert found(pool, *A, *B, 0) == above
        assert pool.allocate(1) == below

    def test_release_never_overwrites_copy_sources(self) -> None:
        """The blocks of one release are never each other's destinations."""
        pool = BlockPool(5, 2)
        blocks = filled(pool, A, B, C)
        copies = pool.release(blocks)
        assert not {copy.source for copy in copies} & {copy.destination for copy in copies}
        assert found(pool, *A, *B, *C, 0) == [4, 3, 2]

    def test_release_without_blocks(self) -> None:
        assert BlockPool(2, 2).release([]) == []


class TestScopes:
    def test_block_is_matched_in_its_scope_only(self) -> None:
        pool = BlockPool(6, 2)
        blocks: dict[str, list[int]] = {}
        for scope in ("", "a", "b"):
            taken = pool.allocate(2)
            assert taken is not None
            pool.cache_full_blocks(Chain(scope), (*A, *B), 4, taken)
            blocks[scope] = taken
        for scope, own in blocks.items():
            assert pool.match((*A, *B, 0), scope) == PrefixMatch(own, is_pending=False)
        assert pool.match((*A, *B, 0), "c") == PrefixMatch([], is_pending=False)
        pool.check_integrity([block for own in blocks.values() for block in own])

    def test_pending_block_is_seen_in_its_scope_only(self) -> None:
        pool, chain = BlockPool(4, 2), Chain("a")
        pool.mark_pending(chain, (*A, 0))
        assert [pool.match((*A, 9), scope).is_pending for scope in ("a", "b", "")] == [True, False, False]
        pool.unmark_pending(chain)
        assert not pool.match((*A, 9), "a").is_pending


class TestPending:
    def test_match_reports_pending_block(self) -> None:
        pool, chain = BlockPool(4, 2), Chain()
        prompt = (*A, *B, 0)
        blocks = pool.allocate(3)
        assert blocks is not None
        pool.mark_pending(chain, prompt)
        assert pool.match((*A, 9)) == PrefixMatch([], is_pending=True)
        assert pool.match((*B, 9)) == PrefixMatch([], is_pending=False)
        pool.cache_full_blocks(chain, prompt, 2, blocks)
        assert pool.match((*A, 9)) == PrefixMatch(blocks[:1], is_pending=False)
        assert pool.match(prompt).is_pending is False
        pool.mark_pending(chain, prompt)
        assert pool.match(prompt) == PrefixMatch(blocks[:1], is_pending=True)

    def test_partial_block_never_pending(self) -> None:
        pool, chain = BlockPool(4, 2), Chain()
        pool.mark_pending(chain, A)
        assert chain.pending is None
        assert not pool.match((*A, 9)).is_pending

    def test_block_pending_until_last_sequence_ends(self) -> None:
        pool, one, other = BlockPool(4, 2), Chain(), Chain()
        pool.mark_pending(one, (*A, 0))
        pool.mark_pending(other, (*A, 1))
        pool.unmark_pending(one)
        pool.unmark_pending(one)
        assert pool.match((*A, 9)).is_pending
        pool.unmark_pending(other)
        assert not pool.match((*A, 9)).is_pending


class TestIntegrity:
    def test_integrity_check_detects_lost_block(self) -> None:
        pool = BlockPool(3, 2)
        pool.allocate(1)
        with pytest.raises(AssertionError, match="blocks were lost or allocated twice"):
            pool.check_integrity([])

    def test_integrity_check_detects_block_held_twice(self) -> None:
        pool = BlockPool(3, 2)
        pool.allocate(1)
        with pytest.raises(AssertionError, match="blocks were lost or allocated twice"):
            pool.check_integrity([0, 1])


class TestBlocksThatStay:
    def test_ended_blocks_stay_where_they_are(self) -> None:
        pool = BlockPool(6, 2)
        pool.moves_ended = False
        blocks = filled(pool, A, B)
        assert pool.release(blocks) == []
        assert found(pool, *A, *B, 0) == blocks
        assert (pool.num_free, pool.num_cached) == (6, 2)
        pool.check_integrity([])

    def test_free_blocks_are_allocated_before_cached_ones(self) -> None:
        pool = BlockPool(4, 2)
        pool.moves_ended = False
        pool.release(filled(pool, A, B))
        assert pool.allocate(2) == [2, 3]
        assert len(found(pool, *A, *B, 0)) == 2
        pool.allocate(1)
        assert len(found(pool, *A, *B, 0)) == 1
        pool.check_integrity([2, 3, 1])
