"""Tiny ONNX graphs, one for each kind of input, output and operator that a server meets.

`save` writes a graph where a model is expected; `session` runs it by ONNX Runtime alone, as the reference.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from frameworks.types import Array

OPSET = 18
IR_VERSION = 10

ONNX_DTYPES: dict[str, int] = {
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "string": TensorProto.STRING,
}
"""Every dtype that travels, by the name that callers use."""

Shape = Sequence[int | str | None] | None


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Writes the graph to `path`, or to `model.onnx` in it where it is a folder; the file's path."""
    file = path / "model.onnx" if path.is_dir() else path
    file.write_bytes(model.SerializeToString())
    return file


def session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """Raw ONNX Runtime over the graph: the reference that our answers are held against."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def identity(dtype: str = "float32", shape: Shape = ("n",)) -> onnx.ModelProto:
    """x → y = x. `shape` () is a scalar, None an undeclared rank, None in it a free dimension without a name."""
    return model_of([helper.make_node("Identity", ["x"], ["y"])], [("x", dtype, shape)], [("y", dtype, shape)])


def add(shape: Shape = ("n", 4)) -> onnx.ModelProto:
    """a, b → sum = a + b, product = a · b."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["a", "b"], ["product"])]
    inputs = [(name, "float32", shape) for name in ("a", "b")]
    return model_of(nodes, inputs, [(name, "float32", shape) for name in ("sum", "product")])


def concat() -> onnx.ModelProto:
    """Strings a [n], b [m] and numbers c [n, 2] → joined [n + m], doubled [n, 4]: several inputs of several dtypes."""
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["joined"], axis=0),
        helper.make_node("Concat", ["c", "c"], ["doubled"], axis=1),
    ]
    inputs: list[Declared] = [("a", "string", ("n",)), ("b", "string", ("m",)), ("c", "int32", ("n", 2))]
    return model_of(nodes, inputs, [("joined", "string", ("k",)), ("doubled", "int32", ("n", 4))])


def scaled(default: float = 2.0) -> onnx.ModelProto:
    """x [n] → y = x · factor. The input factor has a default in the graph, so a caller may leave it out."""
    weights = {"factor": np.array([default], np.float32)}
    return model_of(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [("x", "float32", ("n",)), ("factor", "float32", (1,))],
        [("y", "float32", ("n",))],
        weights,
    )


def free(*names: str | None) -> onnx.ModelProto:
    """x → y = x with one free dimension per name; the last dimension is 3."""
    shape = (*names, 3)
    return identity("float32", shape)


def pairs() -> onnx.ModelProto:
    """x [n] with an even n → y [n / 2, 2]: runs only on some sizes of its free dimension, never on 1."""
    return model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", "float32", ("n",))],
        [("y", "float32", ("m", 2))],
        {"shape": np.array([-1, 2], np.int64)},
    )


def two_lengths() -> onnx.ModelProto:
    """a [n], b [m] → y = a + b: the two are said to be free each for itself, and must be equal (or one be 1)."""
    return model_of(
        [
            helper.make_node("Concat", ["a", "a"], ["twice"], axis=0),
            helper.make_node("Concat", ["b", "b"], ["also_twice"], axis=0),
            helper.make_node("Add", ["twice", "also_twice"], ["y"]),
        ],
        [("a", "float32", ("n",)), ("b", "float32", ("m",))],
        [("y", "float32", ("k",))],
    )


def misdeclared(*, with_default: bool = False) -> onnx.ModelProto:
    """x [3] → y: every dimension is declared, and the graph cannot run with them.

    `with_default`: there is another input, of a free length, that need not be given.
    """
    return model_of(
        [
            helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
            helper.make_node("Add", ["i", "far"], ["j"]),
            helper.make_node("Gather", ["table", "j"], ["y"]),
        ],
        [("x", "float32", (3,)), *([("far", "int64", ("n",))] if with_default else [])],
        [("y", "float32", (3,))],
        {"far": np.array([99], np.int64), "table": np.zeros(4, np.float32)},
    )


def gather() -> onnx.ModelProto:
    """indices [n] → values: numbers 10, 11, 12 by index. An index of 3 or more is an error of the run."""
    return model_of(
        [helper.make_node("Gather", ["table", "indices"], ["values"])],
        [("indices", "int64", ("n",))],
        [("values", "float32", ("n",))],
        {"table": np.array([10, 11, 12], np.float32)},
    )


def image_mean(rows: int | str = "n") -> onnx.ModelProto:
    """image [rows, 3, 224, 224] → mean [rows, 1]: big questions, small answers."""
    return model_of(
        [
            helper.make_node("ReduceMean", ["image", "axes"], ["flat"], keepdims=0),
            helper.make_node("Unsqueeze", ["flat", "last"], ["mean"]),
        ],
        [("image", "float32", (rows, 3, 224, 224))],
        [("mean", "float32", (rows, 1))],
        {"axes": np.array([1, 2, 3], np.int64), "last": np.array([1], np.int64)},
    )


def sequence_out() -> onnx.ModelProto:
    """x [n, 2] → rows: a sequence of n tensors [1, 2]."""
    return model_of(
        [helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=1)],
        [("x", "float32", ("n", 2))],
        [helper.make_tensor_sequence_value_info("rows", TensorProto.FLOAT, (1, 2))],
    )


def sequence_in(dtype: str = "float32") -> onnx.ModelProto:
    """parts: a sequence of tensors [n, 2] → joined: their rows, one below the other; also same: the sequence."""
    parts = helper.make_tensor_sequence_value_info("parts", ONNX_DTYPES[dtype], ("n", 2))
    same = helper.make_tensor_sequence_value_info("same", ONNX_DTYPES[dtype], ("n", 2))
    return model_of(
        [
            helper.make_node("ConcatFromSequence", ["parts"], ["joined"], axis=0),
            helper.make_node("Identity", ["parts"], ["same"]),
        ],
        [parts],
        [("joined", dtype, ("m", 2)), same],
    )


def zip_map(labels: Sequence[str] | Sequence[int] = ("cat", "dog", "owl")) -> onnx.ModelProto:
    """scores [n, labels] → maps: per row a map from label to score, as scikit-learn's classifiers end."""
    strings = isinstance(labels[0], str)
    node = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml")
    node.attribute.append(helper.make_attribute("classlabels_strings" if strings else "classlabels_int64s", labels))
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    key = TensorProto.STRING if strings else TensorProto.INT64
    maps = helper.make_value_info("maps", helper.make_sequence_type_proto(helper.make_map_type_proto(key, value)))
    return model_of([node], [("scores", "float32", ("n", len(labels)))], [maps])


def map_in(words: Sequence[str] = ("a", "b", "c")) -> onnx.ModelProto:
    """counts: a map from word to number → vector [1, words]: its numbers in the order of `words`, 0 where absent."""
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, ())
    counts = helper.make_value_info("counts", helper.make_map_type_proto(TensorProto.STRING, value))
    node = helper.make_node(
        "DictVectorizer", ["counts"], ["vector"], domain="ai.onnx.ml", string_vocabulary=list(words)
    )
    return model_of([node], [counts], [("vector", "float32", (1, len(words)))])


def optional_out() -> onnx.ModelProto:
    """x [n], full (a bool) → perhaps: an optional that holds x if full, and nothing otherwise."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ("n",))
    kind = helper.make_optional_type_proto(tensor)
    present = helper.make_graph(
        [helper.make_node("Optional", ["x"], ["some"])], "present", [], [helper.make_value_info("some", kind)]
    )
    absent = helper.make_graph(
        [helper.make_node("Optional", [], ["none"], type=tensor)], "absent", [], [helper.make_value_info("none", kind)]
    )
    node = helper.make_node("If", ["full"], ["perhaps"], then_branch=present, else_branch=absent)
    inputs: list[Declared] = [("x", "float32", ("n",)), ("full", "bool", ())]
    return model_of([node], inputs, [helper.make_value_info("perhaps", kind)])


def optional_in() -> onnx.ModelProto:
    """perhaps: an optional tensor [n] → given: whether it was there, y = it, or [-1] where it was not."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ("n",))
    perhaps = helper.make_value_info("perhaps", helper.make_optional_type_proto(tensor))
    element = helper.make_tensor_value_info("element", TensorProto.FLOAT, ("n",))
    fallback = helper.make_tensor_value_info("fallback", TensorProto.FLOAT, (1,))
    present = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["perhaps"], ["element"])], "present", [], [element]
    )
    minus_one = numpy_helper.from_array(np.array([-1], np.float32))
    absent = helper.make_graph(
        [helper.make_node("Constant", [], ["fallback"], value=minus_one)], "absent", [], [fallback]
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["perhaps"], ["given"]),
        helper.make_node("If", ["given"], ["y"], then_branch=present, else_branch=absent),
    ]
    return model_of(nodes, [perhaps], [("given", "bool", ()), ("y", "float32", ("m",))])


def custom_op() -> onnx.ModelProto:
    """x → y by an operator that only a library of somebody's could run."""
    node = helper.make_node("Enchant", ["x"], ["y"], domain="com.example.magic")
    return model_of([node], [("x", "float32", ("n",))], [("y", "float32", ("n",))])


Declared = tuple[str, str, Shape]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Declared | onnx.ValueInfoProto],
    outputs: Sequence[Declared | onnx.ValueInfoProto],
    weights: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [_value_info(declared) for declared in inputs],
        [_value_info(declared) for declared in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [
        ("", OPSET),
        *((domain, 3 if domain == "ai.onnx.ml" else 1) for domain in {n.domain for n in nodes} - {""}),
    ]
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets], ir_version=IR_VERSION
    )


def _value_info(declared: Declared | onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    if isinstance(declared, onnx.ValueInfoProto):
        return declared
    name, dtype, shape = declared
    return helper.make_tensor_value_info(name, ONNX_DTYPES[dtype], shape)


def doubled_tokens(dtype: str = "float32") -> onnx.ModelProto:
    """x [n, length, 2] → y [n, length, 2] = x + x, z [n, length, length] of all its products: no row sees another's."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["z"]),
    ]
    outputs: list[Declared] = [("y", dtype, ("n", "length", 2)), ("z", dtype, ("n", "length", "length"))]
    return model_of(nodes, [("x", dtype, ("n", "length", 2))], outputs)


def over_length(operator: str = "ReduceMean", dtype: str = "float32", others: Sequence[str] = ()) -> onnx.ModelProto:
    """x [n, length] → y [n]: one number of the whole row, whatever is padding. `others`: inputs that change nothing."""
    nodes = [helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)]
    inputs: list[Declared] = [(name, dtype, ("n", "length")) for name in ("x", *others)]
    weights = {"axes": np.array([1], np.int64)}
    return model_of(nodes, inputs, [("y", dtype, ("n",))], weights)


def every_other() -> onnx.ModelProto:
    """x [n, length] → y [n, half]: every other number, so the output grows with the length and is not as long."""
    node = helper.make_node("Slice", ["x", "start", "end", "axes", "steps"], ["y"])
    numbers = {"start": 0, "end": 2**31, "axes": 1, "steps": 2}
    weights = {name: np.array([number], np.int64) for name, number in numbers.items()}
    return model_of([node], [("x", "float32", ("n", "length"))], [("y", "float32", ("n", "half"))], weights)
