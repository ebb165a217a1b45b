"""Remember which prompts each replica has computed, so that a prompt with the same prefix is sent there again."""

from collections.abc import Sequence

from frameworks.generation.types import Conversation, GenerateRequest, Prompt

BLOCK_CHARACTERS = 256
MAX_BLOCKS = 64
"""Limit of the compared blocks of a prompt: 16 Ki characters."""
MAX_REMEMBERED = 8192
"""Limit of the remembered blocks of one replica; the least recently used one is evicted."""


def blocks_of(request: GenerateRequest) -> list[int]:
    """Return a hash of each prefix of the first prompt that ends with a whole block; the shortest first."""
    text = _text_of(request.prompts[0]) if request.prompts else ""
    hashes: list[int] = []
    before = 0
    for end in range(BLOCK_CHARACTERS, min(len(text), MAX_BLOCKS * BLOCK_CHARACTERS) + 1, BLOCK_CHARACTERS):
        before = hash((before, text[end - BLOCK_CHARACTERS : end]))
        hashes.append(before)
    return hashes


def _text_of(prompt: Prompt) -> str:
    """Return the beginning of a prompt as text; that of token ids only compares with other token ids."""
    bound = MAX_BLOCKS * BLOCK_CHARACTERS
    if isinstance(prompt, str):
        return prompt[:bound]
    if isinstance(prompt, Conversation):
        parts, size = [], 0
        for message in prompt.messages:
            parts.append(f"{message.role}\n{message.content[:bound]}\n")
            size += len(parts[-1])
            if size >= bound:
                break
        return "".join(parts)[:bound]
    # A token is about four characters.
    return "".join(f"{each:x} ".rjust(4) for each in prompt[: bound // 4])


class PrefixAffinity:
    """The prefixes that one replica has seen."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        # Ordered by last use: the least recently used prefix is evicted first.
        self._seen: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def matched(self, blocks: Sequence[int]) -> int:
        """Return the number of leading blocks of a prompt that were seen."""
        low, high = 0, len(blocks)
        # All prefixes of a prefix that was seen were seen, except those that are forgotten.
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._seen:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, blocks: Sequence[int]) -> None:
        """Note a prompt; its longest prefixes are evicted first."""
        for block in reversed(blocks):
            self._seen.pop(block, None)
            self._seen[block] = None
        while len(self._seen) > self._max_remembered:
            del self._seen[next(iter(self._seen))]
