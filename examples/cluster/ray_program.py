"""Runs the checks of two_nodes.py on the workers of Ray Train, in a process group of dlslime.

    python examples/cluster/ray_program.py          # on this machine, without a cluster
    ray job submit --working-dir examples/cluster -- python ray_program.py --workers 16

On a cluster, every node needs torch and dlslime-backend. Tested with Ray 2.60.0 (`ray[train]`).
"""

import argparse

import two_nodes  # examples/cluster/two_nodes.py
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def main() -> None:
    """Start the workers, and print the report; raises if a worker fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="number of ranks (default: 2)")
    workers = parser.parse_args().workers
    trainer = TorchTrainer(
        two_nodes.check,
        # Ray passes the name to init_process_group, and destroys the group at the end.
        torch_config=TorchConfig(backend="dlslime"),
        # SPREAD: workers on as many nodes as possible. The default, PACK, fills a node first.
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
    )
    print(trainer.fit().return_value)  # of rank 0


if __name__ == "__main__":
    main()
