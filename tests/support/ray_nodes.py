"""Run a Ray cluster of several nodes on loopback, as a child process of the tests.

`python -m tests.support.ray_nodes NODES CPUS` prints the address of the head. It then reads commands, and answers each
with a line: `kill` ends a node other than the head at once, `add` starts another one. The end of standard input stops
the cluster.
"""

import os
import sys

_OBJECT_STORE_BYTES = 80 * 1024**2
# Ray replaces 127.0.0.1 by another address of the machine when a process connects to it.
_LOOPBACK = "127.0.0.2"


def main() -> None:
    """Run until standard input ends."""
    # Each worker would preload as many more as the machine has CPUs.
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    os.environ["RAY_DEDUP_LOGS"] = "0"
    from ray.cluster_utils import Cluster

    nodes, cpus = int(sys.argv[1]), float(sys.argv[2])
    cluster = Cluster(initialize_head=False)

    def add() -> None:
        cluster.add_node(
            num_cpus=cpus,
            object_store_memory=_OBJECT_STORE_BYTES,
            node_ip_address=_LOOPBACK,
            include_dashboard=False,
            dashboard_host=_LOOPBACK,
            # They would compete with the node's agents, which have 15 s for their start.
            no_monitor=True,
            include_log_monitor=False,
        )

    for _ in range(nodes):
        add()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line == "kill\n":
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        else:
            add()
        print("done", flush=True)
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
