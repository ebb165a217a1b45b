"""One local Ray cluster for all tests of a process: `ray_cluster` in tests/conftest.py starts and ends it."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NUM_CPUS = 8
OBJECT_STORE_BYTES = 80 * 1024**2
# Of Ray: the metrics of replicas arrive soon, and no usage is reported.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else it writes a token to the home folder.
    "RAY_AUTH_MODE": "disabled",
    # The default, 15, lets the workers starve beside other tests.
    "RAY_worker_niceness": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}


@contextmanager
def local_cluster() -> Iterator[None]:
    """Run a cluster of one node, with Serve and without its HTTP proxy."""
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    # Ray defines its settings with deprecated arguments of pydantic.
    with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
        import ray
        from ray import serve

        import frameworks.engine.ray.deployment  # noqa: F401

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        ray.init(
            address="local",
            num_cpus=NUM_CPUS,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        serve.start(proxy_location="Disabled")
        yield
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        for name in _ENVIRONMENT.keys() - before.keys():
            del os.environ[name]


def replica_actors(deployment: str) -> dict[str, Any]:
    """Return the actors of the running replicas of a deployment by their names."""
    import ray

    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    found = [name for name in names if name.startswith("SERVE_REPLICA::") and f"#{deployment}#" in name]
    return {name: ray.get_actor(name, namespace="serve") for name in found}
