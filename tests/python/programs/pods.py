"""A process of a pod, run by test_pods: pods.py RANK FOLDER CASE, which prints results as JSON.

The process has a network without any interface, so the store is a file in FOLDER.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

import dlslime_backend
from patterns import blank, expect_pattern, pattern

SIZES = [1, 65_535, 65_536, 65_537, (1 << 20) + 3, 16 << 20]
PATIENCE = datetime.timedelta(seconds=50)


def _await(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} has not come"
        time.sleep(0.01)


def _meet(rank: int, folder: Path, name: str) -> None:
    """Wait until both ranks have come here."""
    (folder / f"{name} {rank}").touch()
    _await(folder / f"{name} {1 - rank}")


def messages(rank: int) -> None:
    """Exchange messages of many sizes, in both directions at once."""
    for number, nbytes in enumerate(SIZES):
        got = blank(nbytes)
        receive = dist.irecv(got, 1 - rank)
        dist.send(pattern(nbytes, 2 * number + rank), 1 - rank)
        receive.wait()
        expect_pattern(got, 2 * number + 1 - rank)


def _handles(rank: int, folder: Path, regions: list[dlslime_backend.Region]) -> list[bytes]:
    """Return the handles of the peer's regions for those of ours."""
    part = folder / f"part {rank}"
    part.write_text(json.dumps([region.export().hex() for region in regions]))
    part.rename(folder / f"handles {rank}")
    theirs = folder / f"handles {1 - rank}"
    _await(theirs)
    return [bytes.fromhex(text) for text in json.loads(theirs.read_text())]


def one_sided(rank: int, folder: Path) -> None:
    """Read from and write to registered memory of the peer."""
    nbytes = (1 << 20) + 3
    room, got = blank(nbytes), blank(nbytes)
    ours, target, here = map(dlslime_backend.register, (pattern(nbytes, rank), room, got))
    handles = _handles(rank, folder, [ours, target])
    their_ours, their_target = map(dlslime_backend.import_region, handles)
    peer = dlslime_backend.peer(1 - rank)
    peer.read(here, their_ours).wait()
    expect_pattern(got, 1 - rank)
    peer.write(ours, their_target).wait()
    _meet(rank, folder, "written")
    expect_pattern(room, 1 - rank)


def traffic(rank: int, folder: Path) -> dict[str, Any]:
    """Exchange messages, and access each other's memory."""
    messages(rank)
    one_sided(rank, folder)
    return {"explain": dlslime_backend.explain(1 - rank)}


def gpus(rank: int, folder: Path) -> dict[str, Any]:
    """Exchange messages between memory of GPUs until no processor copies them."""
    from gpus import exchange_until_direct, use

    use()
    exchange_until_direct(rank, 1 - rank)
    return {"explain": dlslime_backend.explain(1 - rank)}


def forking(rank: int, folder: Path) -> dict[str, Any]:
    """Fork a child that ends as a program does, before the two ranks connect."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 7, status
    _meet(rank, folder, "forked")
    return traffic(rank, folder)


def refused(rank: int, folder: Path) -> dict[str, Any]:
    """Fail to reach the peer."""
    _meet(rank, folder, "begin")
    try:
        dist.recv(blank(1), 1 - rank)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": "none"}


def waiting(rank: int, folder: Path) -> dict[str, Any]:
    """Live until the program is killed."""
    print("waiting", flush=True)
    time.sleep(3600)
    return {}


CASES = {case.__name__: case for case in (traffic, gpus, forking, refused, waiting)}


def main(rank: int, folder: Path, case: str, end: str = "destroy") -> None:
    """Play a rank of a group of two."""
    dist.init_process_group(
        "dlslime",
        store=dist.FileStore(str(folder / "store"), 2),
        rank=rank,
        world_size=2,
        timeout=PATIENCE,
    )
    names = os.environ.get("DLSLIME_RENDEZVOUS_DIR") or os.environ.get("NVIDIA_DRA_LOCAL_IPC_DIR")
    sockets = [p.name for p in Path(names).iterdir() if p.is_socket()] if names else []
    result = CASES[case](rank, folder)
    if case != "refused":
        _meet(rank, folder, "end")
    if end == "destroy":
        dist.destroy_process_group()
    print(json.dumps({"pid": os.getpid(), "sockets": sockets, **result}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
