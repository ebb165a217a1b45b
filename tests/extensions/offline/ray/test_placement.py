"""The resources of workers on Ray, by measured needs and by the nodes."""

import pytest

from extensions.offline.contract import RunFailed
from extensions.offline.ray.placement import Limits, Node, WorkerNeeds, WorkerPlacement, place_workers

GIB = 1024**3


@pytest.mark.parametrize(
    ("needs", "nodes", "limits", "expected"),
    [
        # A worker for each CPU.
        (WorkerNeeds(GIB // 5), [Node(4, 8 * GIB)], Limits(), (4, 1, 0)),
        # The memory holds two: each has half of the CPUs.
        (WorkerNeeds(3 * GIB), [Node(8, 8 * GIB)], Limits(), (2, 4, 0)),
        (WorkerNeeds(GIB // 5), [Node(8, 8 * GIB)], Limits(workers=1), (1, 8, 0)),
        (WorkerNeeds(GIB // 5), [Node(8, 8 * GIB)], Limits(workers=2, cpus=1), (2, 1, 0)),
        # The node without the memory gets none.
        (WorkerNeeds(GIB), [Node(4, 8 * GIB), Node(4, GIB)], Limits(), (4, 1, 0)),
        # Two fit in the memory of a GPU.
        (WorkerNeeds(GIB, 0.35), [Node(8, 64 * GIB, 2), Node(8, 64 * GIB)], Limits(), (4, 1, 0.5)),
        (WorkerNeeds(GIB, 0.9), [Node(8, 64 * GIB, 2)], Limits(), (2, 1, 1)),
    ],
)
def test_workers_fill_nodes(
    needs: WorkerNeeds, nodes: list[Node], limits: Limits, expected: tuple[int, int, float]
) -> None:
    placement = place_workers(needs, nodes, limits)
    assert (placement.workers, placement.cpus, placement.gpus) == expected
    assert placement.memory_bytes == needs.host_bytes * 1.25


def test_model_without_node_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"expected a node with 1 CPU, 2\.5 GiB and a GPU, got none"):
        place_workers(WorkerNeeds(2 * GIB, 0.5), [Node(4, 16 * GIB)], Limits())


def test_placement_says_resources() -> None:
    assert WorkerPlacement(2, 1, 0.5, GIB).describe() == "up to 2 workers, each with 1 CPU, 0.5 GPU and 1 GiB"
