"""The cluster that all tests on Ray share."""

from collections.abc import Iterator

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.on_ray.cluster import DeployedServer, RayCluster, cluster_of, deployment

CPUS = 8.0
"""That each node claims. Replicas of tests reserve 0.01 to 1."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    with cluster_of(3, CPUS) as running:
        yield running


@pytest.fixture(scope="session")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServer]:
    """A deployment in place of the server that contract tests share: the embedded models, and those of texts."""
    folder = tmp_path_factory.mktemp("contract")
    models = EMBEDDED + onnx_entries(folder, {"slow": ALL_KINDS["slow"]}) + text_entries(folder)
    with deployment(cluster, folder, models, "contract") as deployed:
        yield deployed
