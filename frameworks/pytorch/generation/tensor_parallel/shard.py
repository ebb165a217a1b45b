"""The part of a decoder that each rank has: heads of attention, rows of the feed-forward layer and of the head."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

# As transformers' own plan of these models: colwise and rowwise.
_SPLIT_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
_SPLIT_INPUTS = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size` ranks."""

    rank: int
    size: int

    def part_of(self, count: int) -> slice:
        """Return the indices of this rank among `count`, in parts of one size; the last ones may be shorter."""
        part = -(-count // self.size)
        return slice(min(self.rank * part, count), min((self.rank + 1) * part, count))

    def has(self, name: str) -> bool:
        """Whether this rank has a part of a weight. The bias of a sum over the ranks is added by rank 0 alone."""
        module, _, kind = name.rpartition(".")
        return self.rank == 0 or kind != "bias" or not module.endswith(_SPLIT_INPUTS)

    def of_config(self, config: Any) -> Any:
        """Return a copy of transformers' config for the layers of this rank, with a head of its own."""
        own = deepcopy(config)
        own.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        own.num_attention_heads = config.num_attention_heads // self.size
        own.num_key_value_heads = key_heads(config) // self.size
        own.intermediate_size = config.intermediate_size // self.size
        own.tie_word_embeddings = False
        return own


def split_axis(name: str) -> int | None:
    """Return the axis of a weight of transformers' model along which ranks have parts; None: each has it whole."""
    module, _, kind = name.rpartition(".")
    _, _, last = module.rpartition(".")
    if last in _SPLIT_OUTPUTS:
        return 0
    return 1 if last in _SPLIT_INPUTS and kind == "weight" else None


def key_heads(config: Any) -> int:
    """Return the number of heads of keys and values of transformers' config."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
