"""Provide graphs as loaded models."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from frameworks.onnx.model import OnnxModel
from tests.frameworks.models.loading import load_onnx
from tests.support.models import onnx_graphs


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """Load and warm up a graph."""

    def load(graph: onnx.ModelProto, **entry: Any) -> OnnxModel:
        model = load_onnx(onnx_graphs.save(graph, tmp_path), **entry)
        assert isinstance(model, OnnxModel)
        model.warm_up()
        return model

    return load
