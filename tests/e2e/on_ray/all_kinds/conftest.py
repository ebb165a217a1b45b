"""A deployment with a model of every kind: some forty replicas."""

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.on_ray.cluster import SHARED, DeployedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> DeployedServer:
    """A deployment in place of the server that contract tests share."""
    folder = tmp_path_factory.mktemp("kinds")
    models = EMBEDDED + onnx_entries(folder, ALL_KINDS) + text_entries(folder)
    return SHARED.deployed("kinds", folder, models)
