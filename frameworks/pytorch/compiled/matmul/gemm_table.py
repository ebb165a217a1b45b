"""The table of a step's products: a row for each product, int64. Importing this compiles nothing."""

from frameworks.pytorch.compiled.matmul.gemm import NUM_ARGUMENTS

QUERY_KEY_VALUE, OUTPUT, GATE, UP, DOWN, PRODUCTS_OF_LAYER = range(6)
"""Products of a layer, in this order. The head is behind the last layer's."""
(
    REGION, ADAPTING, TOGETHER, PRODUCT, RUNS, NUM_RUNS, LOW, LOW_COLUMNS, ROOM, FEED_FORWARD, TAKES_ORDERED,
    PRODUCT_COLUMNS,
) = range(NUM_ARGUMENTS, NUM_ARGUMENTS + 12)  # fmt: skip
"""Columns behind the arguments of the product:

- `REGION`: address of the product's region. `ADAPTING`: of the region that computes what adapters add to this product
  and to the next ones, `TOGETHER` of them, which have the same rows; 0 without adapters.
- `PRODUCT`: the number of this product. `RUNS`: address of int64 [NUM_RUNS, RUN_NUMBERS].
- `LOW`: of float32 [products together, ROOM, LOW_COLUMNS], for the rows' products with A. `ROOM`: rows.
- `FEED_FORWARD`, of a layer's `GATE`: address of the region that computes it, `UP` and `DOWN` together where adapters
  change none of them; 0 where there is none.
- `TAKES_ORDERED`: 1 if the norm or the attention before the product writes its rows in order, as
  `matrix_tiles.order_row` does, where no adapter reads them.
"""
FIRST_ROW, END_ROW, ADAPTER, RUN_NUMBERS = range(4)
"""Of adjacent rows of one adapter. `ADAPTER`: address of int64 [products, PRODUCT_NUMBERS]."""
A, A_COLUMNS, PIECES, PRODUCT_NUMBERS = range(4)
"""Of an adapter's product; zeros if it has none. `A`: address of [columns, inputs], a multiple of COLUMNS_AT_ONCE
columns. `PIECES`: of int64 [blocks of outputs, PIECE_NUMBERS].
"""
FIRST_COLUMN, NUM_COLUMNS, B, PIECE_NUMBERS = range(4)
"""Of a block of outputs: the columns that they depend on. `B`: address of [columns, outputs of a block]."""
COLUMNS_AT_ONCE = 4
