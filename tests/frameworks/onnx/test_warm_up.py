"""input_shape and warm-up: free dimensions are declared or guessed."""

import re
from typing import Any

import numpy as np
import onnx
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory, RoundhouseError
from frameworks.onnx.model import OnnxModel
from frameworks.types import TensorBatch
from tests.frameworks.models.loading import listed
from tests.support.models import onnx_costly_graphs, onnx_graphs


class TestInputShape:
    @pytest.mark.parametrize("shape", [(1, 2, 3), (5, 9, 3)])
    def test_matching_shape_is_accepted(self, loaded: Any, shape: tuple[int, ...]) -> None:
        [value] = loaded(onnx_graphs.free("batch", None), input_shape=shape).spec.inputs
        assert value.shape == (-1, -1, 3)

    @pytest.mark.parametrize("shape", [(1, 2, 4), (1, 3), (3,), (1, 2, 3, 1)])
    def test_other_shape_is_refused(self, loaded: Any, shape: tuple[int, ...]) -> None:
        with pytest.raises(
            InvalidModel, match=r'input_shape: expected \[-1, -1, 3\] for "x" \(-1 is free\), got \[.*; make'
        ):
            loaded(onnx_graphs.free("batch", None), input_shape=shape)

    @pytest.mark.parametrize("graph", [onnx_graphs.identity("float32", ()), onnx_graphs.sequence_in()])
    def test_shape_for_graph_without_shape_is_refused(self, loaded: Any, graph: onnx.ModelProto) -> None:
        with pytest.raises(InvalidModel, match="input_shape: expected none for a first input without declared shape"):
            loaded(graph, input_shape=(1,))

    def test_shared_free_dimension_is_set_everywhere(self, loaded: Any) -> None:
        with capture_logs() as logs:
            loaded(onnx_graphs.concat(), input_shape=(5,))  # "n" is a's and c's
        assert logs == []


class TestWarmUp:
    @pytest.mark.parametrize("with_default", [False, True])
    def test_refused_made_up_values_are_explained(self, loaded: Any, with_default: bool) -> None:
        with capture_logs() as logs:
            model = loaded(onnx_graphs.misdeclared(with_default=with_default))
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("not warmed up", "warning")]
        because = model.spec.unwarmed_because
        assert re.match(r"the graph refuses made-up values \(.*out of data bounds", because)
        assert because.endswith("; set input_shape, input_values or warm_up")
        answer = model.infer(TensorBatch({"x": np.full(3, -100, np.float32)}))
        assert listed(answer["y"]) == [0, 0, 0]

    def test_input_shape_that_fails_is_refused(self, loaded: Any) -> None:
        with pytest.raises(InvalidModel, match=r"input_shape: expected a shape that the graph runs with, got \[3\]"):
            loaded(onnx_graphs.pairs(), input_shape=(3,))
        loaded(onnx_graphs.pairs(), input_shape=(4,))

    def test_guessed_shape_that_fails_only_warns(self, loaded: Any) -> None:
        with capture_logs() as logs:
            model = loaded(onnx_graphs.pairs())
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("not warmed up", "warning")]
        assert listed(model.infer(TensorBatch({"x": np.arange(4, dtype=np.float32)}))["y"]) == [[0, 1], [2, 3]]

    def test_guessed_shape_beside_input_shape_only_warns(self, loaded: Any) -> None:
        with capture_logs() as logs:
            loaded(onnx_graphs.two_lengths(), input_shape=(3,))
        assert [entry["event"] for entry in logs] == ["not warmed up"]

    @pytest.mark.parametrize("kind", [OutOfMemory, ModelFailed])
    def test_failure_that_values_do_not_cause_is_raised(
        self, loaded: Any, kind: type[RoundhouseError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise kind("the device failed")

        monkeypatch.setattr(OnnxModel, "run_graph", fail)
        with pytest.raises(InvalidModel if kind is ModelFailed else OutOfMemory, match="the device failed"):
            loaded(onnx_graphs.add((2, 2)))

    @pytest.mark.parametrize(
        "graph",
        [
            onnx_graphs.zip_map(), onnx_graphs.map_in(), onnx_graphs.optional_in(), onnx_graphs.optional_out(),
            onnx_graphs.sequence_out(), onnx_graphs.scaled(), onnx_graphs.image_mean(1), onnx_graphs.add((2, 2)),
            onnx_graphs.identity("string", ("n", 2)), onnx_graphs.identity("bfloat16", ()), onnx_costly_graphs.slow(1),
        ],
    )  # fmt: skip
    def test_every_kind_of_input_warms_up(self, loaded: Any, graph: onnx.ModelProto) -> None:
        with capture_logs() as logs:
            loaded(graph)
        assert logs == []
