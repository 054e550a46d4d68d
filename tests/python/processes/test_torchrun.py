"""Under torchrun: the launcher's own store, environment and restarts."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import BACKEND, dlslime_only

JOB = """
import os, sys, torch, torch.distributed as dist

def main():
    dist.init_process_group(backend=sys.argv[1])
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size

    data, received = torch.full((1000,), float(rank)), torch.empty(1000)
    ops = [dist.P2POp(dist.isend, data, following), dist.P2POp(dist.irecv, received, previous)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert bool((received == previous).all())

    large = torch.full((2_000_000,), float(rank))
    into = torch.empty(2_000_000)
    if rank % 2 == 0:
        dist.send(large, following)
        assert dist.recv(into, previous) == previous
    else:
        assert dist.recv(into, previous) == previous
        dist.send(large, following)
    assert bool((into == previous).all())

    total = torch.ones(5)
    dist.all_reduce(total)
    assert total.tolist() == [size] * 5
    dist.barrier()
    sys.stdout.write(f"rank {rank} done\\n")
    sys.stdout.flush()
    dist.barrier()  # torchrun ends the others when one fails
    {crash}
    dist.destroy_process_group()

main()
"""

# The first attempt ends badly with connections made; its keys stay in the store.
CRASH = 'assert rank != 1 or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0", "crash"'


def torchrun(
    script: Path, size: int, *options: str, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `script` in `size` ranks on this host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", str(size), *options, str(script), BACKEND],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("size", [2, 4])
def test_torchrun_job(tmp_path: Path, size: int) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("{crash}", ""))
    done = torchrun(script, size)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {r} done" for r in range(size)]


@dlslime_only  # Gloo meets its own stale keys
def test_torchrun_restart_with_the_first_attempts_keys_in_the_store(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("{crash}", CRASH))
    done = torchrun(script, 2, "--max-restarts", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 done"] * 2 + ["rank 1 done"] * 2
