"""The arguments of a step's region. Importing this compiles nothing."""

from frameworks.pytorch.compiled.parallel import NUM_RESERVED

(
    ROWS, LOGITS, LAYERS, HIDDEN, QUERY_HEADS, KEY_HEADS, HEAD_SIZE, TILE_HEADS, SCRATCH_BYTES,
    BLOCK_BYTES, TABLE, GEMMS, CONSTANTS, EMBEDDING, EMBEDDING_DTYPE, FINAL_NORM,
    CACHE_DTYPE, CACHE, CACHE_LAYER_BYTES, CACHE_HALF_BYTES, CACHE_BLOCK_BYTES,
    TOKEN_IDS, POSITIONS, FIRST_BLOCKS, BLOCKS, LOGIT_ROWS, COSINES, SINES,
    TILES, NUM_TILES, LAST_TILES, NUM_LAST_TILES,
    STATES, NORMED, HEADS, ATTENDED, SCRATCH, NUM_STEP_ARGUMENTS,
) = range(NUM_RESERVED, NUM_RESERVED + 38)  # fmt: skip
"""Arguments of the step's region. Sizes, then addresses; a thread attends with `TILE_HEADS` query heads of a tile:

- `BLOCK_BYTES`: if `STATES` and `HEADS` are in blocks, see blocked_states.py, the bytes from one to the next; else
  0.
- `TABLE`: int64 [layers, columns], the layers. `GEMMS`: int64 [5 * layers + 1, GEMM_COLUMNS], the GEMMs'
  arguments, and behind them the columns of gemm_table.py. `CONSTANTS`: float32, epsilon and the scale.
- `EMBEDDING`, `FINAL_NORM`: weights; embedding 0 if `STATES` holds the rows already. `CACHE`: the first key.
  `EMBEDDING_DTYPE`, `CACHE_DTYPE`: as cache_rows.py numbers them.
- Of the step, int64: `TOKEN_IDS`, `POSITIONS` and `FIRST_BLOCKS` [rows], where the blocks of the row's sequence begin
  in `BLOCKS`, `LOGIT_ROWS` [logits], ascending. float32: `COSINES` and `SINES` [rows, head size / 2].
- `TILES`: int64 [tiles, 2], first row and tokens of each. `LAST_TILES`: those of the last layer, where rows without
  logits do not attend.
- For the work, float32: `STATES` and `NORMED` [rows, hidden], `HEADS` [rows, query and key and value heads, head size],
  `ATTENDED` [rows, query heads, head size], also for rotated queries if `HEADS` are in blocks, `SCRATCH` for attention,
  `SCRATCH_BYTES` for each thread.
"""
INPUT_NORM, QUERY_NORM, KEY_NORM, MIDDLE_NORM, WINDOW, NUM_COLUMNS = range(6)
"""Columns of the table: addresses of weights, 0 where there are none, and the tokens that a query sees, 0 for all."""
