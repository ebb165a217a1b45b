"""One local Ray cluster for all tests of a process: `ray_cluster` in tests/conftest.py starts and ends it."""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NUM_CPUS = 8
OBJECT_STORE_BYTES = 80 * 1024**2
CALL_S = 120.0
"""Limit of a call of Ray. Many have none, and an answer that is lost would hold the process for ever."""
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

        import extensions.ray.deployment  # noqa: F401

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
        started(serve.shutdown).result(CALL_S)
        started(ray.shutdown).result(CALL_S)
        for name in _ENVIRONMENT.keys() - before.keys():
            del os.environ[name]


def started(call: Callable[..., Any], *arguments: Any, **options: Any) -> "Future[Any]":
    """Start a call of Ray in a thread of its own, for which no process waits at its end."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
            answer.set_exception(error)

    threading.Thread(target=run, name="ray call", daemon=True).start()
    return answer


def delete_application(name: str) -> None:
    """Delete an application of Serve. Raises TimeoutError where Ray does not answer in time."""
    from ray import serve

    started(serve.delete, name).result(CALL_S)


def replica_actors(deployment: str) -> dict[str, Any]:
    """Return the actors of the running replicas of a deployment by their names."""
    import ray

    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    found = [name for name in names if name.startswith("SERVE_REPLICA::") and f"#{deployment}#" in name]
    return {name: ray.get_actor(name, namespace="serve") for name in found}
