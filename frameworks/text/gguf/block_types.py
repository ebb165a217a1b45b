"""The types of tensors in GGUF files that are served, and the sizes of their blocks.

The layouts: ggml-common.h of https://github.com/ggml-org/llama.cpp.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type. `elements` and `size_bytes`: of a block, one number for plain types. Of others `bits` and `group`: the
    width in which we hold them, and how many neighbours share a scale; 5 and 6 bits are held in 8.
    """

    name: str
    elements: int
    size_bytes: int
    bits: int = 0
    group: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the elements are floats."""
        return not self.bits


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18, 4, 32),
    3: BlockType("Q4_1", 32, 20, 4, 32),
    6: BlockType("Q5_0", 32, 22, 8, 32),
    7: BlockType("Q5_1", 32, 24, 8, 32),
    8: BlockType("Q8_0", 32, 34, 8, 32),
    12: BlockType("Q4_K", 256, 144, 4, 32),
    13: BlockType("Q5_K", 256, 176, 8, 32),
    14: BlockType("Q6_K", 256, 210, 8, 16),
}
"""By the ids of ggml."""
