"""Choose the resources of a worker by the measured needs of the model, and the number of workers. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

from extensions.offline.contract import RunFailed
from memory.sizes import format_size

# Of the measured memory: for larger windows and longer texts than the measured ones.
_MARGIN = 1.25
_MAX_WORKERS_PER_GPU = 16


@dataclass(frozen=True, slots=True)
class WorkerNeeds:
    """The measured memory of one loaded model. `gpu_share`: of the memory of a GPU; 0: it runs on the CPU."""

    host_bytes: int
    gpu_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """The resources of a machine, as the cluster counts them."""

    cpus: float
    memory_bytes: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's choice. None: by the needs."""

    workers: int | None = None
    cpus: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """The resources that each worker reserves, and the largest number of workers."""

    workers: int
    cpus: int
    gpus: float
    memory_bytes: int

    def describe(self) -> str:
        noun = "worker" if self.workers == 1 else "workers"
        gpus = f", {self.gpus:g} GPU" if self.gpus else ""
        return f"up to {self.workers} {noun}, each with {self.cpus} CPU{gpus} and {format_size(self.memory_bytes)}"


def place_workers(needs: WorkerNeeds, nodes: Iterable[Node], limits: Limits) -> WorkerPlacement:
    """Return one worker's resources, so that the workers fill the nodes that can hold one.

    A model on the CPU gets a worker for each CPU; if the memory holds fewer, each has more CPUs. Models on GPUs share
    them as their memory allows, evenly. Raises RunFailed where no node has the resources.
    """
    memory = ceil(needs.host_bytes * _MARGIN)
    share = min(1.0, needs.gpu_share * _MARGIN)
    least_cpus = limits.cpus or 1
    fitting = [
        node
        for node in nodes
        if node.cpus >= least_cpus and node.memory_bytes >= memory and (not share or node.gpus >= 1)
    ]
    if not fitting:
        gpu = " and a GPU" if share else ""
        raise RunFailed(
            f"--ray: expected a node with {least_cpus} CPU, {format_size(memory)}{gpu}, got none; add a larger node"
        )
    wanted = None if limits.workers is None else ceil(limits.workers / len(fitting))
    counts = [_count(node, memory, share, least_cpus, wanted) for node in fitting]
    cpus = limits.cpus or (
        1 if share else min(floor(node.cpus / count) for node, count in zip(fitting, counts, strict=True))
    )
    gpus = 0.0
    if share:
        each = max(ceil(count / floor(node.gpus)) for node, count in zip(fitting, counts, strict=True))
        gpus = floor(1e4 / each) / 1e4
    workers = sum(_count(node, memory, gpus, cpus, None) for node in fitting)
    return WorkerPlacement(min(workers, limits.workers or workers), cpus, gpus, memory)


def _count(node: Node, memory: int, share: float, cpus: int, wanted: int | None) -> int:
    """Return the number of workers on a node, at least 1."""
    fits = min(floor(node.cpus / cpus), floor(node.memory_bytes / memory))
    if share:
        fits = min(fits, floor(node.gpus) * min(_MAX_WORKERS_PER_GPU, floor(1 / share)))
    return max(1, fits if wanted is None else min(fits, wanted))
