"""The arguments of the region of an encoder's layers. Importing this compiles nothing."""

from frameworks.pytorch.compiled.matmul.gemm import NUM_ARGUMENTS as NUM_GEMM_ARGUMENTS
from frameworks.pytorch.compiled.parallel import NUM_RESERVED

(
    ROWS, LAYERS, HIDDEN, NUM_HEADS, HEAD_SIZE, SCRATCH_BYTES, TABLE, GEMMS, CONSTANTS, NUM_TILES, TILES, NUM_BLOCKS,
    BLOCKS, LONGEST, BIAS, EMBEDDINGS, IDS, POSITIONS, TYPES, CACHE_DTYPE, STATES, NORMED, HEADS, ATTENDED, CACHE,
    SCRATCH, NUM_ENCODER_ARGUMENTS,
) = range(NUM_RESERVED, NUM_RESERVED + 27)  # fmt: skip
"""Sizes, then addresses:

- `TABLE`: int64 [layers, NUM_COLUMNS]. `GEMMS`: int64 [GEMMS_OF_LAYER * layers, GEMM_COLUMNS], the arguments of each
  GEMM. `CONSTANTS`: float32, epsilon of the norms, the scale of the scores, and epsilon of the embeddings' norm.
- `EMBEDDINGS`: the tables before the layers, int64 [NUM_TABLES], 0 where the states are given. `IDS`, `POSITIONS`,
  `TYPES`: their rows, int64 [rows].
- Of the texts: `TILES`: int64 [tiles, TILE_FIELDS]. `BLOCKS`: int64 [blocks, BLOCK_FIELDS], the blocks of keys.
- `BIAS`: float32 [heads, 2 * LONGEST - 1], what is added to a score by the positions of key - query, from 1 - LONGEST
  on; 0 without.
- For the work, float32: `STATES` and `NORMED` [rows, hidden], `HEADS` [rows, query and key and value heads, head size],
  `ATTENDED` [rows, heads, head size], `SCRATCH` for attention, `SCRATCH_BYTES` for each thread.
- `CACHE`: [blocks, keys and values, heads, head size * KEYS] of `CACHE_DTYPE`, as in cache_rows.py.
"""
QUERY_KEY_VALUE, OUTPUT, GATE, UP, DOWN, GEMMS_OF_LAYER = range(6)
"""GEMMs of a layer, in this order. `GATE`: the one with the activation function. `UP`: what is multiplied by it, of a
gated feed-forward block.
"""
REGION, GEMM_COLUMNS = NUM_GEMM_ARGUMENTS, NUM_GEMM_ARGUMENTS + 1
"""`REGION`, behind the arguments of a GEMM: its address; 0 where the layer does not have that GEMM."""
ATTENTION_NORM, ATTENDED_NORM, FEED_FORWARD_NORM, LAST_NORM = range(0, 8, 2)
WINDOW, COSINES, SINES, NUM_COLUMNS = range(8, 12)
"""Columns of the table. Of each norm the addresses of weight and bias, float32 [hidden], 0 without: before attention,
which writes `NORMED`; of the states after attention; before the feed-forward block, which writes `NORMED`; of the
states after it. `WINDOW`: tokens that a token sees on each side, 0 for all. `COSINES`, `SINES`: addresses of float32
[rows, head size / 2] for RoPE, or 0.
"""
WORDS_TABLE, POSITIONS_TABLE, TYPES_TABLE, NORM_WEIGHT, NORM_BIAS, NUM_TABLES = range(6)
"""Addresses of float32 [rows, hidden], 0 without types of tokens, and of float32 [hidden]."""
FIRST_ROW, TOKENS, POSITION, LENGTH, FIRST_BLOCK, TILE_FIELDS = range(6)
"""Of adjacent tokens of a text: row of the first one, their number, its position, tokens of the text, and address of
its first block in a block table.
"""
BLOCK_ROW, BLOCK_TOKENS, BLOCK_FIELDS = range(3)
"""Of a block of keys: the row of its first token, and its tokens."""
