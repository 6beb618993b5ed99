"""A Ray cluster of its own for tests: prints its address, then obeys lines `add` and `remove`; ends with its input.

`add` brings a machine with one more CPU, `remove` takes it away as if it had lost its power. Ends all it started.
"""

from __future__ import annotations

import os
import sys

SLOW_MACHINE = {"RAY_prestart_worker_first_driver": "0", "RAY_worker_register_timeout_seconds": "600"}


def serve(num_cpus: int) -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0", **SLOW_MACHINE}
    from ray.cluster_utils import Cluster

    machine = {"include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus, **machine})
    more = None
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "add":
                more = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
            elif more is not None:
                cluster.remove_node(more, allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
