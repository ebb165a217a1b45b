"""Blocks of the key/value memory: taken from below, kept above, known by all the tokens up to their end."""

import pytest

from frameworks.generation.blocks import BlockPool, Chain, Copy, PrefixMatch

A, B, C, D = (1, 2), (3, 4), (5, 6), (7, 8)


def filled(pool: BlockPool, *contents: tuple[int, int]) -> list[int]:
    """The blocks of a sequence of these tokens, all computed."""
    blocks = pool.take(len(contents))
    assert blocks is not None
    pool.fill(Chain(), sum(contents, ()), 2 * len(contents), blocks)
    return blocks


def found(pool: BlockPool, *token_ids: int) -> list[int]:
    return pool.match(token_ids).blocks


class TestTaking:
    def test_the_lowest_first(self) -> None:
        pool = BlockPool(5, 2)
        assert pool.take(2) == [0, 1]
        assert pool.take(2) == [2, 3]
        assert (pool.total, pool.free, pool.used, pool.kept) == (5, 1, 4, 0)
        pool.release([1])
        pool.release([3])
        assert pool.take(2) == [1, 3]

    def test_all_or_nothing(self) -> None:
        pool = BlockPool(3, 2)
        pool.take(1)
        assert pool.take(3) is None
        assert pool.free == 2
        assert pool.take(2) == [1, 2]
        assert pool.take(0) == []
        assert pool.take(1) is None

    def test_kept_ones_are_given_up_the_longest_unused_first(self) -> None:
        pool = BlockPool(3, 2)
        for content in (A, B, C):
            pool.release(filled(pool, content))
        assert (pool.kept, pool.free) == (3, 3)
        pool.match((*A, 0))
        pool.take(1)
        assert not found(pool, *B, 0)
        pool.take(1)
        assert not found(pool, *C, 0)
        assert found(pool, *A, 0)

    def test_the_end_of_a_text_is_given_up_before_its_beginning(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B, C))
        pool.take(1)
        assert len(found(pool, *A, *B, *C, 0)) == 2
        pool.take(1)
        assert len(found(pool, *A, *B, *C, 0)) == 1

    def test_also_after_it_was_asked_for(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B))
        pool.release(filled(pool, C))
        assert len(found(pool, *A, *B, 0)) == 2
        pool.take(2)
        assert len(found(pool, *A, *B, 0)) == 1
        assert not found(pool, *C, 0)

    def test_a_beginning_is_used_also_by_who_goes_on_otherwise(self) -> None:
        pool = BlockPool(3, 2)
        pool.release(filled(pool, A, B))
        pool.release(filled(pool, C))
        kept = found(pool, *A, *D, 0)
        assert len(kept) == 1
        pool.take(2)
        assert found(pool, *A, *D, 0) == kept
        assert not found(pool, *C, 0)

    def test_also_after_a_sequence_has_begun_with_it(self) -> None:
        pool = BlockPool(4, 2)
        pool.release(filled(pool, A, B, C))
        blocks = found(pool, *A, *B, *C, 0)
        taken = pool.take(1, keep=blocks)
        assert taken is not None
        pool.take(1)
        assert found(pool, *A, *B, *C, 0) == blocks[:2]

    def test_what_is_to_be_copied_is_not_given_up(self) -> None:
        pool = BlockPool(3, 2)
        for content in (A, B, C):
            pool.release(filled(pool, content))
        keep = found(pool, *A, 0)
        pool.match((*C, 0))
        assert pool.take(3, keep) is None
        assert pool.take(2, keep) is not None
        assert found(pool, *A, 0) == keep
        assert pool.kept == 1

    def test_what_a_sequence_that_runs_holds_need_not_be_spared(self) -> None:
        pool = BlockPool(3, 2)
        held = filled(pool, A)
        assert pool.take(2, keep=held) == [1, 2]


class TestKnowing:
    def test_full_blocks_by_their_tokens_and_those_before(self) -> None:
        pool = BlockPool(4, 2)
        blocks = filled(pool, A, B)
        assert pool.match((*A, *B, 0)) == PrefixMatch(blocks, is_coming=False)
        assert found(pool, *A, *C, 0) == blocks[:1]
        assert found(pool, *B, 0) == []
        assert found(pool, *A, 3) == blocks[:1]

    @pytest.mark.parametrize(("length", "known"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)])
    def test_never_the_last_token_of_a_prompt(self, length: int, known: int) -> None:
        """Something has to be computed, or there is nothing to choose the next token from."""
        pool = BlockPool(4, 2)
        blocks = filled(pool, A, B, C)
        assert found(pool, *(*A, *B, *C)[:length]) == blocks[:known]

    def test_a_block_that_is_not_full_is_not_known(self) -> None:
        pool = BlockPool(4, 2)
        blocks = pool.take(2)
        assert blocks is not None
        chain = Chain()
        pool.fill(chain, (*A, *B), 3, blocks)
        assert found(pool, *A, *B, 0) == blocks[:1]
        pool.fill(chain, (*A, *B), 4, blocks)
        assert found(pool, *A, *B, 0) == blocks

    def test_the_same_text_twice_is_known_once(self) -> None:
        pool = BlockPool(4, 2)
        first, second = filled(pool, A, B), filled(pool, A, B)
        assert found(pool, *A, *B, 0) == first
        pool.release(second)
        assert pool.kept == 0
        assert found(pool, *A, *B, 0) == first
        pool.check_integrity(first)

    def test_what_follows_a_known_block_is_known_behind_it_whoever_computed_it(self) -> None:
        pool = BlockPool(6, 2)
        first, second = filled(pool, A, B), filled(pool, A, C)
        assert found(pool, *A, *C, 0) == [first[0], second[1]]

    def test_nothing_is_known_behind_what_was_given_up(self) -> None:
        """What comes after it has lost its beginning: it is not another text's of the same words."""
        pool = BlockPool(4, 2)
        head, tail = filled(pool, A), Chain()
        pool.fill(tail, A, 2, head)
        blocks = [*head, *(pool.take(1) or [])]
        pool.fill(tail, (*A, *B), 4, blocks)
        pool.forget()
        assert found(pool, *A, *B, 0) == []
        again = filled(pool, A)
        assert found(pool, *A, *B, 0) == again

    def test_forgetting_frees_what_was_kept(self) -> None:
        pool = BlockPool(4, 2)
        pool.release(filled(pool, A, B))
        held = filled(pool, C)
        pool.forget()
        assert (pool.kept, pool.free, pool.used) == (0, 3, 1)
        pool.check_integrity(held)
        assert pool.release(held) == []
        assert (pool.kept, pool.free) == (0, 4)
        assert not found(pool, *C, 0)


class TestReleasing:
    def test_what_is_known_moves_to_the_top(self) -> None:
        pool = BlockPool(6, 2)
        blocks = filled(pool, A, B)
        assert pool.release([*blocks, *(pool.take(1) or [])]) == [Copy(0, 5), Copy(1, 4)]
        assert (pool.free, pool.kept, pool.used) == (6, 2, 0)
        assert found(pool, *A, *B, 0) == [5, 4]
        assert pool.take(4) == [0, 1, 2, 3]
        pool.check_integrity([0, 1, 2, 3])

    def test_it_stays_where_there_is_no_room_above(self) -> None:
        pool = BlockPool(3, 2)
        blocks = filled(pool, A, B, C)
        assert pool.release(blocks) == []
        assert found(pool, *A, *B, *C, 0) == blocks
        pool.check_integrity([])

    def test_never_downwards(self) -> None:
        pool = BlockPool(3, 2)
        below = pool.take(1)
        above = filled(pool, A, B)
        assert below is not None
        pool.release(below)
        assert pool.release(above) == []
        assert found(pool, *A, *B, 0) == above
        assert pool.take(1) == below

    def test_nobody_writes_over_what_is_still_to_be_copied(self) -> None:
        """The blocks that a sequence leaves are not each other's new places."""
        pool = BlockPool(5, 2)
        blocks = filled(pool, A, B, C)
        copies = pool.release(blocks)
        assert not {copy.source for copy in copies} & {copy.destination for copy in copies}
        assert found(pool, *A, *B, *C, 0) == [4, 3, 2]

    def test_a_sequence_without_blocks(self) -> None:
        assert BlockPool(2, 2).release([]) == []


class TestExpecting:
    def test_what_is_being_computed_is_worth_waiting_for(self) -> None:
        pool, chain = BlockPool(4, 2), Chain()
        prompt = (*A, *B, 0)
        blocks = pool.take(3)
        assert blocks is not None
        pool.expect(chain, prompt)
        assert pool.match((*A, 9)) == PrefixMatch([], is_coming=True)
        assert pool.match((*B, 9)) == PrefixMatch([], is_coming=False)
        pool.fill(chain, prompt, 2, blocks)
        assert pool.match((*A, 9)) == PrefixMatch(blocks[:1], is_coming=False)
        assert pool.match(prompt).is_coming is False
        pool.expect(chain, prompt)
        assert pool.match(prompt) == PrefixMatch(blocks[:1], is_coming=True)

    def test_a_block_that_the_prompt_does_not_fill_is_not_expected(self) -> None:
        pool, chain = BlockPool(4, 2), Chain()
        pool.expect(chain, A)
        assert chain.expected is None
        assert not pool.match((*A, 9)).is_coming

    def test_until_the_last_who_computes_it_gives_up(self) -> None:
        pool, one, other = BlockPool(4, 2), Chain(), Chain()
        pool.expect(one, (*A, 0))
        pool.expect(other, (*A, 1))
        pool.forget_expected(one)
        pool.forget_expected(one)
        assert pool.match((*A, 9)).is_coming
        pool.forget_expected(other)
        assert not pool.match((*A, 9)).is_coming


class TestIntegrity:
    def test_a_lost_block_is_told(self) -> None:
        pool = BlockPool(3, 2)
        pool.take(1)
        with pytest.raises(AssertionError, match="blocks were lost or given out twice"):
            pool.check_integrity([])

    def test_a_block_held_twice_is_told(self) -> None:
        pool = BlockPool(3, 2)
        pool.take(1)
        with pytest.raises(AssertionError, match="blocks were lost or given out twice"):
            pool.check_integrity([0, 1])
