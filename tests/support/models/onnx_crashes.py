"""ONNX graphs that end or occupy their process: by a division without a result, and by a loop of any length."""

import platform

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.models.onnx_costly_graphs import looping
from tests.support.models.onnx_graphs import model_of

POISON = -(2**31)
"""The int32 whose quotient by -1 is no int32."""

TRAPS = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="wants a CPU that traps on overflow")
"""The division of POISON by -1 ends the process by SIGFPE on x86 only."""


def negated() -> onnx.ModelProto:
    """x int32 [n] → y = x / -1. ONNX Runtime divides POISON too, and the CPU ends the process by SIGFPE."""
    return model_of(
        [helper.make_node("Div", ["x", "minus"], ["y"])],
        [("x", "int32", ("n",))],
        [("y", "int32", ("n",))],
        {"minus": np.array([-1], np.int32)},
    )


def negated_constant() -> onnx.ModelProto:
    """x int32 [n] → x + POISON / -1. The quotient is folded while the graph is loaded, which ends the process."""
    nodes = [helper.make_node("Div", ["poison", "minus"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    weights = {"poison": np.array([POISON], np.int32), "minus": np.array([-1], np.int32)}
    return model_of(nodes, [("x", "int32", ("n",))], [("y", "int32", ("n",))], weights)


def turns() -> onnx.ModelProto:
    """x float32 [1, 4] → y = x, after as many products of small matrices as the largest number of x says."""
    return looping(None)
