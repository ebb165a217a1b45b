"""The options of `roundhouse run … --ray`, and its model and runner. Ray is imported for this option only."""

import argparse
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from frameworks.core.extras import install_command

if TYPE_CHECKING:
    from app.config import LoadedSettings
    from extensions.offline.contract import RunModel
    from extensions.offline.job import RunJob
    from extensions.offline.windows import WindowsRunner


def add_ray_options(run: argparse.ArgumentParser) -> None:
    """Add the options of runs on Ray."""
    run.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on the workers of this Ray cluster: HOST:PORT or auto; default: RAY_ADDRESS, else one for the run",
    )
    run.add_argument("--workers", type=int, metavar="N", help="with --ray: at most N workers; default: all that fit")
    run.add_argument(
        "--worker-cpus", type=int, metavar="N", help="with --ray: the CPUs of a worker; default: by its memory"
    )


def cluster_of(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Return the context in which the cluster of --ray is joined; an empty one without it. Raises WrongCommand."""
    from extensions.offline.contract import RunFailed, WrongCommand

    for name in ("workers", "worker_cpus"):
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and options.ray is None:
            raise WrongCommand(f"{option}: expected --ray with it, got none; leave it out or say --ray")
        if value is not None and value < 1:
            raise WrongCommand(f"{option}: expected 1 or more, got {value}")
    if options.ray is None:
        return nullcontext()
    if options.url is not None:
        raise WrongCommand("--ray: expected no --url with it, got both; leave one out")
    try:
        from extensions.offline.ray.cluster import joined
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise RunFailed(f"--ray: expected the extra ray, got none; {install_command('ray')}") from error
    return joined(options.ray)


@asynccontextmanager
async def open_on_ray(
    options: argparse.Namespace, loaded: "LoadedSettings", name: str
) -> AsyncIterator["tuple[RunModel, Callable[[RunJob], WindowsRunner]]"]:
    """Load the model in a worker of the cluster, and yield it with the function that makes the runner of a job."""
    from extensions.offline.ray.cluster import alive_nodes
    from extensions.offline.ray.model import open_ray_model
    from extensions.offline.ray.placement import Limits
    from extensions.offline.ray.runner import RayRunner

    limits = Limits(options.workers, options.worker_cpus)
    model = await open_ray_model(loaded, name, limits, alive_nodes())
    try:
        yield model, lambda job: RayRunner(job, model, loaded, limits, sys.stderr)
    finally:
        model.close()
