"""Find the MatMuls of a graph that can be quantized, and write copies with some of them left in fp32."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.onnx_model import ONNXModel

from frameworks.onnx.quantization.saturation import round_to_range
from frameworks.quantization.ranges import HALVED, WeightRange
from frameworks.types import Array

# Protobuf refuses 2 GiB. A copy is smaller than its original, but its size is known only afterwards.
_MAX_SINGLE_FILE_BYTES = 1_900_000_000


@dataclass(frozen=True, slots=True)
class ConstantMatMul:
    """A MatMul with constant weights [inputs, outputs]. `source`: name of its other input."""

    name: str
    source: str
    weight_name: str
    weight: Array


class QuantizableGraph:
    """A graph in memory, with Gemm replaced by MatMul and Add, and its MatMuls named."""

    def __init__(self, file: Path, weight_range: WeightRange) -> None:
        """`weight_range`: of rounded weights. Raises what onnx raises on graphs that it cannot read."""
        self._weight_range = weight_range
        self._model = onnx.load(str(file))
        ONNXModel(self._model).replace_gemm_with_matmul()
        self.bytes = self._model.ByteSize() if file.stat().st_size < _MAX_SINGLE_FILE_BYTES else file.stat().st_size
        self.matmuls = self._find()

    def write(self, file: Path, unquantized: frozenset[str]) -> None:
        """Write the copy in which all MatMuls except `unquantized` are int8: weights per output channel, inputs by each
        run's own range.
        """
        with _quiet():
            quantize_dynamic(
                self._model,
                str(file),
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                reduce_range=self._weight_range is HALVED,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=sorted(unquantized),
                use_external_data_format=self.bytes >= _MAX_SINGLE_FILE_BYTES,
                extra_options={"MatMulConstBOnly": True},
            )
        if self._weight_range.largest_pair is not None:
            self._round_again(file)

    def _round_again(self, file: Path) -> None:
        """Round the weights of a written copy to our range: onnxruntime's quantizer knows two others."""
        copy = onnx.load(str(file))
        tensors = {tensor.name: tensor for tensor in copy.graph.initializer}
        for each in self.matmuls:
            names = f"{each.weight_name}_quantized", f"{each.weight_name}_scale"
            if names[0] in tensors:
                for name, array in zip(names, round_to_range(each.weight, self._weight_range), strict=True):
                    tensors[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
        # onnx appends to a file of external data.
        data = file.with_name(f"{file.name}.data")
        data.unlink(missing_ok=True)
        onnx.save(copy, str(file), save_as_external_data=self.bytes >= _MAX_SINGLE_FILE_BYTES, location=data.name)

    def write_with_outputs(self, file: Path, names: list[str]) -> None:
        """Write the original with these values as further outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        present = {output.name for output in model.graph.output} | {given.name for given in model.graph.input}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
        onnx.save(
            model,
            str(file),
            save_as_external_data=self.bytes >= _MAX_SINGLE_FILE_BYTES,
            location=f"{file.name}.data",
        )

    def _find(self) -> list[ConstantMatMul]:
        graph = self._model.graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        taken = {node.name for node in graph.node}
        found = []
        for number, node in enumerate(graph.node):
            if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
                continue
            # MatMuls are excluded by name.
            if not node.name:
                node.name = next(f"MatMul_{number}{x}" for x in ("", *"abcdefgh") if f"MatMul_{number}{x}" not in taken)
            weight = constants.get(node.input[1])
            if weight is not None and weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) == 2:
                found.append(
                    ConstantMatMul(node.name, node.input[0], node.input[1], onnx.numpy_helper.to_array(weight))
                )
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence onnxruntime's advice to preprocess the graph, which is for manual quantization."""
    root = logging.getLogger()
    root.addFilter(_is_not_advice)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        root.removeFilter(_is_not_advice)


def _is_not_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
