"""The formats of weights in memory: the order that a product reads them in, and how it widens them to float32.

Weights are [blocks, inputs, outputs of a block]: a product reads them in one stream. The last block is filled up with
zeros.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.tiles import BLOCK_VECTORS, LoadWeights, Vectors, load

_I64 = ir.IntType(64)


@dataclass(frozen=True, slots=True)
class Format:
    """`input_bytes`: of one input of a block. `inputs_at_once`: see float_tile."""

    name: str
    input_bytes: int
    load_weights: LoadWeights
    inputs_at_once: int = 1


def float32(vectors: Vectors) -> Format:
    """Weights as they are."""
    input_bytes = 4 * vectors.block

    def load_weights(builder: Any, block: Any, start: Any) -> list[list[Any]]:
        first = builder.mul(start, ir.Constant(_I64, input_bytes))
        return [
            [
                load(builder, builder.gep(block, [builder.add(first, _offset(4 * part, vectors))]), vectors.floats, 4)
                for part in range(BLOCK_VECTORS)
            ]
        ]

    return Format("float32", input_bytes, load_weights)


def _offset(bytes_of_lane: int, vectors: Vectors) -> Any:
    return ir.Constant(_I64, bytes_of_lane * vectors.lanes)
