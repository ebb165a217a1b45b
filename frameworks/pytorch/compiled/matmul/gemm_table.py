"""The table of a step's GEMMs: a row of arguments for each, int64. Importing this compiles nothing."""

from frameworks.pytorch.compiled.matmul.gemm import NUM_ARGUMENTS

QUERY_KEY_VALUE, OUTPUT, GATE, UP, DOWN, GEMMS_OF_LAYER = range(6)
"""GEMMs of a layer, in this order. That of the logits follows the last layer's."""
(
    REGION, ADAPTING, NUM_FUSED, GEMM, RUNS, NUM_RUNS, LOW, LOW_COLUMNS, LOW_ROWS, FEED_FORWARD, TAKES_PACKED,
    GEMM_COLUMNS,
) = range(NUM_ARGUMENTS, NUM_ARGUMENTS + 12)  # fmt: skip
"""Columns after the arguments of the GEMM:

- `REGION`: address of the GEMM's region. `ADAPTING`: of the region that computes what adapters add to this GEMM
  and to the next ones, `NUM_FUSED` of them, which have the same rows; 0 without adapters.
- `GEMM`: the index of this GEMM. `RUNS`: address of int64 [NUM_RUNS, RUN_FIELDS].
- `LOW`: of float32 [NUM_FUSED, LOW_ROWS, LOW_COLUMNS], for x · A. `LOW_ROWS`: rows.
- `FEED_FORWARD`, of a layer's `GATE`: address of the region that computes it, `UP` and `DOWN` together where adapters
  change none of them; 0 where there is none.
- `TAKES_PACKED`: 1 if the norm or the attention before the GEMM packs its activations, as
  `amx_gemm.pack_row` does, where no adapter reads them.
"""
FIRST_ROW, END_ROW, ADAPTER, RUN_FIELDS = range(4)
"""Of adjacent rows of one adapter. `ADAPTER`: address of int64 [GEMMs, GEMM_FIELDS]."""
A, A_COLUMNS, PIECES, GEMM_FIELDS = range(4)
"""Of an adapter's GEMM; zeros if it has none. `A`: address of [columns, inputs], a multiple of COLUMNS_AT_ONCE
columns. `PIECES`: of int64 [blocks of outputs, PIECE_FIELDS].
"""
FIRST_COLUMN, NUM_COLUMNS, B, PIECE_FIELDS = range(4)
"""Of a block of outputs: the columns that they depend on. `B`: address of [columns, outputs of a block]."""
COLUMNS_AT_ONCE = 4
