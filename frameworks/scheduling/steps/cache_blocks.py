"""Account the memory of caches that are not paged, in blocks. Pure: no tensor is touched.

Such a cache belongs to one sequence: it has a state of a fixed size, and a part that grows with every token. Both are
counted in blocks, so that sequences are admitted and preempted as with the blocks of paged attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from frameworks.scheduling.steps.blocks import BlockPool, Chain, PrefixMatch

_BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Bytes of one sequence's cache: at most `state_bytes` and `token_bytes` for each token."""

    state_bytes: int
    token_bytes: int

    def total(self, num_tokens: int) -> int:
        """Return the bytes of a sequence of so many tokens."""
        return self.state_bytes + num_tokens * self.token_bytes


class CacheBlocks(BlockPool):
    """A BlockPool whose blocks have no content: no prefix is shared."""

    def __init__(self, size: CacheSize, max_bytes: int, max_tokens: int) -> None:
        """`max_bytes`: of all caches. `max_tokens`: of a sequence."""
        # A cache that does not grow takes one block, whatever the length of its sequence.
        block_tokens = _BLOCK_TOKENS if size.token_bytes else max_tokens + 1
        self.block_bytes = block_tokens * size.token_bytes or max(1, size.state_bytes)
        state_blocks = -(-size.state_bytes // self.block_bytes) if size.token_bytes else 0
        super().__init__(max_bytes // self.block_bytes, block_tokens)
        self.state_tokens = state_blocks * block_tokens
        self.num_spare = 1 if size.token_bytes else 0

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence for which there are blocks."""
        return max(0, self.num_blocks * self.block_tokens - self.state_tokens)

    def match(self, token_ids: Sequence[int], scope: str = "") -> PrefixMatch:
        """Find nothing."""
        return PrefixMatch([], is_pending=False)

    def mark_pending(self, chain: Chain, token_ids: Sequence[int]) -> None:
        """Mark nothing: no prefix is shared."""

    def unmark_pending(self, chain: Chain) -> None:
        """Do nothing: nothing is marked."""

    def cache_full_blocks(
        self, chain: Chain, token_ids: Sequence[int], num_computed_tokens: int, blocks: Sequence[int]
    ) -> None:
        """Make nothing matchable."""
